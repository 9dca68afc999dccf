"""Compute the statistics of a row's samples: the median with an interval, trends and outliers.

This module also decides when a row has enough samples. The times of successive operations are skewed and not
independent. The functions of this module assume neither a normal distribution nor independence. The ends of an interval
are samples at certain ranks of the sorted samples (order statistics). The ranks of both ends depend on the effective
number of samples. Times are in seconds, in the order in which they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import takewhile
from typing import Any

import numpy as np

from bench.core.record import StopReason

CONFIDENCE = Fraction(95, 100)

# With fewer effective samples, an interval could be narrow by chance and end the row: thirty samples often do not show
# that they are correlated. If the rule is checked every 10 samples from 30 on, coverage stays above .93 with 20
# effective samples, for correlations up to 0.8. With 10 effective samples it is .92.
LEAST_EFFECTIVE_TO_STOP = 20

# A row that is very slow at one size must end before n_min samples.
HARD_TIME_LIMIT_FACTOR = 5
LEAST_SAMPLES_AT_HARD_LIMIT = 3

# The standard deviation of normal data / their median absolute deviation.
_MAD_TO_SIGMA = 1.4826
_OUTLIER_SIGMAS = 10

_DRIFT_CORRELATION = 0.3
_DRIFT_Z = 2.5758  # two-sided p < 0.01

_MSER_BATCH = 5
_Z95 = 1.959963984540054  # two-sided 95 % of a normal distribution
_EXACT_RANKS_TO = 1000  # above this number, the normal approximation is used; its interval is at most two ranks wider
_FEW_SAMPLES = 16
_FEW_LAGS = 64  # computed one by one; for longer correlations, a Fourier transform computes all lags at once
_RESIDUE_DIFFERENCE = 0.05


def usable(seconds: Sequence[float]) -> bool:
    """Check that samples exist, and that all samples are finite and above zero."""
    if len(seconds) <= _FEW_SAMPLES:  # numpy takes longer for few samples
        for value in seconds:
            if not 0 < value < math.inf:
                return False
        return len(seconds) > 0
    values = np.asarray(seconds, dtype=float)
    return bool(np.all(np.isfinite(values)) and np.all(values > 0))


def median(seconds: Sequence[float]) -> float:
    """Return the midpoint median. Raises ValueError for invalid samples (none, not finite, zero or below)."""
    return float(np.median(_checked(seconds)))


@lru_cache(maxsize=1024)
def interval_rank(num_samples: int) -> int | None:
    """Return the rank j of the lower end of the median's interval, in sorted samples x(1) to x(n).

    Ranks begin with 1. The interval [x(j), x(n+1-j)] must cover the median with a probability of at least CONFIDENCE.
    The result is the largest j with `P(Binomial(n, 1/2) <= j-1) <= alpha/2`. For fewer than 6 samples, return None,
    because even the interval from the smallest to the largest sample would not reach CONFIDENCE. For more than 1000
    samples, use the normal approximation of j, rounded so that the interval becomes wider.
    """
    if num_samples > _EXACT_RANKS_TO:
        return math.floor((num_samples + 1 - _Z95 * math.sqrt(num_samples)) / 2) - 1
    most = int((1 - CONFIDENCE) / 2 * 2**num_samples)
    below, ways, j = 0, 1, 0  # 2^n P(Binomial <= j-1), and 2^n P(Binomial = j)
    while below + ways <= most:
        below += ways
        ways = ways * (num_samples - j) // (j + 1)
        j += 1
    return j or None


def effective_size(seconds: Sequence[float]) -> float:
    """Return the effective number of samples: how many independent samples would give the same information.

    The number is n / (1 + 2 x sum of rank autocorrelations), between 1 and n. The sum begins at lag 1. The sum ends at
    lag n/4, or before the first autocorrelation that is not positive. The sum is at least as large as for a first-order
    process with the same autocorrelation at lag 1. If all samples are equal, each sample counts as independent.
    """
    return _effective_size_of_ranks(_ranks(_checked(seconds)))


def interval(seconds: Sequence[float]) -> tuple[float, float] | None:
    """Return the order-statistic interval of the median.

    Both ends of the interval are samples. The positions of both ends are first computed for the effective number of
    samples, and then scaled to the number of all samples.

    Return None if the effective size is below 6. Raises ValueError for invalid samples.
    """
    values = _checked(seconds)
    if interval_rank(values.size) is None:  # the effective size is not larger
        return None
    return _interval(np.sort(values), effective_size(values))


def interval_of_differences(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval of a median. The values may be zero or negative, for example differences of times.

    Raises ValueError if there are no values, or if a value is not finite.
    """
    found = np.asarray(values, dtype=float)
    if not found.size or not np.isfinite(found).all():
        raise ValueError("there must be at least one difference, and all must be finite")
    if interval_rank(found.size) is None:
        return None
    return _interval(np.sort(found), _effective_size_of_ranks(_ranks(found)))


