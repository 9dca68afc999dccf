"""Write JSON: one document with numbers as numbers, unknown values as null, and SI units in the names of keys."""

from __future__ import annotations

from bench.results.table import Report, as_json


def render(report: Report, width: int | None = None) -> str:
    """Return the report's data as JSON. NaN and infinity, which JSON cannot hold, become null."""
    return as_json(report.data())
