"""Check that a run is fit to publish (`gate RUN --rules publication`). Exits with 1 if the run breaks a rule."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from bench.commands import report
from bench.core import printable
from bench.core.errors import EXIT_DONE, EXIT_VERDICT
from bench.core.wrapping import wrapped
from bench.gate import of_folder, page
from bench.gate.gate import GateResult
from bench.gate.publication import PublicationFinding
from bench.gate.rules import GateFault
from bench.results import grid, output
from bench.results.document import Document
from bench.results.table import as_json

SCHEMA = "bench.lint/1"
_CSV = ("rule", "title", "status", "job", "mode", "payload_bytes", "group", "what", "code")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    output.add_run_arguments(parser)
    output.add_output_arguments(parser, output.BY_HAND)


def main(args: argparse.Namespace) -> int:
    """Print the findings of each publication rule in the run. Returns 1 if the run breaks a rule."""
    verdict, document = of_folder.publication(args)
    output.emit(_rendered(args, verdict, document), args)
    report.warn(document)
    return EXIT_DONE if verdict.passed else EXIT_VERDICT


def _rendered(args: argparse.Namespace, verdict: GateResult, document: Document) -> str:
    if args.format == "json":
        return as_json(_plain(verdict, document))
    if args.format == "csv":
        return grid.as_csv([row for finding in verdict.findings for row in _csv_rows(finding)], _CSV)
    if args.format == "markdown":
        return page.markdown(verdict) + "\n" + printable.joined(f"- {line}" for line in page.looked_at(document)) + "\n"
    width = output.page_width(args)
    lines = [part for line in page.looked_at(document) for part in wrapped(line, width, "#   ", "# ")]
    return page.table(verdict, width) + printable.joined(lines) + "\n"


def _plain(verdict: GateResult, document: Document) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kept": verdict.passed,
        "findings": [_finding(finding) for finding in verdict.findings],
        "conflicts": [asdict(conflict) for conflict in document.conflicts],
        "notes": [note.text for note in document.notes],
    }


def _finding(finding: PublicationFinding) -> dict[str, Any]:
    return {
        "rule": finding.rule.number,
        "code": finding.rule,
        "title": finding.rule.template,
        "status": finding.status,
        "sentences": list(page.finding_sentences(finding)),
        "rows": [_row(fault) for fault in finding.faults],
    }


def _row(fault: GateFault) -> dict[str, Any]:
    return {
        "job": fault.job,
        "mode": fault.mode,
        "payload_bytes": fault.payload_bytes,
        "group": fault.group,
        "what": fault.what,
        "code": fault.code,
        "facts": fault.facts,
    }


def _csv_rows(finding: PublicationFinding) -> Iterator[dict[str, Any]]:
    """If a rule has faults, yield one line for each fault. Otherwise, yield one line for the rule."""
    whole: dict[str, Any] = {
        "rule": finding.rule.number,
        "title": finding.rule.template,
        "status": finding.status,
    }
    if not finding.faults:
        yield whole | {"what": "; ".join(page.finding_sentences(finding))}
    for fault in finding.faults:
        yield whole | _row(fault)
