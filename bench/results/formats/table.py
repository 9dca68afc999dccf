"""The table on the terminal: one line per size, after nccl-tests, with the two modes in columns of their own.

Every line is at most 130 characters; all that is no row begins with '#'. `Table` prints line by line while a run goes
on, `render` a finished document.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.core.dtypes import DTYPES
from bench.core.record import Header
from bench.results import (
    compute_text,
    fit_text,
    interference_text,
    overlap_text,
    parity_text,
    scaling_text,
    sharing_text,
    spread_text,
)
from bench.results import notes as results_notes
from bench.results import text as results_text
from bench.results.document import Document, Summary
from bench.results.flops import PATTERN

_MAX_WIDTH = 130

# Names that are wider than their column, as nccl-tests writes them.
_SHORT_TYPES = {"float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "complex128": "cplx128", "complex64": "cplx64"}


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    unit: str
    width: int  # with the space before it
    show: Callable[[Summary], str]


_ROW = (
    _Column("size", "(B)", 12, lambda row: _size(row)),
    _Column("count", "(elements)", 11, lambda row: _count(row)),
    _Column("type", "", 9, lambda row: _SHORT_TYPES.get(row.dtype or "", row.dtype or results_text.NOTHING)),
    _Column("redop", "", 6, lambda row: row.reduce_op or results_text.NOTHING),
    _Column("root", "", 5, lambda row: results_text.NOTHING if row.root is None else str(row.root)),
)
# In the place of the count, which follows from size and type.
_COPIES_ROW = (_ROW[0], _Column("from>to", "", 14, lambda row: row.group), *_ROW[2:])
_LEAST_GROUP_WIDTH = 9
_MARKS = _Column("", "", 3, lambda row: f" {results_text.marks(row)[:2]:<2}")
_TIME = _Column("time", "(us)", 8, results_text.time)
_ISOLATED = (
    _TIME,
    _Column("ci95", "(us)", 17, results_text.interval),
    _Column("p95", "(us)", 8, lambda row: results_text.microseconds(row.p95_s)),
    _Column("floor", "(us)", 8, lambda row: results_text.microseconds(row.floor_s)),
    _MARKS,
)
_PIPELINED = (
    _TIME,
    _Column("algbw", "(GB/s)", 8, lambda row: results_text.gigabytes(row.algbw_bytes_per_s)),
    _Column("busbw", "(GB/s)", 8, lambda row: results_text.gigabytes(row.busbw_bytes_per_s)),
)
# Of products of matrices, which move nothing.
_RATE = _Column("TFLOP/s", "", 9, lambda row: compute_text.teraflops(row.flops_per_s))
_PRODUCTS = (_RATE, _Column("of peak", "(%)", 9, compute_text.share))
# Rows of other tools' logs have neither interval nor percentiles.
_IMPORTED_ISOLATED = (_TIME, _ISOLATED[3], _MARKS)
_WIRE = _Column("wire", "(GB/s)", 8, lambda row: results_text.gigabytes(row.wire_bytes_per_s))
# As other tools print the same samples (docs/metrics.md: measuring like another tool).
_LIKE = {
    "nccl-tests": (
        _Column("time", "(us)", 8, lambda row: results_text.microseconds(row.compat.get("nccl_tests_s"))),
        _Column(
            "algbw", "(GB/s)", 8, lambda row: results_text.gigabytes(row.compat.get("nccl_tests_algbw_bytes_per_s"))
        ),
        _Column(
            "busbw", "(GB/s)", 8, lambda row: results_text.gigabytes(row.compat.get("nccl_tests_busbw_bytes_per_s"))
        ),
        _MARKS,
    ),
    "osu": (
        _Column("avg", "(us)", 9, lambda row: results_text.microseconds(row.compat.get("osu_mean_s"))),
        _Column("min", "(us)", 9, lambda row: results_text.microseconds(row.compat.get("osu_min_s"))),
        _Column("max", "(us)", 9, lambda row: results_text.microseconds(row.compat.get("osu_max_s"))),
        _MARKS,
    ),
}
_WRONG_WIDTH = 9
_BOUND_WIDTH = 7


class LiveTable:
    """One job's rows as they come. `modes` are the modes that will be measured; `grouped`: there are several groups.

    `widest`: letters of the longest group's name.
    `like`: the tool in whose statistics the times are shown, '' for ours. `products`: all rows are of matrices.
    """

    def __init__(
        self,
        modes: Sequence[str],
        *,
        grouped: bool = False,
        widest: int = 0,
        like: str = "",
        imported: bool = False,
        wire: bool = False,
        products: bool = False,
    ) -> None:
        """Choose the columns; nothing is printed yet."""
        self._modes, self._like, self._products = tuple(modes), like, products
        self._imported, self._wire = imported, (_WIRE,) if wire else ()
        self._columns = (_COPIES_ROW if imported else _grouped_row(widest)) if grouped else _ROW
        self._by_mode = {mode: self._mode_columns(mode) for mode in self._modes}
        self._bounds: dict[tuple[str, str], Summary] = {}  # whose letter stands beside a row, in order

    def lines_before(self, header: Header) -> str:
        """The run's head, how to read the figures, the titles and units of the columns."""
        return "\n".join([head(header, header.notes), *self.reading()])

    def reading(self) -> list[str]:
        """How to read the figures, then the titles."""
        lines = [*results_text.reading(self._like, self._imported), *([results_text.WIRE] if self._wire else [])]
        return [*(f"# {line}" for line in lines), "#", self.titles()]

    def titles(self) -> str:
        """The titles and units of the columns."""
        over = "#" + " " * (sum(column.width for column in self._columns) - 1)
        titles, units = _titles(self._columns)
        for mode, columns in self._by_mode.items():
            mode_titles, mode_units = _titles(columns)
            over += f"{mode:^{len(mode_titles)}}"
            titles += mode_titles
            units += mode_units
        titles += f"{'#wrong':>{_WRONG_WIDTH}}"
        return "\n".join(line.rstrip() for line in (over, "#" + titles[1:], "#" + units[1:]))

    def line(self, summaries: Sequence[Summary]) -> str:
        """The lines of one size: one for each group, the modes beside each other."""
        return "\n".join(self._line(row) for row in _rows(summaries))

    def lines_after(self, document: Document) -> str:
        """What the marks and letters mean, what the rows say together, what was skipped, what failed, the notes."""
        rows = document.summaries
        bounds = results_text.bound_lines([*self._bounds.values(), *rows])
        lines = [f"{bound.letter}  {bound}" for key, bound in bounds.items() if key in self._bounds]
        lines += results_notes.floor_lines(rows)
        lines += results_notes.overhead_lines(document.headers.values())
        lines += [f"{line[0]} {line[1:]}" for line in results_notes.mark_lines(rows)]
        lines += results_notes.finding_lines(rows)
        lines += results_notes.repeated_lines(rows)
        measured = any(not (row.modelled or row.imported) for row in rows)
        lines += [spread_text.SINGLE] if measured and not document.spreads else []
        lines += fit_text.lines(document.headers, document.fits)
        lines += results_notes.conflict_lines(document.conflicts)
        lines += parity_text.lines(document.parities)
        lines += scaling_text.lines(document.scalings)
        lines += interference_text.lines(document.interferences)
        lines += sharing_text.lines(document.sharings)
        lines += overlap_text.lines(document.overlaps)
        lines += compute_text.lines(rows, document.standings)
        lines += results_notes.skipped_lines(document.skipped)
        lines += results_notes.failure_lines(document.failures)
        lines += document.notes
        if not rows:
            lines.insert(0, "nothing was measured")
        return _comments(lines)

    def _mode_columns(self, mode: str) -> tuple[_Column, ...]:
        if self._like:
            return _LIKE[self._like]
        if self._products:
            return (*_ISOLATED[:3], *_PRODUCTS, _MARKS) if mode == "isolated" else (_TIME, *_PRODUCTS, _MARKS)
        if mode == "isolated":
            return _IMPORTED_ISOLATED if self._imported else _ISOLATED
        return (*_PIPELINED, *self._wire, _Column("bound", "(%)", _BOUND_WIDTH, self._bound), _MARKS)

    def _bound(self, row: Summary) -> str:
        if row.bound_fraction is None or row.bound_name is None or row.bound_kind is None:
            return results_text.NOTHING
        self._bounds.setdefault((row.bound_name, row.bound_kind), row)
        letter = results_text.letter(tuple(self._bounds).index((row.bound_name, row.bound_kind)))
        return f"{results_text.percent(row.bound_fraction)}{letter}"

    def _line(self, by_mode: dict[str, Summary]) -> str:
        first = next(iter(by_mode.values()))
        text = "".join(f"{column.show(first):>{column.width}}" for column in self._columns)
        for mode, columns in self._by_mode.items():
            cells = zip(columns, _cells(columns, by_mode.get(mode)), strict=True)
            text += "".join(f"{cell:>{column.width}}" for column, cell in cells)
        return text + f"{results_text.wrong(by_mode.values()):>{_WRONG_WIDTH}}"


