"""Read logs of nccl-tests, nvbandwidth, OSU, perftest and others as a run of our own, for report, gate and plot."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.config import clusters
from bench.config import paths as config_paths
from bench.controller.plan import all_patterns
from bench.core import plugins
from bench.core.codes import Coded
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.core.option_parsers import whole
from bench.core.record import Record
from bench.logs import imports, page
from bench.logs.foreign import OK, ForeignRun, Reader
from bench.logs.readers import _lines
from bench.results import output
from bench.results.run_report import RunReport
from bench.results.summary import DocumentBuilder

# Rows that are shown beside those with wrong data: of what people read, and of what programs do. A run keeps all.
_MOST_READ, _MOST_SHOWN = 10_000, 50_000
_MOST_WORLDS = 4  # named in one sentence


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench import`."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a log, a folder of logs, or - for stdin")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="where to keep the run (default results/; with --format json it is kept only where this is given)",
    )
    parser.add_argument("--no-store", action="store_true", help="print only, keep no run")
    add_telling_arguments(parser)
    output.add_table_arguments(parser)
    output.add_output_arguments(parser)


def add_telling_arguments(parser: argparse.ArgumentParser) -> None:
    """What a log may not tell: its world, and which links bound it."""
    parser.add_argument("--num-ranks", type=whole(1, "--num-ranks"), metavar="N", help="of logs that do not tell it")
    parser.add_argument("--num-nodes", type=whole(1, "--num-nodes"), metavar="N", help="of logs that do not tell it")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cluster", metavar="NAME", help="entry of bench.yaml whose links bound the rows")
    where.add_argument("--instance", metavar="TYPE", help="instance type whose links bound the rows (see bench list)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="bench.yaml to read (default ./bench.yaml)")


def main(args: argparse.Namespace) -> int:
    """Read, keep, print; 1 when a run failed, was cut or has wrong elements, or a log gave nothing."""
    told = telling(args)
    try:
        logs, troubles = _read(args.paths, told)
    except UsageError:
        if args.format == "json":  # the document that was asked for, also where nothing stands in it
            output.emit_pieces(page.pieces(()), args)
        raise
    runs = [run for log in logs for run in log.runs]
    for sentence in (*troubles, *untaken(runs, told)):
        print(f"bench: {sentence}", file=sys.stderr)
    stored = not args.no_store and (args.format != "json" or args.results is not None)
    jobs = imports.jobs(logs, told, all_patterns()) if stored or args.format != "json" else []
    folder = imports.folder_of(jobs, logs, args.results or Path("results"), args.cluster) if stored else None
    records = ((job, record) for job in jobs for record in (imports.kept(job, folder) if folder else job.records()))
    if args.format == "json":
        deque(records, maxlen=0)  # only kept
        output.emit_pieces(page.pieces((log.source.name, run) for log in logs for run in log.runs), args)
    else:
        output.emit(_rendered(args, jobs, records, folder is not None), args)
    if folder is not None:
        shown = args.format == "table" and args.output is None
        print(f"results: {folder}/", file=sys.stdout if shown else sys.stderr)
    lost = any(log.to_be_said for log in logs)
    return EXIT_VERDICT if lost or not all(map(is_well, runs)) else EXIT_DONE


def _read(paths: Sequence[str], told: imports.ImportOptions) -> tuple[list[imports.Log], list[str]]:
    """What all files gave, and a sentence for what gave nothing. Raises UsageError when none gave anything."""
    logs = [imports.read(source, readers(), _lines.results, told) for source in imports.sources(paths)]
    troubles = imports.troubles(logs)
    if not any(log.runs for log in logs):
        raise UsageError("; ".join(troubles) or f"there is no file in {', '.join(paths)}")
    return logs, troubles


def readers() -> tuple[type[Reader], ...]:
    """The reader of every tool that has one."""
    found = (getattr(plugins.load("tool", name), "READER", None) for name in plugins.names("tool"))
    return tuple(reader for reader in found if reader is not None)


def telling(args: argparse.Namespace) -> imports.ImportOptions:
    """What the options tell of the logs. Raises UsageError for a cluster or an instance type that is not known."""
    if args.cluster is None:
        return imports.ImportOptions(args.num_ranks, args.num_nodes, args.instance or "")
    cluster = clusters.cluster(config_paths.config_file(args.config), args.cluster)
    return imports.ImportOptions(args.num_ranks, args.num_nodes, cluster.instance or "", cluster.links)


def untaken(runs: Sequence[ForeignRun], told: imports.ImportOptions) -> list[str]:
    """What the options tell otherwise than the logs, which count more."""
    said = []
    for option, what, given in (("--num-ranks", "ranks", told.num_ranks), ("--num-nodes", "nodes", told.num_nodes)):
        own = sorted({n for run in runs if (n := getattr(run, f"num_{what}")) is not None and n != given})
        if given is not None and own:
            are = ", ".join(map(str, own[:_MOST_WORLDS])) + ", ..." * (len(own) > _MOST_WORLDS)
            said.append(f"{option} {given} is not taken where a log tells its {what} itself ({are})")
    return said


def is_well(run: ForeignRun) -> bool:
    """Did it end well, with no wrong element?"""
    return run.status == OK and not any(row.num_wrong for row in run.rows)


def _rendered(
    args: argparse.Namespace,
    jobs: Sequence[imports.ImportedJob],
    records: Iterable[tuple[imports.ImportedJob, Record]],
    kept: bool,
) -> str:
    most = _MOST_SHOWN if args.format == "csv" else _MOST_READ
    rows, num_more = DocumentBuilder(most=_MOST_SHOWN), 0
    for job, record in records:
        if len(rows.summaries) < most or record.failed is not None or record.verified is False:
            rows.add(job.header.job, job.header, record)
        else:
            num_more += 1
    more = f"{num_more:,} rows more are not shown nor counted here, none with wrong data"
    more += ": `bench report` shows all that is kept" if kept else ""
    document = rows.document({job.header.job: job.header for job in jobs}, [Coded.uncoded(more)] if num_more else [])
    report = RunReport(document, args.show, args.notes)
    text: str = plugins.load("format", args.format).render(report)
    return text
