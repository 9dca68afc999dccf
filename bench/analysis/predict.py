"""How long a collective or a copy takes on given links: an interval, a middle where one is known, and what it rests on.

The one engine is core/fabric.py with core/schedules.py: messages of an algorithm share links max-min fairly. Evidence
says only which part of a link's rate, and how long a step, machines of the same kind reached: it scales links, never
patterns, so that half a link is felt exactly by the patterns whose messages cross it (docs/prediction.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, floor, inf, log, log2, sqrt
from statistics import median

from bench.analysis import _predict_engine as engine
from bench.analysis._predict_engine import patterns
from bench.analysis._predict_evidence import LAUNCH_S, Evidence, Rows, evidence_of, of_run, published
from bench.analysis._predict_pool import Curve, Estimate, Query, estimate, student
from bench.core.errors import UsageError
from bench.core.fabric import NodeLinks
from bench.core.loads import ideal_s

__all__ = ["BASES", "CONFIDENCE", "Evidence", "Prediction", "Rows", "bounds_by_algorithm", "busbw", "by_algorithm",
           "collective", "copy", "curve", "evidence_of", "link_class", "of_run", "patterns", "published"]  # fmt: skip

BASES = ("measured", "imported", "published", "bound")  # what a figure rests on, the surest first
CONFIDENCE = 0.9  # of every interval: as often should a measurement lie inside
WIDEST = 4.0  # an interval whose ends differ by more than this factor has no middle that deserves to be shown
# Families whose efficiencies bracket one that nobody measured.
BRACKETS = {
    "nvlink-domain": ("nvswitch",), "nvswitch-nvls": ("nvswitch",), "nvswitch": ("nvlink-mesh", "infinity-fabric"),
    "nvlink-mesh": ("nvlink-pairs", "nvswitch"), "infinity-fabric": ("nvlink-mesh", "nvswitch"),
    "nvlink-pairs": ("nvlink-mesh", "nvswitch"), "pcie-p2p": ("nvlink-pairs", "nvswitch"), "no-p2p": (), "network": (),
    "pcie-link": (), "memory": (),
}  # fmt: skip
PER_OCTAVE, GRID_STEPS = 3, 18  # of the grid on which larger messages are looked at
LEAST_TYPICAL, MOST_TYPICAL = 0.35, 0.95  # where nothing at all is known of a family
_OVERHEAD = (
    9.0,
    0.6,
)  # small messages over their links' latency: middle, and half interval of ln, where nothing is known


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
    pattern: str, payload_bytes: float, links: NodeLinks, num_nodes: int, ranks_per_node: int, evidence: Evidence
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
    evidence: Evidence,
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
    pattern: str, sizes: Sequence[float], links: NodeLinks, num_nodes: int, ranks_per_node: int, evidence: Evidence
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


@dataclass(frozen=True, slots=True)
class _Range:
    """The efficiency of one family at one busy time."""

    low: float
    middle: float | None
    high: float
    told: Estimate | None
    bracket: tuple[str, ...] = ()

    def at_least(self, other: _Range, part: float) -> _Range:
        """No end below `part` of the other's."""
        middle = self.middle
        if middle is not None and other.middle is not None:
            middle = max(middle, part * other.middle)
        return replace(self, low=max(self.low, part * other.low), middle=middle, high=max(self.high, part * other.high))

    @property
    def guess(self) -> float:
        return self.middle if self.middle is not None else sqrt(self.low * self.high)


