"""Predict the time of a collective or a copy on given links, with an interval and the evidence.

core/fabric.py and core/schedules.py compute how the messages of an algorithm share links (max-min fairly). Only the
efficiency of a link and the duration of a step come from evidence on similar machines. An efficiency belongs to a link,
not to a pattern. A slower link therefore slows only those patterns whose messages cross the link (docs/prediction.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import median
from typing import cast

from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.loads import ideal_s
from bench.core.plugins import nearest
from bench.predict import algorithms as engine
from bench.predict.algorithms import patterns
from bench.predict.efficiency_range import CONFIDENCE, Efficiencies, EfficiencyRange, of_copies
from bench.predict.messages import Refusal
from bench.predict.pool import EfficiencyCurve, EfficiencyEstimate, student
from bench.predict.published import LAUNCH_S, EfficiencyEvidence, PublishedCurve, evidence_of, of_run, published

__all__ = [
    "BASES",
    "CONFIDENCE",
    "EfficiencyEvidence",
    "Prediction",
    "PublishedCurve",
    "bounds_by_algorithm",
    "busbw",
    "by_algorithm",
    "centres",
    "chosen",
    "collective",
    "copy",
    "curve",
    "evidence_of",
    "link_class",
    "of_run",
    "patterns",
    "published",
]

BASES = ("measured", "imported", "published", "bound")  # the types of evidence for a figure, the most reliable first
# An interval with a larger ratio high / low has no middle, unless at least ENOUGH_SYSTEMS measured the slowest link.
WIDEST, ENOUGH_SYSTEMS = 4.0, 3
# The time of a small message / the latency of its links if there is no evidence. The first number is the middle of this
# ratio, the second half the width of the interval of its logarithm.
_OVERHEAD = (9.0, 0.6)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted seconds of one operation.

    `low_s` and `high_s`: the ends of an interval at level CONFIDENCE.
    `middle_s`: the middle of the interval, or None if unknown.
    `estimate_s`: the middle according to the evidence, even if this middle is too uncertain to be shown; None without
    evidence.

    `basis`: one of BASES.
    `rests_on`: the sources in words, with their dates.
    `algorithm`: the name of the algorithm in core/schedules.py, or "" for a copy.
    `bottleneck`: the saturated link ("NVLink port", "NIC", "PCIe link", "latency").
    `link_class`: see `link_class`.
    `machine`: the instance type. All predictions for one machine use the same draws for the machine's deviation from
    its pool.
    `pool`: the name of the evidence. Predictions from one pool share a part of their error, which cancels in the ratio
    of two such predictions.
    `spread`: the standard deviation of ln(seconds) between machines of one pool.
    `verified`: whether all figures of links and evidence have a source.
    `ideal_s`: the seconds that the links alone need.
    """

    low_s: float
    middle_s: float | None
    high_s: float
    basis: str
    rests_on: tuple[str, ...]
    algorithm: str
    bottleneck: str
    link_class: str
    pool: str
    spread: float
    verified: bool
    ideal_s: float
    machine: str = ""
    estimate_s: float | None = None

    @property
    def centre_s(self) -> float:
        """The middle of the prediction.

        If the middle of the interval is unknown, `estimate_s` is used. Without `estimate_s`, the geometric mean of
        `low_s` and `high_s` is used.
        """
        if self.middle_s is not None:
            return self.middle_s
        return self.estimate_s if self.estimate_s is not None else sqrt(self.low_s * self.high_s)


def link_class(links: NodeLinks, num_nodes: int, ranks_per_node: int) -> str:
    """Return the class of the slowest links on the path.

    Inside a node, the class is nvswitch-nvls, nvswitch, nvlink-mesh, infinity-fabric, nvlink-pairs, pcie-p2p, no-p2p or
    memory. Between nodes of one NVLink network, the class is nvlink-domain. Between other nodes, the class is
    network-<kind of NIC>.
    """
    if num_nodes > max(1, links.nvlink_nodes):
        return f"network-{links.nic_kind}" if links.nic_kind else "network"
    if num_nodes > 1 and links.peer == "nvswitch":
        return "nvlink-domain"
    found = engine.peer_family(links, links.reduces and ranks_per_node > 1)
    return "no-p2p" if found == "no-p2p-server" else found


