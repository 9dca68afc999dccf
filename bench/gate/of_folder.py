"""A run before its gate, for every command that asks for the verdict: gate, report --certificate, run --retest."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.config import paths
from bench.config.yaml_file import find
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.gate import certificate as gate_certificate
from bench.gate import gate as gates
from bench.gate import page, rules_file
from bench.gate.published import published
from bench.gate.rules import GateFault, Rules
from bench.results import collect, output
from bench.results.document import Document
from bench.store import runs

_MOST_REASONS = 32  # of nodes, that a retest keeps


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def judged(args: argparse.Namespace) -> gates.GateResult:
    """The verdict on `args.run`. Raises UsageError for bad rules and for a run that is not there."""
    asked = rules_file.load_rules(find("rules", args.rules, paths.rules_folder()))
    path = collect.find(args.run, args.results)
    try:
        retests = [gates.Retest.read(one) for one in runs.read_retests(path)] if path.is_dir() else []
        return gates.gate(asked, material(path, asked, args), retests)
    except UsageError as error:  # the run is there, and what it holds can not be read: a failure, not a mistyped word
        return gates.unreadable(asked, path.name, str(error))


def certificate(args: argparse.Namespace) -> int:
    """`bench report RUN --certificate [RULES]`: the page; 0 only when the run passed."""
    if args.format not in ("table", "markdown"):
        raise UsageError(f"a certificate is a page of Markdown: leave --format {args.format} out")
    path = collect.find(args.run, args.results)
    plan = runs.read_plan(path) if (path / "plan.json").exists() else None
    if not args.certificate and plan is None:
        raise UsageError("which rules? this run has no plan: give them by --certificate RULES")
    args.rules, args.baseline = args.certificate or plan["scenario"], None  # type: ignore[index]
    verdict = judged(args)
    document = collect.document(path)
    output.emit(gate_certificate.render(verdict, document, runs.hashes(path), plan, f"{now()} UTC"), args)
    return EXIT_DONE if verdict.passed else EXIT_VERDICT


def failed(path: Path, args: argparse.Namespace) -> tuple[list[str], gates.Again]:
    """How a run failed, in sentences, and what of it to measure again. Raises UsageError for one without a plan."""
    plan = runs.read_plan(path)
    if plan.get("imported"):
        raise UsageError(f"{path} was imported from logs: there is nothing in it to measure again")
    name = args.rules or plan["scenario"]
    asked = rules_file.load_rules(find("rules", name, paths.rules_folder()))
    run = material(path, asked, argparse.Namespace(baseline=None, results=args.results))
    verdict = gates.gate(asked, run, [gates.Retest.read(one) for one in runs.read_retests(path)])
    told = [f"{node.host}: {reason}" for node in verdict.nodes if node.status == "failed" for reason in node.reasons]
    return [page.conclusion(verdict), *told[:_MOST_REASONS]], gates.again(verdict, run)


def newest(path: Path, document: Document) -> Document:
    """A run's document with the newest measurement of each row."""
    return gates.newest(document, [gates.Retest.read(one) for one in runs.read_retests(path)])[0]


def material(path: Path, asked: Rules, args: argparse.Namespace) -> gates.GateInput:
    """All that a gate looks at of a run. Raises UsageError when it can not be read."""
    is_run = path.is_dir()
    plan = runs.read_plan(path) if is_run and (path / "plan.json").exists() else None
    unsound: list[GateFault] = []
    try:
        attempts, warnings = runs.attempts(path)
        document = collect.document_of(path, attempts, warnings)
        for job, attempt in attempts:
            unsound += gates.unsound(job, attempt.header, attempt.records)
    except UsageError:
        if not is_run or any(path.glob("*.jsonl")):
            raise
        document = collect.nothing(path)
    baseline, why = _baseline(args.baseline or asked.baseline, args.results, path)
    found = gates.GateInput(
        name=path.name,
        document=document,
        plan=plan,
        outcomes=runs.outcomes_or_error(path) if is_run else {},
        warnings=tuple(note.text for note in document.notes),
        networks={job: gates.networks_in(_log(path, job)) for job in document.headers} if is_run else {},
        unsound=tuple(unsound),
        baseline=baseline,
        now=datetime.now(UTC),
        published=published,
    )
    return found if not why else replace(found, no_baseline=why)


def _baseline(name: str, results: Path, run: Path) -> tuple[Any, str]:
    """The document to compare with, or why there is none."""
    if not name:
        return None, ""
    try:
        path = collect.find(name, results)
        if path.resolve() == run.resolve():
            return None, "the run to compare with is this run itself"
        return collect.document(path), ""
    except UsageError as error:
        return None, str(error)


def _log(path: Path, job: str) -> Iterator[str]:
    file = runs.log_file(path, job.partition("#")[0])
    with contextlib.suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        yield from lines
