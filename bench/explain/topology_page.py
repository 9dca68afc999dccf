"""A page about a topology that was given without a run: links per GPU, their rates, and GPUs that differ."""

from __future__ import annotations

from collections.abc import Iterator

from bench.core import hostlist
from bench.core.codes import Coded
from bench.core.inventory import Inventory
from bench.explain.assessment import Assessment
from bench.explain.explain import Page
from bench.explain.messages import AssessmentCode, ResultVerdict, TopologyCode
from bench.explain.reason import Reason
from bench.explain.topology import Topology, near_adapters
from bench.hardware import live
from bench.hardware.health import HealthFinding
from bench.hardware.machine_page import nvlink_lines

_STATE = "nvidia-smi nvlink -s; nvidia-smi nvlink -e"
_WEIGHTS = {"wrong": 0.9, "doubtful": 0.4}
_ABOUT_LINKS = ("nvlink_down", "slow_nvlinks", "unlike_nvlinks")


def topology_page(topology: Topology, source: str, instance: str | None = None) -> tuple[Page, bool]:
    """The page about one node, and whether its links are as they should be."""
    findings = topology.findings(instance)
    inventory = topology.inventory
    num = len(inventory.gpus)
    found = Page(
        title=f"topology of {num} GPU{'' if num == 1 else 's'}, by {topology.program}",
        line=topology.line,
        got=tuple(topology_lines(inventory)),
        possible=(),
        others=(),
        assessment=_assessment(inventory, findings),
        reasons=tuple(_reason(finding) for finding in findings),
        notes=(),
        machine=instance or "",
        source=source,
    )
    return found, not any(finding.severity == "wrong" for finding in findings)


def topology_lines(inventory: Inventory) -> Iterator[Coded]:
    """GPUs, their NVLinks, and the network adapters closest to them."""
    models = sorted({gpu.name for gpu in inventory.gpus if gpu.name != live.UNKNOWN})
    yield Coded.of(TopologyCode.GPUS, num_gpus=len(inventory.gpus), models=models or None)
    for links in nvlink_lines(inventory):
        yield Coded.of(TopologyCode.NVLINKS, links=links)
    gpus_near: dict[tuple[str, str], list[str]] = {}
    for gpu, near in near_adapters(inventory).items():
        gpus_near.setdefault(near, []).append(gpu)
    for (kind, adapters), gpus in gpus_near.items():
        words = f"{adapters} at {kind} of {hostlist.compress(gpus)}"
        yield Coded.of(TopologyCode.NEAR_ADAPTERS, near=words, kind=kind, gpus=gpus)
    if inventory.lost:
        yield Coded.of(TopologyCode.LOST, lost=list(inventory.lost))


def _assessment(inventory: Inventory, findings: tuple[HealthFinding, ...]) -> Assessment:
    """Far too low if a link is down, slow or missing; normal if links are shown and none differs."""
    wrong = [finding for finding in findings if finding.severity == "wrong"]
    if wrong:
        problems = [f"{finding.what} ({finding.evidence})" for finding in wrong]
        codes = [finding.code for finding in wrong]
        why = Coded.of(AssessmentCode.TOPOLOGY_ODD, problems=problems, codes=codes)
        return Assessment(ResultVerdict.FAR_TOO_LOW, why)
    numbers = {len(live.active_nvlinks(gpu)) for gpu in inventory.gpus}
    by_path = any(path.kind.startswith("NV") for path in inventory.paths)
    if numbers == {0} and not by_path:
        return Assessment(ResultVerdict.CANNOT_BE_JUDGED, Coded.of(AssessmentCode.TOPOLOGY_WITHOUT_LINKS))
    each = numbers.pop() if len(numbers) == 1 else None
    why = Coded.of(AssessmentCode.TOPOLOGY_WELL, num_gpus=len(inventory.gpus), num_nvlinks=each or None)
    return Assessment(ResultVerdict.NORMAL, why)


def _reason(finding: HealthFinding) -> Reason:
    weight = _WEIGHTS.get(finding.severity, 0.0)
    command = _STATE if finding.rule in _ABOUT_LINKS else ""
    return Reason(finding.code, finding.facts, finding.what, finding.evidence, weight, finding.remedy, command)