def collective(
    pattern: str,
    payload_bytes: float,
    links: NodeLinks,
    num_nodes: int,
    ranks_per_node: int,
    evidence: EfficiencyEvidence,
) -> Prediction:
    """Predict one collective among num_nodes x ranks_per_node GPUs, with the fastest algorithm that libraries have.

    `payload_bytes`: S of docs/metrics.md (the larger of one rank's buffers).
    `pattern`: one of `patterns()`.

    Raises UsageError for an unknown pattern or rate, too many ranks per node, or fewer than two ranks.
    """
    return curve(pattern, (payload_bytes,), links, num_nodes, ranks_per_node, evidence)[payload_bytes]


def curve(
    pattern: str,
    sizes: Sequence[float],
    links: NodeLinks,
    num_nodes: int,
    ranks_per_node: int,
    evidence: EfficiencyEvidence,
    algorithm: str | None = None,
) -> Mapping[float, Prediction]:
    """Predict the time of one collective at many sizes.

    The schedule is computed once for all sizes.

    `algorithm`: the name of an algorithm. If `algorithm` is None, the fastest algorithm is used for each size.
    """
    known: dict[float, Prediction] = {}
    if algorithm is None:
        known = evidence.memo.setdefault((pattern, engine.same_evidence(links), num_nodes, ranks_per_node), known)
    missing = [size for size in dict.fromkeys(sizes) if size not in known]
    if missing or not sizes:
        curves = by_algorithm(pattern, missing, links, num_nodes, ranks_per_node, evidence)
        if algorithm is not None:
            curves = {algorithm: chosen(curves, algorithm, pattern, num_nodes, ranks_per_node)}
        for size in missing:
            known[size] = min((each[size] for each in curves.values()), key=lambda prediction: prediction.centre_s)
    return {size: known[size] for size in sizes}


def centres(
    pattern: str,
    sizes: Sequence[float],
    links: NodeLinks,
    num_nodes: int,
    ranks_per_node: int,
    evidence: EfficiencyEvidence,
) -> Mapping[float, float]:
    """Return only `centre_s` of the predictions of `curve`, for searches that need no other value."""
    key = "centres", pattern, engine.same_evidence(links), num_nodes, ranks_per_node
    known: dict[float, float] = evidence.memo.setdefault(key, {})
    missing = [size for size in dict.fromkeys(sizes) if size not in known]
    if missing:
        task = _checked_task(pattern, missing, links, num_nodes, ranks_per_node)
        predictor = _Predictor(task, links, evidence)
        for size in missing:
            known[size] = min(predictor.centre_s(algorithm, size) for algorithm in task.algorithms)
    return known


def chosen(
    curves: Mapping[str, dict[float, Prediction]], algorithm: str, pattern: str, num_nodes: int, ranks_per_node: int
) -> dict[float, Prediction]:
    """Return the predictions of one algorithm, by payload.

    Raises UsageError if the algorithm cannot run on this cluster.
    """
    if algorithm not in curves:
        raise UsageError.of(
            Refusal.ALGORITHM_UNKNOWN,
            pattern=pattern,
            algorithm=algorithm,
            num_nodes=num_nodes,
            ranks_per_node=ranks_per_node,
            hint=nearest(algorithm, tuple(curves)),
        )
    return curves[algorithm]


def by_algorithm(
    pattern: str,
    sizes: Sequence[float],
    links: NodeLinks,
    num_nodes: int,
    ranks_per_node: int,
    evidence: EfficiencyEvidence,
) -> dict[str, dict[float, Prediction]]:
    """Return the result of `curve` for each algorithm that libraries have and that can run on this cluster."""
    task = _checked_task(pattern, sizes, links, num_nodes, ranks_per_node)
    predictor = _Predictor(task, links, evidence)
    curves = {}
    for algorithm in task.algorithms:
        curves[algorithm.name] = {size: predictor.predict(algorithm, size) for size in sizes}
    return curves


