"""Validate predictions: predict each published row from evidence that excludes the row's own system and its source.

Each system counts once, with the median error of its rows, because the rows of one system are not independent. Coverage
also counts each system once. The interval of the coverage is a Wilson interval over systems.
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
LEVELS = {
    "network": "network",
    "no-p2p": "host",
    "no-p2p-server": "host",
    "pcie-p2p": "host",
}  # levels by family; all other families are "peer"
TARGETS = {"nvswitch-nvls": 0.05, "nvswitch": 0.05, "pcie-p2p": 0.15}  # median error of large allreduces
_Z90 = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class HeldOutRow:
    """One published row and its prediction. The evidence for the prediction excludes the row's system and source.

    An error is `predicted / measured - 1`.

    `pointed`: whether the prediction has a middle. A prediction without a middle has `Prediction.centre_s` as
        `predicted_s`, but reports do not show this value.
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
        """The signed error of the prediction."""
        return self.predicted_s / self.measured_s - 1

    @property
    def baseline_error(self) -> float | None:
        """The signed error of the baseline, which assumes one efficiency for all machines at a level."""
        return None if self.baseline_s is None else self.baseline_s / self.measured_s - 1

    @property
    def covered(self) -> bool:
        """Whether the measurement is inside the interval."""
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def size_range(self) -> str:
        """The name of the row's size range."""
        return next(words for low, high, words in RANGES if low <= self.payload_bytes < high)


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """The errors of a set of rows, which `words` describes.

    `error`, `baseline_error`: the median |error| of the systems. The error of a system is the median |error| of its
        rows.
    `num_better`: the number of systems whose error is smaller than the error of the baseline. Only the `num_compared`
        systems with a baseline are counted.
    `covered`: the share of a system's rows that are inside their intervals, averaged over the systems.
    `covered_low`, `covered_high`: the 90 % interval of `covered`.
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


def held_out_rows(evidence: EfficiencyEvidence) -> tuple[HeldOutRow, ...]:
    """Predict every row of the evidence from the rows of all other systems and sources.

    The results are in the order of the rows.
    """
    found: list[HeldOutRow] = []
    others_of: dict[tuple[str, str], tuple[EfficiencyEvidence, dict[str, float]]] = {}
    for rows in evidence.rows:
        key = rows.system, rows.source
        if key not in others_of:
            others = evidence.without(*key)
            others_of[key] = others, _constant_efficiencies(others)
        found += _held_out(rows, *others_of[key])
    return tuple(found)


def summarize(rows: Iterable[HeldOutRow], key: Callable[[HeldOutRow], tuple[str, ...]]) -> tuple[ErrorSummary, ...]:
    """Return one summary for all rows with the same `key`. The summaries are in the order of the rows."""
    groups: dict[tuple[str, ...], list[HeldOutRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return tuple(summary_of(words, members) for words, members in groups.items())


def summary_of(words: tuple[str, ...], rows: Sequence[HeldOutRow]) -> ErrorSummary:
    """Return the summary of rows. There must be at least one row."""
    systems: dict[str, list[HeldOutRow]] = {}
    for row in rows:
        systems.setdefault(row.system, []).append(row)
    errors, baselines, num_better = [], [], 0
    for own in systems.values():
        error = median(abs(row.error) for row in own)
        errors.append(error)
        own_baselines = [abs(row.baseline_error) for row in own if row.baseline_error is not None]
        if own_baselines:
            baselines.append(median(own_baselines))
            num_better += error < baselines[-1]
    covered = sum(sum(row.covered for row in own) / len(own) for own in systems.values()) / len(systems)
    low, high = _wilson(covered, len(systems))
    return ErrorSummary(
        words=words,
        num_systems=len(systems),
        num_rows=len(rows),
        num_pointed=sum(row.pointed for row in rows),
        error=median(errors),
        worst_error=max(errors),
        baseline_error=median(baselines) if baselines else None,
        num_better=num_better,
        num_compared=len(baselines),
        covered=covered,
        covered_low=low,
        covered_high=high,
    )


def large_allreduce(rows: Iterable[HeldOutRow]) -> tuple[HeldOutRow, ...]:
    """Return the rows of large allreduces, because the targets apply only to these."""
    return tuple(row for row in rows if row.pattern == "allreduce" and row.payload_bytes >= LARGE_BYTES)


def link_level(row: HeldOutRow) -> str:
    """Return the link class of a row. All classes of networks count as one class."""
    return "network" if row.link_class.startswith("network") else row.link_class


def _held_out(rows: PublishedCurve, others: EfficiencyEvidence, constant: dict[str, float]) -> list[HeldOutRow]:
    nodes, per_node = rows.num_nodes, rows.ranks_per_node
    sizes = sorted(rows.seconds)
    predicted = predict.curve(rows.pattern, sizes, rows.links, nodes, per_node, others)
    task = engine.task(rows.pattern, rows.links, nodes, per_node)
    return [
        HeldOutRow(
            system=rows.system,
            source=rows.source,
            pattern=rows.pattern,
            link_class=predicted[size].link_class,
            num_nodes=nodes,
            num_ranks=nodes * per_node,
            payload_bytes=size,
            measured_s=rows.seconds[size],
            low_s=predicted[size].low_s,
            predicted_s=predicted[size].centre_s,
            high_s=predicted[size].high_s,
            pointed=predicted[size].middle_s is not None,
            baseline_s=_baseline_s(task, size, constant),
            basis=predicted[size].basis,
        )
        for size in sizes
    ]


def _constant_efficiencies(others: EfficiencyEvidence) -> dict[str, float]:
    """Return the median efficiency over systems, for each level of links.

    The efficiency of a system is the efficiency of its largest messages.
    """
    tops: dict[str, dict[str, list[float]]] = {}
    for each in others.curves:
        if each.points:
            level = LEVELS.get(each.family, "peer")
            tops.setdefault(level, {}).setdefault(each.system, []).append(exp(each.points[-1][1]))
    return {level: median(median(own) for own in systems.values()) for level, systems in tops.items()}


def _baseline_s(task: engine.Task, payload_bytes: int, constant: dict[str, float]) -> float | None:
    """Return a simple estimate of the time in seconds: bytes / (rate of the link x efficiency).

    All machines of a level have the same efficiency.
    """
    times = []
    for algorithm in task.algorithms:
        link_times = []
        for (_, family), slope in algorithm.by_family.items():
            efficiency = constant.get(LEVELS.get(family, "peer"))
            if efficiency is not None:
                link_times.append(slope * payload_bytes / efficiency)
        if link_times:
            times.append(max(link_times))
    return min(times, default=None) or None


def _wilson(share: float, num: int) -> tuple[float, float]:
    """Return the 90 % interval of a share that was observed in `num` trials.

    The formula is Wilson's (1927).
    """
    z2 = _Z90**2
    centre = (share + z2 / (2 * num)) / (1 + z2 / num)
    half = _Z90 / (1 + z2 / num) * sqrt(share * (1 - share) / num + z2 / (4 * num**2))
    return max(0.0, centre - half), min(1.0, centre + half)
