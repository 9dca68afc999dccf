"""The statistics against answers known from theory, and against input that is no sample."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.results import stats

SAMPLES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=300)
BAD = [[], [math.nan], [1.0, math.inf], [1.0, 0.0], [1.0, -1.0]]


def autoregressive(draw: np.random.Generator, num: int, phi: float) -> list[float]:
    """Log-normal samples around 1 whose logarithms follow x[i] = phi x[i-1] + noise, from the stationary start on."""
    noise = draw.normal(size=num)
    x = [noise[0] / math.sqrt(1 - phi**2)]
    for each in noise[1:]:
        x.append(phi * x[-1] + each)
    return [math.exp(0.1 * each) for each in x]


@pytest.mark.parametrize(
    ("num", "rank"),
    [(6, 1), (9, 2), (10, 2), (15, 4), (20, 6), (30, 10), (50, 18), (100, 40), (200, 86), (1000, 469)],
)
def test_the_interval_of_independent_samples_has_the_exact_ranks(num: int, rank: int) -> None:
    assert stats.interval_rank(num) == rank


def test_below_six_samples_there_is_no_interval() -> None:
    assert [stats.interval_rank(num) for num in range(7)] == [None] * 6 + [1]
    assert stats.interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_uncorrelated_samples_use_the_ranks_as_they_are() -> None:
    draw = random.Random(3)
    values = [float(number) for number in range(1, 31)]
    while stats.effective_size(values) < 30:
        draw.shuffle(values)
    assert stats.interval(values) == (10.0, 21.0)


def test_alike_neighbours_widen_the_interval() -> None:
    draw = np.random.default_rng(5)
    values = autoregressive(draw, 200, 0.8)
    shuffled = list(draw.permutation(values))
    low, high = stats.interval(values) or (0.0, 0.0)
    shuffled_low, shuffled_high = stats.interval(shuffled) or (0.0, 0.0)
    assert stats.effective_size(values) < 60 < stats.effective_size(shuffled)
    assert low < shuffled_low and shuffled_high < high


def test_the_interval_covers_the_true_median_of_correlated_samples() -> None:
    draw = np.random.default_rng(11)
    covered = 0
    for _ in range(400):
        low, high = stats.interval(autoregressive(draw, 100, 0.5)) or (math.inf, 0.0)
        covered += low <= 1.0 <= high
    assert covered / 400 >= 0.93


@given(SAMPLES)
def test_the_interval_holds_the_median_and_the_effective_size_is_at_most_n(values: list[float]) -> None:
    assert 1 <= stats.effective_size(values) <= len(values)
    around = stats.interval(values)
    if around is not None:
        assert around[0] <= stats.median(values) <= around[1]


def test_constant_samples_count_in_full_and_have_an_interval_of_no_width() -> None:
    values = [2e-6] * 30
    assert stats.effective_size(values) == 30
    assert stats.interval(values) == (2e-6, 2e-6)
    assert stats.num_outliers(values) == 0
    assert stats.warmup_residue(values) == 0
    drift = stats.drift(values)
    assert drift is not None and not drift.significant


def test_the_median_is_the_midpoint() -> None:
    assert stats.median([4.0, 1.0, 3.0, 2.0]) == 2.5
    assert stats.median([7.0]) == 7.0


def test_the_least_number_of_samples_for_a_percentile_follows_from_the_rule() -> None:
    assert [stats.least_samples(q) for q in (0.9, 0.95, 0.99, 0.999)] == [36, 72, 368, 3688]


def test_a_percentile_is_an_observed_value_or_refused() -> None:
    values = [float(number) for number in range(1, 101)]
    assert stats.percentile(values[:71], 0.95) is None
    assert stats.percentile(values[:72], 0.95) == 69.0  # ceil(0.95 * 72) = 69
    assert stats.percentile(values, 0.95) == 95.0
    assert stats.percentile(values, 0.99) is None


def test_outliers_are_counted_beyond_ten_deviations() -> None:
    values = [1.0, 1.1, 0.9, 1.05, 0.95] * 10
    assert stats.num_outliers(values) == 0
    assert stats.num_outliers([*values, 10.0, 11.0]) == 2


def test_a_trend_is_a_drift_and_its_ratio_compares_the_thirds() -> None:
    drift = stats.drift([1.0 + number / 100 for number in range(90)])
    assert drift is not None and drift.significant
    assert drift.correlation == pytest.approx(1.0)
    assert drift.ratio == pytest.approx(1.745 / 1.145)


def test_a_trend_in_noise_is_a_drift_but_noise_alone_is_not() -> None:
    draw = np.random.default_rng(2)
    noise = np.exp(0.05 * draw.normal(size=100))
    rising = stats.drift(list(np.linspace(1, 1.3, 100) * noise))
    still = [stats.drift(autoregressive(draw, 100, 0.5)) for _ in range(100)]
    assert rising is not None and rising.significant
    assert sum(each is not None and each.significant for each in still) <= 5


def test_warm_up_that_was_left_in_is_found_and_its_length_is_told() -> None:
    draw = np.random.default_rng(4)
    steady = list(np.exp(0.02 * draw.normal(size=80)))
    assert stats.warmup_residue([2.0] * 20 + steady) == 20
    assert stats.warmup_residue(steady) == 0


def test_noise_alone_is_rarely_called_warm_up() -> None:
    draw = np.random.default_rng(6)
    found = sum(stats.warmup_residue(list(np.exp(0.1 * draw.normal(size=100)))) > 0 for _ in range(200))
    assert found <= 6


@pytest.mark.parametrize("samples", BAD)
@pytest.mark.parametrize(
    "function", [stats.median, stats.effective_size, stats.interval, stats.drift, stats.num_outliers]
)
def test_what_is_no_time_is_refused(function: Callable[[list[float]], object], samples: list[float]) -> None:
    with pytest.raises(ValueError, match=r"finite .*above zero"):
        function(samples)


def decide(samples: list[float], *, elapsed_s: float = 0.0, target: float = 0.025) -> str | None:
    return stats.should_stop(samples, target=target, n_min=30, n_max=100, elapsed_s=elapsed_s, max_s=1.0)


def test_precise_samples_stop_at_n_min_and_not_before() -> None:
    assert decide([1e-6] * 29) is None
    assert decide([1e-6] * 30) == "ci"


def test_the_half_width_decides() -> None:
    draw = random.Random(1)
    values = [draw.uniform(0.8, 1.2) for _ in range(60)]
    low, high = stats.interval(values) or (0.0, 0.0)
    half = (high - low) / 2 / stats.median(values)
    assert decide(values, target=half * 1.001) == "ci"
    assert decide(values, target=half * 0.999) is None


def test_few_effective_samples_do_not_stop_however_narrow_they_look() -> None:
    climb = [1 + 1e-6 * number for number in range(40)]
    assert stats.effective_size(climb) < 10
    assert decide(climb) is None


def test_the_limits_end_a_row_that_does_not_converge() -> None:
    noisy = [1.0, 3.0] * 50
    noisy = [value * (1 + 0.01 * index % 7) for index, value in enumerate(noisy)]
    assert decide(noisy) == "max_n"
    assert decide(noisy[:40], elapsed_s=0.9) is None
    assert decide(noisy[:40], elapsed_s=1.0) == "max_time"
    assert decide(noisy[:20], elapsed_s=1.0) is None
    assert decide(noisy[:3], elapsed_s=5.0) == "max_time"
    assert decide(noisy[:2], elapsed_s=5.0) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_samples_that_are_no_times_never_converge_but_end(bad: float) -> None:
    assert decide([1.0] * 40 + [bad]) is None
    assert decide([1.0] * 99 + [bad]) == "max_n"
    assert decide([]) is None


def test_checking_as_it_goes_never_stops_on_a_trend() -> None:
    growing = [1.0 + 0.02 * number for number in range(90)]
    assert [decide(growing[:num]) for num in range(30, 100, 10)] == [None] * 7
