"""Check whether a run would start on this machine and on the hosts of a cluster. Measures nothing.

The check also covers the ports between the hosts. `linkbench doctor --cluster lab` says whether a run would start. The
command gives a remedy for every problem that would stop the run, and prints one line per host. The command then prints
a page about each machine: its hardware, the expected rates of its links, and the faults of its links. The exit code is
3 if a run could not start. If a run could start, the exit code shows the state of the links: 1 if the links of a
machine have a fault, and 0 if all links are healthy.

`--load` copies data for some seconds during the check, because links report lower rates while they are idle. `--facts
FILE` checks another machine. FILE is a results file of that machine, or the output of `nvidia-smi topo -m`, `nvidia-smi
nvlink -s`, `nvidia-smi -q` or `lspci -vvv` on that machine. `--instance TYPE` compares the machine with this type in
the catalogue.

`--first-contact` measures the most important figures on GPUs that linkbench has not measured before. With
`--first-contact`, all results are stored in one folder.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.commands import _plan
from bench.commands._say import say
from bench.config import clusters, paths
from bench.controller import batch, load, plan, preflight, survey
from bench.controller.host_checks import PreflightFinding
from bench.controller.links import LinkTest
from bench.core import printable
from bench.core.codes import Coded
from bench.core.errors import EXIT_DONE, EXIT_REFUSED, EXIT_VERDICT, RefusedError, UsageError
from bench.core.units import format_bytes, option_duration
from bench.core.wrapping import wrapped
from bench.first_contact import plan_file, session
from bench.first_contact.contact_site import ContactSite
from bench.hardware import catalogue, health, machine_page
from bench.hardware.promises import promises
from bench.probes import machine, topology, versions
from bench.probes.host import Facts
from bench.results import output, text
from bench.results.table import as_json
from bench.store import line_schema

SCHEMA = "bench.doctor/1"
_MORE_LINKS_S = 60.0  # time limit for testing the links between many hosts; `run` tests fewer links
_CONTACT_S = 2400.0  # the budget of a first contact
Nodes = dict[str, dict[str, Any]]


EXAMPLES = (("linkbench doctor main --cluster mine", "could scenario main run on every host of this cluster?"),)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    _plan.add_plan_arguments(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="folder of runs")
    parser.add_argument(
        "--load", action="store_true", help="copy data to this machine's GPUs while checking their links"
    )
    parser.add_argument(
        "--facts", type=Path, metavar="FILE", help="a results file, or the output of nvidia-smi or lspci (- for stdin)"
    )
    parser.add_argument(
        "--instance", metavar="TYPE", help="instance type to compare with (default: the cluster's, if any)"
    )
    parser.add_argument(
        "--first-contact",
        action="store_true",
        help="measure new GPUs within --budget (default 40m), and keep all results in one folder",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="folder of the first contact; an unfinished one continues"
    )
    parser.add_argument("--steps", type=Path, metavar="FILE", help="plan of the first contact (default: the suite's)")
    output.add_output_arguments(parser, formats=("table", "json"))


def main(args: argparse.Namespace) -> int:
    """Check what a run would need, and print the result.

    The exit code says whether a run would start and whether the links are healthy.
    """
    if args.first_contact:
        page, code = first_contact(args)
        output.emit(page, args)
        return code
    if args.keep is not None or args.steps is not None:
        raise UsageError("--keep and --steps belong to --first-contact: add it")
    if args.facts is not None:
        page, code = recorded_page(args.facts, args.instance, args)
        output.emit(page, args)
        return code
    own = _instance(args.instance)
    planned = plan.make(_plan.request(args))
    findings: list[PreflightFinding] = []
    try:
        preflight.check(planned.plan, planned.site)
    except RefusedError as error:
        findings.append(PreflightFinding.refused(Coded(error.code, error.facts, str(error))))
    cluster, jobs = planned.plan.cluster, planned.plan.jobs
    note = survey.waiting_note(cluster)
    if note is not None:
        say(note)
    found = survey.ask(planned.site, jobs, args.results, node=True, more_s=_MORE_LINKS_S)
    findings += found.findings
    if not findings and batch.needed(jobs, os.environ):
        refusal = batch.refusal(jobs, cluster)
        findings += [PreflightFinding.refused(refusal)] if refusal is not None else []
    hosts = {host: found.facts.get(host) for host in found.wanted.hosts}
    nodes: Nodes = {host: dict(facts.node) for host, facts in hosts.items() if facts is not None and facts.node}
    software = {host: facts.software for host, facts in hosts.items() if facts is not None}
    if not hosts and not any(planned.site.launchers[job.launcher].remote for job in jobs):
        nodes, software = {socket.gethostname(): machine.facts()}, {socket.gethostname(): versions.software()}
    here = None if args.model else cluster.instance  # with --model, this machine need not be a node of the cluster
    if args.load:
        if cluster.hosts:
            raise UsageError("--load copies on this machine only: omit --cluster, or run it on each host")
        nodes = {host: _loaded(node, cluster.python or sys.executable) for host, node in nodes.items()}
    return _report(cluster.name, hosts, found.links, findings, _machines(nodes, software, own or here), args)


def first_contact(args: argparse.Namespace) -> tuple[str, int]:
    """Run a first contact. Returns the page of the first contact and the exit code (first_contact/session.py)."""
    file = plan_file.OWN_PLAN if args.steps is None else args.steps
    steps, expectations = plan_file.load_plan(file), plan_file.load_expectations()
    budget_s = _CONTACT_S if args.budget is None else option_duration("--budget", args.budget)
    cluster = clusters.cluster(paths.config_file(args.config), args.cluster)
    place = ContactSite(
        root=paths.PACKAGE_ROOT,
        folder=(args.keep or session.default_folder()).resolve(),
        cluster=args.cluster,
        config=None if args.config is None else args.config.resolve(),
        tools=None if args.tool_path is None else args.tool_path.resolve(),
    )
    contact = session.ContactSession(steps, expectations, place, budget_s, say)
    page, code = contact.run("nodes" if max(cluster.nodes, len(cluster.hosts)) > 1 else None)
    return (as_json(page.document()) if args.format == "json" else page.text()), code


def recorded_page(path: Path, instance: str | None, args: argparse.Namespace) -> tuple[str, int]:
    """Return the exit code and a page about a machine that is described by a file of facts.

    Raises UsageError if the file has no facts of a machine, or if the facts have a wrong form.

    `args`: options that set the page's format and the file to which the page is written.
    """
    own = _instance(instance)
    machines = _machines(_recorded(path), {}, own)
    return _rendered(args, "", {}, LinkTest(), [], machines), _verdict(machines)


def _verdict(machines: Mapping[str, Any]) -> int:
    wrong = any(finding.severity == "wrong" for own in machines.values() for finding in own["findings"])
    return EXIT_VERDICT if wrong else EXIT_DONE


def _instance(name: str | None) -> str | None:
    return None if name is None else catalogue.instance(name).name


def _loaded(node: dict[str, Any], python: str) -> dict[str, Any]:
    if not node.get("gpus"):
        why = node.get("no_gpus_because") or "there is no GPU"
        say(f"--load: no GPU to copy to: {why}")
        return node
    seen, why = load.under_load(node, python)
    if why is not None:
        say(f"--load: {why}")
    return seen


def _recorded(path: Path) -> Nodes:
    """Return the nodes that a file describes. Raises UsageError for facts of a wrong kind.

    A results file describes all of its nodes. The output of another program describes one node.
    """
    stdin = str(path) == "-"
    name = "stdin" if stdin else path.name
    try:
        data = sys.stdin.buffer.read() if stdin else path.read_bytes()
    except OSError as error:
        raise UsageError(f"--facts {path} cannot be read: {error.strerror}") from None
    text = data.decode(encoding="utf-8", errors="replace")
    try:
        first = json.loads(text.partition("\n")[0])
        nodes = first.get("nodes") or first.get("header", {}).get("nodes")
    except (ValueError, AttributeError, RecursionError):
        nodes = None  # the file is not a results file
    if nodes:
        wrong = line_schema.facts_problem(nodes)
        if wrong is not None:
            raise UsageError(
                f"--facts {path} has facts that cannot be used ({wrong}): the results file was edited, or another "
                f"program wrote it"
            )
        return {host: node | {"file": name} for host, node in nodes.items()}
    found = topology.facts_of(text, name)
    if found is None:
        raise UsageError(
            f"--facts {path} is neither a results file nor the output of nvidia-smi (topo -m, nvlink -s, -q, -q -x), "
            f"lspci -vvv or NCCL (topology file): give such a file"
        )
    if not any(found[devices] for devices in ("gpus", "adapters", "lost")):
        raise UsageError(
            f"--facts {path} names no GPU and no network adapter: the output of {found['told_by']} is cut off or empty"
        )
    return {name: found}


def _machines(
    nodes: Nodes, software: Mapping[str, Mapping[str, str]], instance: str | None
) -> dict[str, dict[str, Any]]:
    """Return the facts, expected rates and findings of each host.

    The findings of the first host also include differences between hosts.
    """
    between = health.findings_between(nodes)
    machines = {}
    for number, (host, node) in enumerate(nodes.items()):
        found = (*(between if number == 0 else ()), *health.findings(node, software.get(host), instance))
        machines[host] = {"facts": node, "promises": promises(node, instance), "findings": found}
    return machines


def _report(
    cluster: str,
    hosts: Mapping[str, Facts | None],
    links: LinkTest,
    findings: list[PreflightFinding],
    machines: Mapping[str, Any],
    args: argparse.Namespace,
) -> int:
    output.emit(_rendered(args, cluster, hosts, links, findings, machines), args)
    if any(finding.refuses for finding in findings):
        return EXIT_REFUSED
    return _verdict(machines)


def _rendered(
    args: argparse.Namespace,
    cluster: str,
    hosts: Mapping[str, Facts | None],
    links: LinkTest,
    findings: Sequence[PreflightFinding],
    machines: Mapping[str, Any],
) -> str:
    if args.format == "json":
        return _json(cluster, hosts, links, findings, machines)
    return _table(cluster, hosts, links, findings, machines, output.page_width(args))


def _json(
    cluster: str,
    hosts: Mapping[str, Facts | None],
    links: LinkTest,
    findings: Sequence[PreflightFinding],
    machines: Mapping[str, Any],
) -> str:
    plain_hosts: dict[str, Any] = {host: asdict(facts) if facts else None for host, facts in hosts.items()}
    for facts in filter(None, plain_hosts.values()):
        del facts["node"]  # `machines` holds it already
    pages = {}
    for host, own in machines.items():
        pages[host] = {
            "facts": own["facts"],
            "promises": [machine_page.plain(promise) for promise in own["promises"]],
            "findings": [asdict(finding) for finding in own["findings"]],
        }
    document = {
        "schema": SCHEMA,
        "cluster": cluster,
        "hosts": plain_hosts,
        "links": links.to_plain(),
        "findings": [asdict(finding) for finding in findings],
        "machines": pages,
    }
    return as_json(document)


def _table(
    cluster: str,
    hosts: Mapping[str, Facts | None],
    links: LinkTest,
    findings: Sequence[PreflightFinding],
    machines: Mapping[str, Any],
    width: int,
) -> str:
    """Return the whole text: whether a run would start, the problems, the hosts, and a page about each machine."""
    rows = [("host", "state", "GPUs", "free memory", "software")]
    for host, facts in hosts.items():
        state = _state(host, findings)
        if facts is None:
            rows.append((host, state, "", "", ""))
            continue
        memory = format_bytes(facts.memory_bytes) if facts.memory_bytes is not None else "unknown"
        packages = [f"{name} {facts.software[name]}" for name in ("torch", "mpi4py") if name in facts.software]
        software = [facts.software["python"], *packages, *filter(None, (facts.mpi,))]
        rows.append((host, state, str(facts.num_gpus), memory, ", ".join(software)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [" ".join([*(w.ljust(n + 1) for w, n in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows]
    wrong = [f"wrong: {finding.what}" for finding in findings if finding.refuses]
    doubtful = [f"note: {finding.what}" for finding in findings if not finding.refuses]
    if links.num_tested < links.num_pairs and not links.silent:
        doubtful.append(f"note: {links.num_tested:,} of {links.num_pairs:,} links between hosts were tested")
    answer = wrapped(f"# {_answer(cluster, bool(wrong), machines)}", width, "#   ")
    sentences = [part for line in (*wrong, *doubtful) for part in wrapped(line, width, "  ")]
    hosts_of: dict[tuple[str, ...], list[str]] = {}  # hosts with equal facts share one page
    for host, own in machines.items():
        page = tuple(machine_page.page(own["facts"], own["promises"], own["findings"], width))
        hosts_of.setdefault(page, []).append(host)
    pages: list[str] = []
    for page, equal in hosts_of.items():
        pages += ["", machine_page.title(equal), *page]
    return printable.joined([*answer, *sentences, *(lines if hosts else []), *pages])


def _answer(cluster: str, refused: bool, machines: Mapping[str, Any]) -> str:
    """Return a sentence that says whether a run would start, and how many faults were found on the machines."""
    parts = [f"a run on cluster {cluster} would {'be refused' if refused else 'start'}"] if cluster else []
    severities = Counter(finding.severity for own in machines.values() for finding in own["findings"])
    faults = [f"{text.count(severities['wrong'], 'fault')} found"] if severities["wrong"] else []
    if severities["doubtful"]:
        faults.append(f"{text.count(severities['doubtful'], 'doubtful finding')}")
    if machines:
        unknown = [f"{severities['unknown']} not known"] if severities["unknown"] else []
        parts.append(", ".join([*(faults or ["no fault found"]), *unknown]))
    return "; ".join(parts) or "nothing was checked"


def _state(host: str, findings: Sequence[PreflightFinding]) -> str:
    about = [finding for finding in findings if host in finding.hosts]
    return "wrong" if any(finding.refuses for finding in about) else "doubtful" if about else "OK"
