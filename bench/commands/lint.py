"""Hold a run to the twelve rules of scientific benchmarking; exit 1, with the offending rows, where one is broken."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from bench.commands import report
from bench.core.errors import EXIT_DONE, EXIT_VERDICT
from bench.gate import lint, lint_page
from bench.results import collect, grid, output
from bench.results.document import Document
from bench.results.table import as_json
from bench.store import runs

SCHEMA = "bench.lint/1"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench lint`."""
    output.add_run_arguments(parser)
    output.add_output_arguments(parser, output.BY_HAND)


def main(args: argparse.Namespace) -> int:
    """Print what each rule says of the run."""
    path = report.path_of(args)
    document = collect.document(path)
    attempts, _ = runs.attempts(path)
    told = [(job, attempt.header, attempt.records) for job, attempt in attempts]
    plan = runs.read_plan(path) if (path / "plan.json").exists() else None
    outcomes = runs.read_outcomes(path) if path.is_dir() else {}
    findings = lint.lint(document, told, plan, outcomes)
    output.emit(_rendered(args.format, document, findings), args)
    report.warn(document)
    return EXIT_VERDICT if any(finding.status == lint.FAILED for finding in findings) else EXIT_DONE


def _rendered(form: str, document: Document, findings: Sequence[lint.LintFinding]) -> str:
    if form == "json":
        return as_json(_plain(document, findings))
    if form == "csv":
        return _csv(findings)
    return (lint_page.markdown if form == "markdown" else lint_page.table)(document, findings)


def _plain(document: Document, findings: Sequence[lint.LintFinding]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kept": not any(finding.status == lint.FAILED for finding in findings),
        "findings": [asdict(finding) for finding in findings],
        "conflicts": [asdict(conflict) for conflict in document.conflicts],
        "notes": [note.text for note in document.notes],
    }


def _csv(findings: Sequence[lint.LintFinding]) -> str:
    """A line for each offending row, and one for each rule that has none."""
    names = ("rule", "title", "status", "job", "mode", "payload_bytes", "group", "what")
    return grid.as_csv([row for finding in findings for row in _csv_rows(finding)], names)


def _csv_rows(finding: lint.LintFinding) -> Iterator[dict[str, Any]]:
    whole: dict[str, Any] = {"rule": finding.rule, "title": finding.title, "status": finding.status}
    if not finding.rows:
        yield whole | {"what": "; ".join(finding.sentences)}
    for row in finding.rows:
        yield whole | dict(row)
