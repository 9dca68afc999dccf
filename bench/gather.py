"""At the end, the root has the blocks of all ranks, in rank order.

S is the root's whole output: n blocks of S/n. All blocks except the root's own block enter through the root's port. The
root's port therefore carries (n-1)/n S. Every other port carries less. The bus factor is (n-1)/n, as in nccl-tests. If
N nodes have equally many ranks, the root's node receives (N-1)/N S, the blocks of the other N - 1 nodes.

    mpirun -n 16 python -m bench.gather -b 1K -e 64M
    mpirun -n 16 python -m bench.gather --sizes 16M --root 5
"""

from __future__ import annotations

from bench.core.pattern import BlockPattern, Shape
from bench.core.program import Collective, Copied, Expected, Step


class Gather(BlockPattern):
    """Every rank sends S/n, and the root receives S."""

    name = "gather"
    rooted = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the size of one block (to send), and at the root the size of all blocks (to receive), in bytes."""
        return shape.block_bytes, shape.payload_bytes if member == shape.root else 0

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one collective call."""
        return (Collective(self.name, *self.buffers(shape, member), root=shape.root),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the expected data. At the root, block m is the block that member m sent."""
        if member != shape.root:
            return ()
        block = shape.block_bytes
        return tuple(Copied(source, 0, block, source * block) for source in range(shape.num_ranks))


PATTERN = Gather()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
