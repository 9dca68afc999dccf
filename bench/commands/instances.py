"""List the instance types of the catalogue and of bench.yaml: GPUs, links, NICs, and prices with their dates."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.config import paths
from bench.core.errors import EXIT_DONE, UsageError
from bench.core.plugins import nearest
from bench.predict.messages import Refusal
from bench.results import output

if TYPE_CHECKING:
    from bench.hardware.catalogue import Instance


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `linkbench instances`."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="list only these types")
    parser.add_argument("--gpu", metavar="WORD", help="list only types whose GPU name contains WORD, such as H100")
    parser.add_argument("--provider", metavar="NAME", help="list only types of this provider; own: of bench.yaml")
    parser.add_argument(
        "--peers", metavar="KIND", help="list only types with this kind of peer link, such as nvswitch or host"
    )
    parser.add_argument("--min-gpus", metavar="N", help="list only types with at least this many GPUs")
    parser.add_argument("--max-price", metavar="USD", help="list only types with a known price of at most USD per hour")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the bench.yaml to read (default: ./bench.yaml)")
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the types that match all filters."""
    from bench.config import clusters
    from bench.predict.instances_page import InstancesReport, instance_row

    site = clusters.load_site(paths.config_file(args.config))
    chosen = [site.instance(name) for name in args.names] or list(site.instances.values())
    left = list(_filtered(chosen, args))
    if not left:
        raise UsageError.of(Refusal.NO_INSTANCE_LEFT, num_instances=len(chosen))
    output.show(InstancesReport([instance_row(each, each.name in site.own) for each in left]), args)
    return EXIT_DONE


def _filtered(chosen: Sequence[Instance], args: argparse.Namespace) -> Iterator[Instance]:
    providers = sorted({each.provider for each in chosen})
    if args.provider and args.provider not in providers:
        hint = nearest(args.provider, providers)
        raise UsageError.of(Refusal.PROVIDER_UNKNOWN, provider=args.provider, hint=hint)
    kinds = sorted({each.links.peer for each in chosen})
    if args.peers and args.peers not in kinds:
        raise UsageError.of(Refusal.PEERS_UNKNOWN, kind=args.peers, hint=nearest(args.peers, kinds))
    least, most = _number("--min-gpus", args.min_gpus), _number("--max-price", args.max_price)
    for each in chosen:
        price = each.price()
        wanted = (
            (not args.gpu or args.gpu.lower() in each.gpu.lower())
            and args.provider in (None, each.provider)
            and args.peers in (None, each.links.peer)
            and (least is None or each.gpus >= least)
            and (most is None or (price is not None and price.usd_per_hour <= most))
        )
        if wanted:
            yield each


def _number(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise UsageError.of(Refusal.NUMBER_INVALID, option=option, typed=text)
    return found
