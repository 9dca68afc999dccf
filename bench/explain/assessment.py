"""Find the verdict on a run.

The rate of the run is compared with published results on comparable links, or with the bound of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.core.codes import Coded
from bench.core.links import Bound, Limit, NodeLinks
from bench.core.log_traits import log_traits
from bench.core.units import format_rate
from bench.explain.evidence import NIC_RATES, SLOW_NIC_RATES, ExplainLimit, RunEvidence, busbw, is_network
from bench.explain.inequality import NORMAL_OF_OTHERS, fitting_nics, machines_by_fit, nic_words, of_any_machine
from bench.explain.messages import AssessmentCode, ResultVerdict
from bench.explain.own_source import others_of_each_machine, own_references
from bench.explain.size_matches import SizeMatch, size_matches
from bench.hardware.bounds import COPIES_OF_ONE_GPU
from bench.hardware.catalogue import gpu, instance, instances
from bench.hardware.machine import LogMachine
from bench.hardware.reference import limits
from bench.logs.foreign import OK, ForeignRow

# Below this share of the best published result, a rate is far too low rather than low.
_LOW_OF_OTHERS = 0.5
# The lowest share of a bound that is normal, and the lowest share that is low rather than far too low. They are used if
# no published result is known. Rings of GPUs reach 0.7 to 0.8 of a port's rate, and NICs 0.65 to 0.95.
_NORMAL_OF_BOUND, _LOW_OF_BOUND = 0.65, 0.35
# The lowest normal share of the NICs' rate in a ring. Known shares are 0.84 and 0.94 (a3-ultragpu-8g, a3-megagpu-8g).
_NORMAL_OF_RING = 0.75
# A rate above this many times the best known result means wrong input, or a limit in the known results.
TOO_MANY_TIMES = 1.5
# The lowest normal share of the NICs' rate in an alltoall of several ranks per node. Its many messages share NVLink,
# PCIe and NICs.
_ALL_TO_ALL, _NORMAL_OF_ALL_TO_ALL = ("alltoall", "alltoallv"), 0.5
_NORMAL_OF_NIC = 0.9  # share of a NIC's line rate that a transfer between two hosts reaches
_LEAST_OF_NIC = 64 << 10  # bytes; the rate of smaller messages may be below that of the NIC
# cards that exchange data through host memory are far too slow below this share of their bound
_LEAST_THROUGH_HOST = 0.06
# The patterns for which NCCL chooses the links to use.
_ROUTED = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
_LEAST_OF_PCIE = 0.3  # GPUs without NVLink exchange data through PCIe switches at this share of PCIe's rate or faster
_MAY_BE = 0.15  # the page proposes a machine if a published result on it differs by at most this share
_MOST_CANDIDATES = 3


@dataclass(frozen=True, slots=True)
class Assessment:
    """A verdict and its reason.

    `why`: the reason, as a code with facts and text.
    `ratio`: the ratio that decided the verdict, or None if no ratio decided the verdict.
    """

    verdict: ResultVerdict
    why: Coded
    ratio: float | None = None


def not_judged(code: AssessmentCode, ratio: float | None = None, /, **facts: Any) -> Assessment:
    """Return the assessment of a result that cannot be judged. `code` says why."""
    return Assessment(ResultVerdict.CANNOT_BE_JUDGED, Coded.of(code, **facts), ratio)


def assess(evidence: RunEvidence) -> Assessment:
    """Assess one run with rows."""
    obstacle = _obstacle(evidence)
    if obstacle is not None:
        failed = obstacle.code == AssessmentCode.WRONG_DATA
        failed |= obstacle.code == AssessmentCode.NO_BANDWIDTH and evidence.run.status != OK
        return Assessment(ResultVerdict.FAILED if failed else ResultVerdict.CANNOT_BE_JUDGED, obstacle)
    if evidence.above:
        row, bound = evidence.above[0]
        return above_bound(busbw(row), bound, size_bytes=row.payload_bytes or 0)
    if evidence.crosses_nics and evidence.machine.links is not None and not evidence.nics_known:
        return _nics_unknown(evidence)
    found, best = _compared(evidence), evidence.best
    low = found.verdict in (ResultVerdict.LOW, ResultVerdict.FAR_TOO_LOW)
    ranks, nodes = evidence.num_ranks, evidence.num_nodes
    if low and ranks and nodes and ranks % nodes:
        return not_judged(AssessmentCode.UNEVEN_NODES, found.ratio, num_ranks=ranks, num_nodes=nodes)
    if low and best is not None:
        unknown = _unknown_of_mesh(evidence, best)
        if unknown is not None:
            facts = {"rate": busbw(best), "gpu": evidence.machine.gpu, "pattern": evidence.run.pattern}
            return not_judged(unknown, found.ratio, **facts)
    return found


def _compared(evidence: RunEvidence) -> Assessment:
    """Assess a run by published results, or by its bound."""
    by_others = _compared_with_others(evidence)
    if by_others is not None and by_others.verdict in (ResultVerdict.NORMAL, ResultVerdict.ONLY_RESULT):
        return by_others
    by_bound = _compared_with_bound(evidence)
    if by_others is None:
        # Links rarely reach their bound, so a bound alone does not accuse a run that somebody published as a good one.
        low = by_bound.verdict in (ResultVerdict.LOW, ResultVerdict.FAR_TOO_LOW)
        if low and any(own.limited is None for own in own_references(evidence)):
            return not_judged(AssessmentCode.ONLY_ITSELF, by_bound.ratio, **by_bound.why.facts)
        return by_bound
    filled = evidence.crosses_nics and (evidence.nics_fill or 0.0) >= _NORMAL_OF_RING
    return by_bound if filled and by_bound.verdict == ResultVerdict.NORMAL else by_others


def _unknown_of_mesh(evidence: RunEvidence, best: ForeignRow) -> AssessmentCode | None:
    """Return the unknown property of an NVLink mesh that may explain a low rate.

    The property is either the links of the run's GPUs or the rate between GPUs without an NVLink. Return None if both
    are known. In a hybrid cube mesh of eight V100 GPUs, a pair of GPUs has two NVLinks, one NVLink or none. Pairs
    without an NVLink use PCIe.
    """
    machine, ranks = evidence.machine, evidence.num_ranks
    if machine.links is None or not ranks or evidence.num_nodes != 1:
        return None
    if busbw(best) < _LEAST_OF_PCIE * (machine.links.pcie_bytes_per_s or 0.0):
        return None
    types = [
        instance(name) for name in ((machine.instance,) if machine.instance in instances() else machine.candidates)
    ]
    meshes = [each for each in types if each.links.peer == "nvlink_mesh"]
    if any(ranks < each.gpus for each in meshes):
        return AssessmentCode.MESH_LINKS_UNKNOWN
    lacks_links = any(not _joins_all(each.links, each.gpus) for each in meshes)
    return AssessmentCode.MESH_LACKS_LINKS if lacks_links and evidence.run.pattern not in _ROUTED else None


def _joins_all(mesh: NodeLinks, num_gpus: int) -> bool:
    """Check whether each GPU of a mesh has a link to every other GPU.

    In a fully connected mesh, the rate of a GPU's port is at least the sum of the rates of its links to all other GPUs.
    """
    pair, port = mesh.pair_bytes_per_s, mesh.nvlink_bytes_per_s
    return pair is not None and port is not None and (num_gpus - 1) * pair <= 1.01 * port


def contradiction(machine: LogMachine, others: tuple[str, ...]) -> Coded | None:
    """Return a message if the log cannot be from the machine that the user named. Otherwise return None.

    `others`: GPUs in the log that this machine does not have.
    """
    if not others:
        return None
    return Coded.of(AssessmentCode.OTHER_MACHINE, instance=machine.instance, gpu=machine.gpu, other_gpus=list(others))


def above_bound(rate: float, bound: Bound, **facts: Any) -> Assessment:
    """Return the verdict on a rate above a hard bound.

    `facts`: more facts for ABOVE_BOUND, which say where the rate was measured.
    """
    ratio = rate / bound.bytes_per_s
    why = Coded.of(
        AssessmentCode.ABOVE_BOUND,
        rate=rate,
        excess=ratio - 1,
        bound=bound.name,
        bound_code=bound.code,
        bound_rate=bound.bytes_per_s,
        bound_why=bound.why,
        **facts,
    )
    return Assessment(ResultVerdict.ABOVE, why, ratio)


def tightest(evidence: RunEvidence) -> Bound | None:
    """Return the bound that limits the rate most; None if no bound is known.

    Only hard bounds, traffic bounds and rates of the network are considered.
    """
    found = []
    for bound in evidence.bounds:
        if bound.kind in ("hard", "traffic") or bound.code in (Limit.NETWORK, Limit.NIC_IN_USE):
            found.append(bound)
    return min(found, key=lambda bound: (bound.bytes_per_s, bound.kind != "hard"), default=None)


def bound_to_show(evidence: RunEvidence) -> Bound | None:
    """Return the bound to show on the page; None if no bound is known.

    It may be unknown whether a bridge joins two cards. If the measured rate is possible without a bridge, the result is
    the bound without a bridge.
    """
    if not evidence.bridge_unknown:
        return tightest(evidence)
    without = [bound for bound in evidence.bounds if bound.code == ExplainLimit.WITHOUT_BRIDGE]
    return min(without, key=lambda bound: bound.bytes_per_s)


def verdict_of(ratio: float, normal: float, low: float) -> ResultVerdict:
    """Return the verdict for a ratio.

    `normal`: the lowest normal ratio.
    `low`: the ratio below which a result is far too low.
    """
    if ratio >= normal:
        return ResultVerdict.NORMAL
    return ResultVerdict.LOW if ratio >= low else ResultVerdict.FAR_TOO_LOW


def verdict_by_others(ratio: float) -> ResultVerdict:
    """Return the verdict for the ratio of a run's rate to the best published rate."""
    return verdict_of(ratio, NORMAL_OF_OTHERS, _LOW_OF_OTHERS)


