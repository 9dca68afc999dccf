"""Write a page about a topology without a run.

The page shows the links of each GPU, the rates of these links, and the GPUs that differ from all other GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.core import hostlist
from bench.core.codes import Coded
from bench.core.inventory import Inventory
from bench.explain.assessment import Assessment
from bench.explain.explain import Page
from bench.explain.messages import AssessmentCode, DecidingOption, ResultVerdict, TopologyCode
from bench.explain.reason import Reason
from bench.explain.topology import Topology, near_adapters
from bench.hardware import live
from bench.hardware.catalogue import instance, instances
from bench.hardware.health import HealthFinding
from bench.hardware.machine_page import nvlink_lines
from bench.hardware.messages import HealthCode

_STATE = "nvidia-smi nvlink -s; nvidia-smi nvlink -e"
_WEIGHTS = {"wrong": 0.9, "doubtful": 0.4}
_BY_NVLINK = ("nvswitch", "nvlink_mesh", "nvlink_pairs")
_ABOUT_LINKS = ("nvlink_down", "slow_nvlinks", "unlike_nvlinks")


def topology_page(topology: Topology, source: str, named: str | None = None) -> tuple[Page, bool]:
    """Return the page about one node, and whether its links are as expected.

    `named`: the instance type that the user named.
    """
    findings = topology.findings(named)
    inventory = topology.inventory
    num = len(inventory.gpus)
    assessment = _assessment(inventory, findings, named)
    unknown = assessment.why.code == AssessmentCode.TOPOLOGY_WITHOUT_LINKS
    found = Page(
        title=f"topology of {num} GPU{'' if num == 1 else 's'}, by {topology.program}",
        line=topology.line,
        got=tuple(topology_lines(inventory)),
        possible=(),
        others=(),
        assessment=assessment,
        reasons=tuple(_reason(finding) for finding in findings),
        notes=(),
        machine=named or "",
        decides=Coded.of(DecidingOption.INSTANCE, candidates=None) if unknown else None,
        source=source,
    )
    return found, assessment.verdict != ResultVerdict.FAR_TOO_LOW


def topology_lines(inventory: Inventory) -> Iterator[Coded]:
    """Yield lines about the GPUs, their NVLinks, and the network adapters closest to them."""
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


def _assessment(inventory: Inventory, findings: tuple[HealthFinding, ...], named: str | None) -> Assessment:
    """Assess the topology.

    If a link is down, slow or missing, the verdict is FAR_TOO_LOW. If the topology shows links and all links are alike,
    the verdict is NORMAL. If some GPUs have fewer links or no bridge, the verdict is NORMAL_IF: normal only for
    machines that are built this way. If the topology shows no NVLinks, the verdict depends on the machine that the user
    named.
    """
    wrong = [finding for finding in findings if finding.severity == "wrong"]
    if wrong:
        problems = [f"{finding.what} ({finding.evidence})" for finding in wrong]
        codes = [finding.code for finding in wrong]
        why = Coded.of(AssessmentCode.TOPOLOGY_ODD, problems=problems, codes=codes)
        return Assessment(ResultVerdict.FAR_TOO_LOW, why)
    uneven = [finding for finding in findings if finding.code in (HealthCode.FEWER_NVLINKS, HealthCode.NO_BRIDGE)]
    if uneven:
        problems = [f"{finding.what} ({finding.evidence})" for finding in uneven]
        why = Coded.of(AssessmentCode.TOPOLOGY_UNEVEN, problems=problems, codes=[each.code for each in uneven])
        return Assessment(ResultVerdict.NORMAL_IF, why)
    numbers = {len(live.active_nvlinks(gpu)) for gpu in inventory.gpus}
    by_path = any(path.kind.startswith("NV") for path in inventory.paths)
    if numbers == {0} and not by_path:
        return _without_links(named)
    each = numbers.pop() if len(numbers) == 1 else None
    why = Coded.of(AssessmentCode.TOPOLOGY_WELL, num_gpus=len(inventory.gpus), num_nvlinks=each or None)
    return Assessment(ResultVerdict.NORMAL, why)


def _without_links(named: str | None) -> Assessment:
    if named is None or named not in instances():
        return Assessment(ResultVerdict.NORMAL_IF, Coded.of(AssessmentCode.TOPOLOGY_WITHOUT_LINKS))
    peer = instance(named).links.peer
    if peer in _BY_NVLINK:
        why = Coded.of(AssessmentCode.TOPOLOGY_LACKS_NVLINK, instance=named)
        return Assessment(ResultVerdict.FAR_TOO_LOW, why)
    return Assessment(ResultVerdict.NORMAL, Coded.of(AssessmentCode.TOPOLOGY_NEEDS_NO_NVLINK, instance=named))


def _reason(finding: HealthFinding) -> Reason:
    weight = _WEIGHTS.get(finding.severity, 0.0)
    command = _STATE if finding.rule in _ABOUT_LINKS else ""
    return Reason(finding.code, finding.facts, finding.what, finding.evidence, weight, finding.remedy, command)
