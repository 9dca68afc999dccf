"""Report a run: its facts, its rows, tables whose lines combine several rows, and notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from statistics import median
from typing import Any

from bench.core.codes import Coded
from bench.core.record import Header
from bench.core.wrapping import line_width
from bench.results import derived_tables, notes, text
from bench.results.document import Document, Summary
from bench.results.formats.table import TextTable, comments, render_blocks
from bench.results.headline import NamedRun, headline
from bench.results.run_table import Layout, RunTable, TableLine
from bench.results.table import Block, Lines, Report

_SLOW = 1.25  # times the median of its size; a line that took longer is slow
_MOST_WRONG = 5  # lines with wrong data that a cut table shows for each job and size


@dataclass(frozen=True)
class RunReport(Report):
    """A run as a report.

    `show`: "wire" adds the column of the rate through NICs, and "wide" keeps all columns on a narrow terminal.
    `all_notes`: whether to show all notes and not only the urgent notes.
    `table`: the table whose rows were printed during the run, or None if no row was printed.
    `most_lines`: the largest number of lines of the table. A longer table is cut to the lines that a reader needs
        first.
    `run`: the name of the run in commands, for the last line of the summary.
    `only_summary`: whether the report consists only of the summary.
    `columns`: the titles of the columns to show in the table of rows; empty for all columns. Columns that identify a
        row are always shown.
    """

    document: Document
    show: Sequence[str] = ()
    all_notes: bool = False
    table: RunTable | None = None
    most_lines: int | None = None
    run: NamedRun | None = None
    only_summary: bool = False
    columns: Sequence[str] = ()

    def blocks(self) -> Iterable[Block]:
        """Yield the summary, the facts of the run, how to read the columns, the rows, derived tables and notes."""
        if summary := self.summary():
            yield Lines(summary, title="Summary")
        if self.only_summary:
            return
        yield from self.head()
        yield from self.tables()
        yield from self.after()

    def summary(self) -> list[str]:
        """Return the lines of the summary. A summary without tables begins with the run's name."""
        lines = [line.text for line in headline(self.document, self.run)]
        return [self.run.name, *lines] if lines and self.only_summary and self.run is not None else lines

    def head(self) -> Iterable[Block]:
        """Yield the notes in the jobs' headers, and the facts that all jobs have in common."""
        headers = list(self.document.headers.values())
        if headers:
            yield Lines(head_lines(headers))

    def tables(self) -> Iterable[Block]:
        """Yield the table of launches, how to read the columns, and the rows."""
        document, rows = self.document, self._rows
        if derived_tables.measured_spreads(document):
            yield Lines(derived_tables.LAUNCHES)
            yield derived_tables.launches(document)
        if rows:
            yield Lines(self.table_of_rows.reading())
            if self.most_lines is not None and len(rows) > self.most_lines:
                first = first_lines(rows)
                yield Lines([cut_line(rows, first)])
                rows = first
            yield self.table_of_rows.table(rows)
            yield from self.legend()

    def legend(self) -> Iterable[Block]:
        """Yield the meaning of the letters and marks in the rows."""
        yield Lines([note.text for note in self._legend()])

    def after(self) -> Iterable[Block]:
        """Yield the derived tables and the notes."""
        yield from derived_tables.tables(self.document, whole=self.all_notes)
        found = notes.notes(self.document)
        yield Lines(notes.texts(found) if self.all_notes else notes.brief(found, self._legend()), title="Notes")

    def _legend(self) -> list[Coded]:
        return notes.legend(self.document, self.table_of_rows.letters)

    def data(self) -> Mapping[str, Any]:
        """Return the whole document.

        The key `notes` has the texts of the notes, and the key `note_codes` has their codes and facts.
        """
        found = {field.name: getattr(self.document, field.name) for field in fields(Document)}
        found["summary"] = [line.to_plain() for line in headline(self.document, self.run)]
        found["notes"] = [note.text for note in self.document.notes]
        found["note_codes"] = [{"code": note.code, "facts": note.facts} for note in self.document.notes]
        return found

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Return one line for each measured row. Skipped and failed rows have no line."""
        return ({name: getattr(row, name) for name in self.record_names()} for row in self.document.summaries)

    def record_names(self) -> Sequence[str]:
        """Return the names of all fields of a summary."""
        return [field.name for field in fields(Summary)]

    @cached_property
    def table_of_rows(self) -> RunTable:
        """The table of this run's rows, with its columns and with the letters that denote bounds."""
        layout = Layout.of(self.document, wire="wire" in self.show, wide="wide" in self.show)
        return self.table or RunTable(replace(layout, columns=self.columns))

    @cached_property
    def _rows(self) -> list[TableLine]:
        """The table lines for the rows of all jobs. Jobs whose rows are in a derived table have no lines here."""
        document = self.document
        elsewhere = _elsewhere(document)
        of_job: dict[str, list[Summary]] = {}
        for row in document.summaries:
            of_job.setdefault(row.job, []).append(row)
        lines: list[TableLine] = []
        for job, header in document.headers.items():
            if job in of_job and job not in elsewhere:
                heading = text.job_line(job, header) if len(document.headers) > 1 else ""
                lines += self.table_of_rows.lines(of_job[job], heading)
        return lines