def times_best(ratio: float) -> float | None:
    """Return the ratio if it is above TOO_MANY_TIMES, because the page must then warn; otherwise return None.

    `ratio`: the rate of the run, divided by the best known rate.
    """
    return ratio if ratio > TOO_MANY_TIMES else None


def has_wider_bridge(machine: LogMachine, rate: float) -> bool:
    """Check whether a bridge may join more than two cards, so that the number of NVLinks between two cards is unknown.

    If the rate between the cards is not above the rate of PCIe, the result is False.
    """
    links = machine.links
    if links is None or links.peer != "nvlink_pairs" or machine.gpu is None or gpu(machine.gpu).most_bridged < 3:
        return False
    return rate > (links.pcie_bytes_per_s or 0.0)


def _obstacle(evidence: RunEvidence) -> Coded | None:
    """Return why the rows of a run cannot be judged; None if the rows can be judged."""
    if evidence.num_wrong:
        return Coded.of(AssessmentCode.WRONG_DATA)
    if evidence.rows and evidence.num_ranks is None:
        return Coded.of(AssessmentCode.NUM_RANKS_UNKNOWN)
    if evidence.misfit:
        return evidence.misfit
    if evidence.num_ranks == 1 and evidence.run.pattern not in COPIES_OF_ONE_GPU:
        return Coded.of(AssessmentCode.ONE_RANK)
    if evidence.best is None:
        return Coded.of(AssessmentCode.NO_BANDWIDTH)
    if evidence.modelled:
        return Coded.of(AssessmentCode.MODELLED)
    if shared := evidence.hint("shared"):
        return Coded.of(AssessmentCode.SHARED_GPU, log_text=shared.value, line=shared.line)
    return contradiction(evidence.machine, evidence.other_gpus)


