"""What predictions are worth: each published row predicted without any row of its own system.

Errors are counted per system (its median over its rows), so that one with many rows does not hide one with a single
row; coverage likewise, with a Wilson interval over systems, since rows of one system are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import median

from bench.predict import algorithms as engine
from bench.predict import predict
from bench.predict.predict import EfficiencyEvidence, PublishedCurve

RANGES = (
    (0, 1 << 16, "below 64 KiB"),
    (1 << 16, 1 << 20, "64 KiB to 1 MiB"),
    (1 << 20, 1 << 26, "1 to 64 MiB"),
    (1 << 26, 1 << 62, "64 MiB and above"),
)
LARGE_BYTES = 1 << 26
LEVELS = {"network": "network", "no-p2p": "host", "pcie-p2p": "host"}  # of a family; all others are peers
TARGETS = {"nvswitch-nvls": 0.05, "nvswitch": 0.05, "pcie-p2p": 0.15}  # median error, allreduce, LARGE_BYTES and above
_Z90 = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class Tried:
    """One published row beside its prediction without its system. Errors: predicted / measured - 1.

    `pointed`: had the prediction a middle? Else its error is of the geometric middle of its interval.
    """

    system: str
    source: str
    pattern: str
    link_class: str
    num_nodes: int
    num_ranks: int
    payload_bytes: int
    measured_s: float
    low_s: float
    predicted_s: float
    high_s: float
    pointed: bool
    baseline_s: float | None
    basis: str

    @property
    def error(self) -> float:
        """Signed, of the prediction."""
        return self.predicted_s / self.measured_s - 1

    @property
    def baseline_error(self) -> float | None:
        """Signed, of the baseline: one efficiency for all machines of a level."""
        return None if self.baseline_s is None else self.baseline_s / self.measured_s - 1

    @property
    def covered(self) -> bool:
        """Did the interval hold the measurement?"""
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def size_range(self) -> str:
        """The words of its size range."""
        return next(words for low, high, words in RANGES if low <= self.payload_bytes < high)


@dataclass(frozen=True, slots=True)
class Worth:
    """Many tried rows in short. `error` and `baseline_error`: medians over systems of their medians of |error|.

    `num_better`: of the `num_compared` systems that have a baseline, those whose own error is the smaller one.
    `covered`: mean over systems of the part of their rows that intervals held; low and high are its 90 % interval.
    """

    words: tuple[str, ...]
    num_systems: int
    num_rows: int
    num_pointed: int
    error: float
    worst_error: float
    baseline_error: float | None
    num_better: int
    num_compared: int
    covered: float
    covered_low: float
    covered_high: float


def tried(evidence: EfficiencyEvidence) -> tuple[Tried, ...]:
    """Every row, predicted from the others; the evidence's own order."""
    found: list[Tried] = []
    without: dict[str, tuple[EfficiencyEvidence, dict[str, float]]] = {}
    for rows in evidence.rows:
        if rows.system not in without:
            others = evidence.without(rows.system)
            without[rows.system] = others, _constant_efficiencies(others)
        found += _tried(rows, *without[rows.system])
    return tuple(found)


def by(rows: Iterable[Tried], key: Callable[[Tried], tuple[str, ...]]) -> tuple[Worth, ...]:
    """The worth of each group, in the order of first appearance."""
    groups: dict[tuple[str, ...], list[Tried]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return tuple(worth(words, members) for words, members in groups.items())


def worth(words: tuple[str, ...], rows: Sequence[Tried]) -> Worth:
    """Of rows that are not none."""
    systems: dict[str, list[Tried]] = {}
    for row in rows:
        systems.setdefault(row.system, []).append(row)
    errors = [median(abs(row.error) for row in own) for own in systems.values()]
    both = [
        (ours, median(told))
        for ours, own in zip(errors, systems.values(), strict=True)
        if (told := [abs(row.baseline_error) for row in own if row.baseline_error is not None])
    ]
    base = [theirs for _, theirs in both]
    better = sum(ours < theirs for ours, theirs in both)
    covered = sum(sum(row.covered for row in own) / len(own) for own in systems.values()) / len(systems)
    low, high = _wilson(covered, len(systems))
    return Worth(
        words,
        len(systems),
        len(rows),
        sum(row.pointed for row in rows),
        median(errors),
        max(errors),
        median(base) if base else None,
        better,
        len(both),
        covered,
        low,
        high,
    )


def large_allreduce(rows: Iterable[Tried]) -> tuple[Tried, ...]:
    """The rows that the targets speak of."""
    return tuple(row for row in rows if row.pattern == "allreduce" and row.payload_bytes >= LARGE_BYTES)


def level_class(row: Tried) -> str:
    """The class of a row; all networks are one."""
    return "network" if row.link_class.startswith("network") else row.link_class


def _tried(rows: PublishedCurve, others: EfficiencyEvidence, constant: dict[str, float]) -> list[Tried]:
    nodes, per_node = rows.num_nodes, rows.ranks_per_node
    sizes = sorted(rows.seconds)
    told = predict.curve(rows.pattern, sizes, rows.links, nodes, per_node, others)
    task = engine.task(rows.pattern, rows.links, nodes, per_node)
    return [
        Tried(
            rows.system,
            rows.source,
            rows.pattern,
            told[size].link_class,
            nodes,
            nodes * per_node,
            size,
            rows.seconds[size],
            told[size].low_s,
            told[size].centre_s,
            told[size].high_s,
            told[size].middle_s is not None,
            _baseline_s(task, size, constant),
            told[size].basis,
        )
        for size in sizes
    ]


def _constant_efficiencies(others: EfficiencyEvidence) -> dict[str, float]:
    """Of each level, the median over systems of the efficiency of their largest messages."""
    tops: dict[str, dict[str, list[float]]] = {}
    for each in others.curves:
        if each.points:
            level = LEVELS.get(each.family, "peer")
            tops.setdefault(level, {}).setdefault(each.system, []).append(exp(each.points[-1][1]))
    return {level: median(median(own) for own in systems.values()) for level, systems in tops.items()}


def _baseline_s(task: engine.Task, payload_bytes: int, constant: dict[str, float]) -> float | None:
    """What everybody does by hand: bytes over the link, times one efficiency of all that was ever seen on its level."""
    times = []
    for algorithm in task.algorithms:
        needs = algorithm.by_family().items()
        told = [
            slope * payload_bytes / level
            for (_, family), slope in needs
            if (level := constant.get(LEVELS.get(family, "peer"))) is not None
        ]
        times += [max(told)] if told else []
    return min(times, default=None) or None


def _wilson(share: float, num: int) -> tuple[float, float]:
    """90 % interval of a share of `num` (E. B. Wilson, 1927)."""
    z2 = _Z90**2
    centre = (share + z2 / (2 * num)) / (1 + z2 / num)
    half = _Z90 / (1 + z2 / num) * sqrt(share * (1 - share) / num + z2 / (4 * num**2))
    return max(0.0, centre - half), min(1.0, centre + half)
