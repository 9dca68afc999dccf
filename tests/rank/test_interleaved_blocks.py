"""Blocks that take turns: how long they are, and when a row has enough of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.core.case import Case
from bench.core.pattern import Shape
from bench.core.program import Group
from bench.rank import interleaved_blocks
from bench.rank.rows import PlannedRow

ALIKE, TWICE = [1e-3] * 42, [2e-3] * 42  # 21 blocks of two samples


def row(max_s: float = 1.0) -> PlannedRow:
    """A row that may take so long."""
    return PlannedRow("isolated", Shape(2, 64), (64,), (Group("world", (0, 1)),), max_s)


@pytest.mark.parametrize(
    ("max_s", "sample_s", "num"),
    [(0.1, 1e-3, 20), (8.0, 1e-3, 200), (8.0, 1.0, 1), (1.0, 0.0, 1000)],
    ids=["20 ms at least", "a fortieth of the time", "one at least", "a thousand at most"],
)
def test_a_block_lasts_long_beside_its_ends(
    max_s: float, sample_s: float, num: int, a_case: Callable[..., Case]
) -> None:
    assert interleaved_blocks.per_block(a_case(), row(max_s), sample_s) == num
    assert interleaved_blocks.per_block(a_case(iterations=210), row(max_s), sample_s) == 10


def test_a_row_ends_when_every_factor_is_known_and_not_before(a_case: Callable[..., Case]) -> None:
    noisy = [1e-3 * (1 + k % 7) for k in range(42)]

    def stop(*pairs: tuple[list[float], list[float]], elapsed_s: float = 0.0) -> str | None:
        return interleaved_blocks.stop(a_case(), row(), pairs, 2, 21, elapsed_s, 3)

    assert stop((ALIKE, TWICE)) == "ci"
    assert stop((ALIKE, TWICE), (ALIKE, noisy)) is None
    assert stop((ALIKE, TWICE), (ALIKE, noisy), elapsed_s=2.9) is None, "each of three kinds has the row's time"
    assert stop((ALIKE, TWICE), (ALIKE, noisy), elapsed_s=3.0) == "max_time"
    assert stop(([], []), elapsed_s=100.0) is None, "a rank that knows no samples does not decide"


def test_as_many_blocks_are_taken_as_were_asked_for(a_case: Callable[..., Case]) -> None:
    asked = a_case(iterations=42)
    assert interleaved_blocks.stop(asked, row(), [(ALIKE, TWICE)], 2, 20, 0.0, 2) is None
    assert interleaved_blocks.stop(asked, row(), [(ALIKE, TWICE)], 2, 21, 0.0, 2) == "fixed"
