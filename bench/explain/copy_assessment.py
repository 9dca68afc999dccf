"""Judge matrices of copies. Each direction is compared with known copies, or with the rate of its link."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.core.codes import Coded
from bench.core.links import Limit
from bench.explain.assessment import (
    Assessment,
    above_bound,
    contradiction,
    has_wider_bridge,
    not_judged,
    times_best,
    verdict_by_others,
    verdict_of,
)
from bench.explain.copy_evidence import CopyEvidence, CopyTest, is_above, rate_range
from bench.explain.evidence import other_gpus
from bench.explain.messages import COPY_DIRECTIONS, AssessmentCode, ResultVerdict
from bench.hardware.catalogue import gpu, gpu_links, instance, pcie_bytes_per_s
from bench.hardware.machine import LogMachine
from bench.hardware.reference import CopyReference
from bench.logs.foreign import FAILED, TRUNCATED

ONE_WAY = {"h2d": "h2d", "d2h": "d2h", "d2d": "peer"}  # direction -> its name in reference.yaml
# The share of a link's rate that copies usually reach. On the NVLink-C2C of a GH200, copies from the host to the GPU
# reach 0.82 to 0.92, and copies to the host 0.66 and 0.69 (NVIDIA/nvbandwidth's logs).
_USUAL_OF_C2C, _USUAL_OF_PORT = (0.65, "65 to 90 %"), (0.86, "80 to 90 %")
_NORMAL_OF_USUAL, _LOW_OF_USUAL = 0.9, 0.6
_NORMAL_THROUGH_HOST, _LOW_THROUGH_HOST = 0.3, 0.15
# a card or pair below this share of the median is slow for a reason of its own (reasons/copies.py: slow-pairs)
_OUTLIER = 0.8
_PAIRS_DIFFER = 1.2  # if the ratio of the fastest to the slowest pair is larger, the pairs have different links
_PCIE_LINKS = ((3, 8), (3, 16), (4, 8), (4, 16), (5, 8), (5, 16), (6, 16))
_PCIE_BOUNDS = (Limit.PCIE_PORT, Limit.PCIE_PACKETS)
_NORMAL_OF_PCIE = 0.7  # copies by a copy engine reach 75 to 90 % of a link's raw rate
_WORST_FIRST = (ResultVerdict.FAR_TOO_LOW, ResultVerdict.LOW, ResultVerdict.NORMAL_IF, ResultVerdict.NORMAL)


def assess_copies(evidence: CopyEvidence) -> Assessment:
    """Assess copies. The result is the verdict on the worst direction."""
    obstacle = _obstacle(evidence)
    if obstacle is not None:
        failed = obstacle.code == AssessmentCode.TOOL_FAILED
        return Assessment(ResultVerdict.FAILED if failed else ResultVerdict.CANNOT_BE_JUDGED, obstacle)
    tests = [test for direction in ONE_WAY if (test := evidence.test(direction)) is not None]
    through_host = evidence.test("through_host")
    if not tests and through_host is not None:
        return _through_host(evidence, through_host)
    if not tests:
        return _nothing_to_judge(evidence)
    for test in evidence.tests:
        for bound in test.bounds:
            if is_above(test, bound):
                return above_bound(test.fastest, bound, direction=direction_name(test))
    judged = [found for test in tests if (found := _assess_test(evidence, test)) is not None]
    if not judged:
        unknown = evidence.machine.gpu is None
        return (_by_pcie_links(tests) if unknown else None) or _links_unknown(evidence.machine)
    return min(judged, key=lambda found: (_WORST_FIRST.index(found.verdict), found.ratio or 0.0))


def direction_name(test: CopyTest) -> str:
    """Return the words for a test's direction, such as `host to GPU`."""
    return COPY_DIRECTIONS.get(test.direction, test.direction)


def _obstacle(evidence: CopyEvidence) -> Coded | None:
    """Return why the copies cannot be judged; None if the copies can be judged."""
    if evidence.run.status == FAILED:
        return Coded.of(AssessmentCode.TOOL_FAILED)
    other_machine = contradiction(evidence.machine, other_gpus(evidence.run, evidence.machine))
    if other_machine is not None:
        return other_machine
    listed = sum(hint.kind == "device" for hint in evidence.hints)
    measured = max((len(test.gpus) for test in evidence.tests), default=0)
    if 0 < listed < measured and evidence.run.status != TRUNCATED:  # a truncated log may lack some devices
        return Coded.of(AssessmentCode.GPU_COUNTS_DIFFER, num_listed=listed, num_measured=measured)
    return None


