"""The root sends a different block to every other rank at the same time.

S is the total that the root sends. The root sends n - 1 equal blocks of S/(n-1) bytes, each a multiple of 16 bytes. All
blocks leave through the root's only port, so the bus factor is 1. Together with the opposite pattern, `incast`, this
pattern shows whether a port is equally fast in both directions. The pattern `fanout` also shows how a switch handles
one sender with many receivers.

    mpirun -n 16 python -m bench.fanout -b 1K -e 64M
    torchrun --nproc-per-node 8 -m bench.fanout --sizes 256M --root 3
"""

from __future__ import annotations

from bench.core.pattern import MessagePattern, Shape
from bench.core.program import Exchange, Message, Step
from bench.core.sweep import round_blocks


class FanOut(MessagePattern):
    """The root sends S, and every other rank receives S/(n-1)."""

    name = "fanout"
    rooted = True

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Return S, the bytes of n - 1 equal blocks. Each block is a multiple of 16 bytes."""
        return round_blocks(requested_bytes, max(shape.num_ranks - 1, 1))

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the bytes to send and to receive. The root only sends, and the other members only receive."""
        return (shape.payload_bytes, 0) if member == shape.root else (0, self._block(shape))

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one exchange, in which the root posts all sends together, in member order."""
        block = self._block(shape)
        if member != shape.root:
            return (Exchange(recvs=(Message(shape.root, block),)),)
        others = (other for other in range(shape.num_ranks) if other != member)
        return (Exchange(sends=tuple(Message(other, block, slot * block) for slot, other in enumerate(others))),)

    def _block(self, shape: Shape) -> int:
        return shape.payload_bytes // (shape.num_ranks - 1)


PATTERN = FanOut()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
