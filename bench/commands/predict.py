"""Predict collectives on an instance type for 2 to 16,384 GPUs: time and bus bandwidth by size and algorithm.

The output gives an interval for every figure. The output also names the source of each figure: your runs, imported
logs, published measurements, or bounds of the links.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.core.errors import EXIT_DONE, UsageError
from bench.core.plugins import nearest
from bench.predict import from_args
from bench.predict.messages import Refusal
from bench.results import output

if TYPE_CHECKING:
    from bench.predict.predict import EfficiencyEvidence


EXAMPLES = (("linkbench predict --instance p5 --gpus 64", "time and bandwidth of collectives over 64 GPUs"),)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `linkbench predict`."""
    from_args.add_machine_arguments(parser)
    parser.add_argument(
        "--patterns", "--pattern", default="allreduce", metavar="LIST", help="collectives, or all (default allreduce)"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--gpus", metavar="LIST", help=f"numbers of GPUs, such as 8,64,1024; at most {from_args.MOST_GPUS}"
    )
    size.add_argument("--nodes", metavar="LIST", help="numbers of nodes (default: the cluster's, or 1)")
    parser.add_argument(
        "--sizes", default="1K:8G:4", metavar="SIZES", help="begin:end:factor or a list (default 1K:8G:4)"
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="predict only this algorithm; all: also algorithms that no library uses, as bounds",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="your runs and imported logs, which count more than published results",
    )
    parser.add_argument(
        "--plot", type=output.drawing, metavar="FILE", help="draw busbw against size (.png, .svg or .pdf)"
    )
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the predictions. If --plot is given, also draw the predictions."""
    from bench.predict import predict
    from bench.predict.predict_page import PredictReport, prediction_rows

    machine = from_args.machine_of(args)
    sizes = from_args.parsed("sizes", args.sizes)
    patterns = _patterns(args.patterns, predict.patterns())
    evidence = from_args.evidence(args.runs)
    rows = []
    for world in _worlds(args, machine):
        for pattern in patterns:
            rows += prediction_rows(pattern, sizes, machine, world, evidence, args.algorithm)
    output.show(PredictReport(rows, machine.name, evidence.notes), args)
    if args.plot:
        from bench.figures import _predict as figure
        from bench.figures import _style

        measured = list(_measured(rows, evidence))
        _style.write(figure.curves(rows, measured, machine.name), args.plot)
    return EXIT_DONE


def _patterns(text: str, known: Sequence[str]) -> list[str]:
    if text == "all":
        return [name for name in known if name != "barrier"]
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError.of(Refusal.PATTERN_UNKNOWN, pattern=name, hint=nearest(name, tuple(known)))
    return names


def _worlds(args: argparse.Namespace, machine: from_args.RequestedMachine) -> list[tuple[int, int]]:
    if args.gpus:
        counts = _counts("--gpus", args.gpus)
        for gpus in counts:
            from_args.check_most(gpus)
        worlds = [from_args.world_of(machine, gpus) for gpus in counts]
    elif args.nodes:
        worlds = [(nodes, machine.ranks_per_node) for nodes in _counts("--nodes", args.nodes)]
    else:
        worlds = [(machine.num_nodes, machine.ranks_per_node)]
    for nodes, per_node in worlds:
        from_args.check_most(nodes * per_node, f"{nodes} x {per_node}")
    return list(dict.fromkeys(worlds))


def _counts(option: str, text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise UsageError.of(Refusal.COUNTS_INVALID, option=option, typed=text)
    return counts


def _measured(
    rows: Sequence[Mapping[str, Any]], evidence: EfficiencyEvidence
) -> Iterator[tuple[str, str, int, int, int, float]]:
    """Yield the user's measured rows whose pattern, number of nodes and GPUs per node were also predicted.

    Each row is (basis, pattern, nodes, GPUs per node, size in bytes, seconds).
    """
    worlds = {(row["pattern"], row["num_nodes"], row["ranks_per_node"]) for row in rows}
    for each in evidence.rows:
        world = (each.pattern, each.num_nodes, each.ranks_per_node)
        if each.basis != "published" and world in worlds:
            for size, seconds in each.seconds.items():
                yield each.basis, *world, size, seconds
