"""Choose machines for a training job: step time, bottleneck and cost of each, and whether their ratio decides it."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, date, datetime
from pathlib import Path

from bench.config import clusters, paths
from bench.config.site import InstanceTypes
from bench.core import plugins
from bench.core.errors import EXIT_DONE, UsageError
from bench.core.option_parsers import whole
from bench.hardware.catalogue import Instance
from bench.predict import derivation, from_args, select, select_page, workload_file
from bench.predict.candidate import SelectionQuestion
from bench.predict.cost import check_region, given_prices
from bench.predict.predict import EfficiencyEvidence
from bench.predict.select import Selection
from bench.predict.workload import Workload
from bench.results import grid, output
from bench.results.table import as_json


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench select`."""
    parser.add_argument(
        "--workload", required=True, metavar="NAME", help="a file in workloads/, by name or path; several: A,B"
    )
    parser.add_argument(
        "--instances", default="all", metavar="A,B", help="instance types, of bench.yaml too (default: all)"
    )
    parser.add_argument("--nodes", type=_counts, default=(1,), metavar="1,2,8", help="numbers of nodes (default 1)")
    parser.add_argument(
        "--gpus", type=whole(1, "--gpus"), metavar="N", help="GPUs of each node that take part (default: all)"
    )
    parser.add_argument("--runs", nargs="+", type=Path, default=[], metavar="DIR", help="own runs to predict from")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the bench.yaml to read (default: the one here)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="such as training.batch=32")
    parser.add_argument("--by", choices=select.BY, default="cost", help="what to rank by (default cost)")
    parser.add_argument("--price", action="append", default=[], metavar="INSTANCE=USD", help="your dollars per hour")
    parser.add_argument("--region", help="prices of one region only")
    parser.add_argument("--price-date", type=_date, metavar="DATE", help="prices as they were on this day (2025-03-31)")
    parser.add_argument("--explain", metavar="INSTANCE", help="how one machine's figures come, line by line")
    parser.add_argument("--plot", type=output.drawing, metavar="FILE", help="draw the answer (.png, .svg or .pdf)")
    output.add_output_arguments(parser, output.BY_HAND)


def main(args: argparse.Namespace) -> int:
    """Print the ranked machines of each workload."""
    site = clusters.load_site(paths.config_file(args.config))
    rates: dict[tuple[str, str], float] = {}
    evidence = from_args.evidence(args.runs, rates)
    prices = given_prices(args.price, list(site.instances))
    machines = _machines(args, site)
    check_region(args.region, [site.instance(name) for name in site.instances])
    selections = []
    for name in args.workload.split(","):
        asked = workload_file.load_workload(name.strip(), paths.workloads_folder(), args.set)
        selections.append(_selected(args, asked, evidence, rates, prices, machines))
    if args.plot is not None:
        if len(selections) > 1:
            raise UsageError("--plot draws one workload: name one")
        _draw(selections[0], args.plot)
    output.emit(_rendered(args, selections), args)
    for note in evidence.notes:
        print(f"bench: warning: {note}", file=sys.stderr)
    return EXIT_DONE


def _selected(
    args: argparse.Namespace,
    asked: Workload,
    evidence: EfficiencyEvidence,
    rates: dict[tuple[str, str], float],
    prices: dict[str, float],
    machines: list[tuple[Instance, int]],
) -> Selection:
    question = SelectionQuestion(
        workload=asked,
        evidence=evidence,
        today=datetime.now(UTC).date(),
        region=args.region,
        price_on=args.price_date,
        prices=prices,
        gpus_per_node=args.gpus,
        rates=rates,
    )
    return select.select(machines, question, args.by)


def _machines(args: argparse.Namespace, site: InstanceTypes) -> list[tuple[Instance, int]]:
    """(instance, nodes) in the order of the command line; an unknown name is refused with the nearest one."""
    named = site.instances if args.instances == "all" else [each.strip() for each in args.instances.split(",")]
    names = [site.instance(name).name for name in dict.fromkeys(named)]
    if args.explain is not None and args.explain not in names:
        raise UsageError(f"--explain {args.explain!r} is none of --instances{plugins.nearest(args.explain, names)}")
    machines = [(site.instance(name), nodes) for name in names for nodes in args.nodes]
    for machine, nodes in machines:
        per_node = args.gpus or machine.gpus
        from_args.check_most(nodes * per_node, f"{nodes} x {per_node} of {machine.name} are ")
    return machines


def _rendered(args: argparse.Namespace, selections: list[Selection]) -> str:
    if args.format == "json":
        plain = [select_page.plain(each) for each in selections]
        return as_json(plain[0] if len(plain) == 1 else {"schema": select_page.SCHEMA, "selections": plain})
    if args.format == "csv":
        return grid.as_csv(
            [
                {"workload": each.question.workload.name} | machine
                for each in selections
                for machine in select_page.plain(each)["machines"]
            ]
        )
    render = select_page.markdown if args.format == "markdown" else select_page.table
    text = "\n".join(render(each) for each in selections)
    if args.explain is None:
        return text
    told = [
        line
        for each in selections
        for one in each.candidates
        if one.instance.name == args.explain
        for line in derivation.lines(one)
    ]
    told = told or [f"{args.explain} was left out: see above"]
    fence = "```" if args.format == "markdown" else None
    return "\n".join([text, *filter(None, (fence, *told, fence))])


def _draw(selection: Selection, path: Path) -> None:
    from bench.figures import _select as figure
    from bench.figures import _style

    _style.write(figure.draw(selection), path)


def _counts(word: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(whole(1, "--nodes")(each.strip()) for each in word.split(",")))


def _date(word: str) -> date:
    try:
        return date.fromisoformat(word)
    except ValueError:
        raise UsageError(f"--price-date {word!r} is not a day such as 2025-03-31") from None
