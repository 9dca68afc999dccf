"""Which part of its links' rates a machine reaches, an interval: by evidence of its kind, or by families beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, floor, inf, log, log2, sqrt
from statistics import median

from bench.core.links import NodeLinks
from bench.predict import algorithms as engine
from bench.predict.pool import EfficiencyEstimate, Query, estimate, student
from bench.predict.published import EfficiencyEvidence

CONFIDENCE = 0.9  # of every interval: as often should a measurement lie inside
# Families whose efficiencies bracket one that nobody measured.
BRACKETS = {
    "nvlink-domain": ("nvswitch",),
    "nvswitch-nvls": ("nvswitch",),
    "nvswitch": ("nvlink-mesh", "infinity-fabric"),
    "nvlink-mesh": ("nvlink-pairs", "nvswitch"),
    "infinity-fabric": ("nvlink-mesh", "nvswitch"),
    "nvlink-pairs": ("nvlink-mesh", "nvswitch"),
    "pcie-p2p": ("nvlink-pairs", "nvswitch"),
    "no-p2p": (),
    "network": (),
    "pcie-link": (),
    "memory": (),
}
PER_OCTAVE, GRID_STEPS = 3, 18  # of the grid on which larger messages are looked at
LEAST_TYPICAL, MOST_TYPICAL = 0.35, 0.95  # where nothing at all is known of a family


@dataclass(frozen=True, slots=True)
class EfficiencyRange:
    """The efficiency of one family at one busy time."""

    low: float
    middle: float | None
    high: float
    told: EfficiencyEstimate | None
    bracket: tuple[str, ...] = ()

    def at_least(self, other: EfficiencyRange, part: float) -> EfficiencyRange:
        """No end below `part` of the other's."""
        middle = self.middle
        if middle is not None and other.middle is not None:
            middle = max(middle, part * other.middle)
        return replace(self, low=max(self.low, part * other.low), middle=middle, high=max(self.high, part * other.high))

    @property
    def guess(self) -> float:
        """The middle, or where none is known the geometric middle of the interval."""
        return self.middle if self.middle is not None else sqrt(self.low * self.high)

    @property
    def sources(self) -> tuple[str, ...]:
        """What it rests on, in words."""
        if self.told is not None:
            return self.told.sources
        if self.bracket:
            return (f"no measurement of this class; between what {' and '.join(self.bracket)} reached",)
        return (f"no measurement; {LEAST_TYPICAL:.0%} to {MOST_TYPICAL:.0%} of what the links allow",)


class Efficiencies:
    """Those of one pattern on one cluster, beside the evidence."""

    def __init__(self, task: engine.Task, links: NodeLinks, evidence: EfficiencyEvidence) -> None:
        self._task, self._links, self._evidence = task, links, evidence

    def of(self, family: str, busy_s: float) -> EfficiencyRange:
        """The efficiency with which links of a family are used while one alone would be busy for `busy_s`.

        Where curves end, fewer of them say something else. So that no message takes longer than a larger one, the
        efficiency is at least what those of up to GRID_STEPS steps more, looked at on a fixed grid, imply.
        """
        if family == "pcie-link":
            return of_copies(self._evidence, engine.machine(self._links, family), None)
        query = self._query(family)
        found = self._at(query, busy_s)
        first = floor(log2(busy_s) * PER_OCTAVE) + 1
        for step in range(first, first + GRID_STEPS):
            there = 2.0 ** (step / PER_OCTAVE)
            known: EfficiencyRange | None = self._evidence.memo.get((query, step))
            if known is None:
                known = self._evidence.memo[query, step] = self._at(query, there)
            found = found.at_least(known, busy_s / there)
        return found

    def _query(self, family: str) -> Query:
        exact, group = engine.generation(self._links, family)
        return Query(
            family,
            exact,
            group,
            engine.style(self._task.pattern),
            engine.machine(self._links, family),
            self._task.num_nodes * self._task.ranks_per_node,
            self._task.num_nodes,
        )

    def _at(self, query: Query, busy_s: float) -> EfficiencyRange:
        """As the evidence there says it."""
        found = estimate(self._evidence.curves, query, log(busy_s))
        if found is None:
            return self._bracket(query.family, busy_s)
        sigmas = student(round(found.freedom), CONFIDENCE)
        # How fast a host lets copies through differs from host to host, and few were measured: nothing but the GPUs'
        # own links, which are a family of their own, says how fast another one might be.
        fastest = inf if query.family == "no-p2p" and found.basis == "published" else found.quantile(sigmas)
        return EfficiencyRange(found.quantile(-sigmas), found.quantile(0.0), fastest, found)

    def _bracket(self, family: str, busy_s: float) -> EfficiencyRange:
        """Nobody measured it: from the least that a slower family reached to the most of a faster one."""
        curves = [each for each in self._evidence.curves if each.family in BRACKETS[family]]
        values = [exp(value) for each in curves if (value := each.at(log(busy_s))) is not None]
        low, high = min(values, default=LEAST_TYPICAL), max(values, default=MOST_TYPICAL)
        around = tuple(dict.fromkeys(each.family for each in curves))
        return EfficiencyRange(min(low, LEAST_TYPICAL), None, max(high, MOST_TYPICAL), None, around)


def of_copies(evidence: EfficiencyEvidence, instance: str, direction: str | None) -> EfficiencyRange:
    """Which part of a PCIe link copies reach: this instance type's own where it was measured, else of all systems."""
    fitting = [each for each in evidence.copies if direction in (None, each[2])]
    own = [each for each in fitting if instance and each[1] == instance]
    values = [log(each[3]) for each in own or fitting]
    if not values:
        return EfficiencyRange(0.8, None, 0.95, None)
    middle = median(values)
    squares = sum((value - middle) ** 2 for value in values)
    deviation = 0.01 if own else max(0.03, sqrt(squares / len(values)))
    sources = tuple(each[4] for each in own) or (f"nvbandwidth on {len({each[0] for each in fitting})} systems",)
    told = EfficiencyEstimate(middle, deviation, 10.0, "published", sources, len(values), True)
    sigmas = student(10, CONFIDENCE)
    return EfficiencyRange(told.quantile(-sigmas), told.quantile(0.0), told.quantile(sigmas), told)
