"""CPU cores of a rank's own: who gets which, and when nobody does."""

from __future__ import annotations

import os

import pytest

from bench.core.world import RankInfo
from bench.rank import binding


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The masks that were set, on a machine of four CPUs of one thread each."""
    masks: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, mask: masks.append(mask))
    monkeypatch.setattr("bench.probes.sysfs.cores", lambda cpus: [(cpu,) for cpu in sorted(cpus)])
    return masks


def me(local_rank: int, local_size: int) -> RankInfo:
    """A rank of one host."""
    return RankInfo(local_rank, local_size, local_rank, local_size, "mpirun")


def test_ranks_of_one_host_get_cores_that_no_other_has(bound: list[set[int]]) -> None:
    told = [binding.bind(me(rank, 2), "auto", 1) for rank in range(2)]
    assert bound == [{0, 1}, {2, 3}] and set(told) == {"each rank on cores of its own"}


@pytest.mark.parametrize(("ranks", "how", "least"), [(4, "auto", 2), (5, "auto", 1), (2, "none", 1)])
def test_nothing_is_bound_where_threads_would_share_a_cpu_or_nobody_asked(
    bound: list[set[int]], ranks: int, how: str, least: int
) -> None:
    assert binding.bind(me(0, ranks), how, least).startswith("as launched")
    assert bound == []


@pytest.mark.parametrize(
    ("num_cores", "ranks", "shares"),
    [(4, 2, [{0, 1}, {2, 3}]), (5, 2, [{0, 1}, {2, 3}]), (2, 2, [{0}, {1}]), (2, 3, [set(), set(), set()])],
)
def test_cores_are_dealt_out_in_equal_runs_or_not_at_all(num_cores: int, ranks: int, shares: list[set[int]]) -> None:
    cores = [(core,) for core in range(num_cores)]
    assert [binding.share_of(cores, rank, ranks) for rank in range(ranks)] == shares


def test_a_rank_gets_every_hardware_thread_of_its_cores() -> None:
    assert binding.share_of([(0, 4), (1, 5), (2, 6), (3, 7)], 1, 2) == {2, 6, 3, 7}