def _nics_unknown(evidence: RunEvidence) -> Assessment:
    """Assess a run across nodes whose NICs are unknown.

    Published results depend on the NICs of their machines, so these results do not decide the verdict.
    """
    best = evidence.best
    assert best is not None
    if (decided := _of_any_machine(evidence)) is not None:
        return decided
    fitting = fitting_nics(evidence)
    if fitting and evidence.run.pattern and log_traits(evidence.run.tool).rings:
        why = Coded.of(AssessmentCode.NORMAL_WITH_NICS, rate=busbw(best), nics=[nic_words(rate) for rate in fitting])
        return Assessment(ResultVerdict.NORMAL_IF, why)
    machines = {}
    for reference in reversed(evidence.references):
        if reference.limited is None and reference.network_bytes_per_s:
            machines[reference.network_bytes_per_s] = reference
    others = []
    for network, reference in sorted(machines.items(), reverse=True):
        rate, nics = format_rate(reference.best[1]), format_rate(network)
        others.append(f"{rate} with {nics} of NICs per node ({reference.instance or reference.gpu})")
    return not_judged(AssessmentCode.NICS_UNKNOWN, rate=busbw(best), others=others or None)


def _of_any_machine(evidence: RunEvidence) -> Assessment | None:
    """Return the verdict that holds for every machine with this GPU; None if the verdict depends on the machine."""
    found = of_any_machine(evidence)
    if found is None:
        return None
    code, facts, ratio = found
    verdict = ResultVerdict.ONLY_RESULT if facts.get("only") else ResultVerdict.NORMAL
    if code == AssessmentCode.BELOW_SLOWEST:
        verdict = ResultVerdict.LOW
    return Assessment(verdict, Coded.of(code, **facts), ratio)


