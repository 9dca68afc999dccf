"""What ranks find out about each other before the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bench.core.errors import AbsentError, RefusedError, UsageError
from bench.core.world import RankInfo
from bench.rank import preflight
from bench.rank.preflight import Expected, Self


def rank(host: str, env: Mapping[str, str] | None = None, **overrides: Any) -> Self:
    """A rank with which nothing is wrong."""
    given: dict[str, Any] = {"boot_id": f"boot of {host}", "time_s": 100.0, "software": {"torch": "2.13.0"}} | overrides
    return Self(host=host, environment=env or {}, **given)


def test_a_world_is_read_by_number_or_by_name() -> None:
    assert preflight.expected("4x2") == Expected(4, 2)
    assert preflight.expected("max0,h1x8") == Expected(2, 8, ("max0", "h1"))
    for wrong in ("4", "x2", "0x2", "4x0", "h0,,h1x2", "4x", "4x-1"):
        with pytest.raises(UsageError, match="is not a world"):
            preflight.expected(wrong)


def test_many_worlds_of_one_rank_are_refused() -> None:
    alone = RankInfo(0, 1, 0, 1, "direct")
    with pytest.raises(RefusedError, match=r"8 ranks \(4 x 2\) were to be started, and this one is of 1"):
        preflight.check_place(alone, Expected(4, 2), {})
    with pytest.raises(RefusedError, match="told by slurm"):
        preflight.check_place(RankInfo(0, 4, 0, 1, "slurm"), Expected(4, 2), {})
    preflight.check_place(RankInfo(3, 8, 1, 2, "mpirun"), Expected(4, 2), {"FLUX_JOB_SIZE": "9"})
    preflight.check_place(alone, None, {"SLURM_NTASKS": "4", "PMIX_RANK": "0"})


@pytest.mark.parametrize("env", [{"FLUX_JOB_SIZE": "4"}, {"JSM_NAMESPACE_SIZE": "2"}, {"PMIX_RANK": "3"}])
def test_a_rank_of_a_launcher_that_nobody_knows_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(RefusedError, match="start by mpirun, torchrun or srun, or unset it"):
        preflight.check_place(RankInfo(0, 1, 0, 1, "direct"), None, env)


def test_the_ranks_that_did_not_come_are_named_with_their_hosts() -> None:
    me, error = RankInfo(0, 8, 0, 2, "mpirun"), AbsentError((2, 3, 7), 15.0)
    told = preflight.absent(error, me, Expected(4, 2, ("h0", "h1", "h2", "h3")))
    assert told.startswith("rank 2 on h1: did not come to rank 0 on ")
    assert " within 15 s (nor did rank 3 on h1; rank 7 on h3): see whether" in told
    assert "(nor did rank 3 of node 1 (from 0); rank 7 of node 3 (from 0))" in preflight.absent(error, me, None)


ALIKE = [rank("h0"), rank("h0", software={}), rank("h1"), rank("h1", software={})]


def test_ranks_that_are_alike_are_not_refused() -> None:
    assert preflight.different(ALIKE, Expected(2, 2)) is None
    assert preflight.clocks(ALIKE) == []


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ([*ALIKE[:3], rank("h2")], "2 x 2 ranks (hosts x ranks) were to be started, and the hosts are h0 with 2, "),
        ([rank("h0") for _ in range(4)], "and the hosts are h0 with 4: see `hosts:`"),
        ([*ALIKE[:3], rank("h1", boot_id="other")], "two machines call themselves h1: give each a host name"),
        (
            [*ALIKE[:2], rank("h1", software={"torch": "2.12.1"}), ALIKE[3]],
            "torch is 2.13.0 on h0, 2.12.1 on h1: have the same on all of them",
        ),
        ([*ALIKE[:2], rank("h1", software={}), ALIKE[3]], "torch is 2.13.0 on h0, not there on h1"),
        ([*ALIKE[:3], rank("h1", software={"torch": "2.12.1"})], "torch is 2.13.0 on h0, 2.12.1 or 2.13.0 on h1"),
        (
            [rank("h0", {"NCCL_ALGO": "Ring"})] * 2 + ALIKE[2:],
            "the variable NCCL_ALGO is Ring on h0, not set on h1: set it by `env:` of the cluster",
        ),
        (
            [*ALIKE[:2], rank("h1", {"OMP_NUM_THREADS": "4"}), ALIKE[3]],
            "the variable OMP_NUM_THREADS is not set on h0, 4 or not set on h1",
        ),
    ],
)
def test_what_must_be_alike_and_is_not_is_refused(told: list[Self], sentence: str) -> None:
    assert sentence in (preflight.different(told, Expected(2, 2)) or "")


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG",
        "NCCL_DEBUG_SUBSYS",
        "UCX_LOG_LEVEL",
        "NCCL_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
        "NCCL_IB_HCA",
        "KMP_AFFINITY",
        "OMPI_COMM_WORLD_RANK",
        "SLURM_NODEID",
        "PMIX_MCA_x",
        "CUDA_VISIBLE_DEVICES",
    ],
)
def test_what_is_only_printed_or_names_a_device_may_differ(name: str) -> None:
    assert preflight.different([rank("h0", {name: "a"}), rank("h1", {name: "b"})], None) is None


def test_ranks_of_a_host_may_differ_as_they_do_on_the_others() -> None:
    rails = [rank(host, {"UCX_RNDV_SCHEME": scheme}) for host in ("h0", "h1") for scheme in ("get", "put")]
    assert preflight.different(rails, Expected(2, 2)) is None


def test_a_clock_that_is_off_is_a_note() -> None:
    [note] = preflight.clocks([*ALIKE, rank("h2", time_s=110.0)])
    assert note.startswith("the clock of host h2 is +10 s off")
