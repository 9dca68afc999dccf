"""Which NIC a rank uses, and how its library is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.case import Case
from bench.rank import nics


def test_ranks_take_the_nics_in_turn() -> None:
    case = Case("pairs", transport="gloo", nics=("eth0", "eth1"))
    assert [nics.of(case, k) for k in range(4)] == ["eth0", "eth1", "eth0", "eth1"]
    assert nics.of(Case("pairs"), 0) is None


def test_mpi_is_held_to_one_nic_only() -> None:
    for transport in ("mpi", "mpi_cuda"):
        assert nics.of(Case("pairs", transport=transport, nics=("eth0", "eth1")), 1) is None
        assert nics.of(Case("pairs", transport=transport, nics=("eth0",)), 1) == "eth0"
        env: dict[str, str] = {}
        nics.use("eth0", transport, env)
        assert env == {"UCX_NET_DEVICES": "eth0", "OMPI_MCA_btl_tcp_if_include": "eth0"}


def test_the_library_is_told_unless_the_user_has() -> None:
    env = {"GLOO_SOCKET_IFNAME": "eth7"}
    nics.use("eth0", "gloo", env)
    assert env == {"GLOO_SOCKET_IFNAME": "eth7"}
    env = {}
    nics.use("eth0", "gloo", env)
    nics.use(None, "nccl", env)
    assert env == {"GLOO_SOCKET_IFNAME": "eth0"}


def test_nccl_is_told_of_interfaces_and_of_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nics, "_INTERFACES", tmp_path)
    (tmp_path / "eth0").mkdir()
    env: dict[str, str] = {}
    nics.use("eth0", "nccl", env)
    nics.use("mlx5_1", "nccl", env)
    assert env == {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "=mlx5_1"}
