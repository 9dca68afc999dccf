"""Test whether anything changed between two runs, and which rows changed. All rows are tested together.

All rows of a launch share some errors, so a launch is one statistical unit. If nothing changed between the runs, every
assignment of the launches to the two runs is equally likely. A permutation test is therefore possible. A permutation
test computes a statistic for every assignment. The p-value is the share of assignments whose statistic is at least as
large as the measured statistic. The test assumes neither a distribution nor independent rows.

There are two statistics. The first statistic is the weighted mean change over all rows. The first statistic finds a
small change that all rows share. The second statistic is the largest change of a single row, divided by the error of
this row. The second statistic finds a large change of one row. `JointTest.p` is based on the smaller of their two
p-values. Without a correction, the choice of the smaller p-value would cause too many false positives. The same
permutations give the corrected p-value.

A few bad launches could hide a change. Three measures prevent this. First, values far from the median are winsorised.
Winsorising applies within each row, and to whole launches. Second, the change of a row is computed in two ways: as it
is, and relative to the other rows of the same launch. The test uses the larger of the two changes. Third, if the
launches of the two runs alternated, a permutation exchanges launches only within pairs. If the machine also drifted,
the mean of each pair is subtracted from its two launches. None of these measures depends on which launches belong to
which run, so the permutation test remains exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from bench.results.launches import t_quantile
from bench.results.stats import CONFIDENCE

POWER = 0.9
# assignments; this is all of them for 8 launches of each run, and with more launches they are drawn at random
_MOST_COUNTED = 13_000
_LEAST_DRAWN, _MOST_DRAWN = 999, 4_999
_MOST_VALUES = 2_000_000  # drawn assignments x rows
# in robust standard deviations; values further from the median are winsorised to this distance
_FAR_ROW, _FAR_LAUNCH = 2.5, 1.5
_DRIFT = 1.5  # ratio of the variation between pairs to the variation within pairs above which the machine drifted
# with fewer rows, a change of one row would move the median, so the median would not show what rows share
_LEAST_ROWS = 5
_MOST_PAIRS_COUNTED = 12
LEAST_PAIRS = 8  # with 7 pairs, the smallest p is 0.016
_SEED = 20_081  # the same two runs always give the same p

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RowTest:
    """The test of one row.

    The statistic of a row is |change| / (error of the row + median error over all rows).

    `p`: the test computes the statistic of every row in every permutation. p is the share of these statistics that are
        at least as large as this row's measured statistic.
    `p_corrected`: p after the correction of Benjamini and Hochberg.
    `least_log`: the logarithm of the smallest time ratio that the test would find in this row alone.
    """

    p: float
    p_corrected: float
    least_log: float


@dataclass(frozen=True, slots=True)
class JointTest:
    """The joint test of all rows of two runs.

    `p`: the probability that two equal runs show a change of at least this size, either of all rows or of one row.
    `ratio`: the weighted geometric mean of the rows' time ratios, with its 95 % interval (Welch's t on the launches).
        The weight of a row is the reciprocal of the median absolute deviation of its launches.
    `least`: the smallest change of all rows together that the test finds with probability 0.9 (0.05 is 5 %).
    `least_p`: the smallest p that is possible with this number of launches.
    """

    p: float
    ratio: float
    ratio_low: float
    ratio_high: float
    least: float
    least_p: float
    rows: tuple[RowTest, ...]


def joint_test(
    base: Values, new: Values, alpha: float, most_counted: int = _MOST_COUNTED, paired: bool = False
) -> JointTest:
    """Test two runs for differences. The runs are arrays of log medians of shape (launches, rows).

    If a launch lacks a row, the value is NaN. Both runs must have at least two launches of each row.

    `alpha`: the probability with which a comparison of two equal runs may find a change.
    `most_counted`: the largest number of assignments that are all tried. If there are more assignments, the test draws
        assignments at random.
    `paired`: whether launch k of BASE and launch k of NEW were measured one after the other, as a pair. For such pairs,
        a permutation exchanges launches only within a pair. The design of the measurement must determine `paired`. If
        the measured data determined `paired`, the test would not be exact.
    """
    num_new = len(new)
    values = np.vstack((new, base))
    drifts = paired and _drifts(base, new)
    if drifts:
        middle = (new + base) / 2
        values = np.vstack((new - middle, base - middle))  # NaN if a launch of the pair lacks the row
    there = ~np.isnan(values)
    raw = _launch_scores(np.where(there, values - np.nanmean(values, axis=0), 0.0), there)
    values = np.where(there, _drawn_in(values, _FAR_ROW), 0.0)
    most_drawn = min(most_counted, _MOST_DRAWN, max(_LEAST_DRAWN, _MOST_VALUES // values.shape[1]))
    ways = _pair_ways(num_new, most_drawn) if paired else _ways(len(values), num_new, most_counted, most_drawn)
    score = _launch_scores(values, there)
    size, error = _row_statistics(values, there, ways)
    if values.shape[1] >= _LEAST_ROWS:
        own = np.where(there, _drawn_in(_without_common(values, there), _FAR_ROW), 0.0)
        own_size, own_error = _row_statistics(own, there, ways)
        size, error = np.maximum(size, own_size), np.minimum(error, own_error)
    score = _drawn_in(score[:, None], _FAR_LAUNCH)[:, 0]
    p_all = _p_of_each(np.abs(_difference(score, ways)))
    p_row = _p_of_each(size.max(axis=1))
    smaller = np.minimum(p_all, p_row)
    rows = _row_tests(size, error * math.sqrt(2) if drifts else error, alpha)
    around = _of_pairs if drifts else _welch
    low, middle_log, high, _ = around(raw, num_new, alpha)  # winsorised values would shift the ratio
    *_, least = around(score, num_new, alpha)
    return JointTest(
        p=float((smaller <= smaller[0] * (1 + 1e-9)).mean()),
        ratio=math.exp(middle_log),
        ratio_low=math.exp(low),
        ratio_high=math.exp(high),
        least=math.expm1(least),
        least_p=float((smaller <= smaller.min() * (1 + 1e-9)).mean()),
        rows=rows,
    )


def _drifts(base: Values, new: Values) -> bool:
    """Check whether the machine drifted: launches of different pairs differ more than launches of one pair.

    The mean of each pair is subtracted only if the machine drifted. If the machine did not drift, subtracting the mean
    would make the test less likely to find a change. Exchanging the two launches of a pair does not change the result.
    """
    middle, half = _median((new + base) / 2, axis=1), _median((new - base) / 2, axis=1)
    apart = float(np.median(np.abs(middle - np.median(middle))))
    return apart > _DRIFT * float(np.median(np.abs(half)))


def _drawn_in(values: Values, far: float) -> Values:
    """Winsorise the values of each column, then subtract the mean of the column. NaN stays NaN.

    Values further than `far` robust deviations from the median are winsorised (moved to this distance). The robust
    deviation of a column is raised to at least a tenth of the median deviation over all columns.
    """
    middle = _median(values, axis=0)
    spread = 1.4826 * _median(np.abs(values - middle), axis=0)
    spread = np.maximum(spread, 0.1 * float(np.median(spread)))
    limit = np.where(spread > 0, far * spread, np.inf)
    drawn = np.clip(values - middle, -limit, limit)
    centered: Values = drawn - np.nanmean(drawn, axis=0)
    return centered


def _without_common(values: Values, there: npt.NDArray[np.bool_]) -> Values:
    """Subtract from each value the change that all rows of its launch have in common.

    The common change of a launch is the median over its rows. Each row is first divided by its own spread. A value of
    the result is NaN where `there` is False.
    """
    missing = np.where(there, values, np.nan)
    spread = _median(np.abs(missing), axis=0)
    spread = np.maximum(spread, max(0.1 * float(np.median(spread)), 1e-9))
    common = _median(missing / spread, axis=1, keepdims=True)
    without: Values = missing - np.where(np.isnan(common), 0.0, common) * spread
    return without


def _median(values: Values, axis: int | None = None, keepdims: bool = False) -> Values:
    """Return the median of the values that are present.

    The function `np.nanmedian` is slow, so it is called only if a value is missing.
    """
    median = np.nanmedian if np.isnan(values).any() else np.median
    found: Values = median(values, axis=axis, keepdims=keepdims)
    return found


@lru_cache(maxsize=8)
def _pair_ways(num_pairs: int, most_drawn: int) -> Values:
    """Return assignments of launches to the runs. In each assignment, one launch of each pair belongs to NEW.

    The result has one row for each assignment and one column for each launch. A value is 1 for NEW and 0 for BASE. The
    launches that were measured as NEW are in the first half of the columns.
    """
    if num_pairs <= _MOST_PAIRS_COUNTED:
        numbers = np.arange(2**num_pairs)
        swapped = (numbers[:, None] >> np.arange(num_pairs)) & 1
    else:
        swapped = np.random.default_rng(_SEED).integers(0, 2, (most_drawn + 1, num_pairs))
        swapped[0] = 0
    return np.hstack((1.0 - swapped, swapped.astype(float)))


@lru_cache(maxsize=8)
def _ways(num_launches: int, num_new: int, most_counted: int, most_drawn: int) -> Values:
    """Return assignments of launches to the runs BASE and NEW.

    The result has one row for each assignment and one column for each launch. A value is 1 for NEW and
    0 for BASE. The first row is the measured assignment.
    """
    number = math.comb(num_launches, num_new)
    if number <= most_counted:
        ways = np.zeros((number, num_launches))
        for way, chosen in zip(ways, itertools.combinations(range(num_launches), num_new), strict=True):
            way[list(chosen)] = 1
        return ways
    rng = np.random.default_rng(_SEED)
    measured = np.arange(num_launches) < num_new
    drawn = rng.permuted(np.tile(measured.astype(float), (most_drawn, 1)), axis=1)
    return np.vstack((measured, drawn))


def _row_statistics(values: Values, there: npt.NDArray[np.bool_], ways: Values) -> tuple[Values, Values]:
    """Return two arrays: the statistics of shape (ways, rows), and the errors of the rows in the measured assignment.

    The statistic of a row is |change| / (error of the row + median error over the rows). The returned error of a row is
    its error plus the median error.

    If a row has only a few launches, and their times happen to be equal, the row's own error is nearly 0. The median
    error keeps the statistic of such a row small. If a row has fewer than two launches in one of the runs, its
    statistic is 0.
    """
    num_new = ways @ there
    num_base = there.sum(axis=0) - num_new
    sum_new = ways @ values
    sum_base = values.sum(axis=0) - sum_new
    square_new = ways @ values**2
    square_base = (values**2).sum(axis=0) - square_new
    enough = (num_new >= 2) & (num_base >= 2)
    num_new, num_base = np.where(enough, num_new, 2), np.where(enough, num_base, 2)
    change = np.where(enough, sum_new / num_new - sum_base / num_base, 0.0)
    within = square_new - sum_new**2 / num_new + square_base - sum_base**2 / num_base
    variance = np.maximum(within, 0.0) / np.maximum(num_new + num_base - 2, 1)
    error = np.sqrt(variance * (1 / num_new + 1 / num_base))
    error = error + np.median(error, axis=1, keepdims=True)
    change = np.abs(change)
    size = np.divide(change, error, out=np.where(change > 1e-12, np.inf, 0.0), where=error > 1e-12)
    return size, error[0]


def _launch_scores(values: Values, there: npt.NDArray[np.bool_]) -> Values:
    """For each launch, return a score: the weighted mean of its values.

    The values are relative to the mean of their row over all launches.
    """
    missing = np.where(there, values, np.nan)
    spread = _median(np.abs(missing - _median(missing, axis=0)), axis=0)
    spread = np.maximum(spread, max(0.1 * float(np.median(spread)), 1e-9))
    weights = there / spread
    scores: Values = (values * weights).sum(axis=1) / weights.sum(axis=1)
    return scores


def _difference(score: Values, ways: Values) -> Values:
    """For each assignment of the launches, return the mean score of NEW minus the mean score of BASE."""
    num_new = ways[0].sum()
    chosen = ways @ score
    difference: Values = chosen / num_new - (score.sum() - chosen) / (len(score) - num_new)
    return difference


def _p_of_each(statistic: Values) -> Values:
    """Return the p-value of each assignment: the share of all assignments whose statistic is at least as large."""
    ordered = np.sort(statistic)
    below = np.searchsorted(ordered, statistic * (1 - 1e-9) - 1e-15, side="left")
    shares: Values = (len(statistic) - below) / len(statistic)
    return shares


def _row_tests(size: Values, error: Values, alpha: float) -> tuple[RowTest, ...]:
    """Return the p-value and the smallest detectable change of each row.

    The measured statistic of a row is compared with the statistics of all rows in all assignments. The first row of the
    array `size` belongs to the measured assignment.
    """
    num_rows = size.shape[1]
    pooled = np.sort(size, axis=None)
    below = np.searchsorted(pooled, size[0] * (1 - 1e-9) - 1e-15, side="left")
    p_values = (pooled.size - below) / pooled.size
    largest = np.sort(size.max(axis=1))
    needed = max(
        pooled[min(pooled.size - 1, math.ceil(pooled.size * (1 - alpha / num_rows)))],
        largest[min(largest.size - 1, math.ceil(largest.size * (1 - alpha)))],
    )
    found = []
    for p, p_corrected, each in zip(p_values, corrected(p_values), error, strict=True):
        # (needed + quantile for the power) errors; the row's own error is at most `each`
        least = (needed + t_quantile(POWER, 1e6)) * each if math.isfinite(needed) else 0.0
        found.append(RowTest(float(p), p_corrected, float(least)))
    return tuple(found)


def _welch(score: Values, num_new: int, alpha: float) -> tuple[float, float, float, float]:
    """Return (low, middle, high, least): the difference of the means with its 95 % interval, and the least change.

    `least`: the smallest difference that the test finds with probability POWER.
    """
    new, base = score[:num_new], score[num_new:]
    middle = float(new.mean() - base.mean())
    parts = [(float(side.var(ddof=1)) / len(side), len(side) - 1) for side in (new, base)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return middle, middle, middle, 0.0
    degrees = total**2 / sum(part**2 / freedom for part, freedom in parts)
    return _around(middle, math.sqrt(total), degrees, alpha)


def _of_pairs(score: Values, num_pairs: int, alpha: float) -> tuple[float, float, float, float]:
    """Return (low, middle, high, least) as `_welch` does.

    The difference is computed within each pair, and the differences are then averaged.
    """
    differences = score[:num_pairs] - score[num_pairs:]
    error = float(differences.std(ddof=1)) / math.sqrt(num_pairs)
    return _around(float(differences.mean()), error, num_pairs - 1, alpha)


def _around(middle: float, error: float, degrees: float, alpha: float) -> tuple[float, float, float, float]:
    half = t_quantile(0.5 + float(CONFIDENCE) / 2, degrees) * error
    least = (t_quantile(1 - alpha / 4, degrees) + t_quantile(POWER, degrees)) * error
    return middle - half, middle, middle + half, least


def corrected(p_values: Sequence[float] | Values) -> list[float]:
    """Correct p-values by Benjamini and Hochberg's method.

    If all rows with a corrected p-value of at most q are called changed, the expected share of false positives is at
    most q. This correction is valid for independent rows, and for rows that vary together, such as the sizes of one
    launch.
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values)
    scaled = values[order] * values.size / np.arange(1, values.size + 1)
    result = np.empty_like(values)
    result[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return [float(value) for value in result]