class LiveTable:
    """The table of one job, which is printed while the job measures.

    The table prints each row as soon as the row is measured, in the same form as a RunReport.
    """

    def __init__(self, layout: Layout) -> None:
        """Choose the columns that fit the terminal. Nothing is printed yet."""
        self._width = line_width()
        self._table = RunTable(layout)
        shown = replace(self._table.table(()), wider="COLUMNS=200")  # ranks have no option --wide
        self._text = TextTable(shown, self._width)

    def before(self, header: Header) -> str:
        """Return the facts of the run, an explanation of the figures, and the titles of the columns."""
        lines = comments([*head_lines([header]), *self._table.reading()], width=self._width)
        return "\n".join([*lines, "#", *self._text.titles()])

    def rows(self, summaries: Sequence[Summary]) -> str:
        """Return the lines of one size."""
        lines = self._table.lines(summaries)
        return "\n".join(text for line in lines for text in self._text.lines(line))

    def after(self, document: Document, all_notes: bool = False) -> str:
        """Return the legend, the derived tables and the notes as text."""
        report = RunReport(document, all_notes=all_notes, table=self._table)
        return render_blocks([*report.legend(), *report.after()], self._width)


def head_lines(headers: Sequence[Header]) -> list[str]:
    """Return the notes of all jobs, each note once.

    Also return all facts that are the same for every job.
    """
    lines = dict.fromkeys(note for header in headers for note in header.notes)
    lines |= dict.fromkeys(filter(None, map(text.modelled_line, headers)))
    facts = [dict(text.facts(header)) for header in headers]
    for name, value in facts[0].items():
        if all(other.get(name) == value for other in facts):
            lines[f"{name:<9} {value}"] = None
    return list(lines)


def first_lines(lines: Sequence[TableLine]) -> list[TableLine]:
    """Return the most important lines of a huge run, in the order of the table.

    The result has the fastest and the slowest line of each job and size, and the first lines with wrong data.
    """
    shown: set[int] = set()
    for of_size in _by_size(lines).values():
        timed = [(median_s, number) for number in of_size if (median_s := lines[number].first.median_s) is not None]
        if timed:
            shown |= {min(timed)[1], max(timed)[1]}
        shown.update([number for number in of_size if _is_wrong(lines[number])][:_MOST_WRONG])
    return [lines[number] for number in sorted(shown)]


def cut_line(lines: Sequence[TableLine], shown: Sequence[TableLine]) -> str:
    """Return a note on a table of which only some lines are shown.

    The note says how many lines the table has, which lines are shown, and how to see all lines.
    """
    num_slow = 0
    for of_size in _by_size(lines).values():
        seconds = [lines[number].first.median_s for number in of_size]
        known = [each for each in seconds if each is not None]
        usual_s = median(known) if known else 0.0
        num_slow += sum(each > _SLOW * usual_s for each in known)
    num_wrong = sum(map(_is_wrong, lines))
    return (
        f"{len(shown):,} of {len(lines):,} lines: the fastest and the slowest of each job and size, and the first with "
        f"wrong data. {num_wrong:,} lines have wrong data, {num_slow:,} took more than {_SLOW} times the median of "
        f"their size. All lines: --all or --output FILE"
    )


def _by_size(lines: Sequence[TableLine]) -> Mapping[tuple[Any, ...], Sequence[int]]:
    """Return the indices of the lines of each job and size."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, line in enumerate(lines):
        row = line.first
        found.setdefault((row.job, row.payload_bytes, row.dtype, row.reduce_op), []).append(number)
    return found


def _is_wrong(line: TableLine) -> bool:
    return any(row.verified is False for row in line.by_mode.values())


def _elsewhere(document: Document) -> set[str]:
    """Return the jobs whose rows are shown outside the table of rows.

    Two kinds of rows are in derived tables instead: rows of cases with several launches, and rows of other tools.
    Modelled launches are all equal, so only the rows of the first launch are shown.
    """
    tools = {one.tool for one in document.parities}
    compared = {job for job, header in document.headers.items() if header.facts.get("tool") in tools}
    measured = {job for spread in derived_tables.measured_spreads(document) for job in spread.jobs}
    return compared | measured | {job for spread in document.spreads for job in spread.jobs[1:]}
