"""All ranks send to the root at the same time.

S is the total that the root receives. The n - 1 senders send equal blocks of S/(n-1) bytes, each a multiple of 16
bytes. All blocks enter through the root's port, so the bus factor is 1. The bandwidth is the rate of the root's port
while n - 1 senders compete for this port. Incast is the worst case for a switch's buffers and for congestion control.

    mpirun -n 16 python -m bench.incast -b 1K -e 64M
    mpirun -n 16 python -m bench.incast --sizes 16M --root 5
"""

from __future__ import annotations

from bench.core.pattern import MessagePattern, Shape
from bench.core.program import Exchange, Message, Step
from bench.core.sweep import round_blocks


class Incast(MessagePattern):
    """Every rank except the root sends S/(n-1), and the root receives S."""

    name = "incast"
    rooted = True

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Return S, the bytes of n - 1 equal blocks. Each block is a multiple of 16 bytes."""
        return round_blocks(requested_bytes, max(shape.num_ranks - 1, 1))

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the bytes to send and to receive. The root only receives, and all other members only send."""
        return (0, shape.payload_bytes) if member == shape.root else (self._block(shape), 0)

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return the messages that this member sends or receives.

        The root posts its receive operations in member order.
        """
        block = self._block(shape)
        if member != shape.root:
            return (Exchange(sends=(Message(shape.root, block),)),)
        others = (other for other in range(shape.num_ranks) if other != member)
        return (Exchange(recvs=tuple(Message(other, block, slot * block) for slot, other in enumerate(others))),)

    def _block(self, shape: Shape) -> int:
        return shape.payload_bytes // (shape.num_ranks - 1)


PATTERN = Incast()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
