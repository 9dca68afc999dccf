"""Write the acceptance certificate: the machines, dates, measurements and rules, and the verdict on each node.

The page ends with hashes of the files, so a reader can check later that the files are unchanged since the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from bench.core import printable
from bench.core.record import Header
from bench.core.units import format_bytes
from bench.gate import page
from bench.gate.gate import GateResult
from bench.gate.messages import FAILURES
from bench.results.document import Document

_MOST_HOSTS = 12


def render(
    gate: GateResult, document: Document, hashes: Mapping[str, str], plan: Mapping[str, Any] | None, issued: str
) -> str:
    """Return the certificate as Markdown. `document`: all measurements of the run, including retests."""
    verdict = "PASSED" if gate.passed else "FAILED"
    lines = [f"# Acceptance certificate: {verdict}", "", f"{page.conclusion(gate)}.", ""]
    lines += [f"- {name}: {value}" for name, value in _facts(gate, document, plan, issued)]
    lines += ["", "## Verdict on each node", "", *page.markdown_nodes(gate.nodes)]
    lines += ["", "## Demands", "", *page.markdown_demands(gate)]
    if gate.names:
        lines += ["", "## Failures", ""]
        for name in gate.names:
            lines += [f"- **{name}**: {FAILURES[name]}", *(f"  - {each}" for each in page.sentences(gate, name))]
    lines += ["", "## What was measured", "", *_measured(document)]
    if gate.retests:
        lines += [
            "",
            "## Retests",
            "",
            "Each row is judged by its newest measurement. First results:",
        ]
        lines += ["", *(f"- {line}" for line in page.remarks(gate))]
    lines += ["", "## Rules", "", *printable.fenced(gate.rules.text.rstrip().split("\n"), "yaml")]
    lines += ["", "## Files", "", "Check them later with `sha256sum -c` in the run's folder:", ""]
    lines += printable.fenced([f"{digest}  {name}" for name, digest in hashes.items()])
    return printable.markdown_page(printable.joined(lines)) + "\n"


def _facts(
    gate: GateResult, document: Document, plan: Mapping[str, Any] | None, issued: str
) -> Iterable[tuple[str, str]]:
    headers = list(document.headers.values())
    yield "run", gate.run
    if plan:
        cluster = plan["cluster"]
        instance = f", instance {cluster['instance']}" if cluster.get("instance") else ""
        yield "cluster", f"{cluster['name']}{instance}"
        yield "scenario", str(plan["scenario"])
    if headers:
        began = sorted(header.started for header in headers)
        yield "measured", began[0] if began[0] == began[-1] else f"{began[0]} to {began[-1]}"
    yield "issued", issued
    yield "rules", gate.rules.name
    if any(header.modelled for header in headers):
        yield "MODELLED", "the figures are computed from links; nothing was measured"
    yield from _machines(headers)
    for name in ("bench", "commit", "python", "kernel", "torch", "mpi4py"):
        yield from _each(name, (header.versions.get(name) for header in headers))
    for name in ("mpi_library", "nccl", "cuda"):
        yield from _each(name, (header.facts.get(name) for header in headers))


def _machines(headers: Iterable[Header]) -> Iterable[tuple[str, str]]:
    """Yield one line for each group of hosts with equal hardware.

    The line names the hosts and describes the hardware.
    """
    nodes = {host: facts for header in headers for host, facts in header.nodes.items()}
    alike: dict[str, list[str]] = {}
    for host, facts in nodes.items():
        alike.setdefault(_machine(facts), []).append(host)
    for machine, hosts in alike.items():
        more = f", and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
        yield f"{len(hosts)} node{'s' * (len(hosts) > 1)} ({', '.join(hosts[:_MOST_HOSTS])}{more})", machine


def _machine(facts: Mapping[str, Any]) -> str:
    words = [f"{facts.get('num_cpus') or 'unknown number of'} CPUs {facts.get('cpu_model') or ''}".strip()]
    if facts.get("memory_bytes"):
        words.append(format_bytes(facts["memory_bytes"]))
    gpus = Counter(str(gpu.get("name")) for gpu in facts.get("gpus") or ())
    words += [f"{number} x {name}" for name, number in gpus.items()] or ["no GPU"]
    if facts.get("gpu_driver"):
        words.append(f"driver {facts['gpu_driver']}")
    ports = Counter(str(port.get("kind")) for port in facts.get("network_ports") or ())
    words += [f"{number} {kind} ports" for kind, number in ports.items() if kind != "virtual"]
    return ", ".join(words)


def _each(name: str, values: Iterable[str | None]) -> Iterable[tuple[str, str]]:
    known = sorted({str(value) for value in values if value})
    if known:
        yield name, ", ".join(known)


def _measured(document: Document) -> list[str]:
    rows = Counter(row.job for row in document.summaries)
    lines = ["| job | started | nodes x ranks | transport | rows |", "|---|---|---|---|---|"]
    for job, header in document.headers.items():
        world = f"{header.num_nodes} x {header.ranks_per_node}"
        cells = (job, header.started, world, header.transport, str(rows[job]))
        lines.append(f"| {' | '.join(map(printable.markdown_cell, cells))} |")
    return lines
