"""Compare two runs: which rows became slower or faster, how sure that is, and what else changed."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.commands import report
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.results import collect, compare, compare_page, grid, inference, output
from bench.results.compare import Compared, Comparison, UnmatchedRow
from bench.results.launches import between
from bench.store import runs

SCHEMA = "bench.compare/1"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench compare`."""
    for name in ("base", "new"):
        parser.add_argument(name, metavar=name.upper(), help="a run's path or name, a .jsonl file, or latest")
    parser.add_argument(
        "--delta", type=_fraction, default=0.05, metavar="X", help="the change that matters (default 5%%)"
    )
    parser.add_argument(
        "--fail-on",
        choices=("slower", "never"),
        default="slower",
        help="end with 1 when a row became slower (default), or never",
    )
    parser.add_argument(
        "--allow-diff",
        action="append",
        default=[],
        metavar="FACTOR",
        help="a factor that is meant to differ, such as num_ranks or library; may be given several times",
    )
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print NEW against BASE; 1 when a row became slower."""
    paths = [report.path_of(argparse.Namespace(run=name, results=args.results)) for name in (args.base, args.new)]
    documents = [collect.document(path) for path in paths]
    comparison = compare.compare(*documents, delta=args.delta, allow_diff=args.allow_diff)
    sides = compare_page.Sides(str(paths[0]), str(paths[1]), _command(paths))
    output.emit(_rendered(args.format, comparison, sides), args)
    warnings = [note for document in documents for note in document.notes]
    if paths[0].resolve() == paths[1].resolve():
        warnings.append("BASE and NEW are the same run: of course it is equivalent to itself")
    for warning in dict.fromkeys(warnings):
        print(f"bench: warning: {warning}", file=sys.stderr)
    return EXIT_VERDICT if comparison.counts["slower"] and args.fail_on == "slower" else EXIT_DONE


def _fraction(text: str) -> float:
    """`5%` or `0.05`."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise UsageError(f"--delta {text!r} must be a share between 0 and 1, such as 5% or 0.05")
    return value


def _command(paths: list[Path]) -> str:
    """How to start runs that can be judged, of the scenario and on the cluster of these."""
    words = []
    for path in paths:
        if path.is_dir() and (path / "plan.json").exists():
            plan = runs.read_plan(path)
            if plan.get("imported"):
                continue
            cluster = plan["cluster"]["name"]
            words.append(
                f"make bench SCENARIO={shlex.quote(plan['scenario'])}"
                + (f" CLUSTER={shlex.quote(cluster)}" if cluster != "local" else "")
                + f" LAUNCHES={inference.LEAST_LAUNCHES}"
            )
    return " and ".join(dict.fromkeys(words)) or f"make bench SCENARIO=... LAUNCHES={inference.LEAST_LAUNCHES}"


def _rendered(form: str, comparison: Comparison, sides: compare_page.Sides) -> str:
    if form == "json":
        return json.dumps(_plain(comparison, sides), indent=1, allow_nan=False)
    if form == "csv":
        return _csv(comparison)
    return (compare_page.markdown if form == "markdown" else compare_page.table)(comparison, sides)


def _plain(comparison: Comparison, sides: compare_page.Sides) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "base": sides.base,
        "new": sides.new,
        "delta": comparison.delta,
        "fdr": comparison.fdr,
        "least_launches": inference.LEAST_LAUNCHES,
        "test": "mannwhitney_exact",
        "correction": "benjamini_hochberg",
        "ci_method": "log_welch",
        "counts": comparison.counts,
        "conclusion": compare_page.conclusion(comparison, sides),
        "remarks": compare_page.remarks(comparison),
        "rows": [_row(row) for row in comparison.rows],
        "only_base": [_alone(row) for row in comparison.only_base],
        "only_new": [_alone(row) for row in comparison.only_new],
        "allowed": list(comparison.allowed),
        "changes": [asdict(change) for change in comparison.changes],
    }


def _row(row: Compared) -> dict[str, Any]:
    found = row.estimate
    return asdict(row.place) | {
        "transport": row.factors["transport"],
        "num_base_launches": len(row.base_launches_s),
        "num_new_launches": len(row.new_launches_s),
        "base_s": row.base_s,
        "new_s": row.new_s,
        "ratio": row.ratio,
        "ratio_low": found.ratio_low if found else None,
        "ratio_high": found.ratio_high if found else None,
        "p": found.p if found else None,
        "p_corrected": row.p_corrected,
        "cliffs_delta": found.cliffs_delta if found else None,
        "min_detectable": found.min_detectable if found else None,
        "base_between": between(row.base_launches_s),
        "new_between": between(row.new_launches_s),
        "verdict": row.verdict,
        "reason": row.reason,
        "base_jobs": row.base_jobs,
        "new_jobs": row.new_jobs,
        "base_launches_s": row.base_launches_s,
        "new_launches_s": row.new_launches_s,
        "factors": row.factors,
        "differs": {name: {"base": before, "new": after} for name, (before, after) in row.differs.items()},
    }


def _alone(row: UnmatchedRow) -> dict[str, Any]:
    return asdict(row.place) | {"transport": row.factors["transport"], "factors": row.factors, "why": row.why}


def _csv(comparison: Comparison) -> str:
    """One line for each row, factors in columns of their own; several launches or jobs of a cell by spaces."""
    lines = []
    for row in comparison.rows:
        line = _row(row)
        del line["differs"]
        factors = line.pop("factors") | {name: " -> ".join(map(str, both)) for name, both in row.differs.items()}
        line |= {name: " ".join(map(str, value)) for name, value in line.items() if isinstance(value, tuple)}
        lines.append(line | factors)
    return grid.as_csv(lines)
