"""Is this number normal? A page about a run or a log: what is possible, what others got, and the likeliest reasons."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.commands import _plan
from bench.core import plugins
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.core.pattern import Pattern
from bench.explain import explain
from bench.explain import page as explain_page
from bench.explain import stored as explain_stored
from bench.explain.explain import Page
from bench.hardware import catalogue
from bench.hardware.machine import LogMachine, machine_of
from bench.logs import imports
from bench.logs.foreign import OK, ForeignRun, Line
from bench.logs.readers import _lines
from bench.results import output
from bench.results.table import as_json
from bench.store import runs

SCHEMA = "bench.explain/1"
_FORMATS = ("table", "json", "markdown")


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
    output.add_output_arguments(parser, _FORMATS)


def main(args: argparse.Namespace) -> int:
    """Print the pages; 1 when a run failed, was cut, has wrong elements, or is above what is possible, and when a log
    gave nothing."""
    told = _import().options_of(args)
    if told.instance:
        catalogue.instance(told.instance)  # a wrong name is said before anything is read
    patterns = _plan.all_patterns()
    pages, well = [], True
    stored = {name: _stored(name, args.results) for name in args.paths}
    logs = [name for name, run in stored.items() if run is None]
    found = [each for run in stored.values() if run is not None for each in _of_run(run, told, patterns)]
    if logs:
        read = _read(logs, told)
        well = not any(log.is_reported for log, _ in read)
        found += _of_logs(read, told, patterns)
    for page, good in found:
        pages.append(page)
        well = well and good and page.standing.word != explain.ABOVE
    output.emit(_rendered(args.format, pages), args)
    return EXIT_DONE if well else EXIT_VERDICT


def _import() -> Any:
    """`bench import`, whose name is no identifier: explain reads the same logs, told the same."""
    return plugins.load("command", "import")


def _stored(name: str, results: Path) -> Path | None:
    """The folder or the file of a run of ours; None for a log, or a folder of logs."""
    path = Path(name)
    if name == imports.STDIN or (path.is_file() and path.suffix != ".jsonl"):
        return None
    if path.is_dir() and not any(path.glob("*.jsonl")):
        return None
    return path if path.exists() else runs.find(results, name)


def _read(names: Sequence[str], told: imports.ImportOptions) -> list[tuple[imports.Log, explain.Listener]]:
    """What each file gave, beside what was heard in it. Raises UsageError where nothing was recognised."""
    logs = []
    for source in imports.sources(names):
        listener = explain.Listener()

        def heard(
            chunks: Iterable[bytes], look: Callable[[str], None], listener: explain.Listener = listener
        ) -> Iterator[Line]:
            for line in _lines.lines(chunks, look):
                listener.hear(line.number, line.text)
                yield line

        logs.append((imports.read(source, imports.readers(), heard), listener))
    troubles = imports.troubles([log for log, _ in logs])
    if not any(log.runs for log, _ in logs):
        raise UsageError("; ".join(troubles) or f"there is no file in {', '.join(names)}")
    # The number of nodes that the user gives counts more than a log's here; of ranks it does not.
    said = _import().ignored_options([run for log, _ in logs for run in log.runs], replace(told, num_nodes=None))
    for sentence in (*troubles, *said):
        print(f"bench: {sentence}", file=sys.stderr)
    return logs


def _of_logs(
    logs: Sequence[tuple[imports.Log, explain.Listener]], told: imports.ImportOptions, patterns: Mapping[str, Pattern]
) -> Iterator[tuple[Page, bool]]:
    """A page for each run of each log."""
    for log, listener in logs:
        later = [run.line for run in log.runs[1:]]
        for run, first, last in zip(log.runs, [1, *later], [*later, float("inf")], strict=False):  # of none: no page
            found = _page(run, told, patterns, listener.between(first, last))
            yield replace(found, source=log.source.name), _well(run)


def _page(
    run: ForeignRun,
    told: imports.ImportOptions,
    patterns: Mapping[str, Pattern],
    hints: Sequence[explain.Hint] = (),
    machine: LogMachine | None = None,
) -> Page:
    if run.num_ranks is None and told.num_ranks is not None:
        run = run.with_num_ranks(told.num_ranks)
    run = imports.with_contradictions(run, patterns)
    ranks = run.num_ranks
    nodes = told.num_nodes or run.num_nodes
    per_node = -(-ranks // nodes) if ranks and nodes else None
    platform = next((hint.value for hint in hints if hint.kind == "platform"), None)
    if machine is None:
        machine = _with_rates(machine_of(told.instance or None, run.gpus, run.hosts, per_node, platform), told)
    return explain.page(run, machine, patterns.get(run.pattern or ""), hints, told.num_nodes)


def _with_rates(machine: LogMachine, told: imports.ImportOptions) -> LogMachine:
    """The rates of bench.yaml's entry in the place of the instance type's."""
    if not told.links or machine.links is None:
        return machine
    return replace(
        machine, links=machine.links.with_rates(dict(told.links)), how=f"{machine.how}, with its entry's rates"
    )


def _of_run(path: Path, told: imports.ImportOptions, patterns: Mapping[str, Pattern]) -> Iterator[tuple[Page, bool]]:
    """A page for each job of ours, and for each run that was imported."""
    attempts, warnings = runs.attempts(path)
    for sentence in warnings:
        print(f"bench: warning: {sentence}", file=sys.stderr)
    told_jobs = [(job, attempt.header, attempt.records) for job, attempt in attempts]
    for run, header in explain_stored.imported(told_jobs):
        machine = None if told.instance else explain_stored.machine_told(header)
        found = _page(run, told, patterns, machine=machine)
        yield replace(found, source=str(header.imported["source"])), _well(run)
    for job, seen in explain_stored.measured(told_jobs):
        yield replace(explain.page_of(seen), source=job), _well(seen.run)


def _well(run: ForeignRun) -> bool:
    return run.status == OK and not any(row.num_wrong for row in run.rows)


def _rendered(form: str, pages: Sequence[Page]) -> str:
    if not pages:
        raise UsageError("there is nothing to explain: no row of a whole group was measured")
    if form == "json":
        return as_json({"schema": SCHEMA, "pages": [_plain(page) for page in pages]})
    return (explain_page.markdown if form == "markdown" else explain_page.table)(pages)


def _plain(page: Page) -> dict[str, Any]:
    plain = asdict(page)
    standing = plain.pop("standing")
    if page.best is not None:
        plain["best"]["contradicts"] = page.best.contradicts.text if page.best.contradicts else ""
    return {**plain, "standing": standing["word"], "because": standing["sentence"], "ratio": standing["ratio"]}
