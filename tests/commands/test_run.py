"""What `bench run` says of a run that came to nothing."""

from __future__ import annotations

from pathlib import Path

from bench.commands import run
from bench.driver.run import Ran


def test_a_reason_that_jobs_share_is_told_once() -> None:
    what = "no rank said why; its output is in results/1/{}.log"
    ran = Ran(Path("results/1"), {job: what.format(job) for job in ("a-mpi-1x2", "b-mpi-1x2")})
    assert str(run.nothing(ran)) == (
        "nothing was measured: no rank said why; its output is in results/1/*.log (logs are in results/1)"
    )
