"""Members 0 and 1 of a group send each other messages; the other members do nothing.

S is one message. `--mode isolated` is the classic ping-pong, and t is half the round trip. `--mode pipelined` keeps W
messages in flight and then waits for one small acknowledgement; t is the whole time divided by W. W is `--window`, or
less if W messages would exceed 64 MiB. With `--direction two-way` both members send at once.

A message crosses each of the two ports once, so the bus factor is 1. Two-way bandwidth is per direction as well, not
the sum of both directions. If nodes have several ranks, members 0 and 1 are on the same node. `--topology rail` then
takes ranks of different nodes, and `--topology pairs` measures all pairs.

    mpirun -n 2 python -m bench.pingpong -b 8 -e 4M
    mpirun -n 2 python -m bench.pingpong --sizes 1M --mode pipelined --direction two-way
"""

from __future__ import annotations

from bench.core.pattern import PairPattern


class PingPong(PairPattern):
    """Members 0 and 1 of each requested group exchange messages."""

    name = "pingpong"


PATTERN = PingPong()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
