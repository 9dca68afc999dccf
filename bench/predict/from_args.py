"""What `predict`, `validate`, `instances` and `select` read alike: machines, worlds, the user's own runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config import paths
from bench.core.case import FACTOR
from bench.core.errors import UsageError
from bench.core.links import NodeLinks

if TYPE_CHECKING:
    from bench.predict.predict import EfficiencyEvidence

MOST_GPUS = 16384


@dataclass(frozen=True, slots=True)
class AskedMachine:
    """What is asked about: links of a node, by the name that the user gave, and how many ranks a node has."""

    name: str
    links: NodeLinks
    num_nodes: int
    ranks_per_node: int


def add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    """--instance or --cluster, --links, --config."""
    machine = parser.add_mutually_exclusive_group(required=True)
    machine.add_argument("--instance", metavar="NAME", help="an instance type (`bench instances`), of bench.yaml too")
    machine.add_argument(
        "--cluster", metavar="NAME", help="a cluster of bench.yaml: its instance type, links and nodes"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the bench.yaml to read (default: the one here)")
    parser.add_argument("--ranks-per-node", metavar="N", help="GPUs of each node that take part (default: all)")
    parser.add_argument("--links", metavar="RATES", help="rates in place of the catalogue's, such as nic=12.5GB/s")


def machine_of(args: argparse.Namespace) -> AskedMachine:
    """The machine that the options name. Raises UsageError for unknown names and too many GPUs."""
    from bench.config import clusters

    path = paths.config_file(args.config)
    site = clusters.load_site(path)
    if args.cluster:
        cluster = clusters.cluster(path, args.cluster)
        named = cluster.site_instance or cluster.instance
        if named is None:
            raise UsageError(f"cluster {args.cluster!r} names no instance type: nothing is known of its links")
        name, rates, nodes, per_node = named, dict(cluster.links), cluster.nodes, cluster.ranks_per_node
    else:
        name, rates, nodes, per_node = args.instance, {}, 1, None
    found = site.instance(name)
    if args.ranks_per_node:
        per_node = parsed("ranks_per_node", args.ranks_per_node)
    per_node = per_node or found.gpus
    links = site.links(name, per_node).with_rates(rates | dict(parsed("links", args.links) if args.links else ()))
    return AskedMachine(args.cluster or name, links, nodes, per_node)


def parsed(field: str, text: str) -> Any:
    """One option's text, as every command reads it: sizes, links, ranks_per_node."""
    return FACTOR[field].parse(text)


def world_of(machine: AskedMachine, gpus: int) -> tuple[int, int]:
    """(nodes, GPUs per node) of so many GPUs: part of one node, or whole nodes. UsageError where it is neither."""
    per_node = machine.ranks_per_node
    if gpus < 2:
        raise UsageError(f"{gpus} GPU exchanges nothing: give 2 or more")
    if gpus <= per_node:
        return 1, gpus
    if gpus % per_node:
        raise UsageError(
            f"{gpus} GPUs are no whole number of nodes of {per_node}: give a multiple, or --ranks-per-node"
        )
    return gpus // per_node, per_node


def check_most(gpus: int, words: str = "") -> None:
    """Nothing was ever held against a prediction for more. `words`: how the number comes. Raises UsageError."""
    if gpus > MOST_GPUS:
        raise UsageError(f"{words}{gpus} GPUs: at most {MOST_GPUS} are predicted")


def evidence(runs: Sequence[Path], rates: dict[tuple[str, str], float] | None = None) -> EfficiencyEvidence:
    """What was published, and what the user's own runs and imported logs measured; UsageError for what is no run.

    `rates` is given where products of matrices tell something, too: it gets what they reach on (GPU model, type).
    """
    from bench.predict import predict
    from bench.results import collect, flops

    known = predict.published()
    for path in runs:
        document = collect.document(path)
        own = predict.of_run(document.headers, document.summaries, path.stem)
        computed = {} if rates is None else flops.measured(document.headers, document.summaries)
        if rates is not None:
            rates.update({which: min(rate, rates.get(which, rate)) for which, rate in computed.items()})
        if not own.rows and not computed:
            why = f" ({own.notes[0]})" if own.notes else ""
            raise UsageError(f"{path} holds no collective among GPUs that could be compared with{why}")
        known += own
    return known
