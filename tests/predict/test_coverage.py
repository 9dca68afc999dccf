"""Coverage of confidence intervals, by simulation of autocorrelated log-normal times. Seeds are fixed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bench.rank.sampling import MAX_SAMPLES, MIN_SAMPLES, TARGET_HALF_WIDTH
from bench.results import stats

TRUE_MEDIAN_S = 1e-5
PROMISED = 0.93  # least coverage of intervals that are called 95 %


def series(seed: int, num_series: int, num: int, correlation: float, sigma: float) -> Any:
    """`num_series` x `num` times: a first-order autoregressive Gaussian process, exponentiated."""
    noise = np.random.default_rng(seed).normal(size=(num_series, num))
    for index in range(1, num):
        noise[:, index] = correlation * noise[:, index - 1] + math.sqrt(1 - correlation**2) * noise[:, index]
    return TRUE_MEDIAN_S * np.exp(sigma * noise)


def holds(around: tuple[float, float] | None) -> bool:
    """Whether the true median is inside."""
    return around is not None and around[0] <= TRUE_MEDIAN_S <= around[1]


@pytest.mark.parametrize("sigma", [0.02, 0.3])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.8])
@pytest.mark.parametrize(("num", "num_series"), [(100, 400), (1000, 120)])
def test_interval_covers_the_truth_as_promised(num: int, num_series: int, correlation: float, sigma: float) -> None:
    found = [stats.interval(own) for own in series(1, num_series, num, correlation, sigma)]
    known = [around for around in found if around is not None]
    assert len(known) > 0.9 * num_series
    assert sum(map(holds, known)) / len(known) >= PROMISED


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.8])
def test_thirty_samples_seldom_give_a_wrong_interval(correlation: float) -> None:
    # At correlation 0.8 the effective sample size is three: most series have no interval. The others are counted here.
    found = [stats.interval(own) for own in series(2, 800, 30, correlation, 0.1)]
    wrong = sum(around is not None and not holds(around) for around in found)
    assert wrong / len(found) <= 1 - PROMISED


@pytest.mark.thin(4)
@pytest.mark.parametrize("mode", ["isolated", "pipelined"])
@pytest.mark.parametrize(("correlation", "sigma"), [(0.0, 0.02), (0.0, 0.1), (0.5, 0.05), (0.8, 0.05)])
def test_optional_stopping_keeps_the_coverage(mode: str, correlation: float, sigma: float) -> None:
    held = []
    for own in series(3, 250, 3000, correlation, sigma):
        num, reason = MIN_SAMPLES, None
        while reason is None:
            reason = stats.should_stop(
                own[:num], target=TARGET_HALF_WIDTH[mode], n_min=MIN_SAMPLES, n_max=3000, elapsed_s=0.0, max_s=1.0
            )
            num = num if reason else min(num + max(10, num // 10), 3000)
        held.append(holds(stats.interval(own[:num])))
    assert MAX_SAMPLES > 3000 and np.mean(held) >= PROMISED


def test_assuming_independent_samples_would_fail_this_simulation() -> None:
    # This checks the tests above: with order statistics for n instead of the effective size, coverage is far too low.
    num = 100
    rank = stats.interval_rank(num)
    assert rank is not None
    ordered = np.sort(series(1, 400, num, 0.8, 0.3), axis=1)
    held = (ordered[:, rank - 1] <= TRUE_MEDIAN_S) & (ordered[:, num - rank] >= TRUE_MEDIAN_S)
    assert held.mean() < 0.75