def _grouped_row(widest: int) -> tuple[_Column, ...]:
    group = _Column("group", "", max(_LEAST_GROUP_WIDTH, widest + 1), lambda row: row.group)
    return (_ROW[0], group, *_ROW[2:])


def head(header: Header, notes: Sequence[str] = ()) -> str:
    """The comment lines that say what was run and where."""
    said = filter(None, [results_text.modelled_line(header)])
    return _comments([*notes, *said, *(f"{name:<9} {value}" for name, value in results_text.facts(header))])


def render(document: Document) -> str:
    """One table: of one job with its whole head, of several with what they share said once and a line over each job."""
    if len(document.headers) == 1:
        return _of_one(document)
    table = _table_of(document)
    lines = _shared_head(list(document.headers.values()))
    elsewhere = _elsewhere(document)
    alone = {job: header for job, header in document.headers.items() if job not in elsewhere}
    if document.spreads:
        lines += _over_launches(document)
    if any(row.job in alone for row in document.summaries):
        lines += table.reading()
    of_job: dict[str, list[Summary]] = {}
    for row in document.summaries:
        of_job.setdefault(row.job, []).append(row)
    for job, header in alone.items():
        part = of_job.get(job)
        if part:
            lines += [_comments([results_text.job_line(job, header)]), *map(table.line, _sizes(part))]
    return "\n".join([*lines, table.lines_after(document)]).rstrip() + "\n"


