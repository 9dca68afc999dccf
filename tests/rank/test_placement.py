"""What a rank is bound to: its share of the CPU cores, and the NIC that its library must use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.core.case import Case
from bench.core.world import RankInfo
from bench.rank import placement
from tests.facts import holds


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The masks that are set, on a machine with four CPUs of one thread each."""
    masks: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, mask: masks.append(mask))
    monkeypatch.setattr("bench.probes.sysfs.cores", lambda cpus: [(cpu,) for cpu in sorted(cpus)])
    return masks


def me(local_rank: int, local_size: int) -> RankInfo:
    """A rank of one host."""
    return RankInfo(local_rank, local_size, local_rank, local_size, "mpirun")


def test_ranks_of_a_host_get_different_cores(bound: list[set[int]]) -> None:
    done = [placement.bind_cpus(me(rank, 2), "auto", 1) for rank in range(2)]
    [words] = set(done)
    assert bound == [{0, 1}, {2, 3}] and holds(words, "each", "own")


@pytest.mark.parametrize(("ranks", "how", "least"), [(4, "auto", 2), (5, "auto", 1), (2, "none", 1)])
def test_nothing_is_bound_if_threads_would_share_a_cpu_or_on_request(
    bound: list[set[int]], ranks: int, how: str, least: int
) -> None:
    assert placement.bind_cpus(me(0, ranks), how, least).startswith("as launched")
    assert bound == []


@pytest.mark.parametrize(
    ("num_cores", "ranks", "shares"),
    [(4, 2, [{0, 1}, {2, 3}]), (5, 2, [{0, 1}, {2, 3}]), (2, 2, [{0}, {1}]), (2, 3, [set(), set(), set()])],
)
def test_ranks_get_equally_many_cores_or_none(num_cores: int, ranks: int, shares: list[set[int]]) -> None:
    cores = [(core,) for core in range(num_cores)]
    assert [placement.share_of(cores, rank, ranks) for rank in range(ranks)] == shares


def test_a_rank_gets_all_hardware_threads_of_its_cores() -> None:
    assert placement.share_of([(0, 4), (1, 5), (2, 6), (3, 7)], 1, 2) == {2, 6, 3, 7}


def test_nics_go_to_ranks_in_turn() -> None:
    case = Case("pairs", transport="gloo", nics=("eth0", "eth1"))
    assert [placement.nic_of(case, k) for k in range(4)] == ["eth0", "eth1", "eth0", "eth1"]
    assert placement.nic_of(Case("pairs"), 0) is None


def test_mpi_takes_one_nic_only() -> None:
    for transport in ("mpi", "mpi_cuda"):
        assert placement.nic_of(Case("pairs", transport=transport, nics=("eth0", "eth1")), 1) is None
        assert placement.nic_of(Case("pairs", transport=transport, nics=("eth0",)), 1) == "eth0"
        env: dict[str, str] = {}
        placement.use_nic("eth0", transport, env)
        assert env == {"UCX_NET_DEVICES": "eth0", "OMPI_MCA_btl_tcp_if_include": "eth0"}


def test_a_variable_of_the_user_stays() -> None:
    env = {"GLOO_SOCKET_IFNAME": "eth7"}
    placement.use_nic("eth0", "gloo", env)
    assert env == {"GLOO_SOCKET_IFNAME": "eth7"}
    env = {}
    placement.use_nic("eth0", "gloo", env)
    placement.use_nic(None, "nccl", env)
    assert env == {"GLOO_SOCKET_IFNAME": "eth0"}


def test_nccl_has_variables_for_interfaces_and_for_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_INTERFACES", tmp_path)
    (tmp_path / "eth0").mkdir()
    env: dict[str, str] = {}
    placement.use_nic("eth0", "nccl", env)
    placement.use_nic("mlx5_1", "nccl", env)
    assert env == {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "=mlx5_1"}
