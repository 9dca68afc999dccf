"""From curves of many machines to the efficiency of one that nobody measured: a weighted median and its t interval.

An efficiency is the seconds that a link alone would need, over the seconds measured. It is looked up along that very
time, since small messages fill no link: two machines of a family are alike where their links are busy as long. Machines
of the same kind weigh more than those of another generation: weight 1 / (within^2 + distance^2), in logarithms. The
median, since what holds a machine back without being told (an old library, sockets in place of RDMA) makes it slower.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, hypot, inf, log, sqrt

# Standard deviations of ln(efficiency) that are supposed before anything is known, and count as PRIOR_FREEDOM systems:
# round figures, the same for all. Between systems of one generation, and more for another generation, another group.
WITHIN = {
    "nvswitch": 0.05,
    "nvswitch-nvls": 0.05,
    "nvlink-domain": 0.15,
    "nvlink-mesh": 0.15,
    "infinity-fabric": 0.15,
    "nvlink-pairs": 0.15,
    "pcie-p2p": 0.25,
    "no-p2p": 0.35,
    "network": 0.25,
    "pcie-link": 0.03,
}
PRIOR_FREEDOM = 4
OTHER_GENERATION, OTHER_GROUP, OTHER_STYLE = 0.1, 0.25, 0.1
PER_DOUBLING = 0.05  # of the number of ranks
PER_BROUGHT = 0.3  # of what a value was brought along the shape of other curves
SAME_MACHINE = 0.5  # a system of the queried instance type deviates by this part of WITHIN
REACH = log(4.0)  # how far along the curve a point still speaks
LARGE = 3e-3  # seconds of a busy link above which its efficiency no longer rises much


@dataclass(frozen=True, slots=True)
class EfficiencyCurve:
    """One system's efficiencies in one family: (ln seconds of the busy link, ln efficiency), rising."""

    system: str
    instance: str
    basis: str
    source: str
    family: str
    exact: str
    group: str
    style: str
    num_ranks: int
    num_nodes: int
    points: tuple[tuple[float, float], ...]
    overhead: float | None = None  # seconds of the smallest message beyond the launch, over its least latency
    verified: bool = True

    def at(self, where: float) -> float | None:
        """ln efficiency, between points or at an end within reach; a curve of large messages goes on level."""
        points = self.points
        if not points:
            return None
        after = bisect_left(points, (where, -inf))
        if after == 0:
            return points[0][1] if points[0][0] - where <= REACH / 2 else None
        if after == len(points):
            level = where - points[-1][0] <= REACH or points[-1][0] >= log(LARGE)
            return points[-1][1] if level else None
        (x0, y0), (x1, y1) = points[after - 1], points[after]
        if x1 - x0 > 2.5 * REACH:
            return None
        return y0 + (y1 - y0) * (where - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Query:
    """The machine that is asked about, in one family."""

    family: str
    exact: str
    group: str
    style: str
    instance: str
    num_ranks: int
    num_nodes: int


@dataclass(frozen=True, slots=True)
class EfficiencyEstimate:
    """ln efficiency: mean, standard deviation of one more system, and degrees of freedom for its t interval."""

    mean: float
    deviation: float
    freedom: float
    basis: str
    sources: tuple[str, ...]
    num_systems: int
    verified: bool

    def quantile(self, sigmas: float) -> float:
        """The efficiency at so many deviations from the mean, never above 1."""
        return min(exp(self.mean + sigmas * self.deviation), 1.0)


def estimate(curves: Sequence[EfficiencyCurve], query: Query, where: float) -> EfficiencyEstimate | None:
    """The efficiency at ln(seconds of the busy link) = `where`; None where no system of the family says anything."""
    family = [each for each in curves if each.family == query.family]
    systems: dict[str, list[_Level]] = {}
    for each in family:
        found = _value(each, family, where)
        if found is not None:
            systems.setdefault(each.system, []).append(_Level(each, *found))
    if not systems:
        return None
    told = [_of_system(members, query) for members in systems.values()]
    within, freedom = _within(told, query.family)
    weights, values = [], []
    for one in told:
        own = within * (SAME_MACHINE if one.same_machine else 1.0) / (5.0 if one.own else 1.0)
        weights.append(1 / (own**2 + one.distance**2))
        values.append(one.value)
    total = sum(weights)
    mean = _weighted_median(values, weights)
    spread = min(
        within, *(within / 5 if one.own else within * (SAME_MACHINE if one.same_machine else 1) for one in told)
    )
    order = sorted(zip(weights, told, strict=True), key=lambda pair: -pair[0])
    heavy = [one for weight, one in order if weight >= 0.1 * order[0][0]]
    return EfficiencyEstimate(
        mean=mean,
        deviation=sqrt(spread**2 + 1 / total),
        freedom=freedom,
        basis=heavy[0].basis,
        sources=tuple(dict.fromkeys(source for one in heavy for source in one.sources)),
        num_systems=len(told),
        verified=all(one.verified for one in heavy),
    )


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Where half of the weight lies below, between two values by their weights (each value stands at its middle)."""
    order = sorted(zip(values, weights, strict=True))
    half, below = sum(weights) / 2, 0.0
    places = []
    for value, weight in order:
        places.append((below + weight / 2, value))
        below += weight
    for (left, low), (right, high) in pairwise(places):
        if left <= half <= right:
            return low + (high - low) * (half - left) / (right - left)
    return places[0][1] if half < places[0][0] else places[-1][1]


@dataclass(frozen=True, slots=True)
class _Level:
    """ln efficiency of one curve, and how far it was brought along the shape of others."""

    curve: EfficiencyCurve
    value: float
    brought: float


@dataclass(frozen=True, slots=True)
class _System:
    value: float
    distance: float
    exact: str
    basis: str
    sources: tuple[str, ...]
    same_machine: bool
    own: bool
    verified: bool


def _of_system(members: Sequence[_Level], query: Query) -> _System:
    """One value of a system: the mean of its curves that are the most like the question."""
    least = min(_unlike(each, query) for each in members)
    near = [each for each in members if _unlike(each, query) == least]
    first = near[0].curve
    distance = 0.0 if first.exact == query.exact else OTHER_GENERATION if first.group == query.group else OTHER_GROUP
    style = 0.0 if first.style == query.style else OTHER_STYLE
    apart = PER_DOUBLING * log(first.num_ranks / query.num_ranks, 2)
    same = bool(query.instance) and first.instance == query.instance
    return _System(
        value=sum(each.value for each in near) / len(near),
        distance=hypot(distance, style, apart, PER_BROUGHT * near[0].brought),
        exact=first.exact,
        basis=first.basis,
        sources=tuple(dict.fromkeys(each.curve.source for each in near)),
        same_machine=same,
        own=same and first.basis != "published" and first.num_ranks == query.num_ranks,
        verified=all(each.curve.verified for each in near),
    )


def _unlike(level: _Level, query: Query) -> tuple[bool, bool, bool, float, bool]:
    curve = level.curve
    apart = abs(log(curve.num_nodes / query.num_nodes)) + 0.1 * abs(log(curve.num_ranks / query.num_ranks))
    return (
        curve.basis == "published",
        curve.exact != query.exact,
        curve.style != query.style,
        apart,
        level.brought > 0,
    )


def _within(told: Sequence[_System], family: str) -> tuple[float, float]:
    """Standard deviation between systems of one generation, drawn to what is supposed, and its degrees of freedom."""
    groups: dict[str, list[float]] = {}
    for one in told:
        groups.setdefault(one.exact, []).append(one.value)
    squares, freedom = PRIOR_FREEDOM * WITHIN.get(family, 0.25) ** 2, float(PRIOR_FREEDOM)
    for values in groups.values():
        mean = sum(values) / len(values)
        squares += sum((value - mean) ** 2 for value in values)
        freedom += len(values) - 1
    return sqrt(squares / freedom), freedom


def _value(curve: EfficiencyCurve, family: Sequence[EfficiencyCurve], where: float) -> tuple[float, float] | None:
    """This curve's ln efficiency there, and how far it was brought: where only its top is known, along the shape of the
    curves that are the most like it."""
    direct = curve.at(where)
    if direct is not None or not curve.points or curve.points[-1][0] < where:
        return None if direct is None else (direct, 0.0)
    top, level = curve.points[-1]
    falls: dict[tuple[bool, bool], list[float]] = {}
    for each in family:
        here, there = each.at(where), each.at(top)
        if each is not curve and len(each.points) > 2 and here is not None and there is not None:
            unlike = ((each.num_nodes > 1) != (curve.num_nodes > 1), each.exact != curve.exact)
            falls.setdefault(unlike, []).append(here - there)
    if not falls:
        return None
    shape = falls[min(falls)]
    fall = sum(shape) / len(shape)
    return level + fall, abs(fall)


@cache
def student(freedom: float, confidence: float) -> float:
    """Two-sided quantile of Student's t, by bisection of its distribution (Abramowitz and Stegun, 26.7)."""
    import numpy as np

    theta = np.linspace(0.0, np.pi / 2, 200_001)[:-1]
    density = np.cos(theta) ** (freedom - 1)  # with t = sqrt(freedom) tan(theta)
    below = np.cumsum(density) / density.sum()
    return float(sqrt(freedom) * np.tan(theta[int(np.searchsorted(below, confidence))]))
