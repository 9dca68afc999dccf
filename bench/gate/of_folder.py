"""Judge a stored run for the commands `gate`, `lint`, `report --certificate` and `run --retest`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench.config import paths
from bench.config.yaml_file import find
from bench.core import collector
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.core.record import Header, Record
from bench.gate import certificate as gate_certificate
from bench.gate import gate as gates
from bench.gate import header_consistency, page, rules_file
from bench.gate.gate_input import GateInput, networks_in
from bench.gate.messages import FaultCode
from bench.gate.nodes import NodeStatus
from bench.gate.remeasured import Retest, RetestPlan
from bench.gate.remeasured import newest as newest_rows
from bench.gate.rows import published_figure
from bench.gate.rules import GateFault, Rules
from bench.results import collect, output
from bench.results.document import Document
from bench.store import jsonl, run_lock, runs

_PUBLICATION = "publication.yaml"  # the rules of `linkbench lint`
_MOST_REASONS = 32  # a retest stores at most this many reasons of nodes


def now() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def judged(args: argparse.Namespace) -> gates.GateResult:
    """Return the verdict on `args.run`.

    Raises UsageError if the rules are invalid or the run does not exist. Raises RefusedError if the run is not
    finished.
    """
    run_lock.check_free(collect.find(args.run, args.results))
    return _judged(args)[0]


@collector.paused()  # thousands of rows stay in use until the last demand is judged
def _judged(args: argparse.Namespace) -> tuple[gates.GateResult, Document | None]:
    """Judge `args.run`. Return the verdict and the run's document. The document is None if the run cannot be read."""
    rules = _rules(args.rules)
    path = collect.find(args.run, args.results)
    try:
        run = gate_input(path, rules, args)
        return gates.gate(rules, run, _retests(path)), run.document
    except UsageError as error:  # the run exists but cannot be read: a failure of the run, not a typing mistake
        return gates.unreadable(rules, path.name, str(error)), None


def publication(args: argparse.Namespace) -> tuple[gates.GateResult, Document]:
    """Judge `args.run` by the publication rules.

    Return the verdict and the run's document. Raises UsageError if the run cannot be read.
    """
    own = paths.rules_folder() / _PUBLICATION  # the user's own folder rules/ may lack this file
    rules = rules_file.load_rules(own if own.is_file() else paths.PACKAGE_ROOT / "rules" / _PUBLICATION)
    run = gate_input(collect.find(args.run, args.results), rules, argparse.Namespace(baseline=None), damaged=True)
    return gates.gate(rules, run), run.document


def certificate(args: argparse.Namespace) -> int:
    """Print the certificate of a run (command `linkbench report RUN --certificate [RULES]`).

    The exit code is 0 only if the run passed.
    """
    if args.format not in ("table", "markdown"):
        raise UsageError(f"a certificate is a page of Markdown: remove --format {args.format}")
    path = collect.find(args.run, args.results)
    plan = runs.read_plan(path) if (path / "plan.json").exists() else None
    if not args.certificate and plan is None:
        raise UsageError("this run has no plan that names its rules: give them by --certificate RULES")
    args.rules, args.baseline = args.certificate or plan["scenario"], None  # type: ignore[index]
    verdict, document = _judged(args)
    # Reading the run again raises the error that says what cannot be read.
    document = document or collect.document(path)
    output.emit(gate_certificate.render(verdict, document, runs.hashes(path), plan, f"{now()} UTC"), args)
    return EXIT_DONE if verdict.passed else EXIT_VERDICT


def failed(path: Path, args: argparse.Namespace) -> tuple[list[str], RetestPlan]:
    """Return the reasons why a run failed, as text, and the plan of a retest.

    Raises UsageError for an imported run and for a run without a plan.
    """
    plan = runs.read_plan(path)
    if plan.get("imported"):
        raise UsageError(f"{path} was imported from logs: there is nothing to measure again")
    rules = _rules(args.rules or plan["scenario"])
    run = gate_input(path, rules, argparse.Namespace(baseline=None, results=args.results))
    verdict = gates.gate(rules, run, _retests(path))
    reasons = [page.conclusion(verdict)]
    for node in verdict.nodes:
        if node.status == NodeStatus.FAILED:
            reasons += [f"{node.host}: {reason.text}" for reason in node.reasons]
    return reasons[: 1 + _MOST_REASONS], gates.retest_plan(verdict, run)


def newest(path: Path, document: Document) -> Document:
    """Return a run's document with only the newest measurement of each row."""
    return newest_rows(document, _retests(path))[0]


def gate_input(path: Path, rules: Rules, args: argparse.Namespace, damaged: bool = False) -> GateInput:
    """Collect all parts of a run that a gate uses. Raises UsageError if the run cannot be read.

    `damaged`: whether to accept a broken outcomes.json. The outcome of each job is then unknown.
    """
    is_run = path.is_dir()
    plan = runs.read_plan(path) if is_run and (path / "plan.json").exists() else None
    inconsistent: list[GateFault] = []
    attempts: list[tuple[str, Header, Sequence[Record]]] = []
    warnings: list[str] = []

    def in_turn() -> Iterator[tuple[str, jsonl.Attempt]]:
        """Yield the attempts one by one. Drop the sample times of each attempt after use.

        The times of all attempts together may fill the memory.
        """
        for job, attempt in runs.attempts_in_turn(path, warnings):
            yield job, attempt
            if rules.rules:
                inconsistent.extend(header_consistency.faults(job, attempt.header, attempt.records))
            for record in attempt.records:
                if record.samples is not None:
                    record.samples.forget_times()
            attempts.append((job, attempt.header, attempt.records))

    try:
        document = collect.document_of(path, in_turn(), warnings)
    except UsageError:
        if damaged or not is_run or any(path.glob("*.jsonl")):
            raise
        document = collect.nothing(path)
    networks = {}
    if is_run and rules.rules:
        networks = {job: networks_in(_log(path, job)) for job in document.headers}
    found = GateInput(
        name=path.name,
        document=document,
        attempts=tuple(attempts),
        plan=plan,
        outcomes=_outcomes(path, damaged) if is_run else {},
        warnings=tuple(note.text for note in document.notes),
        networks=networks,
        inconsistent=tuple(inconsistent),
        now=datetime.now(UTC),
        published=published_figure,
    )
    name = args.baseline or rules.baseline
    return _with_baseline(found, name, args.results, path) if name else found


def _rules(name: str) -> Rules:
    return rules_file.load_rules(find("rules", name, paths.rules_folder()))


def _retests(path: Path) -> list[Retest]:
    return [Retest.read(stored) for stored in runs.read_retests(path)] if path.is_dir() else []


def _outcomes(path: Path, damaged: bool) -> dict[str, dict[str, object]]:
    return runs.read_outcomes(path) if damaged else runs.outcomes_or_error(path)


def _with_baseline(run: GateInput, name: str, results: Path, path: Path) -> GateInput:
    """Return the run together with its baseline run.

    If the baseline cannot be used, return the run with a fault that says why.
    """
    try:
        base = collect.find(name, results)
        if base.resolve() == path.resolve():
            return replace(run, no_baseline=GateFault(FaultCode.BASELINE_IS_THIS_RUN))
        return replace(run, baseline=collect.document(base))
    except UsageError as error:
        return replace(run, no_baseline=GateFault(FaultCode.BASELINE_UNREADABLE, {"error": str(error)}))


def _log(path: Path, job: str) -> Iterator[str]:
    file = runs.log_file(path, job.partition("#")[0])
    with contextlib.suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        yield from lines
