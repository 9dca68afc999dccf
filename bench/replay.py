"""Run the collectives of a recorded training job again, with the job's sizes, groups, order and gaps.

`linkbench job replay` condenses the traces of a job into a plan file and runs this plan. The row `step` shows the
duration of a whole step. Each type of exchange has a row, which shows the time from the last rank's arrival to the end.
For comparison, the results also contain the times of the recorded job. Between exchanges, a rank sleeps, spins or
multiplies matrices as long as the job computed.

If this launch has fewer ranks than the job had, each group keeps only the members that are replayed. The plan
determines the rows. Before a plan file is read, code that needs a size assumes an allreduce.

    torchrun --nproc-per-node 2 -m bench.replay --plan plan.json
    mpirun -n 4 python -m bench.replay --plan plan.json --compute spin
"""

from __future__ import annotations

from bench.core.pattern import AllReducePattern


class Replay(AllReducePattern):
    """Each rank runs the exchanges of a plan file in order, and computes between the exchanges."""

    name = "replay"
    replays = True
    in_place = False
    min_ranks = 2
    factors = frozenset({"plan", "compute"})


PATTERN = Replay()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
