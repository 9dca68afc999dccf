"""Is this number normal? Explain a run or a log: what is possible, what others got, and the likeliest reasons."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.controller.plan import all_patterns
from bench.core import plugins
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.core.pattern import Pattern
from bench.explain import page as explain_page
from bench.explain import stored as explain_stored
from bench.explain.crash import Crash
from bench.explain.crash_logs import EventLog, file_events, other_crashes, run_crash
from bench.explain.explain import Page, page, run_page
from bench.explain.log_hints import Hint, HintReader
from bench.explain.messages import ResultVerdict
from bench.hardware.machine import LogMachine, machine_of
from bench.logs import imports
from bench.logs.failure_events import EventReader
from bench.logs.foreign import OK, ForeignRun, Line, with_sibling_machines
from bench.logs.readers import _lines
from bench.results import output
from bench.store import runs

_FORMATS = {"table": explain_page.table, "json": explain_page.as_json, "markdown": explain_page.markdown}
HintedLog = tuple[EventLog, HintReader]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench explain`."""
    parser.add_argument(
        "paths",
        nargs="*",
        default=["latest"],
        metavar="RUN|LOG",
        help="a run's path or name, logs, a folder of logs, - for stdin, or latest (default)",
    )
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    _import().add_log_arguments(parser)
    output.add_output_arguments(parser, tuple(_FORMATS))


def main(args: argparse.Namespace) -> int:
    """Print the pages.

    Returns 1 if a run failed, was truncated, has wrong elements or exceeds its bound, or if a log held no run.
    """
    options = _import().options_of(args)
    patterns = all_patterns()
    stored = {name: _stored(name, args.results) for name in args.paths}
    found: list[tuple[Page, bool]] = []
    for path in stored.values():
        if path is not None:
            found += _stored_pages(path, options, patterns)
    complete = True
    crashes: list[Crash] = []
    names = [name for name, path in stored.items() if path is None]
    if names:
        logs = _read(names, options)
        complete = not any(each.log.is_reported and not each.events for each, _ in logs)
        found += _log_pages(logs, options, patterns)
        crashes = other_crashes([each for each, _ in logs])
    if not found and not crashes:
        raise UsageError("nothing to explain: no row of a whole group was measured")
    pages = [page for page, _ in found]
    output.emit(_FORMATS[args.format](pages, crashes), args)
    whole = all(good and page.assessment.verdict != ResultVerdict.ABOVE for page, good in found)
    return EXIT_DONE if complete and whole and not crashes else EXIT_VERDICT


def _import() -> Any:
    """The module of `bench import` (not a valid identifier); explain reads the same logs with the same options."""
    return plugins.load("command", "import")


def _stored(name: str, results: Path) -> Path | None:
    """The folder or file of one of our runs; None for a log or a folder of logs."""
    path = Path(name)
    if name == imports.STDIN or (path.is_file() and path.suffix != ".jsonl"):
        return None
    if path.is_dir() and not any(path.glob("*.jsonl")):
        return None
    return path if path.exists() else runs.find(results, name)


def _read(names: Sequence[str], options: imports.ImportOptions) -> list[HintedLog]:
    """The runs, events and hints of each log. Raises UsageError if no log holds a known run or a failure."""
    logs = [_read_source(source) for source in imports.sources(names)]
    without_events = [each.log for each, _ in logs if each.log.runs or not each.events]
    troubles = imports.troubles(without_events)
    if not any(each.log.runs for each, _ in logs) and not other_crashes([each for each, _ in logs]):
        troubles = troubles or imports.troubles([each.log for each, _ in logs])
        raise UsageError("; ".join(troubles) or f"there is no file in {', '.join(names)}")
    # The user's number of nodes overrides the log's; the number of ranks does not.
    found = [run for each, _ in logs for run in each.log.runs]
    ignored = _import().ignored_options(found, replace(options, num_nodes=None))
    for sentence in (*troubles, *ignored):
        print(f"bench: {sentence}", file=sys.stderr)
    return logs