def _interval(values: Any, effective: float) -> tuple[float, float] | None:
    """Return the result of `interval`, given sorted values and the effective number of samples."""
    num_effective = int(effective)
    rank = interval_rank(num_effective)
    if rank is None:
        return None
    # The j-th of m values is at the fraction j/(m+1). Rounding down widens the interval by the same number of ranks on
    # both sides.
    low = max(rank * (values.size + 1) // (num_effective + 1), 1)
    return float(values[low - 1]), float(values[values.size - low])


def least_samples(quantile: float) -> int:
    """Return how many samples are needed so that their maximum exceeds the quantile with probability 1 - alpha/2.

    The number is 72 for the quantile 0.95 and 368 for 0.99.
    """
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(quantile))


def percentile(seconds: Sequence[float], quantile: float) -> float | None:
    """Return the quantile by the nearest-rank method, or None for too few samples.

    For q and n samples, the quantile is the sample with the rank ceil(q n).
    """
    return _percentile(np.sort(_checked(seconds)), quantile)


def _percentile(values: Any, quantile: float) -> float | None:
    """Return the same as `percentile`, for values that are already sorted."""
    if values.size < least_samples(quantile):
        return None
    # Rounding is needed because 0.95 * 100 may exceed 95.
    return float(values[math.ceil(round(quantile * values.size, 9)) - 1])


def num_outliers(seconds: Sequence[float]) -> int:
    """Count the samples that are further than 10 x 1.4826 MAD (median absolute deviation) from the median.

    No sample is removed. If more than half of the samples are equal, their MAD is zero, and the result is 0.
    """
    return _num_outliers(np.sort(_checked(seconds)))


def _num_outliers(ordered: Any) -> int:
    """Return the same as `num_outliers`, for values that are already sorted."""
    distances = np.abs(ordered - _middle(ordered))
    scale = _MAD_TO_SIGMA * float(np.median(distances))
    return int(np.sum(distances > _OUTLIER_SIGMAS * scale)) if scale > 0 else 0


