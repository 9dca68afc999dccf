"""Every rank sends a different block to every rank.

S is one rank's whole send buffer, which has n blocks of S/n bytes. The rank keeps one block. The other n - 1 blocks
leave through the rank's port, so each port carries (n-1)/n S in each direction. The bus factor is (n-1)/n, as in
nccl-tests. The network cannot combine blocks on the way. If the ranks are divided into N equal parts, a part has m =
n/N ranks. Each rank sends the fraction (N-1)/N of its buffer to other parts. A part therefore sends m (N-1)/N S in
total. An alltoall therefore loads a network more than any other collective does.

    mpirun -n 16 python -m bench.alltoall -b 1K -e 64M
    mpirun -n 16 python -m bench.alltoall --sizes 16M --topology rail
"""

from __future__ import annotations

from bench.core.pattern import BlockPattern, Shape
from bench.core.program import Collective, Copied, Expected, Step


class AllToAll(BlockPattern):
    """Each rank sends S and receives S. Block j of member i becomes block i of member j."""

    name = "alltoall"

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the size of the send buffer and of the receive buffer. Each buffer has one block for each member."""
        return shape.payload_bytes, shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one collective call."""
        return (Collective(self.name, *self.buffers(shape, member)),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the block that each member sends to this member."""
        block = shape.block_bytes
        return tuple(Copied(source, member * block, block, source * block) for source in range(shape.num_ranks))

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return (n/N) S (N-1)/N. Each of the n/N ranks of a part sends (N-1)/N S to the other parts."""
        return shape.num_ranks / num_parts * super().crossing(shape, num_parts)


PATTERN = AllToAll()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