def _checked_task(
    pattern: str, sizes: Sequence[float], links: NodeLinks, num_nodes: int, ranks_per_node: int
) -> engine.Task:
    if num_nodes < 1 or ranks_per_node < 1 or num_nodes * ranks_per_node < 2:
        raise UsageError.of(Refusal.TOO_FEW_RANKS, num_nodes=num_nodes, ranks_per_node=ranks_per_node)
    for size in sizes:
        if not 0 <= size < float("inf"):
            raise UsageError.of(Refusal.PAYLOAD_INVALID, size=size)
    return engine.task(pattern, links, num_nodes, ranks_per_node)


def bounds_by_algorithm(
    pattern: str, sizes: Sequence[float], links: NodeLinks, num_nodes: int, ranks_per_node: int
) -> dict[str, dict[float, float]]:
    """Return the seconds that the links alone need, for every algorithm that can run on this cluster.

    Algorithms that no library uses are included.
    """
    task = engine.task(pattern, links, num_nodes, ranks_per_node)
    return {name: {size: ideal_s(loads, size) for size in sizes} for name, loads in task.bounds}


def busbw(pattern: str, payload_bytes: float, num_ranks: int, seconds: float | None) -> float | None:
    """Return the bus bandwidth in bytes per second, or None without a time or a payload."""
    if not seconds or not payload_bytes or pattern == "barrier":
        return None
    return engine.seconds_of(pattern, payload_bytes, num_ranks, 1.0) / seconds


@dataclass(slots=True)
class _Times:
    """The seconds of one algorithm at one size, as an interval and its middle. An unknown middle is guessed.

    `known`: whether the middle of the interval comes from evidence.
    `ranges`: the efficiency for each pair (kind, family) of links.
    `transfers`: for each pair (kind, family) of links, the seconds that transfers take.
    """

    low_s: float
    middle_s: float
    high_s: float
    known: bool
    ranges: Mapping[tuple[str, str], EfficiencyRange]
    transfers: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class _StartUp:
    """The start-up time of small messages, and its evidence.

    `factor`: the middle of `(t - LAUNCH_S) / l`, where t is the time of a small message and l is the latency of the
    links.
    `half`: half of the width of the interval of ln(factor).
    """

    factor: float
    half: float
    basis: str
    sources: tuple[str, ...]


