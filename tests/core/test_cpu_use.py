"""Starved ranks: who lacks CPU time, and who only waits or shares a busy machine."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core import cpu_use
from bench.core.cpu_use import CpuUse, shortages

SPINNING, SLEEPING = CpuUse(0.99, 0.01, 1.0), CpuUse(0.05, 0.002, 1.0)
THROTTLED, STOPPED = CpuUse(0.03, 0.95, 1.0), CpuUse(0.03, 0.0, 1.0)


def ranks(*uses: CpuUse) -> dict[int, CpuUse]:
    return dict(enumerate(uses))


@pytest.mark.parametrize(
    ("uses", "spins", "starved"),
    [
        (ranks(SPINNING, THROTTLED), True, [1]),
        (ranks(SPINNING, STOPPED, SPINNING), True, [1]),
        (ranks(SLEEPING, SLEEPING, THROTTLED), False, [2]),
        (ranks(SPINNING, SPINNING, THROTTLED, THROTTLED), False, [2, 3]),
        (ranks(*[CpuUse(0.3, 0.7, 1.0)] * 3, THROTTLED), False, [3]),
    ],
    ids=["throttled", "stopped", "others sleep", "all of a host", "on a busy machine"],
)
def test_a_rank_far_below_the_others_is_starved(uses: dict[int, CpuUse], spins: bool, starved: list[int]) -> None:
    assert list(shortages(uses, spins)) == starved


@pytest.mark.parametrize(
    ("uses", "spins"),
    [
        (ranks(THROTTLED, THROTTLED), True),
        (ranks(*[THROTTLED] * 3, SPINNING), True),
        (ranks(CpuUse(0.5, 0.5, 1.0), CpuUse(0.5, 0.5, 1.0), SPINNING, SPINNING, SPINNING), False),
        (ranks(SPINNING, SLEEPING), False),
        (ranks(SLEEPING, SLEEPING, CpuUse(0.0, 0.0, 1.0)), True),
        (ranks(SPINNING, CpuUse(0.001, 0.01, 0.02)), False),
        (ranks(THROTTLED), True),
        (ranks(CpuUse(0.0, 0.0, 0.0), CpuUse(0.0, 0.0, 0.0)), True),
    ],
    ids=["all alike", "most", "one rank too many", "one sleeps", "all sleep", "one turn", "one rank", "no time"],
)
def test_equal_ranks_and_ranks_that_wait_for_others_are_not_starved(uses: dict[int, CpuUse], spins: bool) -> None:
    assert shortages(uses, spins) == {}


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_the_median_of_the_others(values: list[float]) -> None:
    for place, own in enumerate(values):
        others = values[:place] + values[place + 1 :]
        assert cpu_use._median_of_others(sorted(values), own) == pytest.approx(median(others))


def test_a_shortage_says_what_the_rank_and_the_others_got() -> None:
    short = shortages(ranks(SPINNING, THROTTLED, SPINNING))[1]
    assert (short.cpu_s, short.needed_s, short.others_share) == pytest.approx((0.03, 0.98, 0.99))
    assert short.share == pytest.approx(0.03 / 0.98)
