"""Estimate the efficiency of a machine's links as an interval.

The evidence comes from the same family of links, or from neighbouring families.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, floor, inf, log, log2, sqrt
from statistics import median
from typing import cast

from bench.core.links import NodeLinks
from bench.predict import algorithms as engine
from bench.predict.pool import EfficiencyEstimate, FamilyCurves, Query, estimate, student
from bench.predict.published import EfficiencyEvidence

CONFIDENCE = 0.9  # the share of measurements that should be inside each interval
# For each family without measurements, the families with a lower and with a higher efficiency.
BRACKETS = {
    "nvswitch-nvls": ("nvswitch",),
    "nvswitch": ("nvlink-mesh", "infinity-fabric"),
    "nvlink-mesh": ("nvlink-pairs", "nvswitch"),
    "infinity-fabric": ("nvlink-mesh", "nvswitch"),
    "nvlink-pairs": ("nvlink-mesh", "nvswitch"),
    "pcie-p2p": ("nvlink-pairs", "nvswitch"),
    "no-p2p": (),
    "no-p2p-server": (),
    "network": (),
    "pcie-link": (),
    "memory": (),
}
PER_OCTAVE, GRID_STEPS = 2, 12  # the grid of busy times on which larger messages are checked
_UNLIMITED = ("no-p2p", "no-p2p-server")  # their interval has no upper end (`Efficiencies._at`)
LEAST_TYPICAL, MOST_TYPICAL = 0.35, 0.95  # used if nothing is known about a family


@dataclass(frozen=True, slots=True)
class EfficiencyRange:
    """The efficiency of one family of links, for messages that keep a link busy for a given time."""

    low: float
    middle: float | None
    high: float
    estimate: EfficiencyEstimate | None
    bracket: tuple[str, ...] = ()

    def at_least(self, other: EfficiencyRange, part: float) -> EfficiencyRange:
        """Return a range whose `low`, `middle` and `high` are at least `part` times those of `other`."""
        middle = self.middle
        if middle is not None and other.middle is not None:
            middle = max(middle, part * other.middle)
        low, high = max(self.low, part * other.low), max(self.high, part * other.high)
        if (low, middle, high) == (self.low, self.middle, self.high):
            return self
        return replace(self, low=low, middle=middle, high=high)

    @property
    def guess(self) -> float:
        """The middle of the range.

        If this middle is unknown, the geometric mean of `low` and `high` is used.
        """
        return self.middle if self.middle is not None else sqrt(self.low * self.high)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of the estimate, as text."""
        if self.estimate is not None:
            return self.estimate.sources
        if self.bracket:
            return (f"no measurement of these links; bracketed by {' and '.join(self.bracket)}",)
        return (f"no measurement; assumed {LEAST_TYPICAL:.0%} to {MOST_TYPICAL:.0%} of the link rates",)


