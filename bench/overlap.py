"""Every rank runs an allreduce, first alone and then at the same time as matrix products, as in a training step.

S is one rank's buffer, and the bus factor is 2(n-1)/n, as for allreduce. Three types of blocks alternate: the allreduce
alone, the products alone, and both started together. A row has two results: how much the products slow down the
allreduce, and how much the allreduce slows down the products. The time of a row is the time of the allreduce in the
blocks where products run as well. In isolated mode, a sample is one allreduce. In pipelined mode, a sample is several
allreduces back to back.

The matrices are multiplied in bfloat16 on GPUs and in float32 on hosts. For each size, the benchmark chooses and
records the order (the number of rows) of the matrices (rank/overlap.py). The benchmark chooses matrices for which one
product takes about a quarter of the time of one allreduce. At least two ranks are needed, because one rank alone moves
no bytes.

    torchrun --nproc-per-node 8 -m bench.overlap --sizes 64M
    torchrun --nproc-per-node 2 -m bench.overlap --transport gloo --sizes 1M --mode isolated
"""

from __future__ import annotations

from bench.core.pattern import AllReducePattern


class OverlapPattern(AllReducePattern):
    """Each rank takes part in an allreduce of S and multiplies matrices at the same time."""

    name = "overlap"
    overlaps = True
    min_ranks = 2


PATTERN = OverlapPattern()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
