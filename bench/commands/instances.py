"""Show and filter instance types: GPUs, how they are linked, NICs, prices with their dates; those of bench.yaml too."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config import paths
from bench.core.errors import EXIT_DONE, UsageError
from bench.core.plugins import nearest
from bench.results import output

if TYPE_CHECKING:
    from bench.hardware.catalogue import Instance

OLD_DAYS = 365


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench instances`."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--gpu", metavar="WORD", help="only GPUs with this in their name, such as H100")
    parser.add_argument("--provider", metavar="NAME", help="only of this provider; own: only of bench.yaml")
    parser.add_argument("--peers", metavar="KIND", help="only with this kind of peer link, such as nvswitch or host")
    parser.add_argument("--min-gpus", metavar="N", help="only with at least as many GPUs in a node")
    parser.add_argument("--max-price", metavar="USD", help="only with a known price of at most this per hour and node")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the bench.yaml to read (default: the one here)")
    output.add_output_arguments(parser, output.BY_HAND)


def main(args: argparse.Namespace) -> int:
    """Print what the filters leave."""
    from bench.config import clusters
    from bench.predict import instances_page as words

    site = clusters.load_site(paths.config_file(args.config))
    chosen = [site.instance(name) for name in args.names] or list(site.instances.values())
    left = list(_filtered(chosen, args))
    if not left:
        raise UsageError(f"none of {len(chosen)} instance types is left: loosen a filter")
    rows = [_row(each, each.name in site.own) for each in left]
    output.emit(words.rendered(args.format, rows, _remarks(rows)), args)
    return EXIT_DONE


def _filtered(chosen: Sequence[Instance], args: argparse.Namespace) -> Iterator[Instance]:
    providers = sorted({each.provider for each in chosen})
    if args.provider and args.provider not in providers:
        raise UsageError(f"no provider is called {args.provider!r}{nearest(args.provider, providers)}")
    kinds = sorted({each.links.peer for each in chosen})
    if args.peers and args.peers not in kinds:
        raise UsageError(f"no instance type has peers of the kind {args.peers!r}{nearest(args.peers, kinds)}")
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
        raise UsageError(f"{option} {text!r} is not a number above zero")
    return found


def _row(found: Instance, own: bool) -> dict[str, Any]:
    links, price = found.links, found.price()
    return {
        "name": found.name,
        "provider": found.provider,
        "own": own,
        "gpu": found.gpu,
        "gpus": found.gpus,
        "vcpus": found.vcpus,
        "memory_bytes": found.memory_bytes,
        "peers": links.peer,
        "nvlink_bytes_per_s": links.nvlink_bytes_per_s,
        "pair_bytes_per_s": links.pair_bytes_per_s,
        "pcie": list(found.pcie) if found.pcie else None,
        "pcie_bytes_per_s": links.pcie_bytes_per_s,
        "nics": links.num_nics,
        "nic_kind": found.nic_kind,
        "nic_bytes_per_s": links.nic_bytes_per_s,
        "usd_per_hour": price.usd_per_hour if price else None,
        "price_date": price.date if price else None,
        "price_region": price.region if price else None,
        "price_source": price.source if price else None,
        "price_verified": price.verified if price else None,
        "price_old": is_old(price.date) if price else None,
        "prices": [
            {
                "usd_per_hour": each.usd_per_hour,
                "region": each.region,
                "date": each.date,
                "source": each.source,
                "verified": each.verified,
            }
            for each in found.prices
        ],
        "sources": dict(links.sources),
        "verified": dict(links.verified),
        "notes": dict(found.notes),
    }


def is_old(date: str | None) -> bool | None:
    """Is a price older than a year today? None: it has no date."""
    if date is None:
        return None
    return (datetime.date.today() - datetime.date.fromisoformat(date)).days > OLD_DAYS


def _remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is in doubt, once each."""
    told = ["prices: US dollars per hour of one node, on demand, as they stood at their date (--format json: history)"]
    undated = [row["name"] for row in rows if row["usd_per_hour"] and not row["price_date"]]
    old = [row["name"] for row in rows if row["price_old"]]
    none = [row["name"] for row in rows if row["usd_per_hour"] is None]
    doubtful = [row["name"] for row in rows if not all(row["verified"].values())]
    recalled = [row["name"] for row in rows if row["price_verified"] is False]
    for names, words in (
        (recalled, "price not read in a source"),
        (old, "price older than a year"),
        (undated, "price without a date"),
        (none, "no price known; give yours in bench.yaml (instances: NAME: price)"),
    ):
        told += [f"{words}: {', '.join(names)}"] if names else []
    if doubtful:
        told.append(
            f"? a figure of its links was not read in a source ({len(doubtful)} of {len(rows)}; --format json: which)"
        )
    return told
