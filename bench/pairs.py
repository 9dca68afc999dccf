"""Every pair of ranks exchanges messages, in rounds of disjoint pairs that run at the same time.

S is one message. With the circle method, N ranks need N - 1 rounds of N/2 pairs, and each pair occurs once. Each pair
runs the program of `pingpong`. In isolated mode, t is half a round trip. In pipelined mode, several messages (a window)
are in flight at the same time. With `--direction two-way`, both members send at the same time. If no two pairs of a
round share a link, each link carries only the messages of one pair. A slow link is then visible.

A message crosses each of the two ports once, so the bus factor is 1 for each pair and direction.

    mpirun -n 8 python -m bench.pairs --sizes 4M --direction two-way
    mpirun -n 8 python -m bench.pairs --sizes 8 --mode isolated
"""

from __future__ import annotations

from bench.core.pattern import PairPattern


class Pairs(PairPattern):
    """Every pair of ranks runs the program of `pingpong`."""

    name = "pairs"
    topology = "pairs"


PATTERN = Pairs()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
