"""Build the document of a run, which reports and figures show, from the run's files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.core import collector
from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.results import summary
from bench.results.document import Document
from bench.results.headline import NamedRun
from bench.store import jsonl, runs


def find(name: str, results: Path) -> Path:
    """Return the path of a run's folder or results file. Raises UsageError if there is no such run."""
    return Path(name) if Path(name).is_file() else runs.find(results, name)


def document(path: Path) -> Document:
    """Return everything that was measured, from a run's folder or from one results file.

    Only the samples of one file are in memory at a time. Raises UsageError if there is nothing to read.
    """
    warnings: list[str] = []
    return document_of(path, runs.attempts_in_turn(path, warnings), warnings)


def document_of(path: Path, attempts: Iterable[tuple[str, jsonl.Attempt]], warnings: Sequence[str]) -> Document:
    """Build a document from the attempts of jobs.

    `warnings`: texts that become notes of the document. The caller may extend this list until the last attempt has been
        read.
    """
    outcomes, doubts = _ends(path) if path.is_dir() else ({}, [])
    headers, rows = {}, summary.DocumentBuilder()
    with collector.paused():
        for job, attempt in attempts:
            headers[job] = attempt.header
            for record in attempt.records:
                rows.add(job, attempt.header, record)
        found = rows.document(headers, [Coded.uncoded(text) for text in (*warnings, *doubts)])
    return replace(found, failures=(*found.failures, *_failures(outcomes)), unplanned=_unplanned(path))


def _unplanned(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Return what the plan of a run's folder left out, or an empty list if there is no plan."""
    if not path.is_dir():
        return ()
    try:
        return tuple(runs.read_plan(path).get("skipped") or ())
    except UsageError:  # rows can be shown without a plan
        return ()


def named(path: Path) -> NamedRun:
    """Return the names by which commands refer to a run.

    The names are the run's folder or file and, if the run has a plan, the plan's scenario and cluster.
    """
    if not path.is_dir():
        return NamedRun(str(path))
    try:
        plan = runs.read_plan(path)
    except UsageError:  # rows can be shown without a plan
        return NamedRun(str(path))
    cluster = plan.get("cluster")
    named = cluster.get("name") if isinstance(cluster, Mapping) else None
    return NamedRun(str(path), str(plan.get("scenario") or ""), str(named or ""))


def nothing(path: Path) -> Document:
    """Build the document of a run's folder without a results file.

    If outcomes of jobs are in the folder, the document says why jobs failed.
    """
    outcomes, doubts = _ends(path)
    return replace(
        summary.document([], notes=[Coded.uncoded(text) for text in doubts]), failures=tuple(_failures(outcomes))
    )


def _ends(path: Path) -> tuple[Mapping[str, Mapping[str, Any]], list[str]]:
    """Return the outcome of each job, and a list of warnings.

    If outcomes.json is damaged, return no outcomes and one warning. In this case, the failures in outcomes.json are
    unknown.
    """
    try:
        return runs.outcomes_or_error(path), []
    except UsageError as error:
        return {}, [str(error)]


def _failures(outcomes: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"job": job, "what": outcome["what"], "rank": outcome.get("rank"), "host": outcome.get("host")}
        | {name: outcome[name] for name in ("code", "facts") if name in outcome}
        for job, outcome in outcomes.items()
        if outcome.get("what")
    ]
