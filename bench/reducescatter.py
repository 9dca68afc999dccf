"""At the end, every rank has one block of the reduction of all ranks' buffers.

S is the whole input: n blocks of S/n. Each element of the result needs the contributions of n - 1 other ranks. All
ranks together therefore move (n-1) S bytes. Each port carries (n-1)/n S bytes in each direction. The bus factor is
(n-1)/n, as in nccl-tests. A reducescatter is the first half of an allreduce. If the ranks are divided into N equal
parts, each part first reduces its own buffers. Each part then sends (N-1)/N S bytes.

    mpirun -n 16 python -m bench.reducescatter -b 1K -e 64M
    torchrun --nproc-per-node 8 -m bench.reducescatter --transport nccl --sizes 256M -d bfloat16 -o avg
"""

from __future__ import annotations

from bench.core.pattern import BlockPattern, Shape
from bench.core.program import Collective, Expected, Reduced, Step


class ReduceScatter(BlockPattern):
    """Each rank sends S and receives S/n."""

    name = "reducescatter"
    reduces = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the size of all blocks (to send), and the size of one block (to receive), in bytes."""
        return shape.payload_bytes, shape.block_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one collective call."""
        return (Collective(self.name, *self.buffers(shape, member)),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the block of the reduction that has the number of this member."""
        return (Reduced(member * shape.block_bytes, shape.block_bytes),)


PATTERN = ReduceScatter()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
