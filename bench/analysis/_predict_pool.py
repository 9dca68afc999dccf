"""From curves of many machines to the efficiency of one that nobody measured: a weighted mean and its t interval.

An efficiency is the seconds that a link alone would need, over the seconds measured. It is looked up along that very
time, since small messages fill no link: two machines of a family are alike where their links are busy as long. Machines
of the same kind weigh more than those of another generation: weight 1 / (within^2 + distance^2), in logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log, sqrt

# Standard deviations of ln(efficiency) that are supposed before anything is known, and count as PRIOR_FREEDOM systems:
# round figures, the same for all. Between systems of one generation, and more for another generation, another group.
WITHIN = {"nvswitch": 0.05, "nvswitch-nvls": 0.05, "nvlink-domain": 0.15, "nvlink-mesh": 0.15, "infinity-fabric": 0.15,
          "nvlink-pairs": 0.15, "pcie-p2p": 0.25, "no-p2p": 0.35, "network": 0.25, "pcie-link": 0.03}  # fmt: skip
PRIOR_FREEDOM = 4
OTHER_GENERATION, OTHER_GROUP, OTHER_STYLE = 0.1, 0.25, 0.1
SAME_MACHINE = 0.5  # a system of the queried instance type deviates by this part of WITHIN
REACH = log(4.0)  # how far along the curve a point still speaks
LARGE = 3e-3  # seconds of a busy link above which its efficiency no longer rises much


@dataclass(frozen=True, slots=True)
class Curve:
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
        after = next((k for k, point in enumerate(points) if point[0] >= where), len(points))
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
class Estimate:
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


def estimate(curves: Sequence[Curve], query: Query, where: float) -> Estimate | None:
    """The efficiency at ln(seconds of the busy link) = `where`; None where no system of the family says anything."""
    family = [each for each in curves if each.family == query.family]
    levels = [(each, value) for each in family if (value := _value(each, family, where)) is not None]
    systems: dict[str, list[tuple[Curve, float]]] = {}
    for each, value in levels:
        systems.setdefault(each.system, []).append((each, value))
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
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    spread = min(within, *(within / 5 if one.own else within * (SAME_MACHINE if one.same_machine else 1) for one in told))
    order = sorted(zip(weights, told, strict=True), key=lambda pair: -pair[0])
    heavy = [one for weight, one in order if weight >= 0.1 * order[0][0]]
    return Estimate(
        mean=mean,
        deviation=sqrt(spread**2 + 1 / total),
        freedom=freedom,
        basis=heavy[0].basis,
        sources=tuple(dict.fromkeys(source for one in heavy for source in one.sources)),
        num_systems=len(told),
        verified=all(one.verified for one in heavy),
    )


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


def _of_system(members: list[tuple[Curve, float]], query: Query) -> _System:
    """One value of a system: the mean of its curves that are the most like the question."""
    ranked = sorted({_unlike(each, query) for each, _ in members})
    near = [(each, value) for each, value in members if _unlike(each, query) == ranked[0]]
    first = near[0][0]
    distance = 0.0 if first.exact == query.exact else OTHER_GENERATION if first.group == query.group else OTHER_GROUP
    if first.style != query.style:
        distance = sqrt(distance**2 + OTHER_STYLE**2)
    if query.family == "network":
        apart = 0.1 * abs(log(first.num_nodes / query.num_nodes, 2))
        distance = sqrt(distance**2 + apart**2)
    same = bool(query.instance) and first.instance == query.instance
    return _System(
        value=sum(value for _, value in near) / len(near),
        distance=distance,
        exact=first.exact,
        basis=first.basis,
        sources=tuple(dict.fromkeys(each.source for each, _ in near)),
        same_machine=same,
        own=same and first.basis != "published" and first.num_ranks == query.num_ranks,
        verified=all(each.verified for each, _ in near),
    )


def _unlike(curve: Curve, query: Query) -> tuple[bool, bool, bool, float]:
    return (curve.basis == "published", curve.exact != query.exact, curve.style != query.style,
            abs(log(curve.num_nodes / query.num_nodes)) + 0.1 * abs(log(curve.num_ranks / query.num_ranks)))  # fmt: skip


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


def _value(curve: Curve, family: Sequence[Curve], where: float) -> float | None:
    """This curve's ln efficiency there; where only its top is known, brought there along the shape of the others."""
    direct = curve.at(where)
    if direct is not None or not curve.points or curve.points[-1][0] < where:
        return direct
    top, level = curve.points[-1]
    falls = [here - there for each in family if each is not curve and len(each.points) > 2
             and (here := each.at(where)) is not None and (there := each.at(top)) is not None]  # fmt: skip
    return level + sum(falls) / len(falls) if falls else None


@cache
def student(freedom: float, confidence: float) -> float:
    """Two-sided quantile of Student's t, by bisection of its distribution (Abramowitz and Stegun, 26.7)."""
    import numpy as np

    theta = np.linspace(0.0, np.pi / 2, 200_001)[:-1]
    density = np.cos(theta) ** (freedom - 1)  # with t = sqrt(freedom) tan(theta)
    below = np.cumsum(density) / density.sum()
    return float(sqrt(freedom) * np.tan(theta[int(np.searchsorted(below, confidence))]))
