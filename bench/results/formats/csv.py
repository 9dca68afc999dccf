"""Write CSV: a line with the names of the columns, then a line for each record. CSV has no notes or other sentences."""

from __future__ import annotations

from bench.results.table import Report, as_csv


def render(report: Report, width: int | None = None) -> str:
    """Return the report's records as CSV.

    Numbers have all digits. The cell of an unknown value is empty. If a cell has several values, `;` separates them.
    """
    return as_csv(report.records(), report.record_names())
