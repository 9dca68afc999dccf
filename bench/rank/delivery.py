"""Write the output of rank 0: each row as soon as the row is measured, and complete documents at the end.

Results go to stdout, all other text to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core import plugins, printable
from bench.core.errors import EXIT_DONE, EXIT_MEASUREMENT, EXIT_REFUSED, BenchError, UsageError
from bench.core.record import WrongCode
from bench.core.wrapping import line_width
from bench.rank.messages import RankFailure, RankRefusal, RunEnd
from bench.store.heartbeat import ERROR_LINE, End, LastWords, error_line

if TYPE_CHECKING:
    from bench.core.record import Header, Record
    from bench.rank.header import HostsAfterRows
    from bench.results.document import Document, Summary
    from bench.store.jsonl import Writer
    from bench.store.row_events import RowEvent

    Clocks = dict[str, dict[str, float]]

_MOST_HELD, _MOST_PENDING = 50_000, 10_000  # rows of a printed table that rank 0 keeps (about 100 MB, and 20 MB)


def deliver(
    header: Header,
    rows: Iterator[tuple[Record, ...]],
    args: argparse.Namespace,
    clocks_at_end: Callable[[], Clocks] = dict,
    after: HostsAfterRows | None = None,
) -> int:
    """On rank 0, write and print each row as soon as the row is measured. Return the exit code.

    After the last row, add to the header the state of the hosts from `after`, and the result of `clocks_at_end`.
    """
    from bench.results import summary
    from bench.store import jsonl, row_events

    writer = jsonl.Writer(Path(args.records), header) if args.records else None
    live = args.format == "table" and args.output is None
    printer = _TablePrinter(header) if live else None
    if printer is None:
        for note in header.notes:
            say(f"# {note}")
    # A document needs every row. A table that is printed row by row keeps only the rows that its last lines need.
    builder = summary.DocumentBuilder(_MOST_HELD if printer else None)
    try:
        for row in rows:
            if writer:
                writer.append(*row)
            shown = [builder.add(header.job, header, record) for record in row]
            if args.heartbeats:
                row_events.append(Path(args.heartbeats), _event(header, row, shown))
            if printer:
                printer.show([summary for summary in shown if summary is not None])
    except Exception:
        if not printer:  # prints one complete document even after a failure
            emit(builder.document({header.job: header}), args)
        raise
    header = _at_end(header, clocks_at_end(), after, writer)
    document = builder.document({header.job: header})
    if printer:
        printer.finish(document, args.notes)
    else:
        emit(document, args)
    return _exit_code(document, has_controller=bool(args.heartbeats))


def _event(header: Header, row: Sequence[Record], shown: Sequence[Summary | None]) -> RowEvent:
    """Return the event that reports a row.

    The event has the results of the row's slowest group, or the reason why the row has no results.
    """
    from bench.store.row_events import RowEvent

    first = row[0]
    failed = next((record.failed for record in row if record.failed is not None), None)
    skipped = next((record.skipped for record in row if record.skipped is not None), None)
    event = RowEvent(header.pattern, first.payload_bytes, first.mode, len(row), failed=failed is not None)
    if failed is not None:
        return replace(event, reason=failed.what)
    timed = [summary for summary in shown if summary is not None and summary.median_s is not None]
    if not timed:
        return replace(event, reason=skipped.text if skipped is not None else "")
    slowest = max(timed, key=lambda summary: summary.median_s or 0.0)
    return replace(
        event,
        median_s=slowest.median_s,
        busbw_bytes_per_s=slowest.busbw_bytes_per_s,
        bound_fraction=slowest.bound_fraction,
        flags=tuple(dict.fromkeys(flag for summary in timed for flag in summary.flags)),
    )


def _at_end(header: Header, clocks: Clocks, after: HostsAfterRows | None, writer: Writer | None) -> Header:
    """Add the final state of hosts and GPUs, and the offsets of the clocks, to the header and the file."""
    from bench.store import jsonl

    if clocks:
        header = jsonl.with_clocks(header, clocks)
    if after is not None:
        header = jsonl.with_end(header, after.gpus, after.hosts)
    if clocks and writer:
        writer.clocks(clocks)
    if after is not None and writer:
        writer.end(after.gpus, after.hosts)
    return header


def _exit_code(document: Document, has_controller: bool) -> int:
    """If the run failed, print the reason. Return the exit code.

    The exit code is 4 for wrong data or a failed row, 3 if every row was skipped, and otherwise 0.
    """
    for words in _last_words(document):
        say(error_line(words) if has_controller else ERROR_LINE + words.end.text)
    if document.failures or any(row.verified is False for row in document.summaries):
        return EXIT_MEASUREMENT
    return EXIT_DONE if document.summaries else EXIT_REFUSED


def _last_words(document: Document) -> Iterator[LastWords]:
    """Yield why the run was not successful.

    If one rank's send buffer is wrong, or if a row failed, the message names the rank.
    """
    wrong = [row for row in document.summaries if row.verified is False]
    if wrong:
        found = [row.first_wrong for row in wrong if row.first_wrong]
        sent = [first for first in found if first["code"] == WrongCode.SENT]
        first = next(iter(sent or found), None)
        rank = sent[0]["facts"]["rank"] if sent else None
        facts = {"num": len(wrong), "first": first["text"] if first else "unknown position"}
        yield LastWords(End.of(RunEnd.WRONG_DATA, **facts), rank, _host_of(document, wrong[0].job, rank))
    if document.failures:
        by_sender = [each for each in document.failures if each["facts"].get("found") == WrongCode.SENT]
        failed = next(iter(by_sender), document.failures[0])
        facts = {"first": failed["what"], "rank": failed["rank"], "host": failed["host"]}
        end = End.of(RunEnd.ROWS_FAILED, num=len(document.failures), **facts)
        # The rank that received wrong data is not at fault.
        received = failed["code"] == RankFailure.WRONG_BEFORE_TIMING and not by_sender
        yield LastWords(end) if received else LastWords(end, failed["rank"], failed["host"])


def _host_of(document: Document, job: str, rank: int | None) -> str | None:
    ranks = document.headers[job].ranks
    return None if rank is None or rank >= len(ranks) else str(ranks[rank]["host"])


class _TablePrinter:
    """The constructor prints the head of the table.

    When all modes of one size are measured, the rows of this size are printed.
    """

    def __init__(self, header: Header) -> None:
        from bench.core.case_argv import from_argv
        from bench.diagnose.pair_evidence import group_name
        from bench.results.flops import PATTERN
        from bench.results.run_report import LiveTable
        from bench.results.run_table import Layout

        case = from_argv(header.case)
        grouped = header.topology != "world"
        last = (header.num_ranks or 1) - 1
        widest = len(group_name("confirm", 999, last, last) if case.is_ladder else f"{last}-{last}")
        products = header.pattern == PATTERN
        layout = Layout(case.modes, grouped, widest, case.like, products=products, modelled=header.modelled)
        self._table = LiveTable(layout)
        self._pending: list[Summary] = []
        self._print(self._table.before(header))

    def show(self, row: Sequence[Summary]) -> None:
        """Keep the row until all rows of the same size are measured. Then print these rows.

        If there are too many rows of one size, print them in several parts.
        """
        if self._pending and row and row[0].payload_bytes != self._pending[0].payload_bytes:
            self._flush()
        self._pending += row
        if len(self._pending) > _MOST_PENDING:
            self._flush()

    def finish(self, document: Document, all_notes: bool) -> None:
        """Print the rows of the last size, and the lines about the whole table."""
        self._flush()
        self._print(self._table.after(document, all_notes))

    def _flush(self) -> None:
        if self._pending:
            self._print(self._table.rows(self._pending))
        self._pending = []

    def _print(self, text: str) -> None:
        print(printable.lines(text), flush=True)


def failed_document(name: str, error: BenchError) -> Document:
    """Return the document of a run that has no results. JSON output is always one document, even after a failure."""
    from bench.results.document import DOCUMENT_SCHEMA, Document

    where = {"job": name, "pattern": name, "rank": None, "host": None}
    failure = {**where, "what": str(error), "code": error.code, "facts": error.facts}
    return Document(DOCUMENT_SCHEMA, {}, (), failures=(failure,))


def emit(document: Document, args: argparse.Namespace) -> None:
    """Print the document in the requested format, to stdout or to a file.

    Raises UsageError if the output cannot be written.
    """
    from bench.results.output import safe
    from bench.results.run_report import RunReport

    report = RunReport(document, all_notes=args.notes)
    width = line_width(to_file=args.output is not None)
    text = safe(plugins.load("format", args.format).render(report, width), args.format)
    args.emitted = True
    if args.output is None:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
        return
    try:
        Path(args.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError.of(RankRefusal.OUTPUT, file=args.output, why=error.strerror) from None


def check_output(output: str | None) -> None:
    """Check `--output` before any measurement. Raises UsageError if the file cannot be written."""
    if output is not None and (Path(output).is_dir() or not Path(output).absolute().parent.is_dir()):
        raise UsageError.of(RankRefusal.OUTPUT, file=output, why="name a file in an existing folder")


def say_out(line: str) -> None:
    """Print one line to stdout with a single write."""
    print(f"{printable.line(line)}\n", end="", flush=True)


def say(line: str) -> None:
    """Print one line to stderr with a single write.

    Do nothing if stderr is closed, which happens if the launcher was killed.
    """
    with contextlib.suppress(OSError):
        print(f"{printable.line(line)}\n", end="", file=sys.stderr, flush=True)
