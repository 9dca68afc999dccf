"""Lay out the table of a run's rows in the style of nccl-tests.

Each line shows one group at one size. Each mode has its own columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from bench.core.dtypes import DTYPES
from bench.core.errors import UsageError
from bench.core.record import Flag
from bench.results import text
from bench.results.document import Document, Summary
from bench.results.flops import PATTERN
from bench.results.table import NOTHING, Column, Table

_LEAST_GROUP_WIDTH = 8
_COPY_GROUP_WIDTH = 13
# Names that are wider than their column, with the abbreviation that nccl-tests prints.
_SHORT_TYPES = {"float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "complex128": "cplx128", "complex64": "cplx64"}
_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table.

    `grouped`: whether the rows belong to several groups.
    `widest`: the number of letters of the longest group name.
    `like`: the tool whose statistics the table shows, or "" for linkbench's own statistics.
    `imported`: whether the rows are from another tool's log.
    `wire`: whether to show the rate through a node's NICs.
    `products`: whether all rows are products of matrices, which send nothing.
    `wide`: whether to show all columns even on a narrow terminal.
    `modelled`: whether all rows are modelled, so that the figures are those of ideal links.
    `expected`: whether to show what a real machine is expected to reach.
    """

    modes: Sequence[str]
    grouped: bool = False
    widest: int = 0
    like: str = ""
    imported: bool = False
    wire: bool = False
    products: bool = False
    wide: bool = False
    columns: Sequence[str] = ()
    modelled: bool = False
    expected: bool = False

    @classmethod
    def of(cls, document: Document, wire: bool = False, wide: bool = False) -> Layout:
        """Choose the layout that shows all rows of a document."""
        rows = document.summaries
        likes = {text.like(header) for header in document.headers.values()}
        groups = {row.group for row in rows}
        modelled = bool(rows) and all(row.modelled for row in rows)
        return cls(
            modes=text.modes_of(rows),
            grouped=len(groups) > 1,
            widest=max(map(len, groups), default=0),
            like=likes.pop() if len(likes) == 1 else "",
            imported=bool(rows) and all(row.imported for row in rows),
            wire=wire,
            products=bool(rows) and all(row.pattern == PATTERN for row in rows),
            wide=wide,
            modelled=modelled,
            expected=modelled and any(row.expected_low_s is not None for row in rows),
        )


@dataclass(slots=True)  # not frozen, as document.Summary
class TableLine:
    """A line of the table. A line shows the rows of all modes for one size and group.

    `groups`: the names of the groups. If groups have equal figures, they share a line.
    """

    heading: str
    groups: tuple[str, ...]
    by_mode: dict[str, Summary]

    @property
    def first(self) -> Summary:
        """The row of the first mode. Cells that have the same value in all modes show the value of this row."""
        return next(iter(self.by_mode.values()))