def _nothing_to_judge(evidence: CopyEvidence) -> Assessment:
    kernels = []
    for test in evidence.tests:
        if test.direction in ONE_WAY and test.matrix.engine == "sm":
            kernels.append(test.matrix.name)
    if kernels:
        return not_judged(AssessmentCode.ONLY_KERNEL_COPIES, tests=kernels[:3])
    return not_judged(AssessmentCode.NO_ONE_WAY_COPY)


def _by_pcie_links(tests: Sequence[CopyTest]) -> Assessment | None:
    """Assess host copies over unknown links.

    The verdict names the PCIe links that would normally give the measured rates. The result is None if no PCIe link
    fits the rates.
    """
    rates = [median(test.rates.values()) for test in tests if test.direction in ("h2d", "d2h")]
    if not rates or min(rates) < _OUTLIER * max(rates):
        return None
    fitting = []
    for generation, lanes in _PCIE_LINKS:
        if _NORMAL_OF_PCIE <= min(rates) / pcie_bytes_per_s(generation, lanes) <= 1.0:
            fitting.append(f"PCIe {generation}.0 x{lanes}")
    if not fitting:
        return None
    why = Coded.of(AssessmentCode.NORMAL_WITH_PCIE, rate=min(rates), links=fitting)
    return Assessment(ResultVerdict.NORMAL_IF, why)


def _links_unknown(machine: LogMachine) -> Assessment:
    if machine.gpu is None:
        return not_judged(AssessmentCode.LINKS_UNKNOWN)
    if gpu(machine.gpu).c2c:
        return not_judged(AssessmentCode.SHARED_MEMORY, gpu=machine.gpu)
    return not_judged(AssessmentCode.GPU_LINKS_UNKNOWN, gpu=machine.gpu)


def _through_host(evidence: CopyEvidence, test: CopyTest) -> Assessment:
    """Assess copies without peer access. Each byte crosses the links of the source GPU and of the target GPU."""
    if not test.bounds:
        return _links_unknown(evidence.machine)
    bound = test.bounds[-1]
    if test.slowest < _NORMAL_THROUGH_HOST * bound.bytes_per_s:
        slower_link = _by_slower_link(evidence, test, _NORMAL_THROUGH_HOST)
        if slower_link is not None:
            return slower_link
    share = test.slowest / bound.bytes_per_s
    verdict = verdict_of(share, _NORMAL_THROUGH_HOST, _LOW_THROUGH_HOST)
    link = "the PCIe link" if bound.code == Limit.PCIE_PORT else bound.name
    why = Coded.of(AssessmentCode.COPY_THROUGH_HOST, rate=test.slowest, share=share, link=link)
    return Assessment(verdict, why, share)


def _assess_test(evidence: CopyEvidence, test: CopyTest) -> Assessment | None:
    """Assess one direction by published copies on the same machine or, without such copies, by the rate of the link.

    If other machines with this GPU and link reach only a small share of the link's rate, that share counts as normal.
    """
    name = ONE_WAY[test.direction]
    machine = evidence.machine
    if machine.instance:
        for reference in evidence.references:
            if name in reference.rates and reference.instance == machine.instance:
                return _compared(test, reference, name)
    by_link = _compared_with_link(machine, test)
    by_others = _compared_with_same_link(evidence, test, name)
    if by_link is None:
        return by_others
    if by_link.verdict == ResultVerdict.NORMAL:
        return by_link
    if by_others is not None and by_others.verdict == ResultVerdict.NORMAL:
        return by_others
    return _by_slower_link(evidence, test, _NORMAL_OF_PCIE) or by_link


def _by_slower_link(evidence: CopyEvidence, test: CopyTest, normal: float) -> Assessment | None:
    """Assess slow copies by PCIe links that are slower than the GPU's own link, if the machine is unknown.

    Many machines connect a GPU at an older generation or at half of its lanes. The verdict names the slower PCIe links
    that would normally give the measured rates. Only links that are at least as fast as the fastest copy in the log are
    named. The result is None if no slower link fits, or if the rates of direct copies differ between cards.

    `normal`: the lowest share of a link's rate that is normal.
    """
    machine = evidence.machine
    if machine.instance is not None or machine.gpu is None:
        return None
    own = gpu(machine.gpu).pcie
    by_pcie = [each for each in evidence.tests if each.bounds and each.bounds[0].code in _PCIE_BOUNDS]
    # The board of other GPUs (SXM, OAM) fixes the link between GPU and host.
    is_card = gpu_links(machine.gpu, 1).peer in ("host", "pcie_p2p", "nvlink_pairs")
    if own is None or test not in by_pcie or not is_card:
        return None
    # copies through the host are slower between cards that share a switch
    if test.direction != "through_host" and test.slowest < _OUTLIER * median(test.rates.values()):
        return None
    fastest = max(each.fastest / (2 if each.direction.endswith("_sum") else 1) for each in by_pcie)
    fitting = []
    for generation, lanes in _PCIE_LINKS:
        rate = pcie_bytes_per_s(generation, lanes)
        slower = generation <= own[0] and lanes <= own[1] and (generation, lanes) != own
        if slower and fastest <= rate and normal <= test.slowest / rate:
            fitting.append(f"PCIe {generation}.0 x{lanes}")
    if not fitting:
        return None
    why = Coded.of(
        AssessmentCode.NORMAL_WITH_SLOWER_PCIE,
        direction=direction_name(test),
        rate=median(test.rates.values()),
        links=fitting,
        gpu=machine.gpu,
        generation=own[0],
        lanes=own[1],
    )
    return Assessment(ResultVerdict.NORMAL_IF, why)


