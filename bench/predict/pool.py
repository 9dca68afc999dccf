"""Estimate the efficiency of a machine that was not measured, from the curves of many other machines.

The estimate is a weighted median, with an interval from Student's t distribution.

The busy time is the time that a link alone would need. An efficiency is the busy time divided by the measured time.
Curves are looked up by busy time, not by size, because small messages do not fill a link. The weight of a system is 1 /
(within^2 + distance^2). `within` is the standard deviation of ln(efficiency) between systems of one generation.
`distance` says how much the system differs from the queried machine, on the same scale. Similar systems therefore have
more weight. The median is used because unreported problems (an old library, sockets instead of RDMA) only make a system
slower.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, hypot, inf, log, sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
# The middle uses this part of the deviation between systems in its weights, so similar systems weigh more in the middle
# than in the interval. Systems of the queried type use SAME_MACHINE instead.
CENTRAL = 0.5
LARGE = 3e-3  # busy time in seconds above which efficiency hardly rises


@dataclass(frozen=True, slots=True)
class EfficiencyCurve:
    """The efficiencies of one system in one family.

    `points`: pairs of ln(busy time in seconds) and ln(efficiency), by rising busy time.

    `overhead`: the time of the smallest message minus the time of a launch, divided by the smallest link latency.
    `old_library`: see OLD_LIBRARY.
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
        """Return ln(efficiency) at one busy time, interpolated between the points of the curve.

        `where`: ln(busy time in seconds).

        Before the first point, the result is the value of the first point if `where` is near this point or belongs to
        large messages. After the last point, the result is the value of the last point if `where` is near this point,
        or if this point measures large messages. In all other cases, and between two points that are far apart, the
        result is None. If the result after the last point is None, the method `beyond` can estimate a value.
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
        """Return ln(efficiency) at a busy time after the end of the curve, or None if the curve has too few points.

        Larger messages are assumed to take `start + bytes / rate`, where the rate is the rate between the last two
        points.
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
    """An estimate of ln(efficiency).

    `mean`: the estimated ln(efficiency).
    `deviation`: the standard deviation of ln(efficiency) for one further system.
    `freedom`: the degrees of freedom of the t interval.
    """

    mean: float
    deviation: float
    freedom: float
    basis: str
    sources: tuple[str, ...]
    num_systems: int
    verified: bool

    def quantile(self, sigmas: float) -> float:
        """Return the efficiency at the mean plus `sigmas` standard deviations.

        The result is at most 1.
        """
        return min(exp(self.mean + sigmas * self.deviation), 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class _SystemCurves:
    """The curves of one system that have a value at a given busy time.

    `extrapolated`: whether each value is extrapolated.
    """

    curves: tuple[EfficiencyCurve, ...]
    extrapolated: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class FamilyValues:
    """The values of a family's curves at one busy time. All queries about the family use these values.

    `systems`: the systems with values.
    `values`: for each curve of each system, ln(efficiency), and the distance that is added if this value is
        extrapolated. Two FamilyValues have the same object `systems` if their values come from the same curves and the
        same values are extrapolated.
    """

    systems: tuple[_SystemCurves, ...]
    values: tuple[tuple[tuple[float, float], ...], ...]


# For each curve with a value: its index in the family, and whether the value is extrapolated.
_Valued = tuple[tuple[int, bool], ...]


class FamilyCurves:
    """The curves of one family of links.

    At each busy time, the curves give the values from which an efficiency is estimated.
    """

    def __init__(self, curves: Iterable[EfficiencyCurve], family: str) -> None:
        self._members = tuple(each for each in curves if each.family == family)
        self._references: dict[int, tuple[_Reference, ...]] = {}
        self._systems: dict[_Valued, _SystemCurves] = {}
        self._groups: dict[_Valued, tuple[tuple[_SystemCurves, ...], tuple[tuple[int, ...], ...]]] = {}

    def at(self, where: float) -> FamilyValues:
        """Return the values of the family's curves at one busy time. `where`: ln(busy time in seconds)."""
        direct = [curve.at(where) for curve in self._members]
        found: list[tuple[float, float]] = []
        shape: list[tuple[int, bool]] = []
        for place, here in enumerate(direct):
            value = (here, 0.0) if here is not None else self._extrapolated(place, direct, where)
            if value is not None:
                found.append(value)
                shape.append((place, value[1] > 0))
        key = tuple(shape)
        if key not in self._groups:
            self._groups[key] = self._grouped(key)
        systems, places = self._groups[key]
        return FamilyValues(systems, tuple(tuple(found[place] for place in own) for own in places))

    def _grouped(self, shape: _Valued) -> tuple[tuple[_SystemCurves, ...], tuple[tuple[int, ...], ...]]:
        """Return the systems with values, and for each system the indices of its curves."""
        by_system: dict[str, list[int]] = {}
        for place, (member, _) in enumerate(shape):
            by_system.setdefault(self._members[member].system, []).append(place)
        systems = []
        for own in by_system.values():
            key = tuple(shape[place] for place in own)
            if key not in self._systems:
                curves = tuple(self._members[member] for member, _ in key)
                self._systems[key] = _SystemCurves(curves, tuple(extrapolated for _, extrapolated in key))
            systems.append(self._systems[key])
        return tuple(systems), tuple(tuple(own) for own in by_system.values())

    def _extrapolated(self, place: int, direct: Sequence[float | None], where: float) -> tuple[float, float] | None:
        """Return ln(efficiency) of a curve at a busy time outside its points, and a distance.

        The extrapolated value is uncertain, so the returned distance is added to the distance of the curve's system.

        Return None if the efficiency is unknown. Below its first point, a curve is assumed to have the mean shape of
        the most similar curves of its family. `EfficiencyCurve.beyond` gives the values beyond the last point of a
        curve.

        `direct`: the result of `at(where)` for each curve of the family.
        """
        curve = self._members[place]
        if not curve.points:
            return None
        top, top_value = curve.points[-1]
        if top < where:
            further = curve.beyond(where)
            if further is None:
                return None
            return further, PER_EXTRAPOLATED * abs(further - top_value) + PER_BEYOND * (where - top)
        falls: dict[tuple[bool, bool], list[float]] = {}
        for each in self._references_of(place):
            here = direct[each.place]
            if here is not None:
                falls.setdefault(each.difference, []).append(here - each.at_top)
        if not falls:
            return None
        shape = falls[min(falls)]
        fall = sum(shape) / len(shape)
        return top_value + fall, PER_EXTRAPOLATED * abs(fall)

    def _references_of(self, place: int) -> tuple[_Reference, ...]:
        """Return the curves that can show how this curve continues below its first point.

        Such a curve has more than two points. It also has a value at the busy time at which this curve ends.
        """
        if place not in self._references:
            curve, found = self._members[place], []
            for other, each in enumerate(self._members):
                there = each.at(curve.points[-1][0]) if other != place and len(each.points) > 2 else None
                if there is not None:
                    difference = ((each.num_nodes > 1) != (curve.num_nodes > 1), each.exact != curve.exact)
                    found.append(_Reference(other, there, difference))
            self._references[place] = tuple(found)
        return self._references[place]


@dataclass(frozen=True, slots=True)
class _Reference:
    """A curve whose shape shows how to extrapolate another curve.

    `place`: the index of this curve in the family.
    `at_top`: the value of this curve at the busy time of the other curve's last point.
    `difference`: two values. The first value is whether only one of the two machines has several nodes. The second
        value is whether `exact` differs.
    """

    place: int
    at_top: float
    difference: tuple[bool, bool]


def estimate(
    found: FamilyValues, query: Query, where: float, memo: dict[Any, Any] | None = None
) -> EfficiencyEstimate | None:
    """Estimate the efficiency at one busy time from the family's values at this time.

    `where`: ln(busy time in seconds).

    Return None if no system of the family has a value at this busy time. `memo`: a cache that all estimates from the
    same curves share.
    """
    if not found.systems:
        return None
    known: dict[Any, Any] = {} if memo is None else memo.setdefault(query, {})
    if found.systems not in known:
        for system in found.systems:
            if system not in known:
                known[system] = _similar(system, query)
        known[found.systems] = _Comparison([known[system] for system in found.systems])
    compared: _Comparison = known[found.systems]
    values: list[float] = []
    squares: list[float] = []  # squares of the systems' distances
    for own_values, nearest in zip(found.values, compared.similar, strict=True):
        value, extrapolated = own_values[nearest.places[0]]
        if len(nearest.places) > 1:
            value = sum(own_values[place][0] for place in nearest.places) / len(nearest.places)
        values.append(value)
        squares.append(hypot(nearest.distance, extrapolated) ** 2 if extrapolated else nearest.square)
    within = compared.within(values, query.family, where)
    whole, half = within**2, (CENTRAL * within) ** 2
    weights = [1 / (whole + square) for square in squares]
    central = [1 / (half + square) for square in squares]
    spread = within
    for k, nearest in compared.near:
        own = within * (SAME_MACHINE if nearest.same_machine else 1.0) / (5.0 if nearest.own else 1.0)
        weights[k] = 1 / (own**2 + squares[k])
        central[k] = 1 / (own**2 + squares[k])
        spread = min(spread, within / 5 if nearest.own else within * SAME_MACHINE)
    if compared.chosen:
        mean = _weighted_median([values[k] for k in compared.chosen], [central[k] for k in compared.chosen])
    else:
        mean = _weighted_median(values, central)
    least = 0.1 * max(weights)
    heavy = [k for k, weight in enumerate(weights) if weight >= least]
    basis, sources, verified = compared.evidence(tuple(sorted(heavy, key=lambda k: -weights[k])))
    return EfficiencyEstimate(
        mean=mean,
        deviation=sqrt(spread**2 + 1 / sum(weights)),
        freedom=compared.freedom,
        basis=basis,
        sources=sources,
        num_systems=len(weights),
        verified=verified,
    )


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted median of some values.

    Interpolate linearly between neighbouring values.

    Half of all weight is below the median. The weight below a value is the weight of all smaller values plus half of
    the value's own weight.
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
class _Similar:
    """The curves of one system that are most similar to a query.

    `places`: the indices of these curves among the values of the system.
    `distance`: the `distance` that the module's docstring defines.
    `square`: the square of `distance`.
    `own`: whether the user measured the queried machine with the same number of ranks.
    """

    places: tuple[int, ...]
    curves: tuple[EfficiencyCurve, ...]
    distance: float
    square: float
    same_machine: bool
    own: bool


class _Comparison:
    """The similarity of some measured systems to the queried machine.

    `near`: (index, system) of each system for which `own` or `same_machine` is set.
    `chosen`: the indices of the systems for which `own` is set.
    `freedom`: the degrees of freedom of `within`.
    """

    def __init__(self, similar: Sequence[_Similar]) -> None:
        self.similar = similar
        self.near = [(k, each) for k, each in enumerate(similar) if each.own or each.same_machine]
        self.chosen = [k for k, each in self.near if each.own]
        generations: dict[str, list[int]] = {}
        for k, each in enumerate(similar):
            if not each.own:
                generations.setdefault(each.curves[0].exact, []).append(k)
        self._generations = [places for places in generations.values() if len(places) > 1]
        self.freedom = float(PRIOR_FREEDOM) + sum(len(places) - 1 for places in self._generations)
        self._evidence: dict[tuple[int, ...], tuple[str, tuple[str, ...], bool]] = {}

    def within(self, values: Sequence[float], family: str, where: float) -> float:
        """Return the standard deviation of ln(efficiency) between systems of one generation.

        The prior standard deviation has the same weight as PRIOR_FREEDOM systems. Systems that the user measured are
        not included.
        """
        prior = hypot(WITHIN.get(family, 0.25), PER_SMALLER * max(0.0, log(LARGE) - where))
        squares = PRIOR_FREEDOM * prior**2
        for places in self._generations:
            own = [values[k] for k in places]
            mean = sum(own) / len(own)
            squares += sum((value - mean) ** 2 for value in own)
        return sqrt(squares / self.freedom)

    def evidence(self, heavy: tuple[int, ...]) -> tuple[str, tuple[str, ...], bool]:
        """Return the type of evidence and the sources of the systems with the largest weights.

        The third value says whether all figures of these systems were read in a source.
        """
        if heavy not in self._evidence:
            curves = [curve for k in heavy for curve in self.similar[k].curves]
            sources = tuple(dict.fromkeys(curve.source for curve in curves))
            self._evidence[heavy] = curves[0].basis, sources, all(curve.verified for curve in curves)
        return self._evidence[heavy]


def _similar(system: _SystemCurves, query: Query) -> _Similar:
    ranked = [
        _dissimilarity(curve, query, extrapolated)
        for curve, extrapolated in zip(system.curves, system.extrapolated, strict=True)
    ]
    least = min(ranked)
    places = tuple(place for place, rank in enumerate(ranked) if rank == least)
    curve = system.curves[places[0]]
    distance = 0.0
    if curve.exact != query.exact:
        distance = OTHER_GENERATION if curve.group == query.group else OTHER_GROUP
    style = 0.0 if curve.style == query.style else OTHER_STYLE
    apart = PER_DOUBLING * log(curve.num_ranks / query.num_ranks, 2)
    single = OTHER_SINGLE if _single(curve) != _single(query) else 0.0
    library = OLD_LIBRARY if curve.old_library else 0.0
    host = OTHER_HOST if _crosses(curve) != _crosses(query) else 0.0
    same = bool(query.instance) and curve.instance == query.instance
    distance = hypot(distance, style, single, library, host, apart)
    return _Similar(
        places=places,
        curves=tuple(system.curves[place] for place in places),
        distance=distance,
        square=distance**2,
        same_machine=same,
        own=same and curve.basis != "published" and curve.num_ranks == query.num_ranks,
    )


def _dissimilarity(
    curve: EfficiencyCurve, query: Query, extrapolated: bool
) -> tuple[bool, bool, bool, bool, float, bool]:
    apart = abs(log(curve.num_nodes / query.num_nodes)) + 0.1 * abs(log(curve.num_ranks / query.num_ranks))
    return (
        curve.basis == "published",
        curve.exact != query.exact,
        _single(curve) != _single(query),
        curve.style != query.style,
        apart,
        extrapolated,
    )


def _single(each: EfficiencyCurve | Query) -> bool:
    """Return whether each node has one GPU."""
    return each.num_ranks == each.num_nodes


def _crosses(each: EfficiencyCurve | Query) -> bool:
    """Return whether paths between the GPUs of a node cross the processors of its host."""
    return each.family in HOST_FAMILIES and each.num_ranks // each.num_nodes >= SERVER_GPUS


@cache
def student(freedom: float, confidence: float) -> float:
    """Return the two-sided quantile of Student's t, by bisection of its distribution (Abramowitz and Stegun, 26.7)."""
    import numpy as np

    theta, cosine = _angles()
    density = cosine ** (freedom - 1)  # with t = sqrt(freedom) tan(theta)
    below = np.cumsum(density) / density.sum()
    return float(sqrt(freedom) * np.tan(theta[int(np.searchsorted(below, confidence))]))


@cache
def _angles() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return angles from 0 to a right angle, and their cosines."""
    import numpy as np

    theta = np.linspace(0.0, np.pi / 2, 200_001)[:-1]
    return theta, np.cos(theta)