class RunTable:
    """The table of a run's rows. The table accepts rows one by one or all together."""

    def __init__(self, layout: Layout) -> None:
        """Choose the columns."""
        self.layout = layout
        self.letters: dict[tuple[str, str], str] = {}  # (name, kind) of a shown bound -> its letter
        self._columns = _common(layout)
        for mode in layout.modes:
            columns = self._of_mode(mode)
            self._columns += _ideal(columns, mode, layout.expected) if layout.modelled else columns
        wrong = Column("#wrong", lambda line: text.wrong(line.by_mode.values()), width=8)
        if layout.modelled:
            wrong = replace(wrong, leave_out=1)
        self._columns.append(wrong)
        if layout.columns:
            self._columns = _only(layout.columns, self._columns)
        if layout.wide:
            self._columns = [replace(column, leave_out=0) for column in self._columns]

    def table(self, lines: Sequence[TableLine]) -> Table:
        """Return a table of the given lines. Lines of one job are below the heading of the job."""
        columns = [_kept_if_it_differs(column, lines) for column in self._columns]
        return Table(columns, lines, section=lambda line: line.heading, gap=1, wider="--wide")

    def reading(self) -> list[str]:
        """Return how to read the columns, in one sentence each."""
        layout = self.layout
        lines = text.reading(layout.modes, layout.like, layout.imported, layout.modelled)
        return [*lines, *[text.EXPECTED] * layout.expected, *[text.WIRE] * layout.wire]

    def lines(self, rows: Iterable[Summary], heading: str = "") -> list[TableLine]:
        """Return the lines of one job's rows. Sizes are in the order in which they first appear."""
        found: list[TableLine] = []
        sizes: dict[tuple[int, str | None, str | None], list[Summary]] = {}
        for row in rows:
            sizes.setdefault((row.payload_bytes, row.dtype, row.reduce_op), []).append(row)
            self._name_bound(row)
        for of_size in sizes.values():
            found += self._merged(_paired(of_size, heading))
        return found

    def _merged(self, lines: Sequence[TableLine]) -> list[TableLine]:
        """Merge lines of one size that differ only in their group."""
        if len(lines) < 2 or not self.layout.grouped:
            return list(lines)
        alike: dict[tuple[str, ...], list[TableLine]] = {}
        columns = [column for column in self._columns if column.title not in _SAME_TITLES]
        modes = {mode for line in lines for mode in line.by_mode}
        columns = [column for column in columns if not column.group or column.group in modes]
        known: dict[tuple[Any, ...], tuple[str, ...]] = {}  # cells by figures: to format equal figures again is slow
        for line in lines:
            figures = tuple([(_SHARED(row), *row.compat.items()) for row in line.by_mode.values()])
            cells = known.get(figures)
            if cells is None:
                cells = known[figures] = tuple(
                    column.cell(line) if not column.group or column.group in line.by_mode else NOTHING
                    for column in columns
                )
            alike.setdefault(cells, []).append(line)
        found = []
        for same in alike.values():
            groups = tuple(line.groups[0] for line in same)
            # If a group has several equal lines, none of them is merged.
            distinct = len(set(groups)) == len(groups)
            found += [TableLine(same[0].heading, groups, same[0].by_mode)] if distinct else same
        return found

    def _of_mode(self, mode: str) -> list[Column]:
        if self.layout.like:
            return _like(self.layout.like, mode)
        if self.layout.products:
            rate = _figure("TFLOP/s", mode, 8, lambda row: text.teraflops(row.flops_per_s))
            share = _figure("of peak", mode, 8, text.peak_share, unit="(%)")
            timed = _isolated(mode)[:-1] if mode == "isolated" else [_time(mode)]
            return [*timed, rate, share, *_marks(mode)]
        if mode == "isolated":
            if not self.layout.imported and not self.layout.modelled:
                return [*_isolated(mode), *_marks(mode)]
            return [_time(mode), _isolated(mode)[-1], *_marks(mode)]
        columns = [_time(mode), *_rates(mode)]
        if self.layout.wire:
            columns.append(_figure("wire", mode, 7, lambda row: text.gigabytes(row.wire_bytes_per_s), unit="(GB/s)"))
        return [*columns, _figure("bound", mode, 6, self._bound, unit="(%)"), *_marks(mode)]

    def _name_bound(self, row: Summary) -> None:
        """If the table shows the bound of a row, give the bound a letter.

        A bound that already has a letter keeps this letter.
        """
        shown = row.mode != "isolated" and row.mode in self.layout.modes and row.verified is not False
        if shown and not (self.layout.like or self.layout.products) and row.bound_fraction is not None:
            key = (row.bound_name or "", row.bound_kind or "")
            self.letters.setdefault(key, text.letter(len(self.letters)))

    def _bound(self, row: Summary) -> str:
        letter = self.letters.get((row.bound_name or "", row.bound_kind or ""))
        if row.bound_fraction is None or letter is None:
            return NOTHING
        return f"{text.percent(row.bound_fraction)}{letter}"


# The fields of a row that two groups may share. Lines that are equal in these fields and in `compat` have equal cells.
_NOT_SHARED = ("group", "src", "dst", "compat", "first_wrong", "starved", "hosts", "devices")
_SHARED = attrgetter(*[field.name for field in fields(Summary) if field.name not in _NOT_SHARED])
_GROUP_TITLES = ("group", "from>to")
_SAME_TITLES = (*_GROUP_TITLES, "size", "count", "type", "redop")  # of lines that differ only in their group
# fmt: off
TITLES = (
    "size", "count", "type", "redop", "root", "group", "from>to", "time", "ci95", "p95", "p99", "max", "avg", "min",
    "floor", "algbw", "busbw", "wire", "bound", "TFLOP/s", "of peak", "flags", "#wrong",
)
# fmt: on
_ALWAYS = ("size", *_GROUP_TITLES, "")  # the marks of flags have no title
_IDENTIFYING = ("type", "redop", "root")


def column_titles(words: str) -> tuple[str, ...]:
    """Return the titles in a comma-separated list. Raises UsageError if the table has no such column."""
    titles = tuple(title.strip() for title in words.split(",") if title.strip())
    for title in titles:
        if title not in TITLES:
            raise UsageError(
                f"--columns {title}: the table of rows has no such column. Choose from {', '.join(TITLES)}"
            )
    return titles


