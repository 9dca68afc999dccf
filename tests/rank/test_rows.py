"""The order in which sizes are measured when time is limited, and what crosses nodes."""

from __future__ import annotations

import pytest

from bench.allreduce import PATTERN
from bench.core.pattern import Shape
from bench.core.program import Group
from bench.rank.rows import ends_first, traffic


@pytest.mark.parametrize("num", range(7))
def test_every_size_is_measured_once_and_what_is_left_out_is_the_middle(num: int) -> None:
    order = ends_first(range(num))
    assert sorted(order) == list(range(num))
    for done in range(num):
        left_out = sorted(set(range(num)) - set(order[:done]))
        assert left_out == list(range(left_out[0], left_out[-1] + 1)), "it is one piece"
        below, above = left_out[0], num - 1 - left_out[-1]
        assert below - above in (0, 1), "and both ends are measured"


@pytest.mark.parametrize(
    ("hosts", "num_nodes", "node_bytes"),
    [
        (("a", "a", "b", "b"), 2, 1024.0),
        (("a", "a", "a", "b"), 2, None),  # nodes with different numbers of ranks are no equal parts
        (("a", "b", "a", "b"), 2, None),
        (("a", "a", "a", "a"), 1, None),
    ],
)
def test_bytes_between_nodes_are_known_if_nodes_are_equal_parts_in_order(
    hosts: tuple[str, ...], num_nodes: int, node_bytes: float | None
) -> None:
    found = traffic(PATTERN, Shape(4, 1024), Group("world", (0, 1, 2, 3)), hosts)
    assert (found["num_nodes"], found["node_bytes"]) == (num_nodes, node_bytes)