def _compared_with_link(machine: LogMachine, test: CopyTest) -> Assessment | None:
    """Compare a direction with the hard bound of its path.

    Return None if no bound is known, or if the known bound cannot be applied to a single pair of GPUs.
    """
    if not test.bounds:
        return None
    # Some pairs of a mesh may have fewer links than the pair with the most links.
    bound, links = test.bounds[-1], machine.links
    mesh = test.direction == "d2d" and links is not None and links.peer in ("nvlink_mesh", "nvlink_pairs")
    if mesh and links is not None and links.peer == "nvlink_mesh" and links.pair_bytes_per_s is None:
        return None
    if mesh and len(test.gpus) > 2 and has_wider_bridge(machine, test.fastest):
        return None
    rate, end = (test.fastest, "most") if mesh else (test.slowest, "least")
    if not mesh and test.slowest >= _OUTLIER * median(test.rates.values()):
        rate, end = (
            median(test.rates.values()),
            "the median",
        )  # without an outlier, the median is more reliable than the slowest card
    share, usual = _USUAL_OF_C2C if bound.code == Limit.C2C else _USUAL_OF_PORT
    ratio = rate / (share * bound.bytes_per_s)  # 100 % is the share that copies usually reach
    why = Coded.of(
        AssessmentCode.COPY_COMPARED_WITH_LINK,
        direction=direction_name(test),
        rate=rate,
        end=end,
        bound_share=rate / bound.bytes_per_s,
        bound=bound.name,
        bound_code=bound.code,
        bound_rate=bound.bytes_per_s,
        usual=usual,
    )
    return Assessment(verdict_of(ratio, _NORMAL_OF_USUAL, _LOW_OF_USUAL), why, ratio)


def _compared_with_same_link(evidence: CopyEvidence, test: CopyTest, name: str) -> Assessment | None:
    """Compare a direction with the best published copies of this GPU over the same PCIe link.

    The link is the common link of the machines that fit the log. If these machines have different links, the function
    assumes the fastest link that the GPU supports. Pairs of cards that a bridge may join are not compared.
    """
    machine = evidence.machine
    if machine.gpu is None or (name == "peer" and machine.links is not None and machine.links.peer == "nvlink_pairs"):
        return None
    links = {instance(candidate).pcie for candidate in machine.candidates}
    link = links.pop() if len(links) == 1 else gpu(machine.gpu).pcie
    if link is None:
        return None
    same_link = [reference for reference in evidence.references if name in reference.rates and reference.pcie == link]
    if not same_link:
        return None
    return _compared(test, max(same_link, key=lambda reference: reference.rates[name]), name, same_build=True)


def _compared(test: CopyTest, reference: CopyReference, name: str, same_build: bool = False) -> Assessment:
    """Compare a direction with the copies on another machine.

    Usually, the slowest pair of this log is compared with the slowest pair of the other machine. If pairs have
    different rates only on the other machine, the fastest pairs are compared. In this case, the log may contain only
    the pairs with the most links.
    """
    slowest, fastest = reference.rates[name]
    differ = fastest > _PAIRS_DIFFER * slowest and test.fastest <= _PAIRS_DIFFER * test.slowest
    rate, theirs, end = (test.fastest, fastest, "most") if differ else (test.slowest, slowest, "least")
    ratio = rate / theirs
    facts: dict[str, Any] = {
        "direction": direction_name(test),
        "rate": rate,
        "end": end,
        "ratio": ratio,
        "fastest_rate": fastest if differ else None,
        "machine": reference.where,
        "reference_range": rate_range(slowest, fastest),
        "same_build": same_build,
        "times_best": times_best(ratio),
    }
    return Assessment(verdict_by_others(ratio), Coded.of(AssessmentCode.COPY_COMPARED, **facts), ratio)
