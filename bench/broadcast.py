"""After a broadcast, every rank has a copy of the root's buffer.

S is the root's buffer. Every other rank must receive S through its port. The root needs to send S only once, because
the other ranks can forward the data. For any number of ranks, each port carries S in one direction. The bus factor is
therefore 1, as in nccl-tests. If the ranks are divided into N equal parts, each part must receive S once, except the
part that contains the root.

    mpirun -n 16 python -m bench.broadcast -b 8 -e 128M
    mpirun -n 16 python -m bench.broadcast --sizes 64M --root 5
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape, log2_steps
from bench.core.program import Collective, Copied, Expected, Step


class Broadcast(Pattern):
    """The root sends S, and the other ranks receive S."""

    name = "broadcast"
    rooted = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the bytes to send and to receive. The root only sends, and the other members only receive."""
        return (shape.payload_bytes, 0) if member == shape.root else (0, shape.payload_bytes)

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one collective call."""
        return (Collective(self.name, *self.buffers(shape, member), root=shape.root),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the data that the root sent."""
        return () if member == shape.root else (Copied(shape.root, 0, shape.payload_bytes),)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return S, because every part except the root's part receives S bytes from outside."""
        return shape.payload_bytes if num_parts > 1 else 0

    def min_steps(self, num_ranks: int) -> int:
        """Return the smallest number of successive messages after which all other ranks can have the root's data."""
        return log2_steps(num_ranks)


PATTERN = Broadcast()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