class _Predictor:
    """The predictor for one pattern on one cluster, with the evidence that it uses."""

    def __init__(self, task: engine.Task, links: NodeLinks, evidence: EfficiencyEvidence) -> None:
        self.task, self.links, self.evidence = task, links, evidence
        self.efficiencies = Efficiencies(task, links, evidence)
        self.most_ranks = self._most_ranks()
        self.startup = self._startup()

    def predict(self, algorithm: engine.Algorithm, payload_bytes: float) -> Prediction:
        """Predict the time of one algorithm at one size."""
        times = self._times(algorithm, payload_bytes)
        transfers, low, middle, high = times.transfers, times.low_s, times.middle_s, times.high_s
        key = max(transfers, key=lambda each: transfers[each], default=None)
        slowest = times.ranges[key] if key is not None else None
        estimate = slowest.estimate if slowest is not None else None
        by_rate = key is not None and transfers[key] >= 0.5 * middle
        enough = by_rate and estimate is not None and estimate.num_systems >= ENOUGH_SYSTEMS
        pointed = times.known and (high / low <= WIDEST or enough) and not self._extrapolated
        basis, sources, bottleneck = self.startup.basis, self.startup.sources, "latency"
        if key is not None and slowest is not None and transfers[key] >= 0.5 * middle:
            basis = estimate.basis if estimate is not None else "bound"
            sources, bottleneck = slowest.sources, engine.LINK_NAMES[key[0]]
        return Prediction(
            low_s=low,
            middle_s=middle if pointed else None,
            estimate_s=middle if times.known else None,
            high_s=high,
            basis=basis,
            rests_on=(*self._extrapolation(), *sources),
            algorithm=algorithm.name,
            bottleneck=bottleneck,
            link_class=link_class(self.links, self.task.num_nodes, self.task.ranks_per_node),
            machine=engine.machine(self.links, key[1] if key is not None else self._family()),
            pool=self._pool(key),
            spread=estimate.deviation if estimate is not None else 0.5,
            verified=self._verified(key, estimate),
            ideal_s=self.task.ideal_s(payload_bytes),
        )

    def centre_s(self, algorithm: engine.Algorithm, payload_bytes: float) -> float:
        """Return `centre_s` of the prediction that `predict` would return."""
        times = self._times(algorithm, payload_bytes)
        return times.middle_s if times.known else sqrt(times.low_s * times.high_s)

    def _times(self, algorithm: engine.Algorithm, payload_bytes: float) -> _Times:
        needs = {key: slope * payload_bytes for key, slope in algorithm.by_family.items()}
        ranges = {key: self.efficiencies.of(key[1], busy_s) for key, busy_s in needs.items() if busy_s > 0}
        steps_s = algorithm.latency_s * self.startup.factor
        half = self.startup.half
        high_efficiency = {key: found.high for key, found in ranges.items()}
        middle_efficiency = {key: found.guess for key, found in ranges.items()}
        low_efficiency = {key: found.low for key, found in ranges.items()}
        low = LAUNCH_S + steps_s * exp(-half) + _transfer_s(algorithm, payload_bytes, high_efficiency)
        middle = LAUNCH_S + steps_s + _transfer_s(algorithm, payload_bytes, middle_efficiency)
        high = LAUNCH_S + steps_s * exp(half) + _transfer_s(algorithm, payload_bytes, low_efficiency)
        if low < ideal_s(algorithm.loads, payload_bytes):  # otherwise, the limit of all algorithms is lower still
            least = self.task.ideal_s(payload_bytes)
            low, middle, high = max(low, least), max(middle, least), max(high, least)
        transfers = {key: busy_s / middle_efficiency[key] for key, busy_s in needs.items() if key in ranges}
        known = all(ranges[each].middle is not None for each in transfers if transfers[each] >= 0.5 * middle)
        return _Times(low, middle, high, known, ranges, transfers)

    def _startup(self) -> _StartUp:
        """Return the start-up time that the smallest messages of curves show.

        If the user measured this machine, only the user's curves are used. Without the user's measurements, a cluster
        with a network uses all curves between nodes, and any other cluster uses all curves inside nodes.
        """
        crossing = self.task.num_nodes > max(1, self.links.nvlink_nodes)
        key = "start-up", crossing
        if key not in self.evidence.memo:
            curves = [each for each in self.evidence.curves if each.overhead is not None]
            near = [each for each in curves if (each.num_nodes > 1) == crossing]
            theirs = [each for each in near if each.basis != "published"]
            self.evidence.memo[key] = theirs, _start_up(near)
        theirs, all_curves = self.evidence.memo[key]
        own = [each for each in theirs if each.instance == engine.machine(self.links, each.family) != ""]
        return _start_up(own) if own else cast(_StartUp, all_curves)

    def _most_ranks(self) -> int | None:
        """Return the largest number of ranks in the measurements of similar networks.

        If no similar network was measured, return the largest number in the measurements of all networks.

        Return None inside a node.
        """
        if self._family() != "network":
            return None
        _, group = engine.generation(self.links, "network")
        key = "most ranks", group
        if key not in self.evidence.memo:
            across = [each for each in self.evidence.curves if each.family == "network"]
            near = [each for each in across if each.group == group] or across
            self.evidence.memo[key] = max((each.num_ranks for each in near), default=None)
        return cast("int | None", self.evidence.memo[key])

    @property
    def _extrapolated(self) -> bool:
        return self.most_ranks is not None and self.task.num_nodes * self.task.ranks_per_node > self.most_ranks

    def _extrapolation(self) -> tuple[str, ...]:
        if not self._extrapolated:
            return ()
        return (f"extrapolated: at most {self.most_ranks} GPUs were measured across such a network",)

    def _family(self) -> str:
        """Return the family of the path that an empty message takes."""
        crossing = self.task.num_nodes > max(1, self.links.nvlink_nodes)
        return "network" if crossing else engine.peer_family(self.links, False)

    def _pool(self, key: tuple[str, str] | None) -> str:
        if key is None:
            return "latency"
        exact, _ = engine.generation(self.links, key[1])
        return f"{key[1]} {exact}"

    def _verified(self, key: tuple[str, str] | None, estimate: EfficiencyEstimate | None) -> bool:
        links_of = {
            "nvlink": ("nvlink",),
            "nvls": ("nvlink",),
            "pcie": ("pcie",),
            "host": ("pcie",),
            "nic": ("network", "nic"),
            "memory": ("memory",),
        }
        links = links_of[key[0]] if key is not None else ("latency",)
        read = all(self.links.verified.get(link, True) for link in links)
        return read and (estimate is None or estimate.verified)


