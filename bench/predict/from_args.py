"""Declare and read the arguments that `predict`, `validate`, `instances` and `select` share: machines, worlds, and the
user's runs.
"""

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
from bench.predict.messages import Refusal

if TYPE_CHECKING:
    from bench.predict.predict import EfficiencyEvidence

MOST_GPUS = 16384


@dataclass(frozen=True, slots=True)
class RequestedMachine:
    """The machine that the user named, with the links of a node, the number of nodes, and the GPUs of each node."""

    name: str
    links: NodeLinks
    num_nodes: int
    ranks_per_node: int


def add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --instance or --cluster, --links, --config."""
    machine = parser.add_mutually_exclusive_group(required=True)
    machine.add_argument("--instance", metavar="NAME", help="an instance type of `linkbench instances` or bench.yaml")
    machine.add_argument(
        "--cluster", metavar="NAME", help="a cluster of bench.yaml: its instance type, links and nodes"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the bench.yaml to read (default: ./bench.yaml)")
    parser.add_argument("--ranks-per-node", metavar="N", help="GPUs of each node that take part (default: all)")
    parser.add_argument(
        "--links", metavar="RATES", help="link rates that replace the catalogue's, such as nic=12.5GB/s"
    )


def machine_of(args: argparse.Namespace) -> RequestedMachine:
    """Return the machine that the options name. Raises UsageError for unknown names and too many GPUs."""
    from bench.config import clusters

    path = paths.config_file(args.config)
    site = clusters.load_site(path)
    if args.cluster:
        cluster = clusters.cluster(path, args.cluster)
        named = cluster.site_instance or cluster.instance
        if named is None:
            raise UsageError.of(Refusal.CLUSTER_WITHOUT_INSTANCE, cluster=args.cluster)
        name, rates, nodes, per_node = named, dict(cluster.links), cluster.nodes, cluster.ranks_per_node
    else:
        name, rates, nodes, per_node = site.instance(args.instance).name, {}, 1, None
    found = site.instance(name)
    if args.ranks_per_node:
        per_node = parsed("ranks_per_node", args.ranks_per_node)
    per_node = per_node or found.gpus
    links = site.links(name, per_node).with_rates(rates | dict(parsed("links", args.links) if args.links else ()))
    return RequestedMachine(args.cluster or name, links, nodes, per_node)


def parsed(field: str, text: str) -> Any:
    """Parse the value of an option (sizes, links, ranks_per_node) in the same way as all commands."""
    return FACTOR[field].parse(text)


def world_of(machine: RequestedMachine, gpus: int) -> tuple[int, int]:
    """Return the number of nodes, and the number of GPUs per node, for a total number of GPUs.

    Raises UsageError if the GPUs need several nodes but do not fill these nodes.
    """
    per_node = machine.ranks_per_node
    if gpus < 2:
        raise UsageError.of(Refusal.ONE_GPU, num_gpus=gpus)
    if gpus <= per_node:
        return 1, gpus
    if gpus % per_node:
        raise UsageError.of(Refusal.PARTIAL_NODE, num_gpus=gpus, per_node=per_node)
    return gpus // per_node, per_node


def check_most(gpus: int, request: str | None = None) -> None:
    """Raise UsageError for more than MOST_GPUS GPUs. `request`: the user's request that needs this many GPUs."""
    if gpus > MOST_GPUS:
        raise UsageError.of(Refusal.WORLD_TOO_LARGE, request=request, num_gpus=gpus, most=MOST_GPUS)


def evidence(runs: Sequence[Path], rates: dict[tuple[str, str], float] | None = None) -> EfficiencyEvidence:
    """Return the published evidence together with the evidence from the user's runs and imported logs.

    Raises UsageError for an unusable run.

    `rates`: a dictionary with keys (GPU model, type). The function adds the measured FLOP/s of matrix multiplication to
    this dictionary.
    """
    from bench.predict import predict
    from bench.results import collect, flops

    total = predict.published()
    for path in runs:
        document = collect.document(path)
        own = predict.of_run(document.headers, document.summaries, path.stem)
        computed = {} if rates is None else flops.measured(document.headers, document.summaries)
        if rates is not None:
            for key, rate in computed.items():
                rates[key] = min(rate, rates.get(key, rate))
        if not own.rows and not computed:
            note = own.notes[0].text if own.notes else None
            raise UsageError.of(Refusal.RUN_WITHOUT_EVIDENCE, path=str(path), note=note)
        total += own
    return total
