"""Statistical comparison of two runs by their launch medians: a ratio with its interval, a p-value, a verdict.

The statistics compare launches, never the samples within launches, because a test on pooled samples finds a difference
in most pairs of identical runs. The p-value assumes no distribution. The interval assumes that logarithms are normally
distributed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import fmean, median, variance

import numpy as np

from bench.results.launches import t_quantile
from bench.results.stats import CONFIDENCE

LEAST_LAUNCHES = 5  # of each run, for a verdict: p < 0.05 is impossible with 3 of each, and barely possible with 4
POWER = 0.8


class ComparisonVerdict(StrEnum):
    """The result of comparing one row. Only the first four are verdicts; the next three have only a ratio."""

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

    `ratio`: the median of the launch medians of the new run / that of the base run, with its 95 % interval.

    `cliffs_delta`: P(new > base) - P(new < base) over pairs of launches. `min_detectable`: the smallest change that is
    likely to give a verdict; 0.07 is 7 %.
    """

    ratio: float
    ratio_low: float
    ratio_high: float
    p: float
    cliffs_delta: float
    min_detectable: float


def estimate(base: Sequence[float], new: Sequence[float], delta: float, alpha: float) -> RatioEstimate:
    """Estimate the ratio of two runs from at least two launch medians (in seconds) of each.

    `delta`: the smallest change that matters; 0.05 is 5 %.

    The interval is Welch's interval of the logarithms of the medians. It is widened to contain the ratio of medians if
    the launches are skewed.

    `min_detectable` is the true change that gives a verdict with probability 0.8, if launches vary as before and the
    other rows change by the same:
    exp(max((t(1 - a/2) + t(0.8)) se sqrt(pi/3), ln(1 + delta) + t(0.8) se sqrt(pi/2))) - 1,
    with se = sqrt(s_base^2 / k_base + s_new^2 / k_new) of log medians, t of Welch's degrees of freedom, and a the
    largest p up to alpha that a rank test of so many launches can give. The first term is for the rank test, the second
    for a ratio beyond delta. The factors with pi are for the efficiency that ranks and medians lose against means.
    """
    ratio, ratio_low, ratio_high = time_ratio(base, new)
    error, degrees = _welch(base, new)
    power = t_quantile(POWER, degrees)
    level = _attainable(len(base), len(new), alpha)
    least_by_test = (t_quantile(1 - level / 2, degrees) + power) * error * math.sqrt(math.pi / 3)
    least_by_ratio = math.log1p(delta) + power * error * math.sqrt(math.pi / 2)
    return RatioEstimate(
        ratio=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        p=rank_test(base, new),
        cliffs_delta=cliffs_delta(base, new),
        min_detectable=math.expm1(max(least_by_test, least_by_ratio)),
    )


