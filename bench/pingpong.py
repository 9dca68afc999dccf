"""Members 0 and 1 of a group send each other messages. All other members do nothing.

S is one message. `--mode isolated` is the classic ping-pong. In this mode, t is half of the round trip. `--mode
pipelined` sends W messages back to back, and waits for one small acknowledgement at the end. In this mode, t is the
total time divided by W. W is `--window`. If W messages would exceed 64 MiB, W is the largest number of messages that
fits. With `--direction two-way`, both members send at the same time.

A message crosses each of the two ports once, so the bus factor is 1. The bandwidth is the bandwidth of one direction,
even with `--direction two-way`. If nodes have several ranks, members 0 and 1 are on the same node. If several ranks
share a node, `--topology rail` measures ranks of different nodes, and `--topology pairs` measures all pairs.

    mpirun -n 2 python -m bench.pingpong -b 8 -e 4M
    mpirun -n 2 python -m bench.pingpong --sizes 1M --mode pipelined --direction two-way
"""

from __future__ import annotations

from bench.core.pattern import PairPattern


class PingPong(PairPattern):
    """In each requested group, members 0 and 1 exchange messages."""

    name = "pingpong"


PATTERN = PingPong()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
