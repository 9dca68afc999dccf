"""Judge a run by a rules file. Exits with 1 if the run does not pass.

A run passes only if every requested row is present and good. The command prints each failure by its name.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.core import plugins
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.gate import junit as gate_junit
from bench.gate import of_folder, page
from bench.gate.gate import GateResult, JudgedDemand
from bench.gate.nodes import NodeVerdict
from bench.gate.publication import PublicationFinding
from bench.gate.remeasured import Superseded
from bench.gate.rules import RATES, GateFault
from bench.results import grid, output
from bench.results.table import as_json
from bench.store import runs

SCHEMA = "bench.gate/1"
_CSV = (
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
    "code",
)


EXAMPLES = (("linkbench gate latest --rules acceptance --junit gate.xml", "accept a machine or name each failure"),)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    parser.add_argument("run", help="a run's path or name, latest, or a log (or folder of logs) of other tools")
    parser.add_argument(
        "--rules",
        action="append",
        metavar="FILE",
        help="a rules file: its path, or its name in rules/",
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the verdict as JUnit XML")
    parser.add_argument("--baseline", metavar="RUN", help="the baseline of rules with `not slower than baseline`")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    _import().add_log_arguments(parser)
    output.add_output_arguments(parser, output.BY_HAND)


def main(args: argparse.Namespace) -> int:
    """Print the verdict. Returns 0 only if the run passed."""
    _check(args.junit)
    try:
        args.rules = _only(args.rules)
        with _run_folder(args) as args.run:
            verdict = of_folder.judged(args)
        text = _rendered(args, verdict)
    except BaseException as error:  # an older JUnit file must not keep showing a pass
        with contextlib.suppress(UsageError):  # the first error is the one to report
            _write(args.junit, gate_junit.broken(args.run, str(error) or type(error).__name__, of_folder.now()))
        _print_for_github([gate_junit.github_line("bench gate", str(error))])
        raise
    _write(args.junit, gate_junit.render(verdict, of_folder.now()))
    _print_for_github(gate_junit.github_lines(verdict))
    output.emit(text, args)
    return EXIT_DONE if verdict.passed else EXIT_VERDICT


def _import() -> Any:
    """Return the module `bench.commands.import`, whose name is a keyword of Python."""
    return plugins.load("command", "import")


@contextlib.contextmanager
def _run_folder(args: argparse.Namespace) -> Iterator[str]:
    """Yield the path or name of the run that the gate judges.

    If the user named a stored run, yield the name of this run. If the user named logs of other tools, import the logs
    into a temporary folder and yield this folder.
    """
    path = Path(args.run)
    is_run = not path.exists() or runs.has_results(path)
    if path.is_dir():
        is_run = is_run or (path / "plan.json").exists() or not any(path.iterdir())
    if is_run:
        yield args.run
        return
    with tempfile.TemporaryDirectory(prefix="bench-gate-") as folder:
        yield str(_import().stored([args.run], _import().options_of(args), Path(folder), path.resolve().name))


def _only(rules: Sequence[str] | None) -> str:
    """Return the only rules file. Raises UsageError if the user named no rules file or more than one."""
    if not rules:
        known = ", ".join(sorted(file.stem for file in Path("rules").glob("*.yaml"))) or "no file"
        raise UsageError(f"--rules is missing: name a rules file, by its path or by its name in rules/ ({known})")
    if len(rules) > 1:
        raise UsageError(f"--rules is given {len(rules)} times ({', '.join(rules)}): give one file at a time")
    return rules[0]


def _check(junit: Path | None) -> None:
    """Raise UsageError if the file cannot be written. The path is checked before the run is judged."""
    if junit is not None and (junit.is_dir() or not junit.absolute().parent.is_dir()):
        raise UsageError(f"--junit {junit} cannot be written: name a file in an existing folder")


def _write(junit: Path | None, content: bytes) -> None:
    if junit is not None:
        try:
            output.replace_file(junit, content)
        except OSError as error:
            raise UsageError(f"--junit {junit} cannot be written: {error.strerror}") from None


def _print_for_github(lines: Sequence[str]) -> None:
    """Print lines for GitHub's runner to stderr. The runner reads stderr, too.

    No such line is printed to stdout, because stdout may contain one JSON document.
    """
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in lines:
            print(line, file=sys.stderr)


def _rendered(args: argparse.Namespace, verdict: GateResult) -> str:
    if args.format == "json":
        return as_json(plain(verdict))
    if args.format == "csv":
        return _csv(verdict)
    return page.markdown(verdict) if args.format == "markdown" else page.table(verdict, output.page_width(args))


def plain(verdict: GateResult) -> dict[str, Any]:
    """Return the verdict as the plain data of the JSON document."""
    return {
        "schema": SCHEMA,
        "run": verdict.run,
        "rules": verdict.rules.name,
        "passed": verdict.passed,
        "conclusion": page.conclusion(verdict),
        "failures": verdict.names,
        "faults": [_fault(fault) for fault in verdict.faults],
        "demands": [_demand(demand) for demand in verdict.judged],
        "findings": [_finding(finding) for finding in verdict.findings],
        "nodes": [_node(node) for node in verdict.nodes],
        "retests": [asdict(retest) for retest in verdict.retests],
        "superseded": [page.replaced(each) for each in verdict.superseded],
        "superseded_rows": [_superseded(each) for each in verdict.superseded],
        "unjudged": verdict.unjudged,
    }


def _demand(demand: JudgedDemand) -> dict[str, Any]:
    worst = demand.worst
    return {
        "rule": demand.rule,
        "metric": demand.limit.metric,
        "demand": demand.limit.text,
        "unit": unit(demand),
        "passed": demand.passed,
        "num_rows": demand.num_rows,
        "got": _finite(worst.got) if worst else None,
        "limit": worst.limit if worst else None,
        "margin": _finite(worst.margin) if worst else None,
        "worst_job": worst.row.job if worst else None,
        "worst_bytes": worst.row.payload_bytes if worst else None,
        "worst_group": worst.row.group if worst else None,
        "faults": [_fault(fault) for fault in demand.faults],
    }


def unit(demand: JudgedDemand) -> str:
    """Return the unit of the measured value (`got`) and the limit (`limit`) of a demand."""
    if demand.limit.of:
        return "ratio"
    return "bytes_per_s" if demand.limit.metric in RATES else "s"


def _fault(fault: GateFault) -> dict[str, Any]:
    return {
        "name": fault.name,
        "what": fault.what,
        "job": fault.job,
        "pattern": fault.pattern,
        "mode": fault.mode,
        "payload_bytes": fault.payload_bytes,
        "group": fault.group,
        "got": _finite(fault.got),
        "limit": _finite(fault.limit),
        "hosts": fault.hosts,
        "accuses": fault.accuses,
        "code": fault.code,
        "facts": _plain_facts(fault.facts),
    }


def _finding(finding: PublicationFinding) -> dict[str, Any]:
    return {
        "rule": finding.rule.number,
        "code": finding.rule,
        "status": finding.status,
        "faults": [_fault(fault) for fault in finding.faults],
    }


def _node(node: NodeVerdict) -> dict[str, Any]:
    codes = []
    for reason in node.reasons:
        codes.append({"failure": reason.failure, "code": reason.code, "facts": _plain_facts(reason.facts)})
    return {
        "host": node.host,
        "status": node.status,
        "num_rows": node.num_rows,
        "reasons": [reason.text for reason in node.reasons],
        "reason_codes": codes,
    }


def _superseded(superseded: Superseded) -> dict[str, Any]:
    first, now = superseded.first, superseded.now
    return {
        "first_job": first.job,
        "judged_job": superseded.job,
        "pattern": first.pattern,
        "mode": first.mode,
        "payload_bytes": first.payload_bytes,
        "group": first.group,
        "first_median_s": first.median_s,
        "first_busbw_bytes_per_s": first.busbw_bytes_per_s,
        "judged_median_s": now.median_s if now else None,
        "judged_busbw_bytes_per_s": now.busbw_bytes_per_s if now else None,
    }


def _plain_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _finite(value) if isinstance(value, float) else value for name, value in facts.items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _csv(verdict: GateResult) -> str:
    """Return one CSV line for each fault and each passed demand.

    Each publication finding without a fault also has a line.
    """
    lines = [_csv_fault(fault) for fault in verdict.faults]
    for demand in verdict.judged:
        line = {"rule": demand.rule, "demand": f"{demand.limit.metric} {demand.limit.text}"}
        lines += [line | _csv_fault(fault) for fault in demand.faults]
        if demand.passed and demand.worst:
            row = demand.worst.row
            passed = {
                "verdict": "passed",
                "job": row.job,
                "pattern": row.pattern,
                "mode": row.mode,
                "payload_bytes": row.payload_bytes,
                "group": row.group,
                "got": demand.worst.got,
                "limit": demand.worst.limit,
            }
            lines.append(line | passed)
    for finding in verdict.findings:
        line = {"rule": str(finding.rule.number), "demand": str(finding.rule)}
        lines += [line | _csv_fault(fault) for fault in finding.faults] or [line | {"verdict": str(finding.status)}]
    return grid.as_csv(lines, _CSV)


def _csv_fault(fault: GateFault) -> dict[str, Any]:
    return _fault(fault) | {"verdict": "failed", "failure": fault.name}