def time_ratio(base: Sequence[float], new: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of `new` / the median of `base`, and both ends of the ratio's 95 % interval.

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
    """Return the interval of value / other from the intervals of both.

    `value` and `other` must be independent. Their intervals may be asymmetric.

    On a logarithmic scale, the squares of the distances to the ends add up on each side (MOVER: Zou and Donner,
    Statistics in Medicine 27, 2008, equation 8).
    """
    below = math.hypot(math.log(value / around[0]), math.log(around_other[1] / other))
    above = math.hypot(math.log(around[1] / value), math.log(other / around_other[0]))
    return value / other * math.exp(-below), value / other * math.exp(above)


def verdict(found: RatioEstimate, p_corrected: float, delta: float, fdr: float) -> str:
    """Return the verdict slower, faster, equivalent or inconclusive.

    The limits are 1 + delta and its reciprocal: swapping the runs gives the opposite verdict.
    """
    low, high = 1 / (1 + delta), 1 + delta
    if p_corrected <= fdr and not low <= found.ratio <= high:
        return "slower" if found.ratio > high else "faster"
    return "equivalent" if low < found.ratio_low and found.ratio_high < high else "inconclusive"


def rank_test(base: Sequence[float], new: Sequence[float]) -> float:
    """Return the exact two-sided p of the Mann-Whitney test, over all assignments of the ranks to the two runs.

    Equal values share their mean rank. Assignments are counted with these ranks, so p is exact also if values are
    equal. p counts the assignments whose rank sum is at least as far from the expected sum as the observed rank sum, on
    either side.
    """
    ranks = _doubled_midranks([*base, *new])
    return float(_p_by_sum(tuple(sorted(ranks)), len(base))[sum(ranks[: len(base)])])


def least_p(num_base: int, num_new: int) -> float:
    """Return the smallest p that this number of launches can give.

    The launches give this p if all launches of one run are slower than all launches of the other.
    """
    return 2 / math.comb(num_base + num_new, num_base)


def launches_for_one(num_rows: int, fdr: float) -> int:
    """Return how many launches each run needs to detect a change in one of `num_rows` rows, if no other row changes."""
    return next(number for number in range(LEAST_LAUNCHES, 1000) if least_p(number, number) * num_rows <= fdr)


def cliffs_delta(base: Sequence[float], new: Sequence[float]) -> float:
    """Return Cliff's delta, from -1 (every launch of `new` is faster than every launch of `base`) to 1.

    It is 0 if neither run is faster more often.
    """
    signs = np.sign(np.subtract.outer(np.asarray(new), np.asarray(base)))
    return float(signs.mean())


def corrected(p_values: Sequence[float]) -> list[float]:
    """Return p-values with Benjamini and Hochberg's correction.

    If every row with a corrected value of at most q counts as different, the expected share of false positives among
    these rows is at most q.

    If no row really differs, q bounds the probability that any row counts as different. The correction holds for rows
    that are independent or vary together, as the sizes of one launch do.
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values)
    scaled = values[order] * values.size / np.arange(1, values.size + 1)
    result = np.empty_like(values)
    result[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return [float(value) for value in result]


def _welch(base: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of the difference of mean log medians, and its degrees of freedom
    (Welch-Satterthwaite).
    """
    parts = [(variance(map(math.log, side)) / len(side), len(side) - 1) for side in (base, new)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return 0.0, 1.0
    return math.sqrt(total), total**2 / sum(part**2 / degrees for part, degrees in parts)


def _doubled_midranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value.

    Ranks begin with 1, and equal values share their mean rank, so only doubled ranks are whole numbers.
    """
    ordered = np.sort(np.asarray(values))
    below = np.searchsorted(ordered, values, side="left")
    upto = np.searchsorted(ordered, values, side="right")
    return [int(first + last + 1) for first, last in zip(below, upto, strict=True)]


@lru_cache(maxsize=256)
def _p_by_sum(ranks: tuple[int, ...], num_chosen: int) -> np.ndarray:
    """Return an array p, where p[s] is the share of all choices of `num_chosen` ranks whose sum is at least as far from
    the expected sum as s.
    """
    ways = np.zeros((num_chosen + 1, sum(ranks) + 1))  # floats: exact up to 2^53
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank]
    # The distances from the expected sum are multiplied by the number of ranks, so that they are whole numbers.
    distances = np.abs(np.arange(ways.shape[1]) * len(ranks) - num_chosen * sum(ranks))
    ordered = np.argsort(distances)[::-1]
    upto = np.searchsorted(-distances[ordered], -distances, side="right")
    p: np.ndarray = np.cumsum(ways[num_chosen][ordered])[upto - 1] / ways[num_chosen].sum()
    return p


@lru_cache(maxsize=256)
def _attainable(num_base: int, num_new: int, alpha: float) -> float:
    """Return the largest p up to alpha that is possible if all launches have different medians; alpha if there is no
    such p.
    """
    p = _p_by_sum(tuple(range(2, 2 * (num_base + num_new) + 1, 2)), num_base)
    return float(max(p[(p > 0) & (p <= alpha)], default=alpha))
