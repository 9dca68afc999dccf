"""From the files of a run to the document that reports and figures show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.analysis import summary
from bench.core.record import Document
from bench.store import runs


def document(path: Path) -> Document:
    """Everything measured in a run's folder or in one results file. Raises UsageError when there is nothing to read."""
    attempts, warnings = runs.attempts(path)
    outcomes = runs.read_outcomes(path) if path.is_dir() else {}
    told = [(job, attempt.header, attempt.records) for job, attempt in attempts]
    found = summary.document(told, notes=warnings)
    failures = [
        {"job": job, "what": outcome["what"], "rank": outcome.get("rank"), "host": outcome.get("host")}
        for job, outcome in outcomes.items()
        if outcome.get("what")
    ]
    return replace(found, failures=(*found.failures, *failures))
