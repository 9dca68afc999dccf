"""Check what a run would need: this machine, every host of the cluster, and the ports between them. Measures nothing.

`python -m bench doctor --cluster lab`: one line per host, and a sentence with a remedy for all that is wrong; exit code
3 when a run would be refused, else 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.commands import _here, _output, _plan
from bench.core.errors import EXIT_DONE, EXIT_REFUSED, RefusedError
from bench.core.units import format_bytes
from bench.driver import batch, preflight
from bench.driver.judge import Finding
from bench.probes.host import Facts

SCHEMA = "bench.doctor/1"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench doctor`."""
    _plan.add_plan_arguments(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs would be kept")
    _output.add_output_arguments(parser, formats=("table", "json"))


def main(args: argparse.Namespace) -> int:
    """Ask, print, and say by the exit code whether a run would start."""
    planned = _plan.planned(args)
    findings: list[Finding] = []
    try:
        preflight.check(planned.plan, planned.machine, planned.launchers, shutil.which)
    except RefusedError as error:
        findings.append(Finding((), str(error)))
    cluster = planned.plan.cluster
    jobs = planned.plan.jobs
    for line in preflight.patience(cluster):
        print(line, file=sys.stderr, flush=True)
    found = preflight.look(cluster, jobs, planned.machine, planned.launchers, args.results, _here.PACKAGE_ROOT)
    findings += found.findings
    if not findings and batch.wanted(jobs, os.environ) and (refusal := batch.refusal(jobs, cluster)):
        findings.append(Finding((), refusal))
    told = {host: found.facts.get(host) for host in found.wanted.hosts}
    _output.emit((_json if args.format == "json" else _table)(cluster.name, told, findings), args)
    return EXIT_REFUSED if any(finding.refuses for finding in findings) else EXIT_DONE


def _json(cluster: str, hosts: Mapping[str, Facts | None], findings: list[Finding]) -> str:
    told: dict[str, Any] = {host: asdict(facts) if facts else None for host, facts in hosts.items()}
    return json.dumps(
        {"schema": SCHEMA, "cluster": cluster, "hosts": told, "findings": [asdict(finding) for finding in findings]},
        indent=1,
    )


def _table(cluster: str, hosts: Mapping[str, Facts | None], findings: list[Finding]) -> str:
    rows = [("host", "state", "GPUs", "free memory", "software")]
    for host, told in hosts.items():
        state = _state(host, findings)
        if told is None:
            rows.append((host, state, "", "", ""))
            continue
        memory = format_bytes(told.memory_bytes) if told.memory_bytes is not None else "unknown"
        words = [f"{name} {told.software[name]}" for name in ("torch", "mpi4py") if name in told.software]
        software = [told.software["python"], *words, *filter(None, (told.mpi,))]
        rows.append((host, state, str(told.num_gpus), memory, ", ".join(software)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [" ".join([*(w.ljust(n + 1) for w, n in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows]
    wrong = [f"wrong: {finding.what}" for finding in findings if finding.refuses]
    doubtful = [f"note: {finding.what}" for finding in findings if not finding.refuses]
    verdict = f"a run on cluster {cluster} would {'be refused' if wrong else 'start'}"
    return "\n".join([*(lines if hosts else []), *wrong, *doubtful, verdict])


def _state(host: str, findings: list[Finding]) -> str:
    about = [finding for finding in findings if host in finding.hosts]
    return "wrong" if any(finding.refuses for finding in about) else "doubtful" if about else "OK"
