"""Member 0 of each pair sends one message to member 1; every pair of ranks is measured in both directions.

S is one message. The time begins on the sender once the receiver is ready, and ends on the receiver when all bytes have
arrived. `--mode pipelined` sends W messages (`--window`, fewer if W messages would exceed 64 MiB) without an
acknowledgement; t is that time divided by W.

Ranks of one host read one clock. Clocks of different hosts are compared before and after each chunk of samples by
round-trip messages. How long each direction of a round trip took is unknown, so the interval of a row is widened by the
comparison's error bound: about half of the shortest round trip. A row whose error bound exceeds 10 % of its time is
marked `clock-limited` and has no bandwidth. The sum of both directions of a pair does not depend on clocks.

A message crosses each of the two ports once, so the bus factor is 1.

    mpirun -n 2 python -m bench.oneway -b 8 -e 4M
    mpirun -n 4 python -m bench.oneway --sizes 1M --mode isolated
"""

from __future__ import annotations

from bench.core.pattern import WINDOW_BYTES, MessagePattern, Shape
from bench.core.program import Exchange, Message, Step


class OneWayPattern(MessagePattern):
    """Messages from member 0 to member 1; other members do nothing."""

    name = "oneway"
    topology = "directed pairs"
    one_way = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """S to send; to receive, a separate part of the buffer for each message."""
        if member == 0:
            return shape.payload_bytes, 0
        return 0, shape.payload_bytes * self.operations(shape) if member == 1 else 0

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """All messages posted together."""
        size, numbers = shape.payload_bytes, range(self.operations(shape))
        if member == 0:
            return (Exchange(sends=tuple(Message(1, size) for _ in numbers)),)
        if member == 1:
            return (Exchange(recvs=tuple(Message(0, size, slot * size) for slot in numbers)),)
        return ()

    def operations(self, shape: Shape) -> int:
        """How many messages are in flight at the same time."""
        if shape.mode != "pipelined":
            return 1
        return max(1, min(shape.window, WINDOW_BYTES // shape.payload_bytes))


PATTERN = OneWayPattern()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