def _compared_with_others(evidence: RunEvidence) -> Assessment | None:
    """Compare a run with the best published result at a comparable size. Return None if there is no such result."""
    matches = size_matches(evidence)
    best = evidence.best
    if not matches or best is None:
        return None
    match, bound = matches[0], bound_to_show(evidence)
    sources = {(each.reference.source, each.reference.instance, each.reference.note) for each in matches}
    only = len(sources) == 1
    facts = _comparison_facts(evidence, match, bound) | {"only": only}
    verdict = verdict_by_others(match.ratio)
    normal = _normal_of(bound, evidence)
    if evidence.too_short and verdict != ResultVerdict.NORMAL:
        return not_judged(AssessmentCode.SIZES_TOO_SMALL, match.ratio, **facts, **_size_facts(evidence))
    share = None if bound is None else match.theirs / bound.bytes_per_s
    if verdict == ResultVerdict.NORMAL and only and (share is None or share < normal):
        verdict = ResultVerdict.ONLY_RESULT
        facts["only_share"] = share
    elif verdict == ResultVerdict.NORMAL and share is not None and share < normal:
        facts["best_share"] = share
    return Assessment(verdict, Coded.of(AssessmentCode.COMPARED, **facts), match.ratio)


def _comparison_facts(evidence: RunEvidence, match: SizeMatch, bound: Bound | None) -> dict[str, Any]:
    """Return the facts for the text of AssessmentCode.COMPARED."""
    best, reference = evidence.best, match.reference
    assert best is not None
    same_size = match.size_bytes == best.payload_bytes or match.ours != busbw(best)
    facts: dict[str, Any] = {
        "rate": match.ours,
        "size_bytes": match.size_bytes if same_size else best.payload_bytes,
        "ratio": match.ratio,
        "reference_rate": match.theirs,
        "reference_bytes": None if same_size else match.size_bytes,
        "interpolated": not match.measured,
        "reference_machine": reference.instance or reference.gpu,
        "reference_note": reference.note,
        "times_best": times_best(match.ratio),
        **_floor_facts(evidence),
    }
    if bound is not None:
        facts |= {"bound": bound.name, "bound_code": bound.code, "bound_share": busbw(best) / bound.bytes_per_s}
    network, nics = evidence.network_bytes_per_s, evidence.nic_bytes_per_s
    if nics and network and match.ratio < NORMAL_OF_OTHERS:
        facts |= {"nic_rate": nics, "nic_share": nics / network, "network_rate": network}
    machine = evidence.machine
    facts["nics_assumed"] = evidence.crosses_nics and machine.likely is not None and machine.instance is None
    return facts


