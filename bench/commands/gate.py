"""Hold a run to a file of rules; exit 1, each failure by its name, unless everything asked for is there and good."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.gate import gate as gates
from bench.gate import junit as gate_junit
from bench.gate import of_folder, page
from bench.gate.rules import GateFault
from bench.results import grid, output
from bench.results.table import as_json

SCHEMA = "bench.gate/1"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench gate`."""
    parser.add_argument("run", help="a run's path or name, or latest")
    parser.add_argument(
        "--rules", required=True, action="append", metavar="FILE", help="a rules file's path, or its name in rules/"
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdict as JUnit XML there, too")
    parser.add_argument("--baseline", metavar="RUN", help="the run that `not slower than baseline` means")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    output.add_output_arguments(parser, output.BY_HAND)


def main(args: argparse.Namespace) -> int:
    """Print the verdict; 0 only when the run passed."""
    _check(args.junit)
    try:
        args.rules = _one(args.rules)
        verdict = of_folder.judged(args)
        text = _rendered(args.format, verdict)
    except BaseException as error:  # an older JUnit file must not go on saying that all is well
        with contextlib.suppress(UsageError):  # what went wrong first is what is told
            _write(args.junit, gate_junit.broken(args.run, str(error) or type(error).__name__, of_folder.now()))
        _tell_github([gate_junit.github_line("bench gate", str(error))])
        raise
    _write(args.junit, gate_junit.render(verdict, of_folder.now()))
    _tell_github(gate_junit.github_lines(verdict))
    output.emit(text, args)
    return EXIT_DONE if verdict.passed else EXIT_VERDICT


def _one(rules: Sequence[str]) -> str:
    """The rules file; raises UsageError for several, of which all but the last would go unread."""
    if len(rules) > 1:
        raise UsageError(f"--rules is there {len(rules)} times ({', '.join(rules)}): gate the run by each file in turn")
    return rules[0]


def _check(junit: Path | None) -> None:
    """Raises UsageError, before anything is judged, where the file can not be written."""
    if junit is not None and (junit.is_dir() or not junit.absolute().parent.is_dir()):
        raise UsageError(f"--junit {junit} can not be written: name a file in a folder that is there")


def _write(junit: Path | None, content: bytes) -> None:
    if junit is not None:
        try:
            output.replace_file(junit, content)
        except OSError as error:
            raise UsageError(f"--junit {junit} can not be written: {error.strerror}") from None


def _tell_github(lines: Sequence[str]) -> None:
    """To stderr, which the runner reads as well: stdout may hold one JSON document and nothing else."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in lines:
            print(line, file=sys.stderr)


def _rendered(form: str, verdict: gates.GateResult) -> str:
    if form == "json":
        return as_json(plain(verdict))
    if form == "csv":
        return _csv(verdict)
    return (page.markdown if form == "markdown" else page.table)(verdict)


def plain(verdict: gates.GateResult) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema": SCHEMA,
        "run": verdict.run,
        "rules": verdict.rules.name,
        "passed": verdict.passed,
        "conclusion": page.conclusion(verdict),
        "failures": verdict.names,
        "faults": [_fault(fault) for fault in verdict.faults],
        "demands": [
            {
                "rule": each.rule,
                "metric": each.limit.metric,
                "demand": each.limit.text,
                "unit": unit(each),
                "passed": each.passed,
                "num_rows": each.num_rows,
                "got": _finite(each.worst.got) if each.worst else None,
                "limit": each.worst.limit if each.worst else None,
                "margin": _finite(each.worst.margin) if each.worst else None,
                "worst_job": each.worst.row.job if each.worst else None,
                "worst_bytes": each.worst.row.payload_bytes if each.worst else None,
                "worst_group": each.worst.row.group if each.worst else None,
                "faults": [_fault(fault) for fault in each.faults],
            }
            for each in verdict.judged
        ],
        "nodes": [asdict(node) for node in verdict.nodes],
        "retests": [asdict(retest) for retest in verdict.retests],
        "superseded": [page.replaced(one) for one in verdict.superseded],
        "unjudged": verdict.unjudged,
    }


def unit(each: gates.JudgedDemand) -> str:
    """What `got` and `limit` of a demand are in."""
    if each.limit.of:
        return "ratio"
    return "bytes_per_s" if each.limit.metric in ("busbw", "algbw") else "s"


def _fault(fault: GateFault) -> dict[str, Any]:
    return asdict(fault) | {"got": _finite(fault.got), "limit": _finite(fault.limit)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _csv(verdict: gates.GateResult) -> str:
    """A line for each demand that passed, and one for each fault."""
    names = (
        "rule",
        "demand",
        "verdict",
        "failure",
        "what",
        "job",
        "pattern",
        "mode",
        "payload_bytes",
        "group",
        "got",
        "limit",
    )
    lines = [_fault(fault) | {"verdict": "failed", "failure": fault.name} for fault in verdict.faults]
    for each in verdict.judged:
        line = {"rule": each.rule, "demand": f"{each.limit.metric} {each.limit.text}"}
        lines += [line | _fault(fault) | {"verdict": "failed", "failure": fault.name} for fault in each.faults]
        if each.passed and each.worst:
            row = each.worst.row
            lines.append(
                line
                | {
                    "verdict": "passed",
                    "job": row.job,
                    "pattern": row.pattern,
                    "mode": row.mode,
                    "payload_bytes": row.payload_bytes,
                    "group": row.group,
                    "got": each.worst.got,
                    "limit": each.worst.limit,
                }
            )
    return grid.as_csv(lines, names)
