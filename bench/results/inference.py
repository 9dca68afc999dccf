"""Estimate by which factor the time of a row differs between two runs, and give a verdict on the row.

The input is one median per launch, because launches are the statistical units. Samples of several launches must not be
merged into one sample. If samples of several launches are merged, a test finds a difference in most pairs of identical
runs. The p-value comes from the joint test over all rows (results/joint_test.py). The joint test assumes no
distribution. The interval assumes that the logarithms of the medians are normally distributed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, variance

import numpy as np

from bench.results.joint_test import POWER, RowTest
from bench.results.launches import t_quantile
from bench.results.stats import CONFIDENCE

LEAST_LAUNCHES = 5  # launches of each run for a verdict; 3 launches of each run cannot reach p < 0.05, and 4 barely can


class ComparisonVerdict(StrEnum):
    """The result of the comparison of one row.

    Only the first four values are verdicts. Exploratory, modelled and imported rows have a ratio but get no verdict.
    """

    SLOWER = "slower"
    FASTER = "faster"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    EXPLORATORY = "exploratory"
    MODELLED = "modelled"
    IMPORTED = "imported"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """The estimated ratio of one row in two runs.

    `ratio`: the median of NEW's launch medians / the median of BASE's launch medians, with a 95 % interval.
    `cliffs_delta`: P(new > base) - P(new < base) over pairs of launches.
    `min_detectable`: the smallest change that gives a verdict with probability 0.9 (0.07 is 7 %).
    """

    ratio: float
    ratio_low: float
    ratio_high: float
    p: float
    cliffs_delta: float
    min_detectable: float


def estimate(base: Sequence[float], new: Sequence[float], delta: float, test: RowTest) -> RatioEstimate:
    """Estimate the ratio of two runs from at least two launch medians (seconds) of each.

    `delta`: the change that matters (0.05 is 5 %).
    `test`: the row's part of the joint test.

    The interval is Welch's interval of the logarithms of the medians. If the distribution of the launches is skewed,
    the interval is widened until it contains the ratio of the medians.

    `min_detectable` is the smallest true change of this row alone that a comparison finds with probability 0.9. It is
    assumed that launches vary as in these two runs:

    `min_detectable = exp(max(test.least_log, ln(1 + delta) + t x se x sqrt(pi/2))) - 1`

    `se` is the standard error of the difference of the mean log medians, `sqrt(s_base^2 / k_base + s_new^2 / k_new)`.
    `t` is the 90 % quantile of Student's t with Welch's degrees of freedom. `test.least_log` is the logarithm of the
    smallest change that the joint test finds. The other argument of max is the logarithm of the smallest change that is
    found to exceed delta. The factor sqrt(pi/2) accounts for the lower efficiency of medians compared with means.
    """
    ratio, ratio_low, ratio_high = time_ratio(base, new)
    error, degrees = _welch(base, new)
    least_by_ratio = math.log1p(delta) + t_quantile(POWER, degrees) * error * math.sqrt(math.pi / 2)
    return RatioEstimate(
        ratio=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        p=test.p,
        cliffs_delta=cliffs_delta(base, new),
        min_detectable=math.expm1(max(test.least_log, least_by_ratio)),
    )


def time_ratio(base: Sequence[float], new: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of two medians (`new` / `base`), and both ends of its 95 % interval.

    `base` and `new` must have two or more values each.
    """
    ratio = median(new) / median(base)
    shift = fmean(map(math.log, new)) - fmean(map(math.log, base))
    error, degrees = _welch(base, new)
    half = t_quantile(0.5 + float(CONFIDENCE) / 2, degrees) * error
    return ratio, min(math.exp(shift - half), ratio), max(math.exp(shift + half), ratio)


def ratio_interval(
    value: float, around: tuple[float, float], other: float, around_other: tuple[float, float]
) -> tuple[float, float]:
    """Return the interval of `value` / `other`, given the intervals of `value` and `other`.

    `value` and `other` must be independent. The two intervals may be asymmetric. The method is MOVER (Zou and Donner,
    Statistics in Medicine 27, 2008, equation 8) on a logarithmic scale. MOVER computes the two halves of the interval
    (below and above the ratio) separately. Each half is the square root of a sum of two squares. The lower half uses
    the distance of `value` from its lower end, and the distance of `other` from its upper end. The upper half uses the
    distance of `value` from its upper end, and the distance of `other` from its lower end.
    """
    below = math.hypot(math.log(value / around[0]), math.log(around_other[1] / other))
    above = math.hypot(math.log(around[1] / value), math.log(other / around_other[0]))
    return value / other * math.exp(-below), value / other * math.exp(above)


def verdict(ratio: float, interval: tuple[float, float], p: float, delta: float, fdr: float) -> ComparisonVerdict:
    """Return the verdict on one row. A ratio between 1 / (1 + delta) and 1 + delta counts as unchanged.

    - Slower or faster: p is at most `fdr`, and the ratio is outside these limits.
    - Equivalent: the whole interval of the ratio is within these limits.
    - Inconclusive: all other cases.

    If BASE and NEW are swapped, a slower row becomes a faster row, and a faster row becomes a slower row.
    """
    low, high = 1 / (1 + delta), 1 + delta
    if p <= fdr and not low <= ratio <= high:
        return ComparisonVerdict.SLOWER if ratio > high else ComparisonVerdict.FASTER
    if low < interval[0] and interval[1] < high:
        return ComparisonVerdict.EQUIVALENT
    return ComparisonVerdict.INCONCLUSIVE


def cliffs_delta(base: Sequence[float], new: Sequence[float]) -> float:
    """Return Cliff's delta of the launches, from -1 to 1.

    The result is -1 if every launch of `new` is faster than every launch of `base`. The result is 0 if BASE and NEW are
    each faster in the same number of pairs of launches.
    """
    signs = np.sign(np.subtract.outer(np.asarray(new), np.asarray(base)))
    return float(signs.mean())


def _welch(base: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of the difference of mean log medians, and the degrees of freedom (Welch)."""
    parts = [(variance(map(math.log, side)) / len(side), len(side) - 1) for side in (base, new)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return 0.0, 1.0
    return math.sqrt(total), total**2 / sum(part**2 / degrees for part, degrees in parts)
