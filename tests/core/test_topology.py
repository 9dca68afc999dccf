"""Which ranks form groups, in which order, and when."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.errors import UsageError
from bench.core.topology import circle, rounds
from bench.core.world import World

TWO_BY_FOUR = World(num_nodes=2, ranks_per_node=4)


def groups(topology: str, order: str = "linear") -> list[tuple[int, ...]]:
    (only,) = rounds(TWO_BY_FOUR, topology, order)
    return [group.ranks for group in only]


def test_the_world_is_one_group() -> None:
    assert groups("world") == [(0, 1, 2, 3, 4, 5, 6, 7)]


def test_each_node_is_a_group_and_all_run_at_once() -> None:
    assert groups("node") == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_each_rail_joins_the_same_local_rank_of_every_node() -> None:
    assert groups("rail") == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_neighbours_in_the_order_form_groups_of_k() -> None:
    assert groups("groups of 2") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert groups("groups of 2", "interleaved") == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize("topology", ["node", "rail", "groups of 2", "groups of 4"])
def test_groups_in_turn_are_the_same_groups_one_at_a_time(topology: str) -> None:
    (at_once,) = rounds(TWO_BY_FOUR, topology, "reverse")
    assert rounds(TWO_BY_FOUR, f"{topology} in turn", "reverse") == tuple((group,) for group in at_once)


def test_orders_permute_the_ranks() -> None:
    assert groups("world", "reverse") == [(7, 6, 5, 4, 3, 2, 1, 0)]
    assert groups("world", "interleaved") == [(0, 4, 1, 5, 2, 6, 3, 7)]
    assert groups("world", "7,6,5,4,0,1,2,3") == [(7, 6, 5, 4, 0, 1, 2, 3)]


def test_pairs_carry_their_ends_by_world_rank() -> None:
    for groups_at_once in rounds(TWO_BY_FOUR, "pairs", "reverse"):
        for group in groups_at_once:
            assert group.ranks == (group.src, group.dst)
            assert group.name == f"{group.src}-{group.dst}"


def test_directed_pairs_are_each_pair_and_then_its_reverse() -> None:
    pairs, directed = (list(rounds(TWO_BY_FOUR, name)) for name in ("pairs", "directed pairs"))
    assert directed[: len(pairs)] == pairs
    assert [[group.ranks for group in one] for one in directed[len(pairs) :]] == [
        [group.ranks[::-1] for group in one] for one in pairs
    ]
    assert all(group.name == f"{group.src}-{group.dst}" for one in directed for group in one)
    assert len({group.name for one in directed for group in one}) == 8 * 7


def test_a_lone_rank_is_a_group_that_pairs_can_then_refuse() -> None:
    assert [[group.ranks for group in one] for one in rounds(World(1, 1), "pairs")] == [[(0,)]]


@given(st.permutations(range(12)), st.integers(2, 12))
def test_each_pair_meets_once_in_rounds_of_disjoint_pairs(order: list[int], num_ranks: int) -> None:
    check_schedule(tuple(order[:num_ranks]))


@pytest.mark.parametrize("num_ranks", range(2, 41))
def test_the_schedule_is_complete_for_up_to_40_ranks(num_ranks: int) -> None:
    check_schedule(tuple(range(num_ranks)))


def check_schedule(ranks: tuple[int, ...]) -> None:
    schedule = circle(ranks)
    met = [pair for pairs in schedule for pair in pairs]
    assert sorted(met) == sorted(combinations(sorted(ranks), 2))
    for pairs in schedule:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))
        assert len(pairs) == len(ranks) // 2
    assert len(schedule) == (len(ranks) - 1 if len(ranks) % 2 == 0 else len(ranks))


def test_rounds_are_counted_and_picked_without_making_all_pairs() -> None:
    every = rounds(World(1024, 8), "pairs")  # 33.5 million pairs
    assert (len(every), len(every[0]), len(every[-1])) == (8191, 4096, 4096)
    assert every[8190] == every[-1]
    assert every[3:5] == (every[3], every[4])
    with pytest.raises(IndexError):
        every[8191]


@pytest.mark.parametrize(
    ("topology", "order", "fact"),
    [
        ("nodes", "linear", "'nodes'"),
        ("groups of 0", "linear", "'groups of 0'"),
        ("groups of K", "linear", "'groups of K'"),
        ("groups of K in turn", "linear", "'groups of K in turn'"),
        ("world in turn", "linear", "'world in turn'"),
        ("pairs in turn", "linear", "'pairs in turn'"),
        ("groups of 3", "linear", "8 ranks .* groups of 3"),
        ("world", "random", "'random'"),
        ("world", "0,1,2", "0 to 7"),
        ("world", "0,1,2,3,4,5,6,6", "0 to 7"),
        ("world", "-1,0", "'-1,0'"),
    ],
)
def test_groups_that_do_not_fit_are_refused(topology: str, order: str, fact: str) -> None:
    with pytest.raises(UsageError, match=fact):
        rounds(TWO_BY_FOUR, topology, order)
