"""At the end, every rank has the blocks of all ranks, in rank order.

S is the size of the whole output, which consists of n blocks of S/n. Each rank receives the n - 1 blocks of the other
ranks through its port. The n - 1 blocks of the other ranks have (n-1)/n S bytes. The bus factor is (n-1)/n, as in
nccl-tests. If the ranks are divided into N equal parts, the other N - 1 parts send (N-1)/N S to each part.

    mpirun -n 16 python -m bench.allgather -b 1K -e 64M
    mpirun -n 16 python -m bench.allgather --sizes 1M --order interleaved
"""

from __future__ import annotations

from bench.core.pattern import BlockPattern, Shape
from bench.core.program import Collective, Copied, Expected, Step


class AllGather(BlockPattern):
    """Each rank sends S/n and receives S."""

    name = "allgather"
    in_place = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the size of one block (to send) and of all blocks (to receive), in bytes."""
        return shape.block_bytes, shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one collective call."""
        return (Collective(self.name, *self.buffers(shape, member)),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the expected blocks. Block m has the data that member m sent."""
        block = shape.block_bytes
        return tuple(Copied(source, 0, block, source * block) for source in range(shape.num_ranks))


PATTERN = AllGather()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
