"""Read logs of nccl-tests, nvbandwidth, OSU, perftest and others as a run, for report, gate, plot and explain."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.commands._say import say
from bench.config import clusters
from bench.config import paths as config_paths
from bench.controller.plan import all_patterns
from bench.core import plugins, printable
from bench.core.codes import Coded
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.core.option_parsers import nics, whole
from bench.core.record import Record
from bench.hardware import catalogue
from bench.hardware.catalogue import Instance
from bench.logs import imports, page
from bench.logs.foreign import ForeignRun
from bench.logs.readers import _lines
from bench.results import output
from bench.results.run_report import RunReport
from bench.results.summary import DocumentBuilder

# The most rows that tables and CSV documents show, in order. Rows with wrong data are always shown. A run stores all
# rows.
_MOST_READ, _MOST_SHOWN = 10_000, 50_000
_MOST_WORLDS = 4  # the most numbers that one sentence names


EXAMPLES = (("linkbench import nccl.log --instance p4d", "store the rows of a log as a run, with the bounds of a p4d"),)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a log, a folder or archive of logs, or - for stdin")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="where to store the run (default results/; with --format json only if given)",
    )
    parser.add_argument("--no-store", action="store_true", help="print only, store no run")
    add_log_arguments(parser)
    output.add_table_arguments(parser)
    output.add_output_arguments(parser)


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for facts that a log may not state: the number of ranks and nodes, and the machine's links."""
    unstated = "if the log does not state it"
    parser.add_argument("--num-ranks", type=whole(1, "--num-ranks"), metavar="N", help=f"number of ranks, {unstated}")
    parser.add_argument("--num-nodes", type=whole(1, "--num-nodes"), metavar="N", help=f"number of nodes, {unstated}")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cluster", metavar="NAME", help="entry of bench.yaml whose links bound the rows")
    where.add_argument("--instance", metavar="TYPE", help="instance type whose links bound the rows (see bench list)")
    parser.add_argument("--nics", type=nics, metavar="NxRATE", help="NICs of each node and their Gb/s: 8x400G")
    parser.add_argument("--gpus-per-node", type=whole(1, "--gpus-per-node"), metavar="N", help="GPUs of each node")
    parser.add_argument("--config", type=Path, metavar="FILE", help="bench.yaml to read (default ./bench.yaml)")


def main(args: argparse.Namespace) -> int:
    """Read logs, store their runs and print them.

    Returns 1 if a run failed, was truncated or has wrong elements, or if a log has no run.
    """
    options = options_of(args)
    try:
        logs, troubles = _read(args.paths, options)
    except UsageError:
        if args.format == "json":  # print a JSON document even if there are no runs
            output.emit_pieces(page.pieces(()), args)
        raise
    runs = [run for log in logs for run in log.runs]
    for sentence in (*troubles, *ignored_options(runs, options)):
        say(f"bench: {sentence}")
    stored = not args.no_store and (args.format != "json" or args.results is not None)
    jobs = imports.jobs(logs, options, all_patterns()) if stored or args.format != "json" else []
    folder = imports.folder_of(jobs, logs, args.results or Path("results"), args.cluster) if stored else None
    records = ((job, record) for job in jobs for record in (imports.kept(job, folder) if folder else job.records()))
    if args.format == "json":
        deque(records, maxlen=0)  # reading the records stores them
        output.emit_pieces(page.pieces((log.source.name, run) for log in logs for run in log.runs), args)
    else:
        output.emit(_rendered(args, jobs, records, folder is not None), args)
    if folder is not None:
        shown = args.format == "table" and args.output is None
        print(printable.line(f"results: {folder}/"), file=sys.stdout if shown else sys.stderr)
    lost = any(log.is_reported for log in logs)
    return EXIT_VERDICT if lost or not all(run.is_correct for run in runs) else EXIT_DONE


def stored(paths: Sequence[str], options: imports.ImportOptions, results: Path, name: str) -> Path:
    """Store the logs as a run of this name in `results`. Raises UsageError if no log holds a run."""
    logs, troubles = _read(paths, options)
    runs = [run for log in logs for run in log.runs]
    for sentence in (*troubles, *ignored_options(runs, options)):
        say(f"bench: {sentence}")
    jobs = imports.jobs(logs, options, all_patterns())
    folder = imports.folder_of(jobs, logs, results, None)
    for job in jobs:
        deque(imports.kept(job, folder), maxlen=0)
    return folder.rename(results / name)


def _read(paths: Sequence[str], options: imports.ImportOptions) -> tuple[list[imports.Log], list[str]]:
    """Return the logs, and a sentence for each file without a run. Raises UsageError if no file holds a run."""
    readers = imports.readers()
    logs = [
        imports.read(source, readers, _lines.results, options) for source in imports.unpacked(imports.sources(paths))
    ]
    troubles = imports.troubles(logs)
    if not any(log.runs for log in logs):
        raise UsageError("; ".join(troubles) or f"there is no file in {', '.join(paths)}")
    return logs, troubles


def options_of(args: argparse.Namespace) -> imports.ImportOptions:
    """Return the options of `add_log_arguments`. Raises UsageError for an unknown cluster or instance type."""
    given = {"nics": args.nics, "gpus_per_node": args.gpus_per_node}
    if args.cluster is None:
        own = _own_type(args.instance, args.config)
        name = "" if args.instance is None else own.name if own else catalogue.instance(args.instance).name
        return imports.ImportOptions(args.num_ranks, args.num_nodes, name, own=own, **given)
    cluster = clusters.cluster(config_paths.config_file(args.config), args.cluster)
    return imports.ImportOptions(args.num_ranks, args.num_nodes, cluster.instance or "", cluster.links, **given)


def _own_type(name: str | None, config: Path | None) -> Instance | None:
    """Return the instance type with this name from bench.yaml.

    Return None if `name` is None, or if the catalogue already has a type with this name.
    """
    if name is None or name in catalogue.instances():
        return None
    site = clusters.load_site(config_paths.config_file(config))
    found = site.instance(name)
    return found if found.name in site.own else None


def ignored_options(runs: Sequence[ForeignRun], options: imports.ImportOptions) -> list[str]:
    """Return a sentence for each option that is ignored because the logs state another value."""
    sentences = []
    for name, given in (("ranks", options.num_ranks), ("nodes", options.num_nodes)):
        stated = {getattr(run, f"num_{name}") for run in runs} - {None, given}
        if given is not None and stated:
            numbers = ", ".join(map(str, sorted(stated)[:_MOST_WORLDS])) + ", ..." * (len(stated) > _MOST_WORLDS)
            sentences.append(f"--num-{name} {given} is ignored for logs that state their {name} ({numbers})")
    return sentences


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
    more = f"{num_more:,} more rows are neither shown nor counted here; all have correct data"
    more += "; `linkbench report` shows all stored rows" if kept else ""
    document = rows.document({job.header.job: job.header for job in jobs}, [Coded.uncoded(more)] if num_more else [])
    report = RunReport(document, args.show, args.notes, most_lines=output.most_lines(args), columns=args.columns)
    text: str = plugins.load("format", args.format).render(report, output.page_width(args))
    return text