def _floor_facts(evidence: RunEvidence) -> dict[str, float]:
    """Return whether a full-node allreduce reaches the rate of a known acceptance test.

    The result is empty if no acceptance test applies.
    """
    best = evidence.best
    if best is None or (best.payload_bytes or 0) < 1 << 30 or evidence.run.pattern != "allreduce":
        return {}
    if (evidence.num_nodes, evidence.num_ranks) != (1, 8):
        return {}
    for floor in limits(evidence.machine.gpu):
        passed = busbw(best) >= floor.bytes_per_s
        return {"floor_passed" if passed else "floor_missed": floor.bytes_per_s}
    return {}


def _size_facts(evidence: RunEvidence) -> dict[str, Any]:
    """Return the facts that say why the measured sizes do not show the rate of the links."""
    return {
        "rising": evidence.rising,
        "largest_bytes": evidence.largest_bytes,
    }


def _compared_with_bound(evidence: RunEvidence) -> Assessment:
    """Compare a run with its tightest bound. The run is not judged if no bound is known."""
    best, links = evidence.best, evidence.machine.links
    assert best is not None
    if links is None:
        return _without_links(evidence, best)
    if evidence.num_nodes is None:
        return not_judged(AssessmentCode.NUM_NODES_UNKNOWN)
    bound = tightest(evidence)
    if bound is None:
        return not_judged(AssessmentCode.NO_BOUND)
    share = busbw(best) / bound.bytes_per_s
    facts = _bound_facts(best, bound)
    if evidence.from_host_memory:
        nic = (links.nic_bytes_per_s or 0.0) if log_traits(evidence.run.tool).nic_test else 0.0
        full = 0.0 < _NORMAL_OF_NIC * nic <= busbw(best) <= nic
        return _full_nic(busbw(best), nic) if full else not_judged(AssessmentCode.HOST_MEMORY_TOOL, share, **facts)
    normal = _normal_of(bound, evidence)
    if evidence.by_message_passing and (share < normal or evidence.memory != "device"):
        return not_judged(AssessmentCode.MESSAGE_PASSING_TOOL, share, **facts, on_gpus=evidence.memory == "device")
    if share < normal and not evidence.crosses_nics:
        if has_wider_bridge(evidence.machine, busbw(best)):
            most = gpu(str(evidence.machine.gpu)).most_bridged
            return not_judged(AssessmentCode.BRIDGES_UNKNOWN, share, **facts, most_bridged=most, num_peers=most - 1)
        cards = links.peer in ("host", "pcie_p2p", "nvlink_pairs")
        if cards and _LEAST_THROUGH_HOST < share < _LOW_OF_BOUND:
            return Assessment(ResultVerdict.LOW, Coded.of(AssessmentCode.CARDS_THROUGH_HOST, **facts), share)
    verdict = verdict_of(share, normal, _LOW_OF_BOUND)
    if verdict != ResultVerdict.NORMAL and evidence.too_short:
        return not_judged(AssessmentCode.SIZES_TOO_SMALL_FOR_BOUND, share, **facts, **_size_facts(evidence))
    same_shape = any(reference.limited is None for reference in evidence.references)
    facts |= {"missing": "size" if same_shape else "shape", "same_shape": same_shape}
    why = Coded.of(AssessmentCode.COMPARED_WITH_BOUND, **facts)
    return Assessment(verdict, why, share)


def _bound_facts(best: ForeignRow, bound: Bound) -> dict[str, Any]:
    """Return the facts about the share of a bound that the best row reached."""
    return {
        "rate": busbw(best),
        "share": busbw(best) / bound.bytes_per_s,
        "bound": bound.name,
        "bound_code": bound.code,
        "bound_rate": bound.bytes_per_s,
    }


