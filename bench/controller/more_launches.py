"""Add launches to a run, one at a time, until the caller has enough. The run's plan grows with each launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.controller import plan
from bench.controller.plan import PlanRequest
from bench.controller.run import RunContext, RunResult, measure_more
from bench.store import runs


def more_launches(
    request: PlanRequest, folder: Path, most: int, context: RunContext
) -> Iterator[tuple[int, RunResult]]:
    """Measure launches 2, 3, ... of every job.

    After each launch, yields the number of launches and the failures so far.
    """
    for launch in range(2, most + 1):
        planned = plan.make(replace(request, launches=launch))
        runs.write_plan(folder, planned.plan.to_plain(planned.scenario.text))
        jobs = [job for job in planned.plan.jobs if job.launch == launch]
        yield launch, measure_more(jobs, folder, context)
