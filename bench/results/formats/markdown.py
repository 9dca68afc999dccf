"""Markdown for a page or a pull request: for each job its facts, a table for each mode, and the fine print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bench.core.record import Header
from bench.results import (
    compute_text,
    fit_text,
    interference_text,
    model,
    notes,
    overlap_text,
    scaling_text,
    sharing_text,
)
from bench.results import text as results_text
from bench.results.document import Document, Summary

_Columns = tuple[tuple[str, Callable[[Summary], str]], ...]

_ISOLATED: _Columns = (
    ("time (us)", results_text.time),
    ("ci95 (us)", results_text.interval),
    ("p95 (us)", lambda row: results_text.microseconds(row.p95_s)),
    ("p99 (us)", lambda row: results_text.microseconds(row.p99_s)),
    ("max (us)", lambda row: results_text.microseconds(row.max_s)),
)
_PIPELINED: _Columns = (
    ("time (us)", results_text.time),
    ("ci95 (us)", results_text.interval),
    ("algbw (GB/s)", lambda row: results_text.gigabytes(row.algbw_bytes_per_s)),
    ("busbw (GB/s)", lambda row: results_text.gigabytes(row.busbw_bytes_per_s)),
    ("of bound (%)", lambda row: results_text.percent(row.bound_fraction)),
    ("bound", lambda row: row.bound_name or results_text.NOTHING),
)

_OF_SAMPLES = ("ci95 (us)", "p95 (us)", "p99 (us)", "max (us)")  # which a row of another tool's log has not
_WIRE: _Columns = (("wire (GB/s)", lambda row: results_text.gigabytes(row.wire_bytes_per_s)),)


def render(document: Document) -> str:
    """The whole document; a cell of its own marks what is modelled, invalid or not converged."""
    headers = document.headers.values()
    how = {results_text.IMPORTED if header.imported else results_text.STATISTICS for header in headers} or {
        results_text.STATISTICS
    }
    lines = ["# Results", "", *(f"{each[0].upper()}{each[1:]}." for each in sorted(how)), ""]
    for job, header in document.headers.items():
        lines += _job(document, job, header)
    skipped = notes.skipped_lines(row for row in document.skipped if row.get("job") not in document.headers)
    failed = notes.failure_lines(row for row in document.failures if row.get("job") not in document.headers)
    if not document.headers:
        lines += ["Nothing was measured.", ""]
    lines += _bullets("Beside these", [*skipped, *failed, *document.notes])
    lines += _bullets("Scaling", scaling_text.lines(document.scalings))
    lines += _bullets("Contention", interference_text.lines(document.interferences))
    lines += _bullets("Groups at once", sharing_text.lines(document.sharings))
    lines += _bullets("Overlap", overlap_text.lines(document.overlaps))
    lines += _bullets("Computing", compute_text.lines(document.summaries, document.standings))
    return "\n".join(lines).rstrip() + "\n"


def _job(document: Document, job: str, header: Header) -> list[str]:
    rows = [row for row in document.summaries if row.job == job]
    lines = [f"## {job}", ""]
    modelled = results_text.modelled_line(header)
    if modelled:
        lines += [f"**{modelled}.**", ""]
    lines += [*(f"- {name}: {_escaped(value)}" for name, value in results_text.facts(header)), ""]
    for mode in results_text.modes_of(rows):
        lines += [f"### {results_text.ISOLATED if mode == 'isolated' else results_text.PIPELINED}", ""]
        columns = _ISOLATED if mode == "isolated" else _PIPELINED
        columns = tuple(each for each in columns if not header.imported or each[0] not in _OF_SAMPLES)
        columns = columns + _WIRE if "wire" in document.show else columns
        lines += _table([row for row in rows if row.mode == mode], columns)
    if not rows:
        lines += ["Nothing was measured.", ""]
    remarks = [f"Bound: {bound}" for bound in results_text.bound_lines(rows).values()]
    remarks += [line[2:] for line in notes.mark_lines(rows)] + notes.finding_lines(rows)
    remarks += fit_text.lines(document.headers, [fit for fit in document.fits if fit.job == model.case_of(job, header)])
    remarks += notes.skipped_lines(row for row in document.skipped if row.get("job") == job)
    remarks += notes.failure_lines(row for row in document.failures if row.get("job") == job)
    return lines + _bullets("Remarks", [*remarks, *header.notes])


def _table(rows: Sequence[Summary], columns: _Columns) -> list[str]:
    grouped = len({row.group for row in rows}) > 1
    titles = ["size", *(["group"] if grouped else []), *(title for title, _ in columns), "wrong", "remarks"]
    lines = [_line(titles), _line(["---:"] * (len(titles) - 1) + [":---"])]
    for row in rows:
        invalid = row.verified is False
        cells = [results_text.size(row), *([row.group] if grouped else [])]
        cells += [results_text.NOTHING if invalid else show(row) for _, show in columns]
        words = ["INVALID" if flag == "invalid" else flag for flag in row.flags]
        lines.append(_line([*cells, results_text.wrong([row]), ", ".join(words)]))
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
