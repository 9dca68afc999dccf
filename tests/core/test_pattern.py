"""What crosses a boundary, and how many messages must follow one another."""

from __future__ import annotations

import pytest

from bench.core.pattern import busiest_boundary, log2_steps


def test_only_bytes_between_different_parts_are_counted() -> None:
    assert busiest_boundary([(0, 1, 100), (2, 3, 7)], num_ranks=4, num_parts=2) == 0
    assert busiest_boundary([(0, 2, 100), (1, 3, 7)], num_ranks=4, num_parts=2) == 107


def test_the_directions_of_a_boundary_are_counted_separately() -> None:
    assert busiest_boundary([(0, 1, 5), (1, 0, 3)], num_ranks=2, num_parts=2) == 5


def test_the_busiest_part_counts_whether_bytes_leave_or_enter_it() -> None:
    into_one = [(0, 2, 5), (1, 2, 5), (3, 2, 5)]
    assert busiest_boundary(into_one, num_ranks=4, num_parts=4) == 15
    out_of_one = [(target, source, num_bytes) for source, target, num_bytes in into_one]
    assert busiest_boundary(out_of_one, num_ranks=4, num_parts=4) == 15


def test_no_traffic_crosses_nothing() -> None:
    assert busiest_boundary([], num_ranks=4, num_parts=2) == 0


@pytest.mark.parametrize(("num_ranks", "steps"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (64, 6)])
def test_each_step_at_most_doubles_the_ranks_that_have_the_data(num_ranks: int, steps: int) -> None:
    assert log2_steps(num_ranks) == steps
