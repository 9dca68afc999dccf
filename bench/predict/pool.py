"""Estimate the efficiency of an unmeasured machine from the curves of many machines, as a weighted median with its t
interval.

An efficiency is the time that a link alone would need (its busy time) / the measured time. Curves are looked up by busy
time, not by size, because small messages do not fill a link. The weight of a system is 1 / (within^2 + distance^2),
both on a logarithmic scale, so systems of the same kind weigh more. The median is used because unreported problems (an
old library, sockets instead of RDMA) only make a system slower.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, hypot, inf, log, sqrt
from typing import Any

# Prior standard deviations of ln(efficiency) between systems of one generation. They are round numbers that were not
# fitted, and weigh as much as PRIOR_FREEDOM systems. The OTHER_* constants below are the distances that are added for
# another generation, group or load style.
WITHIN = {
    "nvswitch": 0.05,
    "nvswitch-nvls": 0.05,
    "nvlink-mesh": 0.15,
    "infinity-fabric": 0.15,
    "nvlink-pairs": 0.15,
    "pcie-p2p": 0.25,
    "no-p2p": 0.35,
    "no-p2p-server": 0.35,
    "network": 0.25,
    "pcie-link": 0.03,
}
PRIOR_FREEDOM = 4
OTHER_GENERATION, OTHER_GROUP, OTHER_STYLE = 0.1, 0.25, 0.1
OTHER_SINGLE = 0.25  # distance between nodes with one GPU, which fills its NIC less, and nodes with several GPUs
# Distance of evidence from NCCL before 2.12, which sends messages between GPUs of different rails across the processors
# (NVIDIA, "Doubling all2all Performance with NVIDIA Collective Communication Library 2.12", 2022).
OLD_LIBRARY = 0.25
# Distance between nodes with at least SERVER_GPUS ranks, whose paths cross two processors, and nodes with fewer ranks.
# It applies to families whose path leads through the host.
OTHER_HOST, SERVER_GPUS = 0.25, 8
HOST_FAMILIES = ("pcie-p2p", "no-p2p-server")
PER_DOUBLING = 0.05  # distance added for each doubling of the number of ranks
PER_EXTRAPOLATED = 0.3  # distance added for an extrapolation by 1 in ln(efficiency)
PER_BEYOND = 0.1  # distance added for each factor of e in busy time beyond the largest message of a curve
SAME_MACHINE = 0.5  # deviation of a system of the queried instance type, as a multiple of WITHIN
REACH = log(4.0)  # largest distance in ln(busy time) at which a point counts
# Added to the deviation between systems for each factor of e that a busy time is below LARGE, because systems start up
# differently.
PER_SMALLER = 0.05
# The part of the deviation between systems that counts in the weights of the middle: similar systems weigh more there
# than in the interval, whose width is that of one more system. Systems of the queried type are near by SAME_MACHINE.
CENTRAL = 0.5
LARGE = 3e-3  # busy time in seconds above which efficiency hardly rises


@dataclass(frozen=True, slots=True)
class EfficiencyCurve:
    """The efficiencies of one system in one family.

    `points`: pairs of ln(busy time in seconds) and ln(efficiency), by rising busy time.

    `overhead`: (seconds of the smallest message - seconds of a launch) / the smallest link latency. `old_library`: see
    OLD_LIBRARY.
    """

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
    overhead: float | None = None
    verified: bool = True
    old_library: bool = False

    def at(self, where: float) -> float | None:
        """Return ln(efficiency) at `where`; None if `where` is neither between points nor near an end of the curve.

        `where`: ln(busy time in seconds). A curve that ends at large messages continues as a constant. `beyond` has
        values after the end of a curve of small messages.
        """
        points = self.points
        if not points:
            return None
        after = bisect_left(points, (where, -inf))
        if after == 0:
            constant = points[0][0] - where <= REACH / 2 or where >= log(LARGE)
            return points[0][1] if constant else None
        if after == len(points):
            constant = where - points[-1][0] <= REACH or points[-1][0] >= log(LARGE)
            return points[-1][1] if constant else None
        (x0, y0), (x1, y1) = points[after - 1], points[after]
        if x1 - x0 > 2.5 * REACH:
            return None
        return y0 + (y1 - y0) * (where - x0) / (x1 - x0)

    def beyond(self, where: float) -> float | None:
        """Return ln(efficiency) at a busy time after the end of the curve; None if the curve has too few points.

        The rate between its last two points is assumed to continue: time = start + bytes / rate.
        """
        if len(self.points) < 2 or where <= self.points[-1][0]:
            return None
        (x0, y0), (x1, y1) = self.points[-2:]
        first_s, last_s = exp(x0 - y0), exp(x1 - y1)
        if last_s <= first_s:
            return None
        rate = min(max((exp(x1) - exp(x0)) / (last_s - first_s), exp(y1)), 1.0)
        return where - log(last_s + (exp(where) - exp(x1)) / rate)


@dataclass(frozen=True, slots=True)
class Query:
    """The machine whose efficiency is estimated, and the family of its links."""

    family: str
    exact: str
    group: str
    style: str
    instance: str
    num_ranks: int
    num_nodes: int


@dataclass(frozen=True, slots=True)
class EfficiencyEstimate:
    """An estimate of ln(efficiency): its mean, the standard deviation of one more system, and the degrees of freedom of
    the t interval.
    """

    mean: float
    deviation: float
    freedom: float
    basis: str
    sources: tuple[str, ...]
    num_systems: int
    verified: bool

    def quantile(self, sigmas: float) -> float:
        """Return the efficiency at this many standard deviations from the mean, at most 1."""
        return min(exp(self.mean + sigmas * self.deviation), 1.0)


@dataclass(frozen=True, slots=True)
class FamilyValues:
    """The values of a family's curves at one busy time, by system; all queries about the family share them.

    `shapes`: one for each system, equal for values of the same curves, with the same of them extrapolated.
    """

    by_system: Mapping[str, Sequence[CurveValue]]
    shapes: tuple[tuple[tuple[int, bool], ...], ...]


def values_at(curves: Sequence[EfficiencyCurve], family: str, where: float) -> FamilyValues:
    """Return the values of a family's curves at the ln(busy time in seconds) `where`."""
    members = [each for each in curves if each.family == family]
    by_system: dict[str, list[CurveValue]] = {}
    here_of = [curve.at(where) for curve in members]
    for curve, direct in zip(members, here_of, strict=True):
        found = _value(curve, direct, members, here_of, where)
        if found is not None:
            by_system.setdefault(curve.system, []).append(CurveValue(curve, *found))
    shapes = (tuple((id(each.curve), each.extrapolated > 0) for each in own) for own in by_system.values())
    return FamilyValues(by_system, tuple(shapes))


