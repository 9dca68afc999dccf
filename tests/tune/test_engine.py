"""The engine against simulated launches: no false winner, true winners found, and the budget kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from bench.tune.engine import (
    LOOKS,
    Setting,
    TuneSearch,
    TuneVerdict,
    gain_of,
    least_launches,
    ratio_to_baseline,
    search,
    settings_of,
    stages_of,
)

Effect = Callable[[Setting], float]


def simulated(
    seed: int,
    num_values: Sequence[int],
    budget: int,
    effect: Effect,
    sigma: float,
    far: float = 0.0,
    drift: float = 0.0,
) -> tuple[TuneSearch, int]:
    """A search, and how many launches it used. `far`: the share of launches that are far off; `drift`: per block."""
    rng, used = np.random.default_rng(seed), 0

    def measure(block: int, settings: Sequence[Setting]) -> list[float]:
        nonlocal used
        used += len(settings)
        errors = [rng.normal(0, sigma) * (5 if rng.random() < far else 1) for _ in settings]
        return [math.exp(effect(each) + error + drift * block) for each, error in zip(settings, errors, strict=True)]

    return search(num_values, measure, lambda: budget - used, 0.02), used


def nothing(setting: Setting) -> float:
    return 0.0


def one_value(setting: Setting) -> float:
    return math.log(0.9) if setting[0] == 2 else 0.0


@pytest.mark.parametrize(("num_values", "budget"), [((4,), 40), ((4,), 120), ((6, 3, 2), 60)])
@pytest.mark.parametrize("far", [0.0, 0.1])
def test_at_most_5_of_100_searches_among_equal_settings_name_a_winner(
    num_values: tuple[int, ...], budget: int, far: float
) -> None:
    named = [simulated(seed, num_values, budget, nothing, 0.05, far)[0].verdict for seed in range(200)]
    # 200 searches at exactly 5 % exceed this bound once in 1,000 times
    assert named.count(TuneVerdict.FASTER) / 200 <= 0.05 + 3.1 * math.sqrt(0.05 * 0.95 / 200)


def test_the_looks_together_name_equal_settings_in_5_of_100_confirmations() -> None:
    rng = np.random.default_rng(5)
    named = 0
    for _ in range(1500):
        logs = rng.normal(0, 0.05, LOOKS[-1])
        gains = [gain_of(logs[:number].tolist()) for number in LOOKS]
        named += any(gain.low > 1 or gain.high < 1 for gain in gains)
    assert named / 1500 == pytest.approx(0.05, abs=0.018)


@pytest.mark.parametrize(
    ("num_values", "budget", "sigma", "drift"),
    [((4,), 40, 0.02, 0.0), ((4,), 40, 0.02, 0.03), ((6, 3, 2), 80, 0.03, 0.0)],
)
def test_a_setting_that_is_10_percent_faster_is_found_and_nothing_else_is_changed(
    num_values: tuple[int, ...], budget: int, sigma: float, drift: float
) -> None:
    best = (2, *[0] * (len(num_values) - 1))
    found = [simulated(seed, num_values, budget, one_value, sigma, drift=drift)[0] for seed in range(40)]
    right = [each for each in found if each.verdict == TuneVerdict.FASTER and each.best == best]
    assert len(right) >= 34
    covered = [each.gain.low <= 1 / 0.9 <= each.gain.high for each in right if each.gain]
    assert sum(covered) >= 0.9 * len(right)


def test_two_factors_that_both_help_are_both_found() -> None:
    def both(setting: Setting) -> float:
        return -0.1 * (setting[0] == 1) - 0.1 * (setting[1] == 2)

    found = [simulated(seed, (3, 4), 80, both, 0.02)[0] for seed in range(20)]
    assert sum(each.best == (1, 2) and each.verdict == TuneVerdict.FASTER for each in found) >= 18


def test_a_baseline_that_is_best_is_not_replaced() -> None:
    found = [simulated(seed, (4,), 60, lambda setting: 0.2 * (setting[0] > 0), 0.02)[0] for seed in range(20)]
    assert {each.verdict for each in found} == {TuneVerdict.BASELINE}


@pytest.mark.parametrize("budget", [12, 30, 80])
def test_the_budget_is_kept_and_what_it_cannot_find_is_undecided(budget: int) -> None:
    found, used = simulated(1, (4,), budget, nothing, 0.3)
    assert used <= budget and found.verdict == TuneVerdict.UNDECIDED
    assert found.gain is None or found.gain.least > 0.2


def test_launches_that_take_longer_than_expected_leave_room_for_the_confirmation() -> None:
    left = 30.0

    def measure(block: int, settings: Sequence[Setting]) -> list[float]:
        nonlocal left
        left = min(left, 15) - len(settings)
        return [0.5 if setting[0] == 1 else 1.0 for setting in settings]

    found = search((3,), measure, lambda: max(0, int(left)), 0.02)
    assert found.verdict == TuneVerdict.FASTER and len(found.confirmed) >= 4 and left >= 0


@pytest.mark.parametrize("launch_s", [5.0, 8.0, 25.0, 100.0])
def test_slow_launches_end_the_search_and_what_was_not_tried_is_named(launch_s: float) -> None:
    spent_s, num = 0.0, 0

    def measure(block: int, settings: Sequence[Setting]) -> list[float]:
        nonlocal spent_s, num
        spent_s, num = spent_s + launch_s * len(settings), num + len(settings)
        return [0.5 if setting[0] == 1 else 1.0 for setting in settings]

    def launches_left() -> int:
        return max(0, int((60 - spent_s) / (launch_s if num else 1.0)))

    found = search((9, 4, 3), measure, launches_left, 0.02)
    tried = set(found.launches_s)
    assert spent_s <= max(60, 2 * launch_s)
    assert tried and not tried & set(found.untried) and found.untried
    assert len([each for each in (*tried, *found.untried) if not any(each[1:])]) == 9
    assert (found.verdict == TuneVerdict.FASTER) == (launch_s == 5.0)


def test_a_setting_that_fails_leaves_the_search_and_the_others_go_on() -> None:
    def measure(block: int, settings: Sequence[Setting]) -> list[float | None]:
        return [None if setting[0] == 1 else 0.8 if setting[0] == 2 else 1.0 for setting in settings]

    found = search((4,), measure, lambda: 40, 0.02)
    assert found.failed == [(1,)] and found.best == (2,) and found.verdict == TuneVerdict.FASTER
    assert (1,) not in found.launches_s


def test_without_a_baseline_nothing_is_named() -> None:
    found = search(
        (3,), lambda block, settings: [None if not any(each) else 1.0 for each in settings], lambda: 40, 0.02
    )
    assert found.best is None and (0,) in found.failed


def test_the_confirmation_has_launches_of_its_own() -> None:
    found, _ = simulated(3, (4,), 60, one_value, 0.02)
    assert found.best is not None
    selected = [block for block in found.launches_s[(3,)] if block not in found.confirmed]
    assert selected and min(found.confirmed) > max(selected)
    assert all(block in found.launches_s[found.best] for block in found.confirmed)


def test_stages_vary_one_factor_or_all_together() -> None:
    assert stages_of((3, 1, 2), together=False) == [[0], [2]]
    assert stages_of((3, 1, 2), together=True) == [[0, 2]]
    assert settings_of([0, 2], (3, 1, 2), (1, 0, 0)) == [
        (1, 0, 0),
        (0, 0, 0),
        (2, 0, 0),
        (1, 0, 1),
        (0, 0, 1),
        (2, 0, 1),
    ]
    assert least_launches((3, 1, 2), together=False) == 3 + 2 + 8


def test_ratios_are_over_blocks_that_have_both() -> None:
    found = TuneSearch((0,), {(0,): {1: 1.0, 2: 2.0}, (1,): {2: 1.0, 3: 5.0}})
    assert ratio_to_baseline(found, (1,)) == pytest.approx(0.5)
    assert ratio_to_baseline(found, (2,)) is None