def _table_of(document: Document) -> LiveTable:
    rows = document.summaries
    likes = {results_text.like(header) for header in document.headers.values()}
    like = likes.pop() if len(likes) == 1 else ""
    imported = bool(rows) and all(row.imported for row in rows)
    groups = {row.group for row in rows}
    return LiveTable(
        results_text.modes_of(rows),
        grouped=len(groups) > 1,
        widest=max(map(len, groups), default=0),
        like=like,
        imported=imported,
        wire="wire" in document.show,
        products=bool(rows) and all(row.pattern == PATTERN for row in rows),
    )


def _elsewhere(document: Document) -> set[str]:
    """The jobs whose rows are shown elsewhere: over all their launches, or beside ours."""
    tools = {one.tool for one in document.parities}
    beside = {job for job, header in document.headers.items() if header.facts.get("tool") in tools}
    return beside | {job for spread in document.spreads for job in spread.jobs}


def _over_launches(document: Document) -> list[str]:
    """One table for all cases that were launched more than once."""
    spreads = document.spreads
    modes = tuple(dict.fromkeys(spread.mode for spread in spreads))
    width = spread_text.group_width(spreads)
    lines = [*(f"# {line}" for line in spread_text.MEANING), "#", *spread_text.titles(modes, width)]
    for job in dict.fromkeys(spread.job for spread in spreads):
        own = [spread for spread in spreads if spread.job == job]
        first = document.headers[own[0].jobs[0]]
        launches = max(spread.num_launches for spread in own)
        lines.append(f"# {results_text.job_line(job, first)}, {launches} launches")
        lines += spread_text.rows(own, modes, width)
    return lines


