"""Explain whether the figures of a run or a log are normal, and show the likeliest reasons if they are not.

The page compares the figures with the bounds of the links and with the results of other systems.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.commands._say import say
from bench.controller.plan import all_patterns
from bench.core import plugins, printable
from bench.core.codes import Coded
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.core.pattern import Pattern
from bench.diagnose import fleet_page
from bench.diagnose.fleet import Fleet, GroupKey, fleet_of
from bench.diagnose.host_evidence import FleetVerdict, verdict_of
from bench.explain import page as explain_page
from bench.explain import stored as explain_stored
from bench.explain.crash import Crash
from bench.explain.crash_logs import EventLog, file_events, other_crashes, run_crash, without_failure
from bench.explain.explain import Page, page, run_page
from bench.explain.log_hints import Hint, HintReader, topology_hints
from bench.explain.messages import ResultVerdict
from bench.explain.topology_page import topology_page
from bench.hardware.machine import LogMachine, machine_of
from bench.logs import imports
from bench.logs.failure_events import EventReader
from bench.logs.foreign import ForeignRun, Line, with_sibling_machines
from bench.logs.messages import LogCode
from bench.logs.readers import _lines
from bench.results import output
from bench.store import runs

_FORMATS = ("table", "json", "markdown")
_PAGE_FORMATS = {"table": explain_page.table, "markdown": explain_page.markdown}
_FOLDER_FORMATS = {"table": fleet_page.table, "markdown": fleet_page.markdown}
_LOW = {ResultVerdict.LOW, ResultVerdict.FAR_TOO_LOW}
_FAIL_ON = {
    "low": _LOW,
    "unjudged": {*_LOW, ResultVerdict.CANNOT_BE_JUDGED},
}  # these verdicts give exit code 1 only with --fail-on
_LEAST_LOGS = 3  # with fewer logs, each log gets its own page
HintedLog = tuple[EventLog, HintReader]
Folder = tuple[Fleet, FleetVerdict, Mapping[GroupKey, str], Coded | None]


EXAMPLES = (
    ("linkbench explain nccl.log --instance p5.48xlarge", "is the result in this log normal?"),
    ("linkbench explain logs/", "which hosts are slow? one page for a folder of logs"),
    ("linkbench explain latest", "are the results of the latest run normal?"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    parser.add_argument(
        "paths",
        nargs="*",
        default=["latest"],
        metavar="RUN|LOG",
        help="a run's path or name, logs, a folder or archive of logs, - for stdin, or latest (default)",
    )
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    parser.add_argument(
        "--pages", action="store_true", help="print a page for each run instead of one page for similar runs"
    )
    parser.add_argument(
        "--plot", type=output.drawing, metavar="FILE", help="draw the pairs of similar runs (.png, .svg or .pdf)"
    )
    parser.add_argument(
        "--fail-on",
        choices=tuple(_FAIL_ON),
        help="low: exit with 1 if a result is low or far too low; unjudged: also if a result cannot be judged",
    )
    _import().add_log_arguments(parser)
    output.add_output_arguments(parser, _FORMATS)


def main(args: argparse.Namespace) -> int:
    """Print a page for each run, or one page for similar runs on different hosts. Returns the exit code."""
    page, code = rendered(args)
    output.emit(page, args)
    return code


def rendered(args: argparse.Namespace) -> tuple[str, int]:
    """Return the pages in the requested format, and the exit code.

    The code is 1 in these cases:

    - A run failed or was truncated.
    - A run has wrong elements or exceeds its bound.
    - A log has no run.
    - Several similar runs were compared, and one of them is slow or missing.
    - A page has one of the verdicts in `--fail-on`.
    """
    options = _import().options_of(args)
    patterns = all_patterns()
    stored = {name: _stored(name, args.results) for name in args.paths}
    found: list[tuple[Page, bool]] = []
    for path in stored.values():
        if path is not None:
            found += _stored_pages(path, options, patterns)
    width = output.page_width(args)
    complete = True
    crashes: list[Crash] = []
    fleet: Fleet | None = None
    folder: Folder | None = None
    names = [name for name, path in stored.items() if path is None]
    if names:
        logs = _read(names, options)
        complete = not any(each.log.is_reported and not _is_explained(each, hints) for each, hints in logs)
        read = _runs(logs, options, patterns)
        fleet = _fleet(read, args.plot)
        if fleet is not None and not args.pages:
            folder = _folder(fleet, read, options, patterns)
        if folder is not None and args.format != "json" and not found:
            crashes = other_crashes([each for each, _ in logs])
            if crashes:
                say(f"bench: {len(crashes)} other logs report failures: add --pages to see them")
            good = complete and folder[0].is_well and not crashes
            return _FOLDER_FORMATS[args.format](*folder, width=width), EXIT_DONE if good else EXIT_VERDICT
        found += _log_pages(logs, options, patterns)
        found += _topology_pages(logs, options)
        crashes = other_crashes([each for each, _ in logs])
    if not found and not crashes:
        raise UsageError("nothing to explain: no row of a whole group was measured")
    pages = [page for page, _ in found]
    if args.format == "json":
        whole_page = explain_page.as_json(pages, crashes, fleet_page.plain(*folder) if folder else None)
    else:
        whole_page = _PAGE_FORMATS[args.format](pages, crashes, width)
        whole_page = "\n\n".join([whole_page.rstrip("\n"), *_runs_of(stored, args.format)]) + "\n"
    failing = {ResultVerdict.ABOVE, *_FAIL_ON.get(args.fail_on, ())}
    whole = all(good and page.assessment.verdict not in failing for page, good in found)
    whole = whole and (fleet is None or fleet.is_well)
    return whole_page, EXIT_DONE if complete and whole and not crashes else EXIT_VERDICT


def _import() -> Any:
    """Return the module `bench.commands.import`, whose name is a keyword of Python.

    `explain` takes the same logs and options as `import`.
    """
    return plugins.load("command", "import")


def _stored(name: str, results: Path) -> Path | None:
    """Return the folder or file of a stored run. Return None for logs of other tools and for a folder of logs."""
    path = Path(name)
    if name == imports.STDIN or (path.exists() and not runs.has_results(path)):
        return None
    return path if path.exists() else runs.find(results, name)


def _runs_of(stored: Mapping[str, Path | None], page_format: str) -> list[str]:
    """If the user typed `latest`, return a line with the path of the latest run. Otherwise, return no line."""
    path = stored.get("latest")
    if path is None:
        return []
    line = f"explained: the latest run, {printable.printable(str(path))}"
    return [line if page_format == "markdown" else f"# {line}"]


def _read(names: Sequence[str], options: imports.ImportOptions) -> list[HintedLog]:
    """Return the runs, events and hints of each log.

    Raises UsageError if no log contains a run, a failure or a topology that this suite can read.
    """
    logs = [_read_source(source) for source in imports.unpacked(imports.sources(names))]
    troubles = imports.troubles([each.log for each, hints in logs if each.log.runs or not _is_explained(each, hints)])
    has_pages = any(each.log.runs or hints.topology.found for each, hints in logs)
    if not has_pages and not other_crashes([each for each, _ in logs]):
        hints_of_all = [hint for _, hints in logs for hint in hints.between(0, math.inf)]
        if (shown := without_failure([each for each, _ in logs], hints_of_all)) is not None:
            raise UsageError("; ".join([*troubles, shown.text]))
        troubles = troubles or imports.troubles([each.log for each, _ in logs])
        raise UsageError("; ".join(troubles) or f"there is no file in {', '.join(names)}")
    # The number of nodes that the user gives replaces the log's number. A given number of ranks does not.
    found = [run for each, _ in logs for run in each.log.runs]
    ignored = _import().ignored_options(found, replace(options, num_nodes=None))
    for sentence in (*troubles, *ignored):
        say(f"bench: {sentence}")
    return logs


def _runs(
    logs: Sequence[HintedLog], options: imports.ImportOptions, patterns: Mapping[str, Pattern]
) -> list[tuple[str, ForeignRun]]:
    """Return all runs with the names of their files.

    If the user gives a number of nodes, all runs get this number. If a log does not state its number of ranks, the
    number that the user gives is used.
    """
    found: list[tuple[str, ForeignRun]] = []
    for each, _ in logs:
        for run in each.log.runs:
            placed = run if options.num_nodes is None else replace(run, num_nodes=options.num_nodes)
            if placed.num_ranks is None and options.num_ranks is not None:
                placed = placed.with_num_ranks(options.num_ranks)
            found.append((each.log.source.name, imports.with_contradictions(placed, patterns)))
    return found


def _fleet(read: Sequence[tuple[str, ForeignRun]], plot: Path | None) -> Fleet | None:
    """Return the similar runs on different hosts, or None if there are too few.

    `plot`: the path of the figure to draw. Raises UsageError if `plot` is given but there are too few similar runs to
    draw.
    """
    fleet = fleet_of(read)
    if fleet.is_one and len({source for source, _ in read}) >= _LEAST_LOGS:
        if plot is not None:
            _draw(fleet, verdict_of(fleet), plot)
        return fleet
    if plot is not None:
        raise UsageError("--plot draws the pairs of similar runs, and these logs hold too few such runs")
    return None


def _folder(
    fleet: Fleet,
    read: Sequence[tuple[str, ForeignRun]],
    options: imports.ImportOptions,
    patterns: Mapping[str, Pattern],
) -> Folder:
    """Judge similar runs.

    Returns the runs, a verdict on all runs, a verdict on each group's median run, and a missing option (or None). If
    linkbench could not judge one of these median runs without an option, the last value names this option. Otherwise,
    the last value is None.
    """
    by_place = {(source, run.line): run for source, run in read}
    normal = {}
    decides = None
    for group in fleet.groups:
        middle = group.middle_run
        if middle is not None:
            median = _page(by_place[middle.source, middle.line], options, patterns)
            normal[group.key] = str(median.assessment.verdict)
            if decides is None and median.decides is not None and median.decides.code != median.assessment.why.code:
                decides = median.decides
    return fleet, verdict_of(fleet), normal, decides


def _draw(fleet: Fleet, verdict: FleetVerdict, path: Path) -> None:
    from bench.figures import _fleet, _style

    try:
        _style.write(_fleet.pairs(fleet, verdict), path)
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written: {error.strerror}") from None


def _read_source(source: imports.Source) -> HintedLog:
    """Read one file once for its runs, hints and events.

    A file without runs may contain one document, such as a dump of the stacks of all ranks. The reader reads such a
    file a second time.
    """
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
    found = document or events.events(source.name)
    course = events.course()
    if log.trouble is not None and log.trouble.code == LogCode.NOT_RECOGNISED:
        code = LogCode.NO_FAILURE_MESSAGE if course else LogCode.NOT_RECOGNISED
        facts = {**log.trouble.facts, **course.facts(), "for_messages": True}
        log = replace(log, trouble=Coded.of(code, **facts))
    return EventLog(log, found, course), hints


def _log_pages(
    logs: Sequence[HintedLog], options: imports.ImportOptions, patterns: Mapping[str, Pattern]
) -> Iterator[tuple[Page, bool]]:
    """Yield a page for each run of each log. With each page, yield whether the run is complete and correct.

    If one file has a topology but no runs, this topology is used as evidence for the runs in all other logs.
    """
    event_logs = [each for each, _ in logs]
    beside = [topology for each, hints in logs if not each.log.runs for topology in hints.topology.found]
    for each, hints in logs:
        runs_here = with_sibling_machines(each.log.runs)
        ends = [*(run.line for run in runs_here[1:]), float("inf")]
        begin = 1.0
        for run, end in zip(runs_here, ends, strict=False):
            found = _page(run, options, patterns, hints.between(int(begin), end) + topology_hints(beside))
            crash = run_crash(event_logs, each, run, begin, end)
            yield replace(found, source=each.log.source.name, crash=crash), run.is_correct
            begin = end


def _topology_pages(logs: Sequence[HintedLog], options: imports.ImportOptions) -> Iterator[tuple[Page, bool]]:
    """Yield a page for each topology. With each page, yield whether the topology's links are as expected.

    If a log has a run, no page is yielded.
    """
    if any(each.log.runs for each, _ in logs):
        return
    for each, hints in logs:
        for topology in hints.topology.found:
            yield topology_page(topology, each.log.source.name, options.instance or None)


def _is_explained(log: EventLog, hints: HintReader) -> bool:
    """Check whether a file without runs contains a failure or a topology that `explain` can explain."""
    return bool(log.events or hints.topology.found)


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
    """Return the machine, with the link rates that bench.yaml and the user's options state."""
    links = options.of_node(machine.links, ranks_per_node)
    if links is not machine.links:
        how = f"{machine.how}; the options give the NICs and GPUs of a node"
        unknown_nics = "" if links is not None and links.nic_bytes_per_s else machine.unknown_nics
        machine = replace(machine, links=links, likely=None, how=how, unknown_nics=unknown_nics)
    if not options.links or machine.links is None:
        return machine
    links = machine.links.with_rates(dict(options.links))
    return replace(machine, links=links, how=f"{machine.how}, with the rates of the cluster's entry in bench.yaml")


def _stored_pages(
    path: Path, options: imports.ImportOptions, patterns: Mapping[str, Pattern]
) -> Iterator[tuple[Page, bool]]:
    """Yield a page for each job or imported run of a result.

    With each page, yield whether the job or run is complete and correct.
    """
    attempts, warnings = runs.attempts(path)
    for sentence in warnings:
        say(f"bench: warning: {sentence}")
    jobs = [(job, attempt.header, attempt.records) for job, attempt in attempts]
    for run, header in explain_stored.imported(jobs):
        machine = None if options.instance else explain_stored.stored_machine(header)
        found = _page(run, options, patterns, machine=machine)
        yield replace(found, source=str(header.imported["source"])), run.is_correct
    for job, evidence in explain_stored.measured(jobs):
        yield replace(run_page(evidence), source=job), evidence.run.is_correct