def _only(titles: Sequence[str], columns: Sequence[Column]) -> list[Column]:
    """Return the columns with these titles, and the columns that are always shown."""
    shown = []
    for column in columns:
        title = column.title.removeprefix("ideal ").removeprefix("expected ")
        if title in (*titles, *_ALWAYS):
            shown.append(column)
    return [replace(column, wide=False, leave_out=0) for column in shown]


def _kept_if_it_differs(column: Column, lines: Sequence[TableLine]) -> Column:
    """Return the column.

    If the lines of a job have different values in this column, the column is also shown on a narrow terminal.
    """
    if column.title not in _IDENTIFYING:
        return column
    cells: dict[str, set[str]] = {}
    for line in lines:
        cells.setdefault(line.heading, set()).add(column.cell(line))
    return replace(column, leave_out=0) if any(len(found) > 1 for found in cells.values()) else column


def _common(layout: Layout) -> list[Column]:
    """Return the columns that do not depend on the mode."""
    size = Column("size", lambda line: _size(line.first), unit="(B)", width=10)
    count = Column("count", lambda line: _count(line.first), unit="(elements)", width=10, leave_out=7)
    if layout.grouped and layout.imported:
        count = Column("from>to", lambda line: group_names(line.groups), width=_COPY_GROUP_WIDTH)
    elif layout.grouped:
        count = Column("group", lambda line: group_names(line.groups), width=max(_LEAST_GROUP_WIDTH, layout.widest))
    return [
        size,
        count,
        Column("type", lambda line: _type(line.first), width=8, leave_out=6),
        Column("redop", lambda line: line.first.reduce_op or NOTHING, width=5, leave_out=8),
        Column("root", lambda line: NOTHING if line.first.root is None else str(line.first.root), width=4, leave_out=9),
    ]


def _figure(title: str, mode: str, width: int, show: Callable[[Summary], str], unit: str = "") -> Column:
    """Return the column of a figure of one mode.

    If the mode has no row, or if the data of the row were wrong, the cell has a dash.
    """

    def cell(line: TableLine) -> str:
        row = line.by_mode.get(mode)
        return NOTHING if row is None or row.verified is False else show(row)

    return Column(title, cell, unit=unit, group=mode, width=width)


def _time(mode: str, title: str = "time", width: int = 7, show: Callable[[Summary], str] = text.time) -> Column:
    """Return the column of the time, which is the first column of each mode.

    A cell shows `INVALID` if the data were wrong.
    """

    def cell(line: TableLine) -> str:
        row = line.by_mode.get(mode)
        if row is None:
            return NOTHING
        return "INVALID" if row.verified is False else show(row)

    return Column(title, cell, unit="(us)", group=mode, width=width)


def _marks(mode: str) -> list[Column]:
    """Return the columns of flags.

    The first of two columns has a mark for each flag. The second of two columns has the names of the flags. The second
    column is shown only in wide output such as Markdown.
    """

    def marks(line: TableLine) -> str:
        row = line.by_mode.get(mode)
        return "" if row is None or row.verified is False else text.marks(row.flags)[:2]

    def flags(line: TableLine) -> str:
        row = line.by_mode.get(mode)
        return "" if row is None else ", ".join("INVALID" if flag == Flag.INVALID else flag for flag in row.flags)

    return [
        Column("", marks, right=False, group=mode, width=2),
        Column("flags", flags, right=False, group=mode, wide=True),
    ]


def _isolated(mode: str) -> list[Column]:
    us = "(us)"
    p99, most = (_figure(title, mode, 7, _seconds(f"{title}_s"), us) for title in ("p99", "max"))
    return [
        _time(mode),
        replace(_figure("ci95", mode, 16, lambda row: text.interval(row.ci_low_s, row.ci_high_s), us), leave_out=2),
        replace(_figure("p95", mode, 7, _seconds("p95_s"), us), leave_out=3),
        replace(p99, wide=True),
        replace(most, wide=True),
        replace(_figure("floor", mode, 7, _seconds("floor_s"), us), leave_out=4),
    ]


