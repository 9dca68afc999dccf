"""Every rank joins an allreduce, alone and while products of matrices run beside it, as in a step of training.

S is one rank's buffer and the bus factor 2(n-1)/n, as of allreduce. Blocks of three kinds take turns: the allreduce
alone, products alone, and both at once, released together. Two results come of it: by how much the products slow the
allreduce down, and by how much the allreduce slows the products down while it lasts. The time of the row is that of the
allreduce beside the products. In isolated mode it is one call at a time, pipelined several one after the other.

The matrices multiply themselves in bfloat16 on GPUs, in float32 on hosts; their order is chosen at each size so that a
product takes about a quarter of one allreduce (rank/overlap.py), and is recorded. One rank alone moves no bytes: there
must be two.

    torchrun --nproc-per-node 8 -m bench.overlap --sizes 64M
    torchrun --nproc-per-node 2 -m bench.overlap --transport gloo --sizes 1M --mode isolated
"""

from __future__ import annotations

from bench.core.pattern import AllReducePattern


class OverlapPattern(AllReducePattern):
    """Send S, receive S; everybody gets the whole reduction, and computes meanwhile."""

    name = "overlap"
    overlaps = True
    min_ranks = 2


PATTERN = OverlapPattern()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