def _of_one(document: Document) -> str:
    (header,) = document.headers.values()
    rows, table = document.summaries, _table_of(document)
    before = table.lines_before(header) if rows else head(header, header.notes)
    return "\n".join([before, *map(table.line, _sizes(rows)), table.lines_after(document)]).rstrip() + "\n"


def _shared_head(headers: Sequence[Header]) -> list[str]:
    """What was chosen (once, where jobs chose alike), and the facts in which all jobs agree."""
    notes = dict.fromkeys(note for header in headers for note in header.notes)
    said = dict.fromkeys(filter(None, map(results_text.modelled_line, headers)))
    facts = [dict(results_text.facts(header)) for header in headers]
    shared = {
        name: value for name, value in (facts[0] if facts else {}).items() if all(f.get(name) == value for f in facts)
    }
    return [_comments([*notes, *said, *(f"{name:<9} {value}" for name, value in shared.items())])] if headers else []


def _titles(columns: Sequence[_Column]) -> tuple[str, str]:
    titles = "".join(f"{column.title:>{column.width}}" for column in columns)
    return titles, "".join(f"{column.unit:>{column.width}}" for column in columns)


def _cells(columns: Sequence[_Column], row: Summary | None) -> list[str]:
    if row is None:
        return ["" if column is _MARKS else results_text.NOTHING for column in columns]
    if row.verified is False:
        return ["INVALID", *("" if column is _MARKS else results_text.NOTHING for column in columns[1:])]
    return [column.show(row) for column in columns]


def _rows(summaries: Sequence[Summary]) -> list[dict[str, Summary]]:
    """Summaries of one size as {mode: summary} for each line.

    A mode that comes again takes the place of the first, which an interrupted attempt left; a log's begins a new line,
    and so does one beside wrong data, which is never hidden.
    """
    rows: list[dict[str, Summary]] = []
    latest: dict[str, dict[str, Summary]] = {}  # group -> its last line
    for summary in summaries:
        line = latest.get(summary.group)
        if line is None or (summary.mode in line and not results_notes.replaces(summary, line[summary.mode])):
            line = latest[summary.group] = {}
            rows.append(line)
        line[summary.mode] = summary
    return rows


def _sizes(summaries: Sequence[Summary]) -> list[list[Summary]]:
    """Summaries by what their line begins with, in the order of their appearance."""
    sizes: dict[tuple[int, str | None, str | None], list[Summary]] = {}
    for row in summaries:
        sizes.setdefault((row.payload_bytes, row.dtype, row.reduce_op), []).append(row)
    return list(sizes.values())


def _size(row: Summary) -> str:
    return results_text.NOTHING if row.imported and not row.payload_bytes else str(row.payload_bytes)


def _count(row: Summary) -> str:
    """How many elements a payload is; unknown where an imported row does not tell its type."""
    dtype = DTYPES.get(row.dtype or "")
    return results_text.NOTHING if dtype is None else str(row.payload_bytes // dtype.num_bytes)


def _comments(lines: Sequence[str]) -> str:
    """Lines behind '# ', long ones continued on the next."""
    wrapped = []
    for line in lines:
        wrapped += textwrap.wrap(
            line,
            _MAX_WIDTH,
            initial_indent="# ",
            subsequent_indent="#     ",
            drop_whitespace=True,
            break_on_hyphens=False,
        ) or ["#"]
    return "\n".join(wrapped)
