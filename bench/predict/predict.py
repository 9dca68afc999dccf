"""How long a collective or a copy takes on given links: an interval, a middle where one is known, and what it rests on.

The one engine is core/fabric.py with core/schedules.py: messages of an algorithm share links max-min fairly. Evidence
says only which part of a link's rate, and how long a step, machines of the same kind reached: it scales links, never
patterns, so that half a link is felt exactly by the patterns whose messages cross it (docs/prediction.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import median

from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.loads import ideal_s
from bench.predict import algorithms as engine
from bench.predict.algorithms import patterns
from bench.predict.efficiency_range import CONFIDENCE, Efficiencies, EfficiencyRange, of_copies
from bench.predict.pool import EfficiencyCurve, student
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
    "collective",
    "copy",
    "curve",
    "evidence_of",
    "link_class",
    "of_run",
    "patterns",
    "published",
]

BASES = ("measured", "imported", "published", "bound")  # what a figure rests on, the surest first
WIDEST = 4.0  # an interval whose ends differ by more than this factor has no middle that deserves to be shown
# Small messages over their links' latency, where nothing is known: middle, and half interval of ln.
_OVERHEAD = (9.0, 0.6)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of one operation. `low_s` to `high_s` is an interval of CONFIDENCE; `middle_s` None: no point is known.

    `basis`: one of BASES. `rests_on`: the sources, in words, with their dates. `algorithm`: as core/schedules.py calls
    it; "" for a copy. `bottleneck`: the link that is full, in words ("NVLink port", "NIC", "PCIe link", "latency").
    `link_class`: see `link_class`. `machine`: whose links' own deviation it has (two of one machine deviate alike).
    `pool`: a word for the evidence whose error is shared: in the ratio of two predictions of one pool it cancels.
    `spread`: the standard deviation of ln(seconds) of one machine about its pool.
    `verified`: were all figures of links and of evidence read in a source? `ideal_s`: what the links alone would take.
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

    @property
    def centre_s(self) -> float:
        """The middle, or where none is known the geometric middle of the interval."""
        return self.middle_s if self.middle_s is not None else sqrt(self.low_s * self.high_s)


def link_class(links: NodeLinks, num_nodes: int, ranks_per_node: int) -> str:
    """The class of hardware that decides: nvswitch-nvls, nvswitch, nvlink-mesh, infinity-fabric, nvlink-pairs,
    pcie-p2p, no-p2p, memory; nvlink-domain for nodes that one NVLink network joins; network-<kind of NIC> across."""
    if num_nodes > max(1, links.nvlink_nodes):
        return f"network-{links.nic_kind}" if links.nic_kind else "network"
    return engine.peer_family(links, num_nodes, links.reduces and num_nodes == 1 and ranks_per_node > 1)


def collective(
    pattern: str,
    payload_bytes: float,
    links: NodeLinks,
    num_nodes: int,
    ranks_per_node: int,
    evidence: EfficiencyEvidence,
) -> Prediction:
    """One collective among num_nodes x ranks_per_node GPUs: the fastest of the algorithms that libraries have.

    `payload_bytes`: S of docs/metrics.md (the larger of one rank's buffers). `pattern`: one of `patterns()`.
    UsageError: unknown pattern, too many ranks per node, a rate that is unknown, fewer than two ranks.
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
    """`collective` for many sizes at once (the schedule is solved once); `algorithm`: only that one, if it can run."""
    told = by_algorithm(pattern, sizes, links, num_nodes, ranks_per_node, evidence)
    if algorithm is not None and algorithm not in told:
        there = f"there is {', '.join(told)}"
        raise UsageError(f"{pattern} has no algorithm {algorithm!r} on {num_nodes} x {ranks_per_node} GPUs; {there}")
    chosen = [told[algorithm]] if algorithm is not None else list(told.values())
    return {size: min((each[size] for each in chosen), key=lambda one: one.centre_s) for size in sizes}


def by_algorithm(
    pattern: str,
    sizes: Sequence[float],
    links: NodeLinks,
    num_nodes: int,
    ranks_per_node: int,
    evidence: EfficiencyEvidence,
) -> dict[str, dict[float, Prediction]]:
    """`curve` of each algorithm that libraries have and that can run there."""
    if num_nodes < 1 or ranks_per_node < 1 or num_nodes * ranks_per_node < 2:
        raise UsageError(f"{num_nodes} x {ranks_per_node} ranks exchange nothing: give at least two")
    for size in sizes:
        if not 0 <= size < float("inf"):
            raise UsageError(f"a payload of {size} bytes can not be sent")
    task = engine.task(pattern, links, num_nodes, ranks_per_node)
    asked = _Asked(task, links, evidence)
    return {each.name: {size: asked.predict(each, size) for size in sizes} for each in task.algorithms}


def bounds_by_algorithm(
    pattern: str, sizes: Sequence[float], links: NodeLinks, num_nodes: int, ranks_per_node: int
) -> dict[str, dict[float, float]]:
    """Seconds by the links alone of every algorithm that can run there, also those that no library uses."""
    task = engine.task(pattern, links, num_nodes, ranks_per_node)
    return {name: {size: ideal_s(loads, size) for size in sizes} for name, loads in task.bounds}


def busbw(pattern: str, payload_bytes: float, num_ranks: int, seconds: float | None) -> float | None:
    """Bytes per second of bus bandwidth; None where there is no time, or no byte."""
    if not seconds or not payload_bytes or pattern == "barrier":
        return None
    return engine.seconds_of(pattern, payload_bytes, num_ranks, 1.0) / seconds


class _Asked:
    """One pattern on one cluster, beside the evidence."""

    def __init__(self, task: engine.Task, links: NodeLinks, evidence: EfficiencyEvidence) -> None:
        self.task, self.links, self.evidence = task, links, evidence
        self.efficiencies = Efficiencies(task, links, evidence)
        self.most_ranks = self._most_ranks()
        used = self._overhead_evidence()
        self.overhead, self.overhead_half = _overhead(used)
        self.overhead_basis = used[0].basis if used else "bound"
        self.overhead_sources = tuple(dict.fromkeys(each.source for each in used)) or ("start-up as it typically is",)

    def predict(self, algorithm: engine.Algorithm, payload_bytes: float) -> Prediction:
        """One algorithm at one size."""
        needs = {key: slope * payload_bytes for key, slope in algorithm.by_family().items()}
        ranges = {key: self.efficiencies.of(key[1], busy_s) for key, busy_s in needs.items() if busy_s > 0}
        steps_s = algorithm.latency_s * self.overhead
        far = self.overhead_half
        low, middle, high = (
            LAUNCH_S + steps_s * exp(away) + _moving(algorithm, payload_bytes, efficiency)
            for away, efficiency in (
                (-far, {key: one.high for key, one in ranges.items()}),
                (0.0, {key: one.guess for key, one in ranges.items()}),
                (far, {key: one.low for key, one in ranges.items()}),
            )
        )
        least = self.task.ideal_s(payload_bytes)
        low, middle, high = max(low, least), max(middle, least), max(high, least)
        moving = {key: busy_s / ranges[key].guess for key, busy_s in needs.items() if key in ranges}
        key = max(moving, key=lambda each: moving[each], default=None)
        decides = ranges[key] if key is not None else None
        known = all(ranges[each].middle is not None for each in moving if moving[each] >= 0.5 * middle)
        pointed = known and high / low <= WIDEST and not self._extrapolated
        by_latency = key is None or moving[key] < 0.5 * middle
        return Prediction(
            low_s=low,
            middle_s=middle if pointed else None,
            high_s=high,
            basis=self.overhead_basis if by_latency else decides.told.basis if decides and decides.told else "bound",
            rests_on=self._beyond() + (self.overhead_sources if by_latency or decides is None else decides.sources),
            algorithm=algorithm.name,
            bottleneck="latency" if by_latency else engine.LINK_WORDS[key[0]] if key is not None else "latency",
            link_class=link_class(self.links, self.task.num_nodes, self.task.ranks_per_node),
            machine=engine.machine(self.links, key[1] if key is not None else self._family()),
            pool=self._pool(key),
            spread=decides.told.deviation if decides is not None and decides.told is not None else 0.5,
            verified=self._verified(key, decides),
            ideal_s=least,
        )

    def _overhead_evidence(self) -> list[EfficiencyCurve]:
        """Curves whose smallest message tells of start-up: own ones of this machine, else all of this level."""
        crossing = self.task.num_nodes > max(1, self.links.nvlink_nodes)
        near = [each for each in self.evidence.curves if each.overhead is not None and (each.num_nodes > 1) == crossing]
        own = [
            each
            for each in near
            if each.basis != "published" and each.instance == engine.machine(self.links, each.family) != ""
        ]
        return own or near

    def _most_ranks(self) -> int | None:
        """Of all that was measured across such a network, or one as like as there is; None: nothing, or in a node."""
        if self._family() != "network":
            return None
        across = [each for each in self.evidence.curves if each.family == "network"]
        _, group = engine.generation(self.links, "network")
        near = [each for each in across if each.group == group] or across
        return max((each.num_ranks for each in near), default=None)

    @property
    def _extrapolated(self) -> bool:
        return self.most_ranks is not None and self.task.num_nodes * self.task.ranks_per_node > self.most_ranks

    def _beyond(self) -> tuple[str, ...]:
        if not self._extrapolated:
            return ()
        return (f"extrapolated: no more than {self.most_ranks} GPUs were measured across such a network",)

    def _family(self) -> str:
        """Of the way that a message of no bytes takes."""
        crossing = self.task.num_nodes > max(1, self.links.nvlink_nodes)
        return "network" if crossing else engine.peer_family(self.links, self.task.num_nodes, False)

    def _pool(self, key: tuple[str, str] | None) -> str:
        if key is None:
            return "latency"
        exact, _ = engine.generation(self.links, key[1])
        return f"{key[1]} {exact}"

    def _verified(self, key: tuple[str, str] | None, decides: EfficiencyRange | None) -> bool:
        of_kind = {
            "nvlink": ("nvlink",),
            "nvls": ("nvlink",),
            "pcie": ("pcie",),
            "host": ("pcie",),
            "nic": ("network", "nic"),
            "memory": ("memory",),
        }
        links = of_kind[key[0]] if key is not None else ("latency",)
        read = all(self.links.verified.get(link, True) for link in links)
        return read and (decides is None or decides.told is None or decides.told.verified)


def _overhead(used: Sequence[EfficiencyCurve]) -> tuple[float, float]:
    """How many times its links' latency a small message needs beyond the launch: middle, half interval of ln."""
    systems: dict[str, list[float]] = {}
    for each in used:
        systems.setdefault(each.system, []).append(log(each.overhead or 1.0))
    values = [median(told) for told in systems.values()]
    if not values:
        return _OVERHEAD
    middle = median(values)
    squares = sum((value - middle) ** 2 for value in values) + 2 * _OVERHEAD[1] ** 2
    spread = 0.15 if used[0].basis != "published" else sqrt(squares / (len(values) + 1))
    return exp(middle), spread * student(len(values) + 1, CONFIDENCE)


def _moving(algorithm: engine.Algorithm, payload_bytes: float, efficiency: Mapping[tuple[str, str], float]) -> float:
    """Seconds in which bytes move: of each phase, the longest of its links at their efficiencies."""
    return sum(
        repeat * excess * max(slope * payload_bytes / efficiency.get(key, 1.0) for key, slope in needs.items())
        for repeat, excess, needs in algorithm.parts
    )


def copy(
    direction: str, num_bytes: float, links: NodeLinks, evidence: EfficiencyEvidence, gpus_at_once: int = 1
) -> Prediction:
    """A copy between host memory and one GPU, "h2d" or "d2h", while as many of the node's GPUs copy as well.

    How several at once share the host was measured nowhere in public: then there is no middle, and each may have as
    little as half (two GPUs behind one switch, or what the host's memory gives).
    """
    if direction not in ("h2d", "d2h"):
        raise UsageError(f"no copy goes {direction!r}: h2d (host to device) or d2h")
    if links.pcie_bytes_per_s is None:
        raise UsageError(f"the PCIe link of {links.instance or 'these nodes'} is unknown: give it, such as pcie=25GB/s")
    name = engine.machine(links, "pcie-link")
    found = of_copies(evidence, name, direction)
    sharing = min(gpus_at_once, links.gpus_per_pcie_switch or 1)
    alone = num_bytes * sharing / links.pcie_bytes_per_s
    low, high = LAUNCH_S + alone / found.high, 3 * LAUNCH_S + alone / found.low
    told = found.told
    return Prediction(
        low_s=low,
        middle_s=2 * LAUNCH_S + alone / found.guess if gpus_at_once == 1 and found.middle is not None else None,
        high_s=high * (2 if gpus_at_once > 1 else 1),
        basis=told.basis if told else "bound",
        rests_on=told.sources if told else ("packet headers alone",),
        algorithm="",
        bottleneck=engine.LINK_WORDS["pcie"],
        link_class="pcie-link",
        machine=name,
        pool="pcie-link",
        spread=told.deviation if told else 0.1,
        verified=links.verified.get("pcie", True),
        ideal_s=alone,
    )
