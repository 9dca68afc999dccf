"""Markdown for a page or a pull request: for each job its facts, a table for each mode, and the fine print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bench.analysis import model
from bench.core.derived import Document, Summary
from bench.core.record import Header
from bench.report import _below, _compute, _fits, _interference, _overlap, _scaling, _sharing, _text

_Columns = tuple[tuple[str, Callable[[Summary], str]], ...]

_ISOLATED: _Columns = (
    ("time (us)", _text.time),
    ("ci95 (us)", _text.interval),
    ("p95 (us)", lambda row: _text.microseconds(row.p95_s)),
    ("p99 (us)", lambda row: _text.microseconds(row.p99_s)),
    ("max (us)", lambda row: _text.microseconds(row.max_s)),
)
_PIPELINED: _Columns = (
    ("time (us)", _text.time),
    ("ci95 (us)", _text.interval),
    ("algbw (GB/s)", lambda row: _text.gigabytes(row.algbw_bytes_per_s)),
    ("busbw (GB/s)", lambda row: _text.gigabytes(row.busbw_bytes_per_s)),
    ("of bound (%)", lambda row: _text.percent(row.bound_fraction)),
    ("bound", lambda row: row.bound_name or _text.NOTHING),
)

_OF_SAMPLES = ("ci95 (us)", "p95 (us)", "p99 (us)", "max (us)")  # which a row of another tool's log has not
_WIRE: _Columns = (("wire (GB/s)", lambda row: _text.gigabytes(row.wire_bytes_per_s)),)


def render(document: Document) -> str:
    """The whole document; a cell of its own marks what is modelled, invalid or not converged."""
    headers = document.headers.values()
    how = {_text.IMPORTED if header.imported else _text.STATISTICS for header in headers} or {_text.STATISTICS}
    lines = ["# Results", "", *(f"{each[0].upper()}{each[1:]}." for each in sorted(how)), ""]
    for job, header in document.headers.items():
        lines += _job(document, job, header)
    skipped = _below.skipped_lines(row for row in document.skipped if row.get("job") not in document.headers)
    failed = _below.failure_lines(row for row in document.failures if row.get("job") not in document.headers)
    if not document.headers:
        lines += ["Nothing was measured.", ""]
    lines += _bullets("Beside these", [*skipped, *failed, *document.notes])
    lines += _bullets("Scaling", _scaling.lines(document.scalings))
    lines += _bullets("Contention", _interference.lines(document.interferences))
    lines += _bullets("Groups at once", _sharing.lines(document.sharings))
    lines += _bullets("Overlap", _overlap.lines(document.overlaps))
    lines += _bullets("Computing", _compute.lines(document.summaries, document.standings))
    return "\n".join(lines).rstrip() + "\n"


def _job(document: Document, job: str, header: Header) -> list[str]:
    rows = [row for row in document.summaries if row.job == job]
    lines = [f"## {job}", ""]
    modelled = _text.modelled_line(header)
    if modelled:
        lines += [f"**{modelled}.**", ""]
    lines += [*(f"- {name}: {_escaped(value)}" for name, value in _text.facts(header)), ""]
    for mode in _text.modes_of(rows):
        lines += [f"### {_text.ISOLATED if mode == 'isolated' else _text.PIPELINED}", ""]
        columns = _ISOLATED if mode == "isolated" else _PIPELINED
        columns = tuple(each for each in columns if not header.imported or each[0] not in _OF_SAMPLES)
        columns = columns + _WIRE if "wire" in document.show else columns
        lines += _table([row for row in rows if row.mode == mode], columns)
    if not rows:
        lines += ["Nothing was measured.", ""]
    remarks = [f"Bound: {bound}" for bound in _text.bound_lines(rows).values()]
    remarks += [line[2:] for line in _below.mark_lines(rows)] + _below.finding_lines(rows)
    remarks += _fits.lines(document.headers, [fit for fit in document.fits if fit.job == model.case_of(job, header)])
    remarks += _below.skipped_lines(row for row in document.skipped if row.get("job") == job)
    remarks += _below.failure_lines(row for row in document.failures if row.get("job") == job)
    return lines + _bullets("Remarks", [*remarks, *header.notes])


def _table(rows: Sequence[Summary], columns: _Columns) -> list[str]:
    grouped = len({row.group for row in rows}) > 1
    titles = ["size", *(["group"] if grouped else []), *(title for title, _ in columns), "wrong", "remarks"]
    lines = [_line(titles), _line(["---:"] * (len(titles) - 1) + [":---"])]
    for row in rows:
        invalid = row.verified is False
        cells = [_text.size(row), *([row.group] if grouped else [])]
        cells += [_text.NOTHING if invalid else show(row) for _, show in columns]
        words = ["INVALID" if flag == "invalid" else flag for flag in row.flags]
        lines.append(_line([*cells, _text.wrong([row]), ", ".join(words)]))
    return [*lines, ""]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _bullets(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    return [f"{title}:", "", *(f"- {_escaped(line)}" for line in lines), ""]


def _escaped(text: str) -> str:
    """Text that can not end a cell or begin emphasis."""
    for character in ("|", "*", "_"):
        text = text.replace(character, f"\\{character}")
    return text
