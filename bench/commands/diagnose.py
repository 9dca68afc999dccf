"""Find the slow host, NIC or link of a stored run or of a cluster. Exits with 1 if a part is slow."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from bench.commands import report, run
from bench.commands._say import say
from bench.core import collector
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, BenchError, Interrupted, MeasurementError, UsageError
from bench.diagnose import page, pair_evidence
from bench.diagnose.localise import Diagnosis
from bench.diagnose.pair_evidence import Diagnosed
from bench.results import collect, grid, output
from bench.results.document import DOCUMENT_SCHEMA, Summary
from bench.store import runs

_SCENARIO = "links"


EXAMPLES = (
    ("linkbench diagnose --cluster mine", "measure all pairs of a cluster and name the slow part"),
    ("linkbench diagnose latest", "find the slow part in a stored run"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    parser.add_argument(
        "run",
        nargs="?",
        metavar="PATH",
        help="a run's path or name, a .jsonl file, the JSON report of a run of pairs, or latest (default)",
    )
    parser.add_argument("--cluster", metavar="NAME", help="measure this entry of bench.yaml first")
    parser.add_argument("--config", type=Path, metavar="FILE", help="bench.yaml to read (default ./bench.yaml)")
    parser.add_argument(
        "--scenario", default=_SCENARIO, help=f"scenario to measure on the cluster (default {_SCENARIO})"
    )
    parser.add_argument("--model", action="store_true", help="model the cluster's links instead of measuring")
    parser.add_argument("--budget", metavar="TIME", help="time budget, such as 30s or 2m (default: the scenario's)")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    parser.add_argument(
        "--deadline", default="2m", metavar="TIME", help="end a job if a rank is silent for this long (2m)"
    )
    parser.add_argument(
        "--no-preflight",
        action="store_true",
        help="skip the checks of hosts before the run; ranks still check their own host",
    )
    parser.set_defaults(tool_path=None, launches=None, share_hosts=False, only_launch=None)
    output.add_output_arguments(parser, output.BY_HAND)


def main(args: argparse.Namespace) -> int:
    """Print the verdict on a run. With --cluster, measure the run first. Returns 1 if a part is slow."""
    if args.run and args.cluster:
        raise UsageError("give a run to read or a --cluster to measure, not both")
    if args.model and not args.cluster:
        raise UsageError("--model needs a --cluster")
    if not args.cluster:
        run_name = argparse.Namespace(run=args.run or "latest", results=args.results)
        return _print_verdict(args, report.path_of(run_name), None)
    before = _folders(args.results)
    try:
        path, failed = _measured(args)
    except (Interrupted, KeyboardInterrupt):
        for folder in sorted(_folders(args.results) - before):
            with contextlib.suppress(BenchError):  # no verdict yet, or an undecided verdict
                _print_verdict(args, folder, None)
            say(f"to see the verdict again: linkbench diagnose {folder}")
        raise
    return _print_verdict(args, path, failed)


def _folders(results: Path) -> set[Path]:
    return {plan.parent for plan in results.glob("*/plan.json")}


@collector.paused()  # thousands of rows stay in use until the verdict is printed
def _print_verdict(args: argparse.Namespace, path: Path, failed: str | None) -> int:
    """Print the verdict on a run. `failed`: the reason why the run's jobs failed, or None if all jobs succeeded."""
    document = _document(path)
    try:
        cases = pair_evidence.diagnosed(document["headers"], document["summaries"])
    except UsageError as error:
        if failed:
            raise MeasurementError(failed) from None
        raise UsageError(f"{path}: {error}") from None
    verdict = pair_evidence.merged([case.verdict for case in cases])
    output.emit(_rendered(args, cases, verdict, _seconds(path, cases)), args)
    if args.cluster:
        say(f"results: {path}/")
    for warning in document["notes"]:
        say(f"bench: warning: {warning}")
    if failed:
        raise MeasurementError(failed)
    if verdict.undecided:
        raise MeasurementError(
            f"{page.conclusion(verdict).text}; measure with `--schedule ladder` (scenario links), or allow more time"
        )
    return EXIT_VERDICT if verdict.accused else EXIT_DONE


def _measured(args: argparse.Namespace) -> tuple[Path, str | None]:
    """Measure the cluster. Returns the folder of the new run, and the reason why jobs failed.

    If all jobs succeeded, the reason is None.
    """
    ran = run.started(args)
    if ran.failed and not runs.jobs_in(ran.folder):
        raise run.nothing_measured(ran)
    failed = "; ".join(f"{job}: {failure.what}" for job, failure in ran.failed.items())
    return ran.folder, failed or None


def _document(path: Path) -> Mapping[str, Any]:
    """Return the headers, the summaries and the notes of a run as plain data.

    Raises UsageError if the path is neither a run nor the report of a run.
    """
    if path.is_file():
        try:
            parsed = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict) and parsed.get("schema") == DOCUMENT_SCHEMA:
            return parsed
    found = collect.document(path)
    names = [field.name for field in fields(Summary)]
    return {
        "headers": {job: asdict(header) for job, header in found.headers.items()},
        "summaries": [{name: getattr(row, name) for name in names} for row in found.summaries],
        "notes": found.notes,
    }


def _seconds(path: Path, cases: Sequence[Diagnosed]) -> float | None:
    """Return the seconds that the jobs took, including their start, or None if the run did not record this time."""
    outcomes = runs.read_outcomes(path) if path.is_dir() else {}
    took = [outcomes.get(job, {}).get("seconds") for case in cases for job in case.jobs]
    return None if not took or None in took else float(sum(filter(None, took)))


def _rendered(args: argparse.Namespace, cases: Sequence[Diagnosed], verdict: Diagnosis, seconds: float | None) -> str:
    if args.format == "csv":
        columns = ("kind", "name", "confidence", "evidence")
        rows = [{name: row[name] for name in columns} for row in page.accused_rows(verdict)]
        return grid.as_csv(rows, columns)
    if args.format == "table":
        return page.table(cases, verdict, seconds, output.page_width(args))
    return (page.markdown if args.format == "markdown" else page.as_json)(cases, verdict, seconds)
