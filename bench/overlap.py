"""Every rank runs an allreduce, first alone and then at the same time as matrix products, as in a training step.

S is one rank's buffer, and the bus factor is 2(n-1)/n, as for allreduce. Blocks of three kinds alternate: the allreduce
alone, the products alone, and both started together. They give two results: how much the products slow down the
allreduce, and how much the allreduce slows down the products. The row shows the time of the allreduce with products. In
isolated mode a sample is one allreduce, in pipelined mode several back to back.

The matrices are multiplied in bfloat16 on GPUs and in float32 on hosts. For each size, the benchmark chooses the order
of the matrices so that a product takes about a quarter of the time of one allreduce (rank/overlap.py), and records it.
At least two ranks are needed, because one rank alone moves no bytes.

    torchrun --nproc-per-node 8 -m bench.overlap --sizes 64M
    torchrun --nproc-per-node 2 -m bench.overlap --transport gloo --sizes 1M --mode isolated
"""

from __future__ import annotations

from bench.core.pattern import AllReducePattern


class OverlapPattern(AllReducePattern):
    """Each rank sends S, receives S and multiplies matrices at the same time; every rank gets the whole reduction."""

    name = "overlap"
    overlaps = True
    min_ranks = 2


PATTERN = OverlapPattern()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
