"""Run the recorded exchanges and gaps of a job on a cluster, and compare the new times with the recorded times."""

from __future__ import annotations

import argparse
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from bench.commands import run
from bench.commands._say import say
from bench.config import clusters, paths
from bench.core.case import COMPUTES
from bench.core.errors import UsageError
from bench.core.option_parsers import whole
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
    words = "ranks on each node (default: the job's, or the cluster's if unknown)"
    parser.add_argument("--ranks-per-node", type=whole(1, "--ranks-per-node"), metavar="N", help=words)
    parser.add_argument("--budget", default=_BUDGET, metavar="TIME", help=f"time limit of a launch ({_BUDGET})")
    parser.add_argument("--launches", metavar="N", help="number of launches (default 1)")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="folder of runs")
    parser.add_argument("--plots", type=Path, default=Path("plots"), metavar="DIR", help="folder of plots")
    parser.add_argument("--no-plots", action="store_true", help="draw nothing")
    parser.add_argument("--no-preflight", action="store_true", help="ask no hosts before the run; ranks still check")
    parser.add_argument(
        "--share-hosts", action="store_true", help="measure while other benchmarks run; every row says so"
    )
    output.add_table_arguments(parser)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Write the plan of the replay, run it, and print its tables. Returns the exit code of `linkbench run`."""
    plan, recorded_per_node = _written_plan(args)
    per_node = args.ranks_per_node or _as_recorded(recorded_per_node, args)
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
        if per_node is not None:
            lines.append(f"    ranks_per_node: {per_node}")
        if args.transport != "auto":
            lines.append(f"    transport: {args.transport}")
        scenario.write_text("\n".join(lines) + "\n", encoding="utf-8")
        parser = argparse.ArgumentParser()
        run.arguments(parser)
        return run.main(argparse.Namespace(**{**vars(parser.parse_args([str(scenario)])), **_of_run(args, scenario)}))


def _of_run(args: argparse.Namespace, scenario: Path) -> dict[str, object]:
    """Return the options that this subcommand shares with `linkbench run`."""
    own = {"paths", "transport", "compute", "ranks_per_node", "command", "subcommand"}
    return {name: value for name, value in vars(args).items() if name not in own} | {"scenario": str(scenario)}


def _as_recorded(recorded_per_node: int | None, args: argparse.Namespace) -> int | None:
    """Return the number of ranks per node of the recorded job, or None if unknown or too large for the cluster.

    If the replay uses this number of ranks per node, its exchanges cross the network as in the recorded job. With
    another number of ranks per node, the ranks of the replay would fill one node of the cluster after the other. All
    ranks of a small job would then be on the first node.
    """
    cluster = clusters.cluster(paths.config_file(args.config), args.cluster)
    if recorded_per_node is None or cluster.nodes < 2:
        return None
    fits = cluster.ranks_per_node is None or recorded_per_node <= cluster.ranks_per_node
    return recorded_per_node if fits else None


def _written_plan(args: argparse.Namespace) -> tuple[Path, int | None]:
    """Make a replay plan from the traces, and write the plan into the folder `--results`.

    Returns the path of the plan, and the number of ranks on each of the job's hosts. The number is None if the traces
    do not state it, or if the job ran on only one host.

    Raises UsageError if there is no trace, or if no part of the job can be replayed.
    """
    from bench.core import replay_plan
    from bench.job import matching, replay
    from bench.logs import step_traces

    traces, remarks = step_traces.read(args.paths)
    if not traces:
        why = remarks[0].text if remarks else f"no trace was found in {', '.join(map(str, args.paths))}"
        raise UsageError(why)
    for remark in remarks:
        say(remark.text)
    job = matching.job_of(traces)
    condensed = replay.condense(job)
    for remark in (*job.remarks, *condensed.remarks):
        say(remark.text)
    name = f"replay-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}.json"
    path: Path = (args.results / "plans" / name).resolve()
    if "'" in str(path) or "\n" in str(path):
        raise UsageError(f"--results {args.results} must not contain a quote: use another folder")
    replay_plan.write(condensed.plan, path)
    return path, replay.ranks_per_host(job)
