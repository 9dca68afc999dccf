"""At the end, every rank has its own block of the root's buffer.

S is the root's whole input: n blocks of S/n. All blocks except the root's own block must leave through the root's port,
which carries (n-1)/n S bytes. Every other port carries less. The bus factor is (n-1)/n, as in nccl-tests. If the ranks
are divided into N equal parts, the part with the root sends the blocks of the other parts: (N-1)/N S bytes in total.

    mpirun -n 16 python -m bench.scatter -b 1K -e 64M
    mpirun -n 16 python -m bench.scatter --sizes 16M --root 5
"""

from __future__ import annotations

from bench.core.pattern import BlockPattern, Shape
from bench.core.program import Collective, Copied, Expected, Step


class Scatter(BlockPattern):
    """The root sends S, and every rank receives S/n."""

    name = "scatter"
    rooted = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return two sizes in bytes: all blocks to send (only at the root), and one block to receive."""
        return shape.payload_bytes if member == shape.root else 0, shape.block_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one collective call."""
        return (Collective(self.name, *self.buffers(shape, member), root=shape.root),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the block of the root's buffer that has the number of this member."""
        return (Copied(shape.root, member * shape.block_bytes, shape.block_bytes),)


PATTERN = Scatter()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