def estimate(
    found: FamilyValues, query: Query, where: float, memo: dict[Any, Any] | None = None
) -> EfficiencyEstimate | None:
    """Estimate the efficiency at the ln(busy time in seconds) `where` from the family's `values_at` it.

    Return None if no system of the family has a value there. `memo`: a cache that all estimates from the same curves
    share.
    """
    if not found.by_system:
        return None
    known: dict[Any, Any] = {} if memo is None else memo.setdefault(query, {})
    similar: list[_Similar] = []
    for shape, members in zip(found.shapes, found.by_system.values(), strict=True):
        if shape not in known:
            known[shape] = _similar(members, query)
        similar.append(known[shape])
    values, distances = [], []
    for members, nearest in zip(found.by_system.values(), similar, strict=True):
        first = members[nearest.places[0]]
        own_values = [members[place].value for place in nearest.places]
        values.append(sum(own_values) / len(own_values))
        distances.append(hypot(nearest.distance, first.extrapolated) if first.extrapolated else nearest.distance)
    within, freedom = _within(values, similar, query.family, where)
    weights: list[float] = []
    central: list[float] = []
    chosen, spread = [], within
    for k, (nearest, distance) in enumerate(zip(similar, distances, strict=True)):
        own = within * (SAME_MACHINE if nearest.same_machine else 1.0) / (5.0 if nearest.own else 1.0)
        weights.append(1 / (own**2 + distance**2))
        central.append(1 / ((own if nearest.same_machine else CENTRAL * own) ** 2 + distance**2))
        if nearest.own:
            chosen.append(k)
            spread = min(spread, within / 5)
        elif nearest.same_machine:
            spread = min(spread, within * SAME_MACHINE)
    if chosen:
        mean = _weighted_median([values[k] for k in chosen], [central[k] for k in chosen])
    else:
        mean = _weighted_median(values, central)
    order = sorted(range(len(weights)), key=lambda k: -weights[k])
    heavy = tuple(k for k in order if weights[k] >= 0.1 * weights[order[0]])
    key = tuple(found.shapes[k] for k in heavy)
    if key not in known:
        curves = [curve for k in heavy for curve in similar[k].curves]
        sources = tuple(dict.fromkeys(curve.source for curve in curves))
        known[key] = curves[0].basis, sources, all(curve.verified for curve in curves)
    basis, sources, verified = known[key]
    return EfficiencyEstimate(
        mean=mean,
        deviation=sqrt(spread**2 + 1 / sum(weights)),
        freedom=freedom,
        basis=basis,
        sources=sources,
        num_systems=len(weights),
        verified=verified,
    )


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the value that has half of the weight below it.

    The values are sorted. The weight below a value is the weight of all smaller values and half of its own weight. The
    result is interpolated between values.
    """
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
class CurveValue:
    """The ln(efficiency) of one curve, and the distance that its extrapolation adds."""

    curve: EfficiencyCurve
    value: float
    extrapolated: float


@dataclass(frozen=True, slots=True)
class _Similar:
    """The curves of one system that are most similar to a query, by their places among the system's values.

    `distance`: that of the module's docstring. `own`: whether the user measured just this.
    """

    places: tuple[int, ...]
    curves: tuple[EfficiencyCurve, ...]
    distance: float
    same_machine: bool
    own: bool


def _similar(members: Sequence[CurveValue], query: Query) -> _Similar:
    ranked = [_dissimilarity(each, query) for each in members]
    places = tuple(place for place, rank in enumerate(ranked) if rank == min(ranked))
    curve = members[places[0]].curve
    distance = 0.0
    if curve.exact != query.exact:
        distance = OTHER_GENERATION if curve.group == query.group else OTHER_GROUP
    style = 0.0 if curve.style == query.style else OTHER_STYLE
    apart = PER_DOUBLING * log(curve.num_ranks / query.num_ranks, 2)
    single = OTHER_SINGLE if _single(curve) != _single(query) else 0.0
    library = OLD_LIBRARY if curve.old_library else 0.0
    host = OTHER_HOST if _crosses(curve) != _crosses(query) else 0.0
    same = bool(query.instance) and curve.instance == query.instance
    return _Similar(
        places=places,
        curves=tuple(members[place].curve for place in places),
        distance=hypot(distance, style, single, library, host, apart),
        same_machine=same,
        own=same and curve.basis != "published" and curve.num_ranks == query.num_ranks,
    )


def _dissimilarity(value: CurveValue, query: Query) -> tuple[bool, bool, bool, bool, float, bool]:
    curve = value.curve
    apart = abs(log(curve.num_nodes / query.num_nodes)) + 0.1 * abs(log(curve.num_ranks / query.num_ranks))
    return (
        curve.basis == "published",
        curve.exact != query.exact,
        _single(curve) != _single(query),
        curve.style != query.style,
        apart,
        value.extrapolated > 0,
    )


def _single(each: EfficiencyCurve | Query) -> bool:
    """Return whether each node has one GPU."""
    return each.num_ranks == each.num_nodes


def _crosses(each: EfficiencyCurve | Query) -> bool:
    """Return whether paths between the GPUs of a node cross the processors of its host."""
    return each.family in HOST_FAMILIES and each.num_ranks // each.num_nodes >= SERVER_GPUS


def _within(values: Sequence[float], similar: Sequence[_Similar], family: str, where: float) -> tuple[float, float]:
    """Return the standard deviation between systems of one generation, and its degrees of freedom.

    The prior standard deviation counts as much as PRIOR_FREEDOM systems. The user's own measurements do not count.
    """
    groups: dict[str, list[float]] = {}
    for value, nearest in zip(values, similar, strict=True):
        if not nearest.own:
            groups.setdefault(nearest.curves[0].exact, []).append(value)
    prior = hypot(WITHIN.get(family, 0.25), PER_SMALLER * max(0.0, log(LARGE) - where))
    squares, freedom = PRIOR_FREEDOM * prior**2, float(PRIOR_FREEDOM)
    for own in groups.values():
        mean = sum(own) / len(own)
        squares += sum((value - mean) ** 2 for value in own)
        freedom += len(own) - 1
    return sqrt(squares / freedom), freedom


def _value(
    curve: EfficiencyCurve,
    direct: float | None,
    family: Sequence[EfficiencyCurve],
    here_of: Sequence[float | None],
    where: float,
) -> tuple[float, float] | None:
    """Return ln(efficiency) of a curve, and the distance that its extrapolation adds; None if it is unknown.

    Below its first point, a curve is assumed to have the mean shape of the most similar curves of its family. Beyond
    its last point, see `EfficiencyCurve.beyond`. `direct` and `here_of`: `at(where)` of the curve and of each curve of
    its family.
    """
    if direct is not None:
        return direct, 0.0
    if not curve.points:
        return None
    if curve.points[-1][0] < where:
        further = curve.beyond(where)
        if further is None:
            return None
        end, value = curve.points[-1]
        return further, PER_EXTRAPOLATED * abs(further - value) + PER_BEYOND * (where - end)
    top, top_value = curve.points[-1]
    falls: dict[tuple[bool, bool], list[float]] = {}
    for each, here in zip(family, here_of, strict=True):
        if each is curve or here is None or len(each.points) <= 2:
            continue
        there = each.at(top)
        if there is not None:
            difference = ((each.num_nodes > 1) != (curve.num_nodes > 1), each.exact != curve.exact)
            falls.setdefault(difference, []).append(here - there)
    if not falls:
        return None
    shape = falls[min(falls)]
    fall = sum(shape) / len(shape)
    return top_value + fall, PER_EXTRAPOLATED * abs(fall)


@cache
def student(freedom: float, confidence: float) -> float:
    """Return the two-sided quantile of Student's t, by bisection of its distribution (Abramowitz and Stegun, 26.7)."""
    import numpy as np

    theta = np.linspace(0.0, np.pi / 2, 200_001)[:-1]
    density = np.cos(theta) ** (freedom - 1)  # with t = sqrt(freedom) tan(theta)
    below = np.cumsum(density) / density.sum()
    return float(sqrt(freedom) * np.tan(theta[int(np.searchsorted(below, confidence))]))