def _middle(ordered: Any) -> float:
    """Return the midpoint median of sorted values."""
    return float(ordered[(ordered.size - 1) // 2 : ordered.size // 2 + 1].mean())


@dataclass(slots=True)  # not frozen, as document.Summary
class Description:
    """All statistics of a row, in seconds. A statistic is None if the samples are too few for the statistic."""

    median_s: float
    interval_s: tuple[float, float] | None
    num_effective: float
    min_s: float
    max_s: float
    p95_s: float | None
    p99_s: float | None
    drift: Drift | None
    warmup_residue: int
    num_outliers: int


def describe(seconds: Sequence[float]) -> Description:
    """Return all statistics. To save time, the samples are sorted and ranked only once.

    Raises ValueError for invalid samples.
    """
    if len(seconds) == 1 and usable(seconds):  # a run may have thousands of modelled rows, so this case must be fast
        only_s = float(seconds[0])
        return Description(only_s, None, 1.0, only_s, only_s, None, None, None, 0, 0)
    values = _checked(seconds)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    ranks = _ranks_of(order, ordered)
    effective = _effective_size_of_ranks(ranks)
    return Description(
        median_s=_middle(ordered),
        interval_s=_interval(ordered, effective),
        num_effective=effective,
        min_s=float(ordered[0]),
        max_s=float(ordered[-1]),
        p95_s=_percentile(ordered, 0.95),
        p99_s=_percentile(ordered, 0.99),
        drift=_drift(values, ranks),
        warmup_residue=warmup_residue(values),
        num_outliers=_num_outliers(ordered),
    )


@dataclass(frozen=True, slots=True)
class Drift:
    """The trend of samples.

    `correlation`: Spearman's correlation of the samples with their order. `ratio`: the median of the last third of the
    samples / the median of the first third.
    """

    correlation: float
    ratio: float
    significant: bool  # |correlation| > 0.3 and p < 0.01


def drift(seconds: Sequence[float]) -> Drift | None:
    """Return the trend of the samples, or None if there are fewer than 6 samples.

    For 6 samples, each third consists of 2 samples.
    """
    values = _checked(seconds)
    return _drift(values, _ranks(values))


def _drift(values: Any, ranks: Any) -> Drift | None:
    """Return the same as `drift`, for values whose ranks are known."""
    if values.size < 6:
        return None
    order = np.arange(values.size) - (values.size - 1) / 2
    slope = float(ranks @ order) / float(order @ order)
    correlation = slope * float(np.linalg.norm(order)) / (float(np.linalg.norm(ranks)) or 1.0)
    # A trend makes samples correlated. Only the correlation without the trend shows whether the trend may be chance.
    num_effective = _effective_size_of_ranks(ranks - slope * order)
    z = correlation * math.sqrt(num_effective - 1)
    third = values.size // 3
    ratio = float(np.median(values[-third:]) / np.median(values[:third]))
    return Drift(correlation, ratio, abs(correlation) > _DRIFT_CORRELATION and abs(z) > _DRIFT_Z)


def warmup_residue(seconds: Sequence[float]) -> int:
    """Return how many samples at the start belong to the warm-up.

    The method is MSER-5 on the logarithms of times. No sample is removed. MSER-5 divides the samples into m batches of
    5 and takes the mean y of each batch. MSER-5 cuts off the first d batches, at most half of all batches. The number d
    minimises (sum of (y - mean)^2) / (m - d)^2 over the remaining batches. MSER-5 often cuts off samples by chance,
    although the samples have no trend. A cut is therefore accepted only under two conditions:

    - The median of the cut samples differs by more than 5 % from the median of the remaining samples.
    - The median of the cut samples is outside the middle 90 % of the remaining samples.
    """
    values = _checked(seconds)
    num_batches = values.size // _MSER_BATCH
    if num_batches < 4:
        return 0
    means = np.log(values[: num_batches * _MSER_BATCH]).reshape(num_batches, _MSER_BATCH).mean(axis=1)
    means -= means.mean()  # makes the sums of squares below as exact as the differences
    left = num_batches - np.arange(num_batches // 2 + 1)  # batches that remain after a cut of d = 0, 1, ...
    sums, squares = (np.cumsum(each[::-1])[::-1][: left.size] for each in (means, means**2))
    cut = int(np.argmin((squares - sums**2 / left) / left**2)) * _MSER_BATCH
    if cut == 0:
        return 0
    early, rest = float(np.median(values[:cut])), values[cut:]
    low, high = np.quantile(rest, [0.05, 0.95])
    differs = abs(early / float(np.median(rest)) - 1) > _RESIDUE_DIFFERENCE
    return cut if differs and not low <= early <= high else 0


def should_stop(
    samples: Sequence[float],
    *,
    target: float,
    n_min: int,
    n_max: int,
    elapsed_s: float,
    max_s: float,
) -> str | None:
    """Return why a row is finished (StopReason), or None if the row must continue.

    A row is CONVERGED under two conditions:

    - The row has at least n_min samples and at least 20 effective samples.
    - Half the width of the row's interval is at most `target` x the median.

    The time limit `max_s` ends a row that already has n_min samples. After five times the limit `max_s`, 3 samples are
    enough. A row with invalid samples (not finite, zero or below) never converges. Such a row ends only at the time
    limit or at the sample limit.
    """
    if len(samples) >= n_min and _precise(samples, target):
        return StopReason.CONVERGED
    if len(samples) >= n_max:
        return StopReason.MAX_SAMPLES
    if elapsed_s >= max_s and len(samples) >= n_min:
        return StopReason.MAX_TIME
    if elapsed_s >= HARD_TIME_LIMIT_FACTOR * max_s and len(samples) >= LEAST_SAMPLES_AT_HARD_LIMIT:
        return StopReason.MAX_TIME
    return None


def _precise(samples: Sequence[float], target: float) -> bool:
    if not usable(samples) or effective_size(samples) < LEAST_EFFECTIVE_TO_STOP:
        return False
    around = interval(samples)
    return around is not None and (around[1] - around[0]) / 2 <= target * median(samples)


def _checked(seconds: Sequence[float]) -> Any:
    if not usable(seconds):
        raise ValueError("there must be at least one sample, and all must be finite times above zero")
    return np.asarray(seconds, dtype=float)


def _ranks(values: Any) -> Any:
    """Return the rank of each value minus the mean rank. Equal values all get the mean of their ranks."""
    order = np.argsort(values, kind="stable")
    return _ranks_of(order, values[order])


def _ranks_of(order: Any, ordered: Any) -> Any:
    """Return the result of `_ranks`, given the sorting order and the sorted values."""
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])  # where each series of equal values begins
    lengths = np.diff(np.r_[first, order.size])
    ranks = np.empty(order.size)
    ranks[order] = np.repeat(first + (lengths + 1) / 2, lengths)
    return ranks - (order.size + 1) / 2


def _effective_size_of_ranks(ranks: Any) -> float:
    """Return the same as `effective_size`, from ranks whose mean is zero."""
    size = int(ranks.size)
    power = float(ranks @ ranks)
    # After a perfect trend is removed, only rounding errors remain. They are not variance.
    if power <= 1e-9 * size**3:
        return float(size)
    most = math.ceil(size / 4)
    positive = _initial_positive(float(ranks[:-lag] @ ranks[lag:]) / power for lag in range(1, min(most, _FEW_LAGS)))
    if len(positive) == _FEW_LAGS - 1 and most > _FEW_LAGS:
        spectrum = np.fft.rfft(ranks, 2 * size)
        products = np.fft.irfft(np.abs(spectrum) ** 2)[1:most] / power
        ends = np.flatnonzero(products <= 0)
        positive = list(products[: ends[0] if ends.size else None])
    return max(min(size / (1 + 2 * math.fsum(positive)), _effective_size_by_lag_1(size, positive)), 1.0)


def _effective_size_by_lag_1(size: int, positive: Sequence[float]) -> float:
    """Return the effective number of samples of a first-order process.

    The number is n (1 - r) / (1 + r), where r is the correlation at lag 1. No row gets a larger effective number of
    samples than this upper limit. The correlation that is computed from n samples is too low by about (1 + 3 r) / n
    (Kendall 1954). If there are few samples, the sum over lags in `effective_size` therefore ends too early. For
    example, take intervals of 30 samples with r = 0.8. Without the upper limit, one in ten of these intervals would
    miss the median. With the upper limit, only one in twenty misses the median.
    """
    if not positive:
        return float(size)
    r = min(float(positive[0]) + (1 + 3 * float(positive[0])) / size, 1 - 1 / size)
    return float(size * (1 - r) / (1 + r))


def _initial_positive(correlations: Iterable[float]) -> list[float]:
    return list(takewhile(lambda correlation: correlation > 0, correlations))
