"""Write CSV: a line with the names of the columns, then one line for each record.

Notes and other sentences are left out.
"""

from __future__ import annotations

from bench.results.table import Report, as_csv


def render(report: Report, width: int | None = None) -> str:
    """Return the report's records as CSV.

    Numbers have all digits. The cell of an unknown value is empty. A cell with several values separates them with ';'.
    """
    return as_csv(report.records(), report.record_names())
