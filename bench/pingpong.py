"""Members 0 and 1 of a group send each other messages; the others do nothing.

S is one message. `--mode isolated` is the classic ping-pong: there and back, and t is half the round trip. `--mode
pipelined` keeps W messages in flight and then waits for one small acknowledgement: t is that time over W, with W =
`--window`, less where W messages would exceed 64 MiB. `--direction two-way` lets both send at once.

A message crosses each of the two ports once, so the bus factor is 1. Two-way bandwidth is per direction as well, not
the sum of both. Members 0 and 1 are neighbours on one node where nodes hold several ranks: `--topology rail` puts ranks
of different nodes there, `pairs` measures all pairs.

    mpirun -n 2 python -m bench.pingpong -b 8 -e 4M
    mpirun -n 2 python -m bench.pingpong --sizes 1M --mode pipelined --direction two-way
"""

from __future__ import annotations

from bench.core.pattern import PairPattern


class PingPong(PairPattern):
    """The two-member program, on whatever groups were asked for."""

    name = "pingpong"


PATTERN = PingPong()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
