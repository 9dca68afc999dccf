"""What rank 0 keeps of every rank's seconds, few ranks or thousands."""

from __future__ import annotations

import tracemalloc
from statistics import fmean

import numpy as np
import pytest

from bench.core.program import Group
from bench.rank.gathered import Gathered
from bench.results.shares import slowest_counts

WORLD = (Group("world", (0, 1, 2)),)
FIRST = [[1.0, 5.0], [2.0, 4.0], [3.0, 3.0]]
SECOND = [[9.0], [9.0], [1.0]]
ALL = [[1.0, 5.0, 9.0], [2.0, 4.0, 9.0], [3.0, 3.0, 1.0]]


def test_where_there_is_room_everything_is_kept() -> None:
    taken = Gathered(WORLD, room=9)
    taken.add(FIRST)
    taken.add(SECOND)
    [shares] = taken.shares()
    assert [list(own) for own in shares.by_rank] == ALL
    assert (list(shares.slowest), shares.rank_mean_s, shares.slowest_counts) == ([3.0, 5.0, 9.0], (), ())


@pytest.mark.parametrize("room", [0, 6, 8])
def test_beyond_the_room_each_ranks_mean_and_wins_stand_for_its_values(room: int) -> None:
    taken = Gathered(WORLD, room)
    taken.add(FIRST)
    taken.add(SECOND)
    [shares] = taken.shares()
    assert list(shares.slowest) == [3.0, 5.0, 9.0], "the slowest rank of each sample is exact, with and without room"
    assert shares.by_rank == ()
    assert shares.rank_mean_s == tuple(map(fmean, ALL))
    assert shares.slowest_counts == slowest_counts(ALL) == (1, 0, 1)


def test_groups_are_told_apart_and_idle_ranks_are_in_none() -> None:
    taken = Gathered((Group("0-3", (0, 3)), Group("2-1", (2, 1))), room=0)
    taken.add([[1.0], [2.0], [3.0], [4.0], []])
    first, second = taken.shares()
    assert (list(first.slowest), first.rank_mean_s, first.slowest_counts) == ([4.0], (1.0, 4.0), (0, 1))
    assert (list(second.slowest), second.rank_mean_s, second.slowest_counts) == ([3.0], (3.0, 2.0), (1, 0))


def test_a_group_of_one_has_no_slowest() -> None:
    taken = Gathered((Group("alone", (0,)),), room=0)
    taken.add([[1.0, 2.0]])
    [shares] = taken.shares()
    assert (shares.rank_mean_s, shares.slowest_counts) == ((1.5,), ())


def test_the_memory_of_4096_ranks_does_not_grow_with_their_samples() -> None:
    ranks = 4096
    batch = [(1e-3,) * 64] * ranks  # one tuple: only what is kept costs memory
    taken = Gathered((Group("world", tuple(range(ranks))),), room=1 << 19)
    taken.add(batch)
    tracemalloc.start()
    for _ in range(20):  # 5.2 million values, 42 MB if they were kept as numbers of 8 bytes
        taken.add(batch)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 4 << 20 and peak < 24 << 20
    [shares] = taken.shares()
    assert (len(shares.slowest), len(shares.rank_mean_s)) == (21 * 64, ranks)
    assert np.allclose(shares.rank_mean_s, 1e-3)
