"""JSON: one document, numbers as numbers, unknown as null, SI units in the names of the keys."""

from __future__ import annotations

from bench.results.table import Report, as_json


def render(report: Report, width: int | None = None) -> str:
    """Return the report's data as JSON. A number that JSON cannot hold (NaN, infinity) becomes null."""
    return as_json(report.data())