def _start_up(used: Sequence[EfficiencyCurve]) -> _StartUp:
    basis = used[0].basis if used else "bound"
    sources = tuple(dict.fromkeys(each.source for each in used)) or ("typical start-up time",)
    systems: dict[str, list[float]] = {}
    for each in used:
        systems.setdefault(each.system, []).append(log(each.overhead or 1.0))
    values = [median(own) for own in systems.values()]
    if not values:
        return _StartUp(*_OVERHEAD, basis, sources)
    middle = median(values)
    squares = sum((value - middle) ** 2 for value in values) + 2 * _OVERHEAD[1] ** 2
    spread = 0.15 if used[0].basis != "published" else sqrt(squares / (len(values) + 1))
    return _StartUp(exp(middle), spread * student(len(values) + 1, CONFIDENCE), basis, sources)


def _transfer_s(
    algorithm: engine.Algorithm, payload_bytes: float, efficiency: Mapping[tuple[str, str], float]
) -> float:
    """Return the duration of the transfers in seconds.

    The slowest link of a phase determines the time of this phase. The efficiency of this link is taken into account.
    The result is the sum over the phases.
    """
    total = 0.0
    for repeat, excess, needs in algorithm.parts:
        slowest = 0.0
        for key, slope in needs.items():
            slowest = max(slowest, slope * payload_bytes / efficiency.get(key, 1.0))
        total += repeat * excess * slowest
    return total


def copy(
    direction: str, num_bytes: float, links: NodeLinks, evidence: EfficiencyEvidence, gpus_at_once: int = 1
) -> Prediction:
    """Predict a copy between host memory and one GPU, "h2d" or "d2h".

    `gpus_at_once`: the number of GPUs of the node that copy at the same time.

    No published result shows how several copies share the host. A prediction for several GPUs therefore has no middle.
    The high end of the interval assumes half of the rate, because two GPUs may share one PCIe switch, or the host's
    memory may limit the copies.
    """
    if direction not in ("h2d", "d2h"):
        raise UsageError.of(Refusal.DIRECTION_UNKNOWN, direction=direction)
    if links.pcie_bytes_per_s is None:
        raise UsageError.of(Refusal.PCIE_UNKNOWN, instance=links.instance or "these nodes")
    name = engine.machine(links, "pcie-link")
    found = of_copies(evidence, name, direction)
    sharing = min(gpus_at_once, links.gpus_per_pcie_switch or 1)
    alone = num_bytes * sharing / links.pcie_bytes_per_s
    low, high = LAUNCH_S + alone / found.high, 3 * LAUNCH_S + alone / found.low
    estimate = found.estimate
    return Prediction(
        low_s=low,
        middle_s=2 * LAUNCH_S + alone / found.guess if gpus_at_once == 1 and found.middle is not None else None,
        high_s=high * (2 if gpus_at_once > 1 else 1),
        basis=estimate.basis if estimate else "bound",
        rests_on=estimate.sources if estimate else ("the overhead of packet headers",),
        algorithm="",
        bottleneck=engine.LINK_NAMES["pcie"],
        link_class="pcie-link",
        machine=name,
        pool="pcie-link",
        spread=estimate.deviation if estimate else 0.1,
        verified=links.verified.get("pcie", True),
        ideal_s=alone,
    )
