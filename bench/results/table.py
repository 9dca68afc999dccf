"""The Table API: the content that a command shows, before `bench/results/formats/<name>.py` renders it.

A command makes a `Report` and calls `output.show(report, args)`. The command never renders text, Markdown, CSV or JSON
itself.

    @dataclass(frozen=True)
    class PlanReport(Report):
        plan: Plan

        def blocks(self) -> Iterable[Block]:            # for people: terminal, Markdown
            yield Heading("3 jobs")
            yield Table((Column("job", lambda job: job.name, right=False), ...), self.plan.jobs)
            yield Lines(["estimate: 3 min"])            # sentences: comments on the terminal, a list in Markdown

        def data(self) -> Mapping[str, Any]:            # JSON: plain values, dataclasses, tuples; NaN becomes null
            return {"schema": SCHEMA, "jobs": self.plan.jobs}

        def records(self) -> Iterable[Mapping[str, Any]]:   # CSV: one line each
            return map(asdict, self.plan.jobs)
"""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from bench.core import printable

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    `cell`: a function that returns the text of a row's cell.
    `group`: a heading over neighbouring columns.
    `unit`: a second line of the title.
    `width`: the least number of characters.
    `optional`: whether to leave out the column if all its cells are empty.
    `wide`: whether to show the column only in formats with long lines (Markdown).
    `wrapped`: whether the text of the last column continues on further lines.
    `leave_out`: a narrow terminal leaves out the columns with the largest number first. A column with 0 is always
        shown.
    """

    title: str
    cell: Callable[[Any], str]
    right: bool = True
    unit: str = ""
    group: str = ""
    width: int = 0
    optional: bool = False
    wide: bool = False
    wrapped: bool = False
    leave_out: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table of rows. The columns decide how the rows are shown.

    `title`: a text that explains how to read the columns.
    `section`: a function that returns the heading of a row. Rows with the same heading are shown together below this
    heading.
    `gap`: the number of blanks between two columns on the terminal.
    `wider`: the words that the user adds to the command to see all columns.
    """

    columns: Sequence[Column]
    rows: Sequence[Any]
    title: str = ""
    section: Callable[[Any], str] | None = None
    gap: int = 2
    wider: str = "COLUMNS=200"

    def shown_columns(self, wide: bool) -> list[Column]:
        """Return the columns that are shown.

        Optional columns without values are left out. The `wide` columns are shown only if `wide` is True.
        """
        shown = []
        for column in self.columns:
            if column.wide and not wide:
                continue
            if column.optional and all(column.cell(row) in ("", NOTHING) for row in self.rows):
                continue
            shown.append(column)
        return shown

    def sections(self) -> list[tuple[str, list[Any]]]:
        """Return each heading with its rows. A table without headings is one section."""
        found: dict[str, list[Any]] = {}
        for row in self.rows:
            found.setdefault(self.section(row) if self.section else "", []).append(row)
        return list(found.items())


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading. On the terminal, the heading is `# text`. In Markdown, the heading has the level `level`."""

    text: str
    level: int = 1


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences. On the terminal, each line begins with `# ` unless `comment` is False.

    In Markdown, the sentences are a list below `title`.

    A line that begins with blanks continues the line above.
    """

    lines: Sequence[str]
    title: str = ""
    comment: bool = True


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text whose line breaks and blanks must be kept.

    The terminal shows the text unchanged, and Markdown puts it into a fenced block.
    """

    text: str


Block = Table | Heading | Lines | Verbatim


class Report(ABC):
    """The content that a command shows. Each output format calls one method of the report."""

    @abstractmethod
    def blocks(self) -> Iterable[Block]:
        """Yield the blocks of the page for people, in reading order."""

    @abstractmethod
    def data(self) -> Any:
        """Return the JSON document. The document is a mapping or a dataclass, and its first key is `schema`."""

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Yield the lines of CSV as mappings from column names to values."""
        return ()

    def record_names(self) -> Sequence[str] | None:
        """Return the columns of CSV. None means all names that occur in the records, in order of appearance."""
        return None


def plain(value: Any) -> Any:
    """Return a value that JSON can hold.

    Dataclasses and mappings become objects, and sequences become arrays. NaN and infinity become null.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def as_json(document: Any) -> str:
    """Return the document as JSON text that ends with a newline."""
    return printable.json_text(json.dumps(plain(document), indent=1, ensure_ascii=False, allow_nan=False)) + "\n"


def as_csv(records: Iterable[Mapping[str, Any]], names: Sequence[str] | None = None) -> str:
    """Return a line with the names of the columns, then one line for each record.

    Numbers have all digits. The cell of an unknown value is empty. If a cell has several values, `;` separates them.

    `names`: the columns. By default, these are all names in the records, in order of appearance.
    """
    rows = list(records)
    if names is None:
        names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    writer.writerow({name: printable.csv_cell(name) for name in names})
    for row in rows:
        writer.writerow({name: _csv_cell(value) for name, value in row.items()})
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return printable.csv_cell(";".join(map(str, value)))
    if isinstance(value, Mapping):
        return printable.csv_cell(json.dumps(plain(value), ensure_ascii=False))
    return printable.csv_cell(value) if isinstance(value, str) else value