def _without_links(evidence: RunEvidence, best: ForeignRow) -> Assessment:
    """Assess a run whose links are unknown."""
    if evidence.transport is not None:
        facts: dict[str, Any] = {}
        if evidence.bounds:
            bound = evidence.bounds[0]
            facts = _bound_facts(best, bound)
        return not_judged(AssessmentCode.OWN_MACHINE_UNKNOWN, **facts)
    if log_traits(evidence.run.tool).nic_test:
        return _compared_with_nic(evidence, best)
    if evidence.by_message_passing or not evidence.run.pattern:
        return not_judged(AssessmentCode.MACHINE_UNKNOWN, candidates=_candidates(evidence) or None)
    if (decided := _of_any_machine(evidence)) is not None:
        return decided
    normal_on, low_on = machines_by_fit(evidence)
    if not normal_on:
        return not_judged(AssessmentCode.MACHINE_UNKNOWN, candidates=None)
    why = Coded.of(AssessmentCode.NORMAL_ON_MACHINES, rate=busbw(best), machines=normal_on, low_machines=low_on or None)
    return Assessment(ResultVerdict.NORMAL_IF, why)


def _candidates(evidence: RunEvidence) -> list[str]:
    """Return the instance types with a published rate close to this run's rate."""
    best, run = evidence.best, evidence.run
    if best is None or not run.pattern or not evidence.num_ranks or evidence.by_message_passing:
        return []
    found = []
    for reference in others_of_each_machine(evidence):
        if reference.instance and abs(reference.best[1] / busbw(best) - 1) <= _MAY_BE:
            found.append(f"{reference.instance} ({format_rate(reference.best[1])})")
    return found[:_MOST_CANDIDATES]


def _compared_with_nic(evidence: RunEvidence, best: ForeignRow) -> Assessment:
    """Assess a transfer of perftest between two hosts.

    The function compares the rate of the transfer with the rate of the slowest NIC that may have carried the data.
    """
    rate = best.algbw_bytes_per_s or busbw(best)
    nic = next((nic for nic in NIC_RATES if rate <= nic), None)
    largest = max((row.payload_bytes or 0 for row in evidence.rows), default=0)
    if (nic is None or rate < _NORMAL_OF_NIC * nic) and 0 < largest < _LEAST_OF_NIC:
        return not_judged(AssessmentCode.SIZES_TOO_SMALL_FOR_NIC, rate=rate, largest_bytes=largest)
    slow = next((slow for slow in SLOW_NIC_RATES if _NORMAL_OF_NIC * slow <= rate <= slow), None)
    if slow is not None:
        facts = {"rate": rate, "share": rate / slow, "nic_rate": slow, "nic_gbit_per_s": slow * 8e-9}
        return Assessment(ResultVerdict.NORMAL_IF, Coded.of(AssessmentCode.NORMAL_WITH_SLOW_NIC, **facts))
    if nic is None or rate < _NORMAL_OF_NIC * nic:
        return not_judged(AssessmentCode.NIC_UNKNOWN, rate=rate)
    return _full_nic(rate, nic)


def _full_nic(rate: float, nic: float) -> Assessment:
    why = Coded.of(
        AssessmentCode.COMPARED_WITH_NIC, rate=rate, share=rate / nic, nic_rate=nic, nic_gbit_per_s=nic * 8e-9
    )
    return Assessment(ResultVerdict.NORMAL, why, rate / nic)


def _normal_of(bound: Bound | None, evidence: RunEvidence) -> float:
    """Return the lowest share of a bound that counts as normal."""
    if bound is None or not is_network(bound):
        return _NORMAL_OF_BOUND
    if evidence.run.pattern in _ALL_TO_ALL and evidence.num_ranks != evidence.num_nodes:
        return _NORMAL_OF_ALL_TO_ALL
    return _NORMAL_OF_RING if evidence.by_ring else _NORMAL_OF_BOUND