def _read_source(source: imports.Source) -> HintedLog:
    """One file, read once for its runs, hints and events. A dump is read again as a document."""
    hints, events = HintReader(), EventReader()

    def lines(chunks: Iterable[bytes], look: Callable[[str], None]) -> Iterator[Line]:
        def look_twice(text: str) -> None:
            look(text)
            events.look(text)

        for line in _lines.lines(chunks, look_twice):
            hints.read(line.number, line.text)
            yield line

    log = imports.read(source, imports.readers(), lines)
    document = () if log.runs else file_events(source.path, source.name)
    return EventLog(log, document or events.events(source.name)), hints


def _log_pages(
    logs: Sequence[HintedLog], options: imports.ImportOptions, patterns: Mapping[str, Pattern]
) -> Iterator[tuple[Page, bool]]:
    """A page for each run of each log, and whether the run is complete and correct."""
    event_logs = [each for each, _ in logs]
    for each, hints in logs:
        runs_here = with_sibling_machines(each.log.runs)
        ends = [*(run.line for run in runs_here[1:]), float("inf")]
        begin = 1.0
        for run, end in zip(runs_here, ends, strict=False):
            found = _page(run, options, patterns, hints.between(int(begin), end))
            crash = run_crash(event_logs, each, run, begin, end)
            yield replace(found, source=each.log.source.name, crash=crash), _is_good(run)
            begin = end


def _page(
    run: ForeignRun,
    options: imports.ImportOptions,
    patterns: Mapping[str, Pattern],
    hints: Sequence[Hint] = (),
    machine: LogMachine | None = None,
) -> Page:
    if run.num_ranks is None and options.num_ranks is not None:
        run = run.with_num_ranks(options.num_ranks)
    run = imports.with_contradictions(run, patterns)
    ranks = run.num_ranks
    nodes = options.num_nodes or run.num_nodes
    per_node = -(-ranks // nodes) if ranks and nodes else None
    platform = next((hint.value for hint in hints if hint.kind == "platform"), None)
    if machine is None:
        named = options.own or options.instance or None
        machine = _as_given(machine_of(named, run.gpus, run.hosts, per_node, platform), options, per_node)
    return page(run, machine, patterns.get(run.pattern or ""), hints, options.num_nodes)


def _as_given(machine: LogMachine, options: imports.ImportOptions, ranks_per_node: int | None) -> LogMachine:
    """The machine with what bench.yaml and the user's options say about its links."""
    links = options.of_node(machine.links, ranks_per_node)
    if links is not machine.links:
        how = f"{machine.how}; NICs and GPUs of a node as given"
        machine = replace(machine, links=links, likely=None, how=how)
    if not options.links or machine.links is None:
        return machine
    links = machine.links.with_rates(dict(options.links))
    return replace(machine, links=links, how=f"{machine.how}, with the rates of its entry in bench.yaml")


def _stored_pages(
    path: Path, options: imports.ImportOptions, patterns: Mapping[str, Pattern]
) -> Iterator[tuple[Page, bool]]:
    """A page for each job of ours and each imported run, and whether the run is complete and correct."""
    attempts, warnings = runs.attempts(path)
    for sentence in warnings:
        print(f"bench: warning: {sentence}", file=sys.stderr)
    jobs = [(job, attempt.header, attempt.records) for job, attempt in attempts]
    for run, header in explain_stored.imported(jobs):
        machine = None if options.instance else explain_stored.stored_machine(header)
        found = _page(run, options, patterns, machine=machine)
        yield replace(found, source=str(header.imported["source"])), _is_good(run)
    for job, evidence in explain_stored.measured(jobs):
        yield replace(run_page(evidence), source=job), _is_good(evidence.run)


def _is_good(run: ForeignRun) -> bool:
    return run.status == OK and not any(row.num_wrong for row in run.rows)