class Efficiencies:
    """The efficiencies of the links for one pattern on one cluster, estimated from the evidence."""

    def __init__(self, task: engine.Task, links: NodeLinks, evidence: EfficiencyEvidence) -> None:
        self._task, self._links, self._evidence = task, links, evidence
        self._queries: dict[str, Query] = {}

    def of(self, family: str, busy_s: float) -> EfficiencyRange:
        """Return the efficiency of a family's links for messages of one size.

        `busy_s`: how long such a message keeps one link busy, in seconds.

        The estimate may change suddenly at the end of a curve. If a message would take longer than a larger message,
        the function raises the efficiency of the smaller message. Larger messages are checked on a fixed grid of
        GRID_STEPS steps.
        """
        memo = self._evidence.memo
        if family == "pcie-link":
            copies = family, engine.machine(self._links, family)
            if copies not in memo:
                memo[copies] = of_copies(self._evidence, copies[1], None)
            return cast(EfficiencyRange, memo[copies])
        query = self._queries.get(family)
        if query is None:
            query = self._queries[family] = self._query(family)
        known: EfficiencyRange | None = memo.get((query, busy_s))
        if known is None:
            known = memo[query, busy_s] = self._checked(query, busy_s)
        return known

    def _checked(self, query: Query, busy_s: float) -> EfficiencyRange:
        found = self._at(query, busy_s)
        first = floor(log2(busy_s) * PER_OCTAVE) + 1
        for step in range(first, first + GRID_STEPS):
            larger_s = 2.0 ** (step / PER_OCTAVE)
            if busy_s / larger_s <= found.low and (found.high == inf or query.family not in _UNLIMITED):
                break  # efficiencies are at most 1, so no larger message raises the range any more
            larger: EfficiencyRange | None = self._evidence.memo.get((query, "step", step))
            if larger is None:
                larger = self._evidence.memo[query, "step", step] = self._at(query, larger_s)
            found = found.at_least(larger, busy_s / larger_s)
        return found

    def _query(self, family: str) -> Query:
        exact, group = engine.generation(self._links, family)
        instance = engine.machine(self._links, family)
        return Query(
            family,
            exact,
            group,
            engine.load_style(self._task.pattern),
            instance if instance in self._measured_instances() else "",
            self._task.num_nodes * self._task.ranks_per_node,
            self._task.num_nodes,
        )

    def _measured_instances(self) -> frozenset[str]:
        """Return the instance types with measured curves."""
        memo = self._evidence.memo
        if "instances" not in memo:
            memo["instances"] = frozenset(each.instance for each in self._evidence.curves)
        return cast(frozenset[str], memo["instances"])

    def _at(self, query: Query, busy_s: float) -> EfficiencyRange:
        """Return the efficiency that the evidence gives for this busy time.

        This function does not check whether a larger message would take less time.
        """
        memo, where = self._evidence.memo, log(busy_s)
        if (query.family, where) not in memo:
            curves = "curves", query.family
            if curves not in memo:
                memo[curves] = FamilyCurves(self._evidence.curves, query.family)
            memo[query.family, where] = memo[curves].at(where)
        found = estimate(memo[query.family, where], query, where, memo)
        if found is None:
            return self._bracket(query.family, busy_s)
        sigmas = student(round(found.freedom), CONFIDENCE)
        # The few measured hosts without peer access differ, so another host may be faster than all measured hosts. Only
        # the GPUs' PCIe links, which are a separate family, limit such a host.
        fastest = inf if query.family in _UNLIMITED and found.basis == "published" else found.quantile(sigmas)
        return EfficiencyRange(found.quantile(-sigmas), found.quantile(0.0), fastest, found)

    def _bracket(self, family: str, busy_s: float) -> EfficiencyRange:
        """Return the interval for a family without measurements.

        The interval includes the efficiencies of the families in BRACKETS, and the interval that is typical of links.
        """
        curves = [each for each in self._evidence.curves if each.family in BRACKETS[family]]
        values = [exp(value) for each in curves if (value := each.at(log(busy_s))) is not None]
        low, high = min(values, default=LEAST_TYPICAL), max(values, default=MOST_TYPICAL)
        around = tuple(dict.fromkeys(each.family for each in curves))
        return EfficiencyRange(min(low, LEAST_TYPICAL), None, max(high, MOST_TYPICAL), None, around)


def of_copies(evidence: EfficiencyEvidence, instance: str, direction: str | None) -> EfficiencyRange:
    """Return the efficiency of PCIe copies.

    If the instance type was measured, only its own copies are used. If the instance type was not measured, the copies
    of all systems are used.
    """
    measured = [each for each in evidence.copies if direction in (None, each[2])]
    own = [each for each in measured if instance and each[1] == instance]
    values = [log(each[3]) for each in own or measured]
    if not values:
        return EfficiencyRange(0.8, None, 0.95, None)
    middle = median(values)
    squares = sum((value - middle) ** 2 for value in values)
    deviation = 0.01 if own else max(0.03, sqrt(squares / len(values)))
    sources = tuple(each[4] for each in own) or (f"nvbandwidth on {len({each[0] for each in measured})} systems",)
    found = EfficiencyEstimate(middle, deviation, 10.0, "published", sources, len(values), True)
    sigmas = student(10, CONFIDENCE)
    return EfficiencyRange(found.quantile(-sigmas), found.quantile(0.0), found.quantile(sigmas), found)
