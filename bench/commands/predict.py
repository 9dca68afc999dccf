"""Predict collectives on an instance type: time and bus bandwidth by size and algorithm, for 2 to 16,384 GPUs.

Every figure has an interval and says what it rests on: own runs, imported logs, published measurements, or bounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.core.errors import EXIT_DONE, UsageError
from bench.core.plugins import nearest
from bench.predict import from_args
from bench.results import output

if TYPE_CHECKING:
    from bench.predict.predict import EfficiencyEvidence, Prediction


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench predict`."""
    from_args.add_machine_arguments(parser)
    parser.add_argument("--patterns", "--pattern", default="allreduce", metavar="LIST", help="collectives, or all")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--gpus", metavar="LIST", help=f"how many GPUs, such as 8,64,1024; at most {from_args.MOST_GPUS}")
    size.add_argument("--nodes", metavar="LIST", help="how many nodes (default: the cluster's, else one)")
    parser.add_argument(
        "--sizes", default="1K:8G:4", metavar="SIZES", help="begin:end:factor or a list (default 1K:8G:4)"
    )
    parser.add_argument(
        "--algorithm", metavar="NAME", help="only this one; all: with those that no library uses, by their links alone"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="own runs and imported logs: they weigh more than what was published",
    )
    parser.add_argument(
        "--plot", type=output.drawing, metavar="FILE", help="draw busbw against size there (.png, .svg or .pdf)"
    )
    output.add_output_arguments(parser, output.BY_HAND)


def main(args: argparse.Namespace) -> int:
    """Print the predictions; draw them where asked."""
    from bench.predict import predict
    from bench.predict import predict_page as words

    machine = from_args.machine_of(args)
    sizes = from_args.parsed("sizes", args.sizes)
    patterns = _patterns(args.patterns, predict.patterns())
    known = from_args.evidence(args.runs)
    rows = []
    for nodes, per_node in _worlds(args, machine):
        for pattern in patterns:
            rows += _rows(pattern, sizes, machine, nodes, per_node, known, args.algorithm)
    measured = list(_measured(rows, known))
    output.emit(words.rendered(args.format, rows, _remarks(rows, machine, known)), args)
    if args.plot:
        from bench.figures import _predict as figure
        from bench.figures import _style

        _style.write(figure.curves(rows, measured, machine.name), args.plot)
    return EXIT_DONE


def _patterns(text: str, known: Sequence[str]) -> list[str]:
    if text == "all":
        return [name for name in known if name != "barrier"]
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(f"no prediction is made of {name!r}{nearest(name, tuple(known))}")
    return names


def _worlds(args: argparse.Namespace, machine: from_args.AskedMachine) -> list[tuple[int, int]]:
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
        from_args.check_most(nodes * per_node, f"{nodes} x {per_node} are ")
    return list(dict.fromkeys(worlds))


def _counts(option: str, text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise UsageError(f"{option} {text!r} must be whole numbers of 1 or more, such as 1,2,8")
    return counts


def _rows(
    pattern: str,
    sizes: Sequence[int],
    machine: from_args.AskedMachine,
    nodes: int,
    per_node: int,
    known: EfficiencyEvidence,
    algorithm: str | None,
) -> list[dict[str, Any]]:
    """One row for each size and algorithm, the best marked."""
    from bench.predict import predict

    found = predict.by_algorithm(pattern, sizes, machine.links, nodes, per_node, known)
    if algorithm not in (None, "all"):
        if algorithm not in found:
            raise UsageError(
                f"{pattern} has no algorithm {algorithm!r} on {nodes} x {per_node} GPUs"
                f"{nearest(algorithm, tuple(found))}"
            )
        found = {algorithm: found[algorithm]}
    rows = []
    for size in sizes:
        best = min(found, key=lambda name: found[name][size].centre_s)
        rows += [_row(pattern, size, nodes, per_node, found[name][size], name == best) for name in found]
    if algorithm == "all":
        others = predict.bounds_by_algorithm(pattern, sizes, machine.links, nodes, per_node)
        rows += [
            _bound(pattern, size, nodes, per_node, name, others[name][size])
            for name in others
            if name not in found
            for size in sizes
        ]
    return rows


def _row(pattern: str, size: int, nodes: int, per_node: int, told: Prediction, best: bool) -> dict[str, Any]:
    from bench.predict.predict import busbw

    num = nodes * per_node
    return {
        **_place(pattern, size, nodes, per_node, told.algorithm, best),
        "low_s": told.low_s,
        "middle_s": told.middle_s,
        "high_s": told.high_s,
        "ideal_s": told.ideal_s,
        "busbw_bytes_per_s": busbw(pattern, size, num, told.middle_s),
        "busbw_low_bytes_per_s": busbw(pattern, size, num, told.high_s),
        "busbw_high_bytes_per_s": busbw(pattern, size, num, told.low_s),
        "basis": told.basis,
        "bottleneck": told.bottleneck,
        "link_class": told.link_class,
        "verified": told.verified,
        "rests_on": list(told.rests_on),
        "modelled": True,
    }


def _bound(pattern: str, size: int, nodes: int, per_node: int, name: str, ideal_s: float) -> dict[str, Any]:
    """An algorithm that libraries do not use at this size: only what its links allow."""
    from bench.predict.predict import busbw

    return {
        **_place(pattern, size, nodes, per_node, name, False),
        "low_s": ideal_s,
        "middle_s": None,
        "high_s": None,
        "ideal_s": ideal_s,
        "busbw_bytes_per_s": None,
        "busbw_low_bytes_per_s": None,
        "busbw_high_bytes_per_s": busbw(pattern, size, nodes * per_node, ideal_s),
        "basis": "bound",
        "bottleneck": "links",
        "link_class": "",
        "verified": True,
        "rests_on": ["the links alone"],
        "modelled": True,
    }


def _place(pattern: str, size: int, nodes: int, per_node: int, algorithm: str, best: bool) -> dict[str, Any]:
    return {
        "pattern": pattern,
        "num_nodes": nodes,
        "ranks_per_node": per_node,
        "payload_bytes": size,
        "algorithm": algorithm,
        "best": best,
    }


def _measured(
    rows: Sequence[Mapping[str, Any]], known: EfficiencyEvidence
) -> Iterator[tuple[str, str, int, int, int, float]]:
    """(basis, pattern, nodes, GPUs of each, size, seconds) of own rows on a world that is predicted."""
    worlds = {(row["pattern"], row["num_nodes"], row["ranks_per_node"]) for row in rows}
    for each in known.rows:
        world = (each.pattern, each.num_nodes, each.ranks_per_node)
        if each.basis != "published" and world in worlds:
            for size, seconds in each.seconds.items():
                yield each.basis, *world, size, seconds


def _remarks(
    rows: Sequence[Mapping[str, Any]], machine: from_args.AskedMachine, known: EfficiencyEvidence
) -> list[str]:
    """What the figures rest on, once each."""
    classes = dict.fromkeys(row["link_class"] for row in rows if row["link_class"])
    told = [f"{machine.name}, {', '.join(classes)}; * the fastest; S is docs/metrics.md's, sizes are binary"]
    sources = dict.fromkeys(source for row in rows if row["link_class"] for source in row["rests_on"])
    told += [f"rests on: {source}" for source in sources]
    if not all(row["verified"] for row in rows):
        told.append("unverified: a figure of these links, or of what they are compared with, was not read in a source")
    return told + [f"left out: {note}" for note in known.notes]
