"""What rank 0 gives out: each row written and printed as it comes, documents and figures of the whole at its end.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.core import plugins
from bench.core.errors import EXIT_DONE, EXIT_MEASUREMENT, EXIT_REFUSED, BenchError, UsageError

if TYPE_CHECKING:
    from bench.core.record import Header, Record
    from bench.results.document import Document, Summary
    from bench.store.jsonl import Writer

    Clocks = dict[str, dict[str, float]]
    Gpus = dict[str, list[dict[str, Any]]]

_MOST_HELD, _MOST_PENDING = 50_000, 10_000  # rows of a printed table that rank 0 holds: some 100 MB, and 20


def deliver(
    header: Header,
    rows: Iterator[tuple[Record, ...]],
    args: argparse.Namespace,
    clocks_at_end: Callable[[], Clocks] = dict,
    gpus_at_end: Callable[[], Gpus] = dict,
) -> int:
    """Rank 0: write each row as it comes, print, and say how it went. What is so `at_end` is asked after the last."""
    from bench.results import summary
    from bench.store import jsonl

    writer = jsonl.Writer(Path(args.records), header) if args.records else None
    live = args.format == "table" and args.output is None
    printer = _TablePrinter(header) if live else None
    if printer is None:
        for note in header.notes:
            say(f"# {note}")
    # Whole documents need every row; what is printed as it comes, and kept in a file, need not be held for its end.
    told = summary.DocumentBuilder(_MOST_HELD if printer else None)
    try:
        for row in rows:
            if writer:
                writer.append(*row)
            shown = [told.add(header.job, header, record) for record in row]
            if printer:
                printer.show([summary for summary in shown if summary is not None])
    except Exception:
        if not printer:  # one whole document also after a failure
            emit(told.document({header.job: header}), args)
        raise
    header = _at_end(header, clocks_at_end(), gpus_at_end(), writer)
    document = told.document({header.job: header})
    if printer:
        printer.finish(document, args.notes)
    else:
        emit(document, args)
    return _exit_code(document)


def _at_end(header: Header, clocks: Clocks, gpus: Gpus, writer: Writer | None) -> Header:
    """The header with what is known now of the hosts' clocks, more than at the beginning, and of their GPUs."""
    from bench.store import jsonl

    if clocks:
        header = jsonl.with_clocks(header, clocks)
    if gpus:
        header = jsonl.with_gpus_at_end(header, gpus)
    if clocks and writer:
        writer.clocks(clocks)
    if gpus and writer:
        writer.end(gpus)
    return header


def _exit_code(document: Document) -> int:
    """4 for wrong data or a failed row, 3 when every row was skipped, else 0."""
    failed = [f"{row['what']} (rank {row['rank']} on {row['host']})" for row in document.failures]
    wrong = [
        next((flag.removeprefix("wrong: ") for flag in row.flags if flag.startswith("wrong: ")), "where is not known")
        for row in document.summaries
        if row.verified is False
    ]
    if wrong:
        say(f"bench: error: wrong data arrived in {_rows(wrong)}; first: {wrong[0]}")
    if failed:
        say(f"bench: error: {_rows(failed)} failed; first: {failed[0]}")
    if wrong or failed:
        return EXIT_MEASUREMENT
    return EXIT_DONE if document.summaries else EXIT_REFUSED


def _rows(some: Sequence[str]) -> str:
    return f"{len(some)} row{'s' * (len(some) > 1)}"


class _TablePrinter:
    """Prints the head at once, then each size when its modes are there."""

    def __init__(self, header: Header) -> None:
        from bench.core.case import from_argv
        from bench.diagnose.pair_evidence import group_name
        from bench.results.flops import PATTERN
        from bench.results.run_report import LiveTable
        from bench.results.run_table import Layout

        case = from_argv(header.case)
        grouped = header.topology != "world"
        last = (header.num_ranks or 1) - 1
        widest = len(group_name("confirm", 999, last, last) if case.schedule == "ladder" else f"{last}-{last}")
        layout = Layout(case.modes, grouped=grouped, widest=widest, like=case.like, products=header.pattern == PATTERN)
        self._table = LiveTable(layout)
        self._pending: list[Summary] = []
        print(self._table.before(header), flush=True)

    def show(self, row: Sequence[Summary]) -> None:
        """Keep the row until its size is complete, then print it; a size of too many rows is printed as it comes."""
        if self._pending and row and row[0].payload_bytes != self._pending[0].payload_bytes:
            self._flush()
        self._pending += row
        if len(self._pending) > _MOST_PENDING:
            self._flush()

    def finish(self, document: Document, all_notes: bool) -> None:
        """The last size, derived tables and notes."""
        self._flush()
        print(self._table.after(document, all_notes), flush=True)

    def _flush(self) -> None:
        if self._pending:
            print(self._table.rows(self._pending), flush=True)
        self._pending = []


def nothing_but(name: str, error: BenchError) -> Document:
    """The document of a run that came to nothing: JSON is one document also after a failure."""
    from bench.results.document import DOCUMENT_SCHEMA, Document

    failure = {"job": name, "pattern": name, "what": str(error), "rank": None, "host": None}
    return Document(DOCUMENT_SCHEMA, {}, (), failures=(failure,))


def emit(document: Document, args: argparse.Namespace) -> None:
    """Print it in the format that was asked for, to stdout or the file that was named. Raises UsageError."""
    from bench.results.run_report import RunReport

    text: str = plugins.load("format", args.format).render(RunReport(document, all_notes=args.notes))
    args.emitted = True
    if args.output is None:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
        return
    try:
        Path(args.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {args.output} can not be written ({error.strerror})") from None


def check_output(output: str | None) -> None:
    """Said before anything is measured: a result that could not be kept is not worth the time."""
    if output is not None and (Path(output).is_dir() or not Path(output).absolute().parent.is_dir()):
        raise UsageError(f"--output {output} can not be written: name a file in a folder that is there")


def say(sentence: str) -> None:
    """One line for people: to stderr."""
    print(sentence, file=sys.stderr, flush=True)