def _ideal(columns: Iterable[Column], mode: str, expected: bool) -> Iterator[Column]:
    """Yield the columns of a mode of modelled rows.

    The titles of these columns say that the figures assume ideal links.

    `expected`: whether to add the figures that a real machine is expected to reach, next to the time (isolated) and the
        busbw.
    """
    shows = {"time": text.expected_time, "busbw": text.expected_rate}
    for column in columns:
        show = shows.get(column.title)
        if show is None:
            yield replace(column, leave_out=2) if expected and column.title == "bound" else column
            continue
        beside = expected and (mode == "isolated" or column.title == "busbw")
        yield replace(column, title=f"ideal {column.title}", leave_out=2 if expected and not beside else 0)
        if beside:
            yield _figure(f"expected {column.title}", mode, 0, show, column.unit)


def _rates(mode: str) -> list[Column]:
    return [
        replace(_figure("algbw", mode, 7, lambda row: text.gigabytes(row.algbw_bytes_per_s), "(GB/s)"), leave_out=5),
        _figure("busbw", mode, 7, lambda row: text.gigabytes(row.busbw_bytes_per_s), "(GB/s)"),
    ]


def _like(tool: str, mode: str) -> list[Column]:
    """Return the columns with the statistics of another tool.

    The statistics are computed from linkbench's samples (see "measuring like another tool" in docs/metrics.md).
    """
    if tool == "osu":
        return [
            _time(mode, "avg", 8, _compat("osu_mean_s", text.microseconds)),
            _figure("min", mode, 8, _compat("osu_min_s", text.microseconds), "(us)"),
            _figure("max", mode, 8, _compat("osu_max_s", text.microseconds), "(us)"),
            *_marks(mode),
        ]
    return [
        _time(mode, show=_compat("nccl_tests_s", text.microseconds)),
        _figure("algbw", mode, 7, _compat("nccl_tests_algbw_bytes_per_s", text.gigabytes), "(GB/s)"),
        _figure("busbw", mode, 7, _compat("nccl_tests_busbw_bytes_per_s", text.gigabytes), "(GB/s)"),
        *_marks(mode),
    ]


def _seconds(name: str) -> Callable[[Summary], str]:
    """Return a function that shows the field `name` of a row in microseconds."""
    return lambda row: text.microseconds(getattr(row, name))


def _compat(name: str, show: Callable[[float | None], str]) -> Callable[[Summary], str]:
    """Return a function that shows the statistic that another tool would print."""
    return lambda row: show(row.compat.get(name))


def _paired(rows: Iterable[Summary], heading: str) -> list[TableLine]:
    """Return the lines that show the rows of one size, below a heading. A line has the rows of all modes of one group.

    If a group has two rows of one mode, the second row replaces the first row, which is from an interrupted attempt.
    The first row is not replaced if the rows are imported from a log, or if one of them has wrong data. The second row
    then begins a new line.
    """
    lines: list[TableLine] = []
    latest: dict[str, TableLine] = {}  # by group
    for row in rows:
        line = latest.get(row.group)
        if line is None or (row.mode in line.by_mode and not replaces(row, line.by_mode[row.mode])):
            line = latest[row.group] = TableLine(heading, (row.group,), {})
            lines.append(line)
        line.by_mode[row.mode] = row
    return lines


def replaces(later: Summary, earlier: Summary) -> bool:
    """Check whether the table shows the row `later` instead of the row `earlier`.

    `later`, `earlier`: two rows of the same job, size, group and mode.
    """
    return not later.imported and earlier.verified is not False and later.verified is not False


def group_names(groups: Sequence[str]) -> str:
    """Return one text for several groups.

    If the numbers of the groups have no gap, the text is a range such as `rail0..7`. If the numbers have gaps, the text
    has the first group and the number of other groups, such as `0-1 +27`.
    """
    if len(groups) == 1:
        return groups[0]
    matches = [_NUMBERED.fullmatch(name) for name in groups]
    stems = {match[1] for match in matches if match}
    numbers = [int(match[2]) for match in matches if match]
    if len(numbers) == len(groups) and len(stems) == 1 and numbers == list(range(numbers[0], numbers[0] + len(groups))):
        return f"{groups[0]}..{numbers[-1]}"
    return f"{groups[0]} +{len(groups) - 1}"


def _size(row: Summary) -> str:
    return NOTHING if row.imported and not row.payload_bytes else str(row.payload_bytes)


def _count(row: Summary) -> str:
    """Return the number of elements, or `-` if an imported row does not state its data type."""
    dtype = DTYPES.get(row.dtype or "")
    return NOTHING if dtype is None else str(row.payload_bytes // dtype.num_bytes)


def _type(row: Summary) -> str:
    return _SHORT_TYPES.get(row.dtype or "", row.dtype or NOTHING)
