"""A page to file away: which machines, when, what was measured, by which rules, and the verdict on each node.

The hashes at its end say later whether the files are still those that were judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from bench.core.record import Header
from bench.core.units import format_bytes
from bench.gate import page
from bench.gate.gate import GateResult
from bench.gate.rules import FAILURES
from bench.results.document import Document

_MOST_HOSTS = 12


def render(
    gate: GateResult, document: Document, hashes: Mapping[str, str], plan: Mapping[str, Any] | None, issued: str
) -> str:
    """The page in Markdown. `document`: everything measured, first results and retests alike."""
    verdict = "PASSED" if gate.passed else "FAILED"
    lines = [f"# Acceptance certificate: {verdict}", "", f"{page.conclusion(gate)}.", ""]
    lines += [f"- {name}: {value}" for name, value in _facts(gate, document, plan, issued)]
    lines += ["", "## Verdict on each node", "", *page.markdown_nodes(gate.nodes)]
    lines += ["", "## Demands", "", *page.markdown_demands(gate)]
    if gate.names:
        lines += ["", "## Failures", ""]
        for name in gate.names:
            lines += [f"- **{name}**: {FAILURES[name]}", *(f"  - {one}" for one in page.told(gate, name))]
    lines += ["", "## What was measured", "", *_measured(document)]
    if gate.retests:
        lines += ["", "## Retests", "", "The newest measurement of each row is judged; the first result stays here."]
        lines += ["", *(f"- {line}" for line in page.remarks(gate))]
    lines += ["", "## Rules", "", "```yaml", gate.rules.text.rstrip(), "```"]
    lines += ["", "## Files", "", "Checked later by `sha256sum -c` in the run's folder:", "", "```"]
    lines += [f"{digest}  {name}" for name, digest in hashes.items()]
    return "\n".join([*lines, "```"]) + "\n"


def _facts(
    gate: GateResult, document: Document, plan: Mapping[str, Any] | None, issued: str
) -> Iterable[tuple[str, str]]:
    headers = list(document.headers.values())
    yield "run", gate.run
    if plan:
        cluster = plan["cluster"]
        yield "cluster", f"{cluster['name']}{', instance ' + cluster['instance'] if cluster.get('instance') else ''}"
        yield "scenario", str(plan["scenario"])
    if headers:
        began = sorted(header.started for header in headers)
        yield "measured", began[0] if began[0] == began[-1] else f"{began[0]} to {began[-1]}"
    yield "issued", issued
    yield "rules", gate.rules.name
    if any(header.modelled for header in headers):
        yield "MODELLED", "these figures are arithmetic on links; nothing was measured"
    yield from _machines(headers)
    for name in ("bench", "commit", "python", "kernel", "torch", "mpi4py"):
        yield from _each(name, (header.versions.get(name) for header in headers))
    for name in ("mpi_library", "nccl", "cuda"):
        yield from _each(name, (header.facts.get(name) for header in headers))


def _machines(headers: Iterable[Header]) -> Iterable[tuple[str, str]]:
    """Hosts that are alike in one line; hosts that differ stand out."""
    facts = {host: told for header in headers for host, told in header.nodes.items()}
    alike: dict[str, list[str]] = {}
    for host, told in facts.items():
        alike.setdefault(_machine(told), []).append(host)
    for machine, hosts in alike.items():
        more = f", and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
        yield f"{len(hosts)} node{'s' * (len(hosts) > 1)} ({', '.join(hosts[:_MOST_HOSTS])}{more})", machine


def _machine(told: Mapping[str, Any]) -> str:
    words = [f"{told.get('num_cpus') or 'unknown number of'} CPUs {told.get('cpu_model') or ''}".strip()]
    if told.get("memory_bytes"):
        words.append(format_bytes(told["memory_bytes"]))
    gpus = Counter(str(gpu.get("name")) for gpu in told.get("gpus") or ())
    words += [f"{number} x {name}" for name, number in gpus.items()] or ["no GPU"]
    words += [f"driver {told['gpu_driver']}"] if told.get("gpu_driver") else []
    ports = Counter(str(port.get("kind")) for port in told.get("network_ports") or ())
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
        lines.append(f"| {job} | {header.started} | {world} | {header.transport} | {rows[job]} |")
    return lines
