"""Member 0 of each pair sends one message to member 1. Every pair of ranks is measured in both directions.

S is one message. The measured time begins on the sender as soon as the receiver is ready. The time ends on the receiver
when all bytes have arrived. `--mode pipelined` sends W messages without an acknowledgement, and t is the total time
divided by W. W is `--window`. If W messages would exceed 64 MiB, W is the largest number of messages that fits.

Ranks of one host read the same clock. For ranks on different hosts, round-trip messages compare the hosts' clocks
before and after each chunk of samples. A round trip shows only the total time of both directions. If two clocks are
compared by round trips, the error bound is therefore about half of the shortest round trip. The interval of a row's
time includes the error bound of the clocks. A row whose error bound exceeds 10 % of its time is marked `clock-limited`
and has no bandwidth. If the times of both directions are added, errors of the clocks cancel out.

A message crosses each of the two ports once, so the bus factor is 1.

    mpirun -n 2 python -m bench.oneway -b 8 -e 4M
    mpirun -n 4 python -m bench.oneway --sizes 1M --mode isolated
"""

from __future__ import annotations

from bench.core.pattern import WINDOW_BYTES, MessagePattern, Shape
from bench.core.program import Exchange, Message, Step


class OneWayPattern(MessagePattern):
    """Member 0 sends messages to member 1. All other members do nothing."""

    name = "oneway"
    topology = "directed pairs"
    one_way = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the bytes to send and to receive. The receive buffer has a separate part for each message."""
        if member == 0:
            return shape.payload_bytes, 0
        return 0, shape.payload_bytes * self.operations(shape) if member == 1 else 0

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one exchange, which contains all messages."""
        size, numbers = shape.payload_bytes, range(self.operations(shape))
        if member == 0:
            return (Exchange(sends=tuple(Message(1, size) for _ in numbers)),)
        if member == 1:
            return (Exchange(recvs=tuple(Message(0, size, slot * size) for slot in numbers)),)
        return ()

    def operations(self, shape: Shape) -> int:
        """Return how many messages of one pair are in flight at the same time."""
        if shape.mode != "pipelined":
            return 1
        return max(1, min(shape.window, WINDOW_BYTES // shape.payload_bytes))


PATTERN = OneWayPattern()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
