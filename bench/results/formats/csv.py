"""CSV: one line of names, then one line for each record, without sentences."""

from __future__ import annotations

from bench.results.table import Report, as_csv


def render(report: Report, width: int | None = None) -> str:
    """Numbers in full, unknown is empty, several values in one cell are separated by ';'."""
    return as_csv(report.records(), report.record_names())
