"""Every rank sends one message to the next rank of a ring and receives a message from the previous rank.

S is one message. In the measured time, each port sends S and receives S, so the bus factor is 1, as in nccl-tests. The
bandwidth counts only one direction, not the sum of both directions. If ranks are numbered node by node, only one
message leaves each node. With `--order interleaved`, every message goes to another node.

    mpirun -n 16 python -m bench.sendrecv -b 8 -e 128M
    mpirun -n 16 python -m bench.sendrecv --sizes 16M --order interleaved
"""

from __future__ import annotations

from bench.core.pattern import MessagePattern, Shape
from bench.core.program import Exchange, Message, Step


class SendRecv(MessagePattern):
    """Each rank sends to the next rank of the ring and receives from the previous rank."""

    name = "sendrecv"

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return S to send and S to receive."""
        return shape.payload_bytes, shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one exchange: a message to the next rank and a message from the previous rank."""
        after, before = (member + 1) % shape.num_ranks, (member - 1) % shape.num_ranks
        return (Exchange((Message(after, shape.payload_bytes),), (Message(before, shape.payload_bytes),)),)


PATTERN = SendRecv()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
