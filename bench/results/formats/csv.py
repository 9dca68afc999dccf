"""CSV: a line with the names of the columns, then one line for each record. Sentences are left out."""

from __future__ import annotations

from bench.results.table import Report, as_csv


def render(report: Report, width: int | None = None) -> str:
    """Return the report's records as CSV.

    Numbers have all digits, an unknown value is empty, and ';' separates several values in one cell.
    """
    return as_csv(report.records(), report.record_names())
