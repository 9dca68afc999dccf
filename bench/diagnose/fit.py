"""Estimate the normal rate of comparable pairs.

Also estimate how much each slow rack, host, NIC or rank slows its pairs. Rates are stored as the natural logarithm of
(bandwidth / normal level of the pair's class). For example, -0.105 means 0.9 of normal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.diagnose.places import Array

SLOW = math.log(0.9)  # a part with an effect below this value is slow
_SUSPECT = math.log(0.95)  # a part with an effect below this value is suspected
_FLOOR = 0.01  # the smallest noise to assume, because no bandwidth is measured to better than 1 %
_QUANTILE = 0.75
_MOST_PASSES = 40
_PRIOR_BAD = 0.1  # expected number of slow parts in a run
_MILD = 10  # prior probability of a slighter effect / that of a slow part
_GRID = np.arange(math.log(0.02), math.log(1.2), 0.01)


@dataclass(frozen=True, slots=True)
class Level:
    """The parts of one kind in a measurement, for example all hosts.

    A part is called a unit here. Each unit has a label, ranks, the rows in which it sends ("out"), and the rows in
    which it receives ("in").

    `asked`: for each unit, all of its rows.
    `drawn`: for each unit, the rows of those rounds that were not chosen because of a suspicion. Without this
        distinction, a unit could look worse only because it was suspected and therefore measured more often.
    `least_partners`: a unit can be suspected only if it was measured with at least this number of partners.
    """

    kind: str
    labels: tuple[Any, ...]
    ranks: tuple[tuple[int, ...], ...]
    asked: Mapping[str, Groups]
    drawn: Mapping[str, Groups]
    least_partners: int

    @classmethod
    def of(
        cls, kind: str, labels: Sequence[Any], src: Array, dst: Array, drawn: Array, partner: Array, least: int
    ) -> Level:
        """Build a level from rows.

        `labels`: for each rank, the label of its unit, or None if the rank belongs to no unit.
        `drawn`: for each row, whether its round was chosen without a suspicion.
        `partner`: for each rank, the number that identifies the rank as a partner. For most levels, this number
            identifies the rank itself or its host.
        """
        names = list(dict.fromkeys(label for label in labels if label is not None))
        number = {label: index for index, label in enumerate(names)}
        unit = np.array([number.get(label, -1) for label in labels], dtype=np.int64)
        ranks: list[list[int]] = [[] for _ in names]
        for rank, label in enumerate(labels):
            if label is not None:
                ranks[number[label]].append(rank)
        # Pairs inside a rack do not test the rack's uplink.
        crosses = (unit[src] != unit[dst]) | (least == 0)
        partners = unit if kind == "rack" else partner

        def groups(taken: Array) -> dict[str, Groups]:
            return {
                "out": Groups(np.where(taken, unit[src], -1), partners[dst], len(names)),
                "in": Groups(np.where(taken, unit[dst], -1), partners[src], len(names)),
            }

        asked = groups(crosses)
        return cls(
            kind,
            tuple(names),
            tuple(map(tuple, ranks)),
            asked,
            asked if drawn.all() else groups(crosses & drawn),
            least,
        )


class Groups:
    """For each unit, the indices of its rows.

    All indices are in one padded table. Sorting this table once gives the quantiles of all units.
    """

    def __init__(self, unit: Array, partner: Array, num_units: int) -> None:
        self.unit, self._num = unit, num_units
        rows = np.flatnonzero(unit >= 0)
        narrow = unit[rows].astype(np.int16 if num_units < 1 << 15 else np.int64)  # small integers sort faster
        order = rows[np.argsort(narrow, kind="stable")]
        self.counts = np.bincount(unit[rows], minlength=num_units)
        starts = np.concatenate(([0], np.cumsum(self.counts)[:-1])).astype(np.int64)
        place = np.arange(len(order)) - np.repeat(starts, self.counts)
        self.table = np.full((num_units, int(self.counts.max(initial=0))), -1, dtype=np.int64)
        self.table[unit[order], place] = order
        met = np.zeros((num_units, int(partner.max(initial=0)) + 1), dtype=bool)
        met[unit[rows], partner[rows]] = True
        self.partners = met.sum(axis=1)

    def quantile(self, values: Array) -> Array:
        """Return the upper quartile of the values of each unit's rows.

        If a unit has only few rows, the result is the highest value of these rows. If a unit has no rows, the result is
        infinity.
        """
        return self.pick(values, lambda count: np.ceil(_QUANTILE * (count - 1)))

    def median(self, values: Array) -> Array:
        """Return the median of the values of each unit's rows.

        If a unit has an even number of rows, return the lower of the two middle values.
        """
        return self.pick(values, lambda count: np.floor((count - 1) / 2))

    def pick(self, values: Array, rank: Any) -> Array:
        """Sort the values of each unit's rows.

        Return each unit's value at index `rank(n)`, where n is the number of the unit's rows.
        """
        if not self.table.shape[1]:
            return np.full(self._num, np.inf)
        padded = np.append(values, np.inf)[self.table]
        at = np.maximum(rank(self.counts), 0).astype(np.int64)
        return np.sort(padded, axis=1)[np.arange(self._num), at]

    def rows(self, unit: int) -> Array:
        """Return the indices of the rows of one unit."""
        return self.table[unit, : self.counts[unit]]


@dataclass(frozen=True, slots=True)
class PartRatio:
    """The result of comparing a part with its peers.

    A comparison consists of the ratio of two bandwidths, its 95 % interval, and the probability that the ratio is below
    0.9.
    """

    ratio: float
    low: float
    high: float
    confidence: float
    num_rows: int


@dataclass(slots=True)
class Fitted:
    """The result of a fit: the levels, and the estimated effect of each unit.

    `effects[level][direction]` has one effect for each unit. If a unit slows no pair, its effect is 0.
    """

    logs: Array  # for each row, its logarithm minus the level of its class (and of its round)
    levels: Sequence[Level]
    effects: list[dict[str, Array]]
    sigma: float  # standard deviation of one row
    outliers: float  # the share of rows that are far from normal although no part is slow
    tail: float  # the mean distance of these outliers from normal
    settled: bool = False  # if True, only `clear` changes effects, and computed values are kept in `kept`
    kept: dict[Any, Any] = field(default_factory=dict)

    def residual(self) -> Array:
        """Return the residual of each row: the logarithm of its rate minus the effects of all parts."""
        if "residual" in self.kept:
            return self.kept["residual"]
        left = self.logs
        for level, effects in zip(self.levels, self.effects, strict=True):
            for direction, effect in effects.items():
                unit = level.asked[direction].unit
                if effect.any():
                    left = left - np.append(effect, 0.0)[unit]  # unit -1 means no unit and selects the last element
        if self.settled:
            self.kept["residual"] = left
        return left

    def suspected(self, index: int) -> list[int]:
        """Return the units of a level that slow their pairs."""
        return sorted({int(unit) for effect in self.effects[index].values() for unit in np.flatnonzero(effect)})

    def rows_of(self, index: int, direction: str, unit: int) -> Array:
        """Return the rows of a unit that slows its pairs in this direction.

        Return no rows if the unit does not slow its pairs.
        """
        if not self.effects[index][direction][unit]:
            return np.empty(0, dtype=np.int64)
        return self.levels[index].asked[direction].rows(unit)

    def clear(self, index: int, direction: str, unit: int) -> None:
        """Set the effect of a part to zero."""
        self.effects[index][direction][unit] = 0.0
        self.kept.pop("residual", None)

    def other_end_clear(self, index: int, direction: str, rows: Array) -> Array:
        """For each row, return whether the unit at the other end of its pair is normal.

        A normal unit has an effect of 0 at this level.
        """
        other = "in" if direction == "out" else "out"
        unit = self.levels[index].asked[other].unit[rows]
        return (unit < 0) | (self.effects[index][other][unit] == 0)

    def part_ratio(self, index: int, direction: str, unit: int, rows: Array) -> PartRatio:
        """Return how slow a part is according to the given rows.

        Before the comparison, the effects of all other parts are subtracted from the logarithmic rates.
        """
        groups, effect = self.levels[index].drawn[direction], self.effects[index][direction]
        residual = self.residual()
        if (index, direction) not in self.kept:
            healthy = groups.median(residual)[(effect == 0) & (groups.counts > 0)]
            self.kept[index, direction] = _spread(healthy) if len(healthy) > 2 else 0.0
        spread = self.kept[index, direction]
        num_parts = sum(2 * len(level.labels) for level in self.levels)
        return self._posterior(residual[rows] + effect[unit], max(spread, _FLOOR), num_parts)

    def link_ratio(self, residual: Array, num_links: int) -> PartRatio:
        """Return how slow a link is.

        The function assumes that normal links differ no more than repeated measurements of one link.
        """
        return self._posterior(residual, self.sigma, 2 * num_links)

    def _posterior(self, rows: Array, spread: float, num_parts: int) -> PartRatio:
        """Compute the posterior probability P(effect | rows) on a grid of effects.

        The prior is the sum of three distributions. The effects of normal parts have a normal distribution with the
        standard deviation `spread`. The effects of slow parts have a uniform distribution. On average, a run is assumed
        to have 0.1 slow parts. The probability of a slow part is divided by the number of tested parts, to correct for
        multiple tests. Smaller effects have another uniform distribution, with a higher probability.

        The noise of a row has a normal distribution, apart from some outliers. The standard deviation and the share of
        outliers are estimated from this run.
        """
        distance = rows[:, None] - _GRID
        normal = np.exp(-0.5 * (distance / self.sigma) ** 2) / (self.sigma * math.sqrt(2 * math.pi))
        far = np.exp(-np.abs(distance) / self.tail) / (2 * self.tail)
        loglikelihood = np.log((1 - self.outliers) * normal + self.outliers * far).sum(axis=0)
        slow = _GRID <= SLOW
        bad = _PRIOR_BAD / num_parts
        weight = np.exp(-0.5 * (_GRID / spread) ** 2)
        weight = weight / weight.sum() + bad * slow / slow.sum() + min(_MILD * bad, 0.1) * ~slow / (~slow).sum()
        posterior = np.exp(loglikelihood - loglikelihood.max()) * weight
        posterior /= posterior.sum()
        below = np.cumsum(posterior)
        low, middle, high = (
            math.exp(_GRID[np.searchsorted(below, q).clip(0, len(_GRID) - 1)]) for q in (0.025, 0.5, 0.975)
        )
        return PartRatio(middle, low, high, min(float(posterior[slow].sum()), 0.9999), len(rows))


def fit(logs: Array, classes: Array, steps: Array, drawn: Array, levels: Sequence[Level]) -> Fitted:
    """Fit the normal levels of the classes, then the effects of the parts. The largest parts come first.

    The effect of a part is never positive, because a part can only make its pairs slower.

    `drawn`: a flag for each row, which is true if the row's round was not chosen because of a suspicion. The normal
        levels are computed from these rows only.
    """
    relative = logs.copy()
    base = levels[-1] if len(levels) == 1 else next(level for level in levels if level.kind == "host")
    for number in np.unique(classes):
        mine = classes == number
        chosen = mine & drawn if (mine & drawn).any() else mine
        relative[mine] -= _level(logs[chosen], base.asked["out"].unit[chosen])
    effects = [{"out": np.zeros(len(level.labels)), "in": np.zeros(len(level.labels))} for level in levels]
    found = Fitted(relative, levels, effects, _FLOOR, 0.01, 0.2)
    for _ in range(2):  # the second pass computes levels without suspected parts
        for effect in effects:
            for by_unit in effect.values():
                by_unit[:] = 0.0
        for index, level in enumerate(levels):
            _select(found, index, level)
        clean = found.residual()
        near = 3 * _noise(clean[drawn])
        for number in np.unique(classes):
            mine = (classes == number) & drawn & (np.abs(clean) < near)
            if mine.any():
                found.logs[classes == number] -= np.median(clean[mine])
    _settle(found, steps, drawn, base)
    found.settled = True
    return found


def _level(logs: Array, unit: Array) -> float:
    """Return the normal level of a class.

    First, compute the upper quartile of each sender's rates, and the median of these quartiles. The level is the median
    of all rates close to the median of these quartiles. The median of all pairs would be wrong, because one slow host
    takes part in many pairs. For example, if one of three hosts is slow, this host is part of two thirds of all pairs.
    """
    groups = Groups(unit, np.zeros(len(unit), dtype=np.int64), int(unit.max()) + 1)
    best = np.sort(groups.quantile(logs)[groups.counts > 0])
    start = float(best[len(best) // 2])
    near = logs[np.abs(logs - start) < 0.1]
    return float(np.median(near)) if len(near) else start


def _noise(residual: Array) -> float:
    """Estimate the standard deviation of one row from the rows that are faster than normal.

    Slow parts do not affect the rows that are faster than normal.
    """
    faster = residual[residual > 0]
    if not len(faster):
        return _FLOOR
    return max(_FLOOR, 1.4826 * (1 + 3 / len(faster)) * float(np.median(faster)))


def _spread(values: Array) -> float:
    """Return the standard deviation estimated from the median absolute deviation (1.4826 MAD)."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _select(found: Fitted, index: int, level: Level) -> None:
    """Mark slow units as suspected, and stop when the faster pairs of all other units are normal.

    The slowest units come first.
    """
    effects = found.effects[index]
    for _ in range(_MOST_PASSES):
        residual = found.residual()
        worst: list[tuple[float, str, int]] = []
        for direction, effect in effects.items():
            groups = level.drawn[direction]
            best = groups.quantile(residual)
            tried = (groups.counts > 0) & (groups.partners >= level.least_partners)
            if tried.sum() < 2:
                continue
            usual = np.sort(best[tried])[tried.sum() // 2]
            low = tried & (effect == 0) & (best - max(usual, 0.0) < _SUSPECT)
            worst += [(float(best[unit]), direction, int(unit)) for unit in np.flatnonzero(low)]
        if not worst:
            return
        # If the hosts have few partners, one slow unit slows many other units. Then suspect one unit at a time.
        at_once = len(worst) if len(worst) <= len(level.labels) // 8 else 1
        for _, direction, unit in sorted(worst)[:at_once]:
            effects[direction][unit] = float(np.median(residual[level.drawn[direction].rows(unit)]))


def _settle(found: Fitted, steps: Array, drawn: Array, base: Level) -> None:
    """Correct the rates of slow rounds, then estimate the noise.

    In a slow round, even the pairs without suspected parts are slow.
    """
    residual = found.residual()
    free = np.ones(len(residual), dtype=bool)
    for level, effects in zip(found.levels, found.effects, strict=True):
        for direction, effect in effects.items():
            unit = level.asked[direction].unit
            free &= (unit < 0) | (effect[unit] == 0)
    ends = base.asked["out"].unit, base.asked["in"].unit
    pair = np.minimum(*ends) * len(base.labels) + np.maximum(*ends)
    control_rows = free & ~np.isin(pair, pair[drawn & (residual < SLOW)])  # pairs without a slow link
    for step in np.unique(steps[~drawn]):
        mine = steps == step
        control = residual[mine & control_rows]
        if len(control) and (mine & ~free).any():
            usual = np.sort(control)[math.ceil(_QUANTILE * (len(control) - 1))]
            if usual < _SUSPECT:
                found.logs[mine] -= usual
    known = free & drawn if (free & drawn).any() else drawn
    left = found.residual()[known]
    found.sigma = _noise(left)
    far = np.abs(left[np.abs(left) > 5 * found.sigma])
    # Assume 100 more rows with one outlier, because few rows cannot show how rare outliers are.
    found.outliers = min(0.25, (len(far) + 1) / (len(left) + 100))
    found.tail = max(0.2, float(far.mean())) if len(far) else 0.2
