"""Rank machines by step time and cost for a workload or a recorded job, and say which differences are certain."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

from bench.commands import _select_job, _select_run
from bench.commands._say import say
from bench.config import clusters, paths
from bench.config.site import InstanceTypes
from bench.core.errors import EXIT_DONE, UsageError
from bench.core.option_parsers import whole
from bench.hardware.catalogue import Instance
from bench.predict import from_args, predict, select, workload_file
from bench.predict.candidate import SelectionQuestion
from bench.predict.cost import check_region
from bench.predict.messages import Refusal
from bench.predict.predict import EfficiencyEvidence
from bench.predict.select import Selection
from bench.predict.select_page import SelectReport
from bench.predict.workload import Workload
from bench.results import output

EXAMPLES = (
    (
        "linkbench select --workload llama-3-8b --instances p4d,p5 --nodes 4",
        "which of two machines is faster and cheaper?",
    ),
    ("linkbench select --job trace/ --instances p4d,p5", "the same question for a job whose traces you have"),
)

MESHES = ("given", "auto")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `linkbench select`."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--workload", metavar="NAME", help="workload files, by name in workloads/ or by path: A,B")
    words = "a Hugging Face model's config.json; one sample per rank and ZeRO 3, unless --set changes them"
    what.add_argument("--from", dest="from_config", type=Path, metavar="FILE", help=words)
    what.add_argument("--job", type=Path, metavar="PATH", help="traces of all ranks of a job: a folder or an archive")
    parser.add_argument(
        "--instances", default="all", metavar="A,B", help="instance types, also those of bench.yaml (default: all)"
    )
    words = "numbers of nodes (default 1; with --job, as many as the job's ranks need)"
    parser.add_argument("--nodes", type=_counts, metavar="1,2,8", help=words)
    parser.add_argument(
        "--gpus", type=whole(1, "--gpus"), metavar="N", help="GPUs of each node that take part (default: all)"
    )
    parser.add_argument(
        "--runs", nargs="+", type=Path, default=[], metavar="DIR", help="your runs, as evidence for the predictions"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the bench.yaml to read (default: ./bench.yaml)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the workload, such as training.batch=32",
    )
    words = "auto: on every machine the mesh (tensor, pipeline, context, expert, ZeRO) that fits and is fastest"
    parser.add_argument("--mesh", choices=MESHES, default=MESHES[0], help=f"{words} (default: the workload's)")
    parser.add_argument("--by", "--sort", choices=select.BY, default="cost", help="rank by this (default cost)")
    _select_run.add_arguments(parser)
    parser.add_argument(
        "--price", action="append", default=[], metavar="INSTANCE=USD", help="your price in dollars per hour"
    )
    parser.add_argument("--region", help="use only prices of this region")
    parser.add_argument("--price-date", type=_date, metavar="DATE", help="use the prices of this day (2025-03-31)")
    parser.add_argument("--explain", metavar="INSTANCE", help="print the derivation of one machine's figures")
    parser.add_argument("--plot", type=output.drawing, metavar="FILE", help="draw the result (.png, .svg or .pdf)")
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the ranked machines of each workload."""
    _select_run.check(args)
    site = clusters.load_site(paths.config_file(args.config))
    rates: dict[tuple[str, str], float] = {}
    evidence = from_args.evidence(args.runs, rates)
    if args.job is not None:
        code = _select_job.main(args, site, evidence, rates)
        _warn(evidence)
        return code
    machines, asked = _machines(args, site), _question(args, site, evidence, rates)
    check_region(args.region, [site.instance(name) for name in site.instances])
    selections = [_selected(args, asked(workload), machines) for workload in _workloads(args)]
    if args.plot is not None:
        if len(selections) > 1:
            raise UsageError.of(Refusal.PLOT_OF_SEVERAL, num_workloads=len(selections))
        _draw(selections[0], args.plot)
    output.show(SelectReport(selections, args.explain, args.wide), args)
    _warn(evidence)
    return EXIT_DONE


def _workloads(args: argparse.Namespace) -> list[Workload]:
    if args.from_config is not None:
        return [workload_file.from_config(args.from_config, args.set)]
    folder = paths.workloads_folder()
    return [workload_file.load_workload(name.strip(), folder, args.set) for name in args.workload.split(",")]


def _warn(evidence: EfficiencyEvidence) -> None:
    for note in evidence.notes:
        say(f"bench: warning: {note.text}")


def _question(
    args: argparse.Namespace, site: InstanceTypes, evidence: EfficiencyEvidence, rates: dict[tuple[str, str], float]
) -> Callable[[Workload], SelectionQuestion]:
    """Return a function that makes a selection question from a workload and the user's options.

    All workloads get the same options.
    """
    today = datetime.now(UTC).date()
    prices, watts = _select_run.prices_of(args, list(site.instances), today)
    return partial(
        SelectionQuestion,
        evidence=evidence,
        today=today,
        region=args.region,
        price_on=args.price_date,
        prices=prices,
        gpus_per_node=args.gpus,
        rates=rates,
        goodput=_select_run.goodput_of(args),
        energy=_select_run.energy_of(args, watts),
        search_mesh=args.mesh == "auto",
    )


def _selected(args: argparse.Namespace, question: SelectionQuestion, machines: list[tuple[Instance, int]]) -> Selection:
    """Return the ranking of machines that answers the user's question.

    If the user names runs, the ranking is also computed without these runs. Comparing the two rankings shows which
    intervals became narrower because of the runs.
    """
    limits = _select_run.limits_of(args, question.workload)
    found = select.select(machines, question, args.by, limits)
    if not args.runs:
        return found
    try:
        before = select.select(machines, replace(question, evidence=predict.published(), rates={}), args.by, limits)
    except UsageError:  # no machine can be judged without the user's runs
        return found
    return select.narrowed(found, before)


def _machines(args: argparse.Namespace, site: InstanceTypes) -> list[tuple[Instance, int]]:
    """Return each combination of an instance type and a number of nodes, in the order of the command line.

    Raises UsageError for an unknown name.
    """
    named = site.instances if args.instances == "all" else [each.strip() for each in args.instances.split(",")]
    names = [site.instance(name).name for name in dict.fromkeys(named)]
    if args.explain is not None:
        args.explain = site.instance(args.explain).name
        if args.explain not in names:
            raise UsageError.of(Refusal.EXPLAIN_NOT_LISTED, instance=args.explain, names=names)
    machines = [(site.instance(name), nodes) for name in names for nodes in args.nodes or (1,)]
    for machine, nodes in machines:
        per_node = args.gpus or machine.gpus
        from_args.check_most(nodes * per_node, f"{nodes} x {per_node} of {machine.name}")
    return machines


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
        raise UsageError.of(Refusal.DATE_INVALID, typed=word) from None
