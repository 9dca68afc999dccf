"""Every rank sends a block to every rank. A matrix of weights gives the size of each block.

The option `--matrix` sets the weights, one row after the other. The element in row i and column j is the weight of the
block that rank i sends to rank j. Without `--matrix`, the block from rank i to rank j has the weight ((j - i) mod n) +
1. Every rank then sends and receives the same number of bytes. S is the largest number of bytes that any rank sends or
receives. A block is a multiple of 16 bytes, in proportion to its weight, and has at least 16 bytes if its weight is
above zero. The benchmark uses the largest blocks that fit the requested size.

The bus factor is (n-1)/n by nccl-tests' convention. The bus factor of alltoallv is exact only if all blocks are equal.
The bound counts only the bytes that cross the boundary of a rank or node.

    mpirun -n 4 python -m bench.alltoallv -b 1K -e 64M
    mpirun -n 3 python -m bench.alltoallv --sizes 16M --matrix "0,1,1;8,0,1;8,1,0"
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import accumulate

from bench.core.pattern import Pattern, Shape, busiest_boundary
from bench.core.program import Collective, Copied, Expected, Step
from bench.core.record import Skip
from bench.core.skips import SkipCode

Matrix = tuple[tuple[int, ...], ...]  # [sender][receiver]

# 16 bytes hold whole elements of every type, as in the other patterns.
BLOCK_BYTES = 16


class AllToAllV(Pattern):
    """The matrix of blocks has one row for each sender and one column for each receiver."""

    name = "alltoallv"

    def needs(self, shape: Shape) -> Skip | None:
        """Check that the matrix has one row and one column for each rank. A missing matrix is allowed."""
        num_ranks, matrix = shape.num_ranks, shape.matrix
        if matrix and {num_ranks} != {len(matrix), *map(len, matrix)}:
            return Skip.of(SkipCode.MATRIX_SIZE, num_rows=len(matrix), num_ranks=num_ranks)
        return super().needs(shape)

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Return S in bytes for blocks that fit the requested size: the largest row or column sum of the blocks."""
        if self.needs(shape) is not None:
            return super().payload(requested_bytes, shape)
        return _largest_line(_blocks(shape.num_ranks, shape.matrix, requested_bytes))

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return how many bytes this member sends (the sum of its row) and receives (the sum of its column)."""
        sent, received = self._split(shape, member)
        return sum(sent), sum(received)

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one alltoallv call."""
        sent, received = self._split(shape, member)
        return (Collective(self.name, sum(sent), sum(received), send_split=sent, recv_split=received),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the blocks that the members send to this member. The blocks are contiguous and in member order."""
        blocks = _blocks(shape.num_ranks, shape.matrix, shape.payload_bytes)
        _, received = self._split(shape, member)
        offsets = accumulate(received, initial=0)
        return tuple(
            Copied(source, sum(blocks[source][:member]), num_bytes, offset)
            for source, (num_bytes, offset) in enumerate(zip(received, offsets, strict=False))
            if num_bytes
        )

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return the largest number of bytes that enter or leave any of `num_parts` equal parts of the ranks.

        A network cannot combine blocks.
        """
        blocks = _blocks(shape.num_ranks, shape.matrix, shape.payload_bytes)
        flows = ((i, j, num_bytes) for i, row in enumerate(blocks) for j, num_bytes in enumerate(row))
        return busiest_boundary(flows, shape.num_ranks, num_parts)

    def bus_factor(self, shape: Shape) -> float | None:
        """Return (n-1)/n for any weights, as nccl-tests does."""
        return (shape.num_ranks - 1) / shape.num_ranks if shape.num_ranks > 1 else None

    def _split(self, shape: Shape, member: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        blocks = _blocks(shape.num_ranks, shape.matrix, shape.payload_bytes)
        return blocks[member], tuple(row[member] for row in blocks)


@lru_cache(maxsize=64)
def _blocks(num_ranks: int, matrix: Matrix, most_bytes: int) -> Matrix:
    """Return the largest blocks such that no row and no column of blocks has more than `most_bytes` in total.

    If even the smallest blocks exceed `most_bytes`, return the smallest blocks. One scale determines the size of all
    blocks. The size of a block in bytes is `16 * floor(scale * weight / (16 * M))`, where M is the largest row or
    column sum of the weights. If several scales give the same payload, the function uses the smallest scale. Therefore
    `payload(payload(x)) == payload(x)`.
    """
    ranks = range(num_ranks)
    weights = matrix or tuple(tuple((j - i) % num_ranks + 1 for j in ranks) for i in ranks)
    unit = BLOCK_BYTES * _largest_line(weights)
    lines = {tuple(sorted(line)) for line in (*weights, *zip(*weights, strict=True))}

    def line_bytes(scale: int) -> int:
        return max(sum(_block(scale, weight, unit) for weight in line) for line in lines)

    # Rounding down takes less than 16 bytes from each block, so a scale beyond `scales` would exceed `most_bytes`.
    most_bytes = max(most_bytes, line_bytes(0))
    scales = range(most_bytes + BLOCK_BYTES * num_ranks + 1)
    payload = line_bytes(bisect_right(scales, most_bytes, key=line_bytes) - 1)
    scale = bisect_left(scales, payload, key=line_bytes)
    return tuple(tuple(_block(scale, weight, unit) for weight in row) for row in weights)


def _block(scale: int, weight: int, unit: int) -> int:
    return BLOCK_BYTES * max(scale * weight // unit, 1) if weight else 0


def _largest_line(matrix: Matrix) -> int:
    return max(map(sum, (*matrix, *zip(*matrix, strict=True))))


PATTERN = AllToAllV()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
