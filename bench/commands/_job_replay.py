"""Run the recorded exchanges of a job, with its gaps, on a cluster, and compare their times with the recorded ones."""

from __future__ import annotations

import argparse
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from bench.commands import run
from bench.commands._say import say
from bench.core.case import COMPUTES
from bench.core.errors import UsageError
from bench.results import output

_BUDGET = "30s"

EXAMPLES = (
    ("linkbench job replay trace/ --cluster lab", "run the exchanges of these traces on a cluster of bench.yaml"),
    ("linkbench job replay trace/ --transport mpi --compute spin", "over MPI on this machine, with busy CPUs"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand to the parser."""
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="traces: files, folders, archives")
    parser.add_argument("--cluster", default="local", help="entry of bench.yaml (default local)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="bench.yaml to read (default ./bench.yaml)")
    parser.add_argument("--transport", default="auto", metavar="NAME", help="gloo, nccl, mpi, or auto (default)")
    parser.add_argument(
        "--compute", choices=COMPUTES, default=COMPUTES[0], help="what replaces the job's compute (default sleep)"
    )
    parser.add_argument("--budget", default=_BUDGET, metavar="TIME", help=f"time limit of a launch ({_BUDGET})")
    parser.add_argument("--launches", metavar="N", help="number of launches (default 1)")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="folder of runs")
    parser.add_argument("--plots", type=Path, default=Path("plots"), metavar="DIR", help="folder of plots")
    parser.add_argument("--no-plots", action="store_true", help="draw nothing")
    parser.add_argument("--no-preflight", action="store_true", help="ask no hosts before the run; ranks still check")
    parser.add_argument("--share-hosts", action="store_true", help="measure beside other benchmarks; every row says so")
    output.add_table_arguments(parser)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Write the plan of the replay, run it, and print its tables. Returns the exit code of `linkbench run`."""
    plan = _written_plan(args)
    with tempfile.TemporaryDirectory(prefix="linkbench-") as folder:
        scenario = Path(folder) / "replay.yaml"
        lines = [
            "description: the exchanges of a recorded job",
            "measure:",
            "  - pattern: replay",
            f"    plan: '{plan}'",
            f"    compute: {args.compute}",
            "    mode: isolated",
            "    sizes: 8",
        ]
        if args.transport != "auto":
            lines.append(f"    transport: {args.transport}")
        scenario.write_text("\n".join(lines) + "\n", encoding="utf-8")
        parser = argparse.ArgumentParser()
        run.arguments(parser)
        return run.main(argparse.Namespace(**{**vars(parser.parse_args([str(scenario)])), **_of_run(args, scenario)}))


def _of_run(args: argparse.Namespace, scenario: Path) -> dict[str, object]:
    """Return the options of `linkbench run` that are also options of this subcommand."""
    own = {"paths", "transport", "compute", "command", "subcommand"}
    return {name: value for name, value in vars(args).items() if name not in own} | {"scenario": str(scenario)}


def _written_plan(args: argparse.Namespace) -> Path:
    """Condense the traces and write the plan beside the runs. Returns its path.

    Raises UsageError if there is no trace, or nothing in it can be replayed.
    """
    from bench.core import replay_plan
    from bench.job import align, replay
    from bench.logs import step_traces

    traces, remarks = step_traces.read(args.paths)
    if not traces:
        why = remarks[0].text if remarks else f"no trace was found in {', '.join(map(str, args.paths))}"
        raise UsageError(why)
    for remark in remarks:
        say(remark.text)
    job = align.job_of(traces)
    condensed = replay.condense(job)
    for remark in (*job.remarks, *condensed.remarks):
        say(remark.text)
    name = f"replay-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}.json"
    path: Path = (args.results / "plans" / name).resolve()
    if "'" in str(path) or "\n" in str(path):
        raise UsageError(f"--results {args.results} must not contain a quote: use another folder")
    replay_plan.write(condensed.plan, path)
    return path
