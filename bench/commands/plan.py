"""Show what `run` would do: the exact commands, what is skipped and why, and how long it takes. Starts nothing."""

from __future__ import annotations

import argparse
import os

from bench.commands import _plan
from bench.controller import batch
from bench.controller.jobs import Job, Plan
from bench.controller.run import to_plain
from bench.core.errors import EXIT_DONE
from bench.core.units import format_duration
from bench.results import output
from bench.results.table import as_json


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench plan`."""
    _plan.add_plan_arguments(parser)
    output.add_output_arguments(parser, formats=("table", "json"))


def main(args: argparse.Namespace) -> int:
    """Print the plan."""
    planned = _plan.planned(args)
    if args.format == "json":
        text = as_json({"schema": "bench.plan/1", **to_plain(planned.plan, planned.scenario.text)})
    else:
        text = words(planned.plan)
    output.emit(text, args)
    return EXIT_DONE


def words(plan: Plan) -> str:
    """The plan as text: comments, then shell lines that can be pasted, or given to sbatch where Slurm starts ranks."""
    what = "modelled on" if plan.modelled else "on"
    lines = [batch.script(plan.jobs, plan.cluster, [])] if batch.wanted(plan.jobs, os.environ) else []
    lines += [f"# scenario {plan.scenario} {what} cluster {plan.cluster.name}: {len(plan.jobs)} jobs"]
    lines += [f"# {note}" for note in plan.notes]
    for job in plan.jobs:
        lines += ["", f"# {job.name}: {_rows(job)}, about {format_duration(job.estimate_s)}", job.script()]
    lines += [""] if plan.skipped else []
    lines += [f"# skipped: {skip.what}: {skip.reason}" for skip in plan.skipped]
    lines += ["", estimate(plan)]
    return "\n".join(lines)


def _rows(job: Job) -> str:
    rounds = f" in {job.num_rounds:,} rounds of groups at a time" if job.num_rounds > 1 else ""
    return f"{job.num_rows:,} rows{rounds}"


def estimate(plan: Plan) -> str:
    """One line: how long everything takes, and how much of it is measuring."""
    budget = f"; budget for measuring {format_duration(plan.budget_s)} a launch" if plan.budget_s else ""
    return f"# estimate: {format_duration(plan.estimate_s)} in all, starting of ranks included{budget}"
