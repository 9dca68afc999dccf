"""Joint draws: intervals are reproduced, and shared unknowns cancel in a ratio."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.predict.draws import Draws, range_of
from bench.predict.predict import Prediction

SURE = Prediction(1.0, 1.5, 4.0, "published", ("x",), "ring", "NIC", "network", "pool", 0.1, True, 0.9)


@given(st.floats(0.01, 1), st.floats(1, 100))
def test_draws_reproduce_the_interval(low: float, high: float) -> None:
    found = range_of(Draws(2000).between("a", low, high))
    assert [found.low, found.high] == pytest.approx([low, high], rel=0.02)
    assert found.middle == pytest.approx((low * high) ** 0.5, rel=0.01)


def test_draws_stay_in_their_range() -> None:
    drawn = Draws().between("a", 0.3, 0.5)
    assert (drawn.min(), drawn.max()) == (pytest.approx(0.3), pytest.approx(0.5))
    spread = Draws().linear("b", 0.0, 0.2, 0.4)
    assert [spread.min(), float(np.median(spread)), spread.max()] == pytest.approx([0, 0.2, 0.4], abs=1e-3)


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.3, 9.0])
@pytest.mark.parametrize("middle", [1.5, None])
def test_prediction_keeps_its_interval_for_any_shared_part(spread: float, middle: float | None) -> None:
    found = range_of(Draws().predicted("a", replace(SURE, spread=spread, middle_s=middle)))
    assert [found.low, found.high] == pytest.approx([1.0, 4.0], rel=0.03)
    assert found.middle == pytest.approx(middle or 2.0, rel=0.03)


def test_no_draw_is_faster_than_the_links() -> None:
    assert Draws().predicted("a", SURE).min() >= SURE.ideal_s


def test_only_the_shared_part_cancels_in_a_ratio() -> None:
    draws = Draws()
    same, own = replace(SURE, spread=0.0), replace(SURE, spread=9.0)
    shared = range_of(draws.predicted("a", same) / draws.predicted("b", same))
    assert shared.low == pytest.approx(1) == shared.high
    apart = range_of(draws.predicted("a", own) / draws.predicted("b", own))
    assert apart.high / apart.low > 4
    partly = range_of(draws.predicted("a", SURE) / draws.predicted("b", SURE))
    assert 1 < partly.high < apart.high


def test_draws_are_reproducible_and_differ_by_name() -> None:
    assert (Draws().normal("a") == Draws().normal("a")).all()
    one = Draws()
    assert abs(float(np.corrcoef(one.normal("a"), one.normal("b"))[0, 1])) < 0.05
