"""The order in which sizes are measured when time is limited."""

from __future__ import annotations

import pytest

from bench.rank.rows import ends_first


@pytest.mark.parametrize("num", range(7))
def test_every_size_is_measured_once_and_what_is_left_out_is_the_middle(num: int) -> None:
    order = ends_first(range(num))
    assert sorted(order) == list(range(num))
    for done in range(num):
        left_out = sorted(set(range(num)) - set(order[:done]))
        assert left_out == list(range(left_out[0], left_out[-1] + 1)), "it is one piece"
        below, above = left_out[0], num - 1 - left_out[-1]
        assert below - above in (0, 1), "and both ends are measured"
