"""Check what a run would need: this machine, every host of the cluster, and the ports between them. Measures nothing.

`python -m bench doctor --cluster lab`: one line per host, a sentence with a remedy for all that would stop a run, then
a page about each machine: what it has, what its links should give, and what is wrong with them. Exit code 3 when a run
would be refused, 1 when something is wrong with a machine's links, else 0. `--load` copies for some seconds while it
looks, as idle links tell little; `--facts FILE` is about another machine, from a results file or from what
`nvidia-smi topo -m`, `nvidia-smi -q`, `lspci -vvv` printed there. `--instance TYPE` holds either to what the catalogue
says of that type.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.commands import _plan
from bench.config import paths
from bench.controller import batch, load, preflight, survey
from bench.controller.host_checks import PreflightFinding
from bench.core.errors import EXIT_DONE, EXIT_REFUSED, EXIT_VERDICT, RefusedError, UsageError
from bench.core.units import format_bytes
from bench.hardware import catalogue, health, machine_page
from bench.hardware.promises import promises
from bench.probes import machine, topology, versions
from bench.probes.host import Facts
from bench.results import output
from bench.results.table import as_json

SCHEMA = "bench.doctor/1"
Nodes = dict[str, dict[str, Any]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench doctor`."""
    _plan.add_plan_arguments(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs would be kept")
    parser.add_argument("--load", action="store_true", help="copy to this machine's GPUs while looking at their links")
    parser.add_argument(
        "--facts", type=Path, metavar="FILE", help="a results file, or what nvidia-smi or lspci printed (- for stdin)"
    )
    parser.add_argument(
        "--instance", metavar="TYPE", help="the instance type that it is held to (default: the cluster's, if any)"
    )
    output.add_output_arguments(parser, formats=("table", "json"))


def main(args: argparse.Namespace) -> int:
    """Ask, print, and say by the exit code whether a run would start, and whether its links are as they should be."""
    if args.facts is not None:
        return _tell("", {}, [], _judged(_recorded(args.facts), {}, _instance(args.instance)), args)
    own = _instance(args.instance)
    planned = _plan.planned(args)
    findings: list[PreflightFinding] = []
    try:
        preflight.check(planned.plan, planned.machine, planned.launchers, shutil.which)
    except RefusedError as error:
        findings.append(PreflightFinding((), str(error)))
    cluster = planned.plan.cluster
    jobs = planned.plan.jobs
    for line in survey.patience(cluster):
        print(line, file=sys.stderr, flush=True)
    found = survey.look(cluster, jobs, planned.machine, planned.launchers, args.results, paths.PACKAGE_ROOT, node=True)
    findings += found.findings
    if not findings and batch.wanted(jobs, os.environ) and (refusal := batch.refusal(jobs, cluster)):
        findings.append(PreflightFinding((), refusal))
    told = {host: found.facts.get(host) for host in found.wanted.hosts}
    nodes: Nodes = {host: dict(facts.node) for host, facts in told.items() if facts is not None and facts.node}
    software = {host: facts.software for host, facts in told.items() if facts is not None}
    if not told and not any(planned.launchers[job.launcher].remote for job in jobs):
        nodes, software = {socket.gethostname(): machine.facts()}, {socket.gethostname(): versions.software()}
    if args.load:
        if cluster.hosts:
            raise UsageError("--load copies on this machine only: leave --cluster away, or run it on each host")
        nodes = {host: _loaded(node, cluster.python or sys.executable) for host, node in nodes.items()}
    return _tell(cluster.name, told, findings, _judged(nodes, software, own or cluster.instance), args)


def _instance(name: str | None) -> str | None:
    return None if name is None else catalogue.instance(name).name


def _loaded(node: dict[str, Any], python: str) -> dict[str, Any]:
    if not node.get("gpus"):
        why = node.get("no_gpus_because") or "there is no GPU"
        print(f"--load: nothing to load: {why}", file=sys.stderr, flush=True)
        return node
    seen, why = load.under_load(node, python, paths.PACKAGE_ROOT)
    if why is not None:
        print(f"--load: {why}", file=sys.stderr, flush=True)
    return seen


def _recorded(path: Path) -> Nodes:
    """The nodes that a file tells of: the header of a results file, else a recorded text of one machine."""
    stdin = str(path) == "-"
    name = "stdin" if stdin else path.name
    try:
        data = sys.stdin.buffer.read() if stdin else path.read_bytes()
    except OSError as error:
        raise UsageError(f"--facts {path} can not be read: {error.strerror}") from None
    text = data.decode(encoding="utf-8", errors="replace")
    try:
        first = json.loads(text.partition("\n")[0])
        nodes = first.get("nodes") or first.get("header", {}).get("nodes")
        if nodes:
            return {str(host): dict(node) | {"file": name} for host, node in nodes.items()}
    except (ValueError, AttributeError, TypeError):
        pass
    found = topology.facts_of(text, name)
    if found is None:
        raise UsageError(
            f"--facts {path} is neither a results file nor a text that nvidia-smi (topo -m, -q, -q -x), lspci -vvv or "
            "NCCL (topology file) wrote: give one of these"
        )
    return {name: found}


def _judged(nodes: Nodes, software: Mapping[str, Mapping[str, str]], instance: str | None) -> dict[str, dict[str, Any]]:
    """Of each host its facts, promises and findings; what differs between hosts stands with the first."""
    between = health.findings_between(nodes)
    judged = {}
    for number, (host, node) in enumerate(nodes.items()):
        found = (*(between if number == 0 else ()), *health.findings(node, software.get(host), instance))
        judged[host] = {"facts": node, "promises": promises(node, instance), "findings": found}
    return judged


def _tell(
    cluster: str,
    hosts: Mapping[str, Facts | None],
    findings: list[PreflightFinding],
    machines: Mapping[str, Any],
    args: argparse.Namespace,
) -> int:
    output.emit((_json if args.format == "json" else _table)(cluster, hosts, findings, machines), args)
    if any(finding.refuses for finding in findings):
        return EXIT_REFUSED
    wrong = any(finding.severity == "wrong" for each in machines.values() for finding in each["findings"])
    return EXIT_VERDICT if wrong else EXIT_DONE


def _json(
    cluster: str, hosts: Mapping[str, Facts | None], findings: Sequence[PreflightFinding], machines: Mapping[str, Any]
) -> str:
    told: dict[str, Any] = {host: asdict(facts) if facts else None for host, facts in hosts.items()}
    for facts in filter(None, told.values()):
        del facts["node"]  # it stands in `machines`
    pages = {
        host: {
            "facts": each["facts"],
            "promises": [machine_page.plain(promise) for promise in each["promises"]],
            "findings": [asdict(finding) for finding in each["findings"]],
        }
        for host, each in machines.items()
    }
    document = {
        "schema": SCHEMA,
        "cluster": cluster,
        "hosts": told,
        "findings": [asdict(each) for each in findings],
        "machines": pages,
    }
    return as_json(document)


def _table(
    cluster: str, hosts: Mapping[str, Facts | None], findings: Sequence[PreflightFinding], machines: Mapping[str, Any]
) -> str:
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
    verdict = [f"a run on cluster {cluster} would {'be refused' if wrong else 'start'}"] if cluster else []
    pages: dict[tuple[str, ...], list[str]] = {}  # of hosts that are alike one
    for host, each in machines.items():
        pages.setdefault(tuple(machine_page.page(each["facts"], each["promises"], each["findings"])), []).append(host)
    told_of = [line for page, alike in pages.items() for line in ("", machine_page.title(alike), *page)]
    return "\n".join([*(lines if hosts else []), *wrong, *doubtful, *verdict, *told_of]).lstrip("\n")


def _state(host: str, findings: Sequence[PreflightFinding]) -> str:
    about = [finding for finding in findings if host in finding.hosts]
    return "wrong" if any(finding.refuses for finding in about) else "doubtful" if about else "OK"
