"""Run the collectives of a recorded training job again: same sizes, groups and order, with the job's gaps.

`linkbench job replay` condenses the traces of a job into a plan file and runs it. Row `step` is the time of a whole
step, and one row for each kind of exchange is the time from the last arrival to the end. The recorded times are in the
results, too. Compute between exchanges is replaced by sleeping, spinning, or matrix products of the same length.

On fewer ranks than the job had, groups keep those members that are replayed. The rows follow from the plan; where a
size is needed before the plan is read, an allreduce is assumed.

    torchrun --nproc-per-node 2 -m bench.replay --plan plan.json
    mpirun -n 4 python -m bench.replay --plan plan.json --compute spin
"""

from __future__ import annotations

from bench.core.pattern import AllReducePattern


class Replay(AllReducePattern):
    """The exchanges of a plan file, in order, with the work between them."""

    name = "replay"
    replays = True
    in_place = False
    min_ranks = 2
    factors = frozenset({"plan", "compute"})


PATTERN = Replay()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
