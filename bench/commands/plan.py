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
from bench.core.wrapping import PIPED_WIDTH, wrapped
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
        text = words(planned.plan, output.page_width(args))
    output.emit(text, args)
    return EXIT_DONE


def words(planned: Plan, width: int = PIPED_WIDTH) -> str:
    """Return the plan as text that consists of comments and shell commands.

    Users can paste this text into a shell, or into sbatch if Slurm must start the ranks. `width`: the number of
    characters in a line. Commands are not wrapped.
    """
    what = "modelled on" if planned.modelled else "on"
    lines = []
    if batch.needed(planned.jobs, os.environ):
        lines.append(batch.script(planned.jobs, planned.cluster, []))
    comments = [f"scenario {planned.scenario} {what} cluster {planned.cluster.name}: {len(planned.jobs)} jobs"]
    comments += [estimate(planned), *(remark.text for remark in planned.remarks)]
    lines += [part for comment in comments for part in wrapped(comment, width, "#   ", "# ")]
    for job in planned.jobs:
        lines += ["", f"# {job.name}: {_rows(job)}, about {format_duration(job.estimate_s)}", masked_text(job.script())]
    if planned.skipped:
        lines.append("")
    for skip in planned.skipped:
        lines += wrapped(f"skipped: {skip.what}: {skip.reason.text}", width, "#   ", "# ")
    return "\n".join(lines)


def _rows(job: Job) -> str:
    rounds = f" in {job.num_rounds:,} rounds of groups at a time" if job.num_rounds > 1 else ""
    return f"{job.num_rows:,} rows{rounds}"


def estimate(planned: Plan) -> str:
    """Return one line with the estimated total time and the budget for measuring."""
    budget = f"; budget for measuring {format_duration(planned.budget_s)} per launch" if planned.budget_s else ""
    return f"estimate: {format_duration(planned.estimate_s)} in all, including the start of ranks{budget}"