class _Asked:
    """One pattern on one cluster, beside the evidence."""

    def __init__(self, task: engine.Task, links: NodeLinks, evidence: Evidence) -> None:
        self.task, self.links, self.evidence = task, links, evidence
        self.most_ranks = self._most_ranks()
        used = self._overhead_evidence()
        self.overhead, self.overhead_half = _overhead(used)
        self.overhead_basis = used[0].basis if used else "bound"
        self.overhead_sources = tuple(dict.fromkeys(each.source for each in used)) or ("start-up as it typically is",)

    def predict(self, algorithm: engine.Algorithm, payload_bytes: float) -> Prediction:
        """One algorithm at one size."""
        needs = {key: slope * payload_bytes for key, slope in algorithm.by_family().items()}
        ranges = {key: self._range(key[1], busy_s) for key, busy_s in needs.items() if busy_s > 0}
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
            rests_on=self._beyond() + (self.overhead_sources if by_latency else self._rests_on(decides)),
            algorithm=algorithm.name,
            bottleneck="latency" if by_latency else engine.LINK_WORDS[key[0]] if key is not None else "latency",
            link_class=link_class(self.links, self.task.num_nodes, self.task.ranks_per_node),
            machine=engine.machine(self.links, key[1] if key is not None else self._family()),
            pool=self._pool(key),
            spread=decides.told.deviation if decides is not None and decides.told is not None else 0.5,
            verified=self._verified(key, decides),
            ideal_s=least,
        )

    def _range(self, family: str, busy_s: float) -> _Range:
        """The efficiency with which links of a family are used while one alone would be busy for `busy_s`.

        Where curves end, fewer of them say something else. So that no message takes longer than a larger one, the
        efficiency is at least what those of up to GRID_STEPS steps more, looked at on a fixed grid, imply.
        """
        if family == "pcie-link":
            return _copy_range(self.evidence, engine.machine(self.links, family), None)
        query = self._query(family)
        found = self._range_at(query, busy_s)
        first = floor(log2(busy_s) * PER_OCTAVE) + 1
        for step in range(first, first + GRID_STEPS):
            there = 2.0 ** (step / PER_OCTAVE)
            known: _Range | None = self.evidence.memo.get((query, step))
            if known is None:
                known = self.evidence.memo[query, step] = self._range_at(query, there)
            found = found.at_least(known, busy_s / there)
        return found

    def _query(self, family: str) -> Query:
        exact, group = engine.generation(self.links, family)
        return Query(family, exact, group, engine.style(self.task.pattern), engine.machine(self.links, family),
                     self.task.num_nodes * self.task.ranks_per_node, self.task.num_nodes)  # fmt: skip

    def _range_at(self, query: Query, busy_s: float) -> _Range:
        """As the evidence there says it."""
        found = estimate(self.evidence.curves, query, log(busy_s))
        if found is None:
            return self._bracket(query.family, busy_s)
        sigmas = student(round(found.freedom), CONFIDENCE)
        # How fast a host lets copies through differs from host to host, and few were measured: nothing but the GPUs'
        # own links, which are a family of their own, says how fast another one might be.
        fastest = inf if query.family == "no-p2p" and found.basis == "published" else found.quantile(sigmas)
        return _Range(found.quantile(-sigmas), found.quantile(0.0), fastest, found)

    def _bracket(self, family: str, busy_s: float) -> _Range:
        """Nobody measured it: from the least that a slower family reached to the most of a faster one."""
        curves = [each for each in self.evidence.curves if each.family in BRACKETS[family]]
        values = [exp(value) for each in curves if (value := each.at(log(busy_s))) is not None]
        low, high = min(values, default=LEAST_TYPICAL), max(values, default=MOST_TYPICAL)
        around = tuple(dict.fromkeys(each.family for each in curves))
        return _Range(min(low, LEAST_TYPICAL), None, max(high, MOST_TYPICAL), None, around)

    def _overhead_evidence(self) -> list[Curve]:
        """Curves whose smallest message tells of start-up: own ones of this machine, else all of this level."""
        crossing = self.task.num_nodes > max(1, self.links.nvlink_nodes)
        near = [each for each in self.evidence.curves if each.overhead is not None
                and (each.num_nodes > 1) == crossing]  # fmt: skip
        own = [each for each in near if each.basis != "published"
               and each.instance == engine.machine(self.links, each.family) != ""]  # fmt: skip
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

    def _rests_on(self, decides: _Range | None) -> tuple[str, ...]:
        if decides is not None and decides.told is not None:
            return decides.told.sources
        if decides is not None and decides.bracket:
            return (f"no measurement of this class; between what {' and '.join(decides.bracket)} reached",)
        return (f"no measurement; {LEAST_TYPICAL:.0%} to {MOST_TYPICAL:.0%} of what the links allow",)

    def _family(self) -> str:
        """Of the way that a message of no bytes takes."""
        crossing = self.task.num_nodes > max(1, self.links.nvlink_nodes)
        return "network" if crossing else engine.peer_family(self.links, self.task.num_nodes, False)

    def _pool(self, key: tuple[str, str] | None) -> str:
        if key is None:
            return "latency"
        exact, _ = engine.generation(self.links, key[1])
        return f"{key[1]} {exact}"

    def _verified(self, key: tuple[str, str] | None, decides: _Range | None) -> bool:
        of_kind = {"nvlink": ("nvlink",), "nvls": ("nvlink",), "pcie": ("pcie",), "host": ("pcie",),
                   "nic": ("network", "nic"), "memory": ("memory",)}  # fmt: skip
        links = of_kind[key[0]] if key is not None else ("latency",)
        read = all(self.links.verified.get(link, True) for link in links)
        return read and (decides is None or decides.told is None or decides.told.verified)


def _overhead(used: Sequence[Curve]) -> tuple[float, float]:
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
    total = 0.0
    for repeat, excess, needs in algorithm.parts:
        total += (
            repeat * excess * max((slope * payload_bytes / efficiency.get(key, 1.0) for key, slope in needs.items()))
        )
    return total


def copy(direction: str, num_bytes: float, links: NodeLinks, evidence: Evidence, gpus_at_once: int = 1) -> Prediction:
    """A copy between host memory and one GPU, "h2d" or "d2h", while as many of the node's GPUs copy as well.

    How several at once share the host was measured nowhere in public: then there is no middle, and each may have as
    little as half (two GPUs behind one switch, or what the host's memory gives).
    """
    if direction not in ("h2d", "d2h"):
        raise UsageError(f"no copy goes {direction!r}: h2d (host to device) or d2h")
    if links.pcie_bytes_per_s is None:
        raise UsageError(f"the PCIe link of {links.instance or 'these nodes'} is unknown: give it, such as pcie=25GB/s")
    name = engine.machine(links, "pcie-link")
    found = _copy_range(evidence, name, direction)
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


def _copy_range(evidence: Evidence, instance: str, direction: str | None) -> _Range:
    """Which part of a PCIe link copies reach: this instance type's own where it was measured, else of all systems."""
    fitting = [each for each in evidence.copies if direction in (None, each[2])]
    own = [each for each in fitting if instance and each[1] == instance]
    values = [log(each[3]) for each in own or fitting]
    if not values:
        return _Range(0.8, None, 0.95, None)
    middle = median(values)
    squares = sum((value - middle) ** 2 for value in values)
    deviation = 0.01 if own else max(0.03, sqrt(squares / len(values)))
    sources = tuple(each[4] for each in own) or (f"nvbandwidth on {len({each[0] for each in fitting})} systems",)
    told = Estimate(middle, deviation, 10.0, "published", sources, len(values), True)
    sigmas = student(10, CONFIDENCE)
    return _Range(told.quantile(-sigmas), told.quantile(0.0), told.quantile(sigmas), told)
