"""Every rank runs an allreduce, alone and while matrix products run at the same time, as in a training step.

S is one rank's buffer, and the bus factor is 2(n-1)/n, as for allreduce. Blocks of three kinds alternate: the allreduce
alone, products alone, and both, released together. They give two results: the slowdown of the allreduce by the
products, and the slowdown of the products by the allreduce. The row's time is that of the allreduce with products. In
isolated mode a sample is one allreduce, in pipelined mode several back to back.

The matrices are multiplied in bfloat16 on GPUs and in float32 on hosts. The order of the matrices is recorded; it is
chosen for each size so that a product takes about a quarter of the time of one allreduce (rank/overlap.py). At least
two ranks are needed, because one rank alone moves no bytes.

    torchrun --nproc-per-node 8 -m bench.overlap --sizes 64M
    torchrun --nproc-per-node 2 -m bench.overlap --transport gloo --sizes 1M --mode isolated
"""

from __future__ import annotations

from bench.core.pattern import AllReducePattern


class OverlapPattern(AllReducePattern):
    """Send S, receive S; every rank gets the whole reduction, and multiplies matrices at the same time."""

    name = "overlap"
    overlaps = True
    min_ranks = 2


PATTERN = OverlapPattern()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
