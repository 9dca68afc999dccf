"""Show what `run` would do: the commands, the skipped rows with reasons, and the estimated time. Starts nothing."""

from __future__ import annotations

import argparse
import os

from bench.commands import _plan
from bench.controller import batch, plan
from bench.controller.jobs import Job, Plan
from bench.core.errors import EXIT_DONE
from bench.core.secret_values import masked_text
from bench.core.units import format_duration
from bench.results import output
from bench.results.table import as_json

EXAMPLES = (
    ("linkbench plan main --cluster mine", "the commands that `linkbench run main --cluster mine` would start"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    _plan.add_plan_arguments(parser)
    output.add_output_arguments(parser, formats=("table", "json"))


def main(args: argparse.Namespace) -> int:
    """Print the plan."""
    planned = plan.make(_plan.request(args))
    if args.format == "json":
        text = as_json({"schema": "bench.plan/1", **planned.plan.to_plain(planned.scenario.text)})
    else:
        text = words(planned.plan)
    output.emit(text, args)
    return EXIT_DONE


def words(planned: Plan) -> str:
    """Return the plan as text that consists of comments and shell commands.

    Users can paste this text into a shell, or into sbatch if Slurm must start the ranks.
    """
    what = "modelled on" if planned.modelled else "on"
    lines = []
    if batch.needed(planned.jobs, os.environ):
        lines.append(batch.script(planned.jobs, planned.cluster, []))
    lines.append(f"# scenario {planned.scenario} {what} cluster {planned.cluster.name}: {len(planned.jobs)} jobs")
    lines += [f"# {remark.text}" for remark in planned.remarks]
    for job in planned.jobs:
        lines += ["", f"# {job.name}: {_rows(job)}, about {format_duration(job.estimate_s)}", masked_text(job.script())]
    if planned.skipped:
        lines.append("")
    lines += [f"# skipped: {skip.what}: {skip.reason.text}" for skip in planned.skipped]
    lines += ["", f"# {estimate(planned)}"]
    return "\n".join(lines)


def _rows(job: Job) -> str:
    rounds = f" in {job.num_rounds:,} rounds of groups at a time" if job.num_rounds > 1 else ""
    return f"{job.num_rows:,} rows{rounds}"


def estimate(planned: Plan) -> str:
    """Return one line with the estimated total time and the budget for measuring."""
    budget = f"; budget for measuring {format_duration(planned.budget_s)} per launch" if planned.budget_s else ""
    return f"estimate: {format_duration(planned.estimate_s)} in all, including the start of ranks{budget}"
