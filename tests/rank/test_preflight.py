"""What ranks check about each other before the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bench.core.ends import EndCode
from bench.core.errors import AbsentError, RefusedError, UsageError
from bench.core.world import RankInfo
from bench.rank import preflight
from bench.rank.messages import RankRefusal, RankRemark
from bench.rank.preflight import Expected, RankFacts
from tests.facts import holds


def rank(host: str, env: Mapping[str, str] | None = None, **overrides: Any) -> RankFacts:
    """A rank without faults."""
    given: dict[str, Any] = {"boot_id": f"boot of {host}", "time_s": 100.0, "software": {"torch": "2.13.0"}} | overrides
    return RankFacts(host=host, environment=env or {}, **given)


def test_a_world_is_given_by_numbers_or_host_names() -> None:
    assert preflight.expected("4x2") == Expected(4, 2)
    assert preflight.expected("max0,h1x8") == Expected(2, 8, ("max0", "h1"))
    for wrong in ("4", "x2", "0x2", "4x0", "h0,,h1x2", "4x", "4x-1"):
        with pytest.raises(UsageError) as error:
            preflight.expected(wrong)
        assert (error.value.code, error.value.facts) == (RankRefusal.BAD_EXPECT, {"given": wrong})


def test_many_worlds_of_one_rank_are_refused() -> None:
    alone = RankInfo(0, 1, 0, 1, "direct")
    with pytest.raises(RefusedError) as error:
        preflight.check_place(alone, Expected(4, 2), {})
    assert error.value.code == RankRefusal.OTHER_NUM_RANKS
    assert (error.value.facts["num_ranks"], error.value.facts["found"]) == (8, 1)
    with pytest.raises(RefusedError) as error:
        preflight.check_place(RankInfo(0, 4, 0, 1, "slurm"), Expected(4, 2), {})
    assert (error.value.facts["source"], error.value.facts["found"]) == ("slurm", 4)
    preflight.check_place(RankInfo(3, 8, 1, 2, "mpirun"), Expected(4, 2), {"FLUX_JOB_SIZE": "9"})
    preflight.check_place(alone, None, {"SLURM_NTASKS": "4", "PMIX_RANK": "0"})


@pytest.mark.parametrize("env", [{"FLUX_JOB_SIZE": "4"}, {"JSM_NAMESPACE_SIZE": "2"}, {"PMIX_RANK": "3"}])
def test_a_rank_of_an_unsupported_launcher_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(RefusedError) as error:
        preflight.check_place(RankInfo(0, 1, 0, 1, "direct"), None, env)
    assert error.value.code == RankRefusal.FOREIGN_LAUNCHER
    assert {error.value.facts["variable"]: error.value.facts["value"]} == env


def test_absent_ranks_are_named_with_their_hosts() -> None:
    me, error = RankInfo(0, 8, 0, 2, "mpirun"), AbsentError((2, 3, 7), 15.0)
    words = preflight.absent_words(error, me, Expected(4, 2, ("h0", "h1", "h2", "h3")))
    assert (words.rank, words.host, words.end.code) == (2, "h1", EndCode.ABSENT)
    facts = words.end.facts
    assert (facts["missing"], facts["ranks"], facts["seen_by"], facts["waited_s"]) == ("rank 2 on h1", (2, 3, 7), 0, 15)
    assert "rank 3 on h1" in facts["others"] and "rank 7 on h3" in facts["others"]
    unnamed = preflight.absent_words(error, me, None)
    assert (unnamed.rank, unnamed.host) == (None, None)
    assert holds(unnamed.end.facts["others"], "rank 7", "node 3")


EQUAL = [rank("h0"), rank("h0", software={}), rank("h1"), rank("h1", software={})]


def test_equal_ranks_are_not_refused() -> None:
    assert preflight.difference_between(EQUAL, Expected(2, 2)) is None
    assert preflight.clocks_off(EQUAL) == []


@pytest.mark.parametrize(
    ("ranks", "code", "facts"),
    [
        ([*EQUAL[:3], rank("h2")], RankRefusal.OTHER_LAYOUT, {"found": "h0 with 2, h1 with 1, h2 with 1"}),
        ([rank("h0") for _ in range(4)], RankRefusal.OTHER_LAYOUT, {"found": "h0 with 4"}),
        ([*EQUAL[:3], rank("h1", boot_id="other")], RankRefusal.SAME_HOST_NAME, {"host": "h1"}),
        (
            [*EQUAL[:2], rank("h1", software={"torch": "2.12.1"}), EQUAL[3]],
            RankRefusal.SOFTWARE_DIFFERS,
            {"name": "torch", "where": "2.13.0 on h0, 2.12.1 on h1"},
        ),
        (
            [*EQUAL[:2], rank("h1", software={}), EQUAL[3]],
            RankRefusal.SOFTWARE_DIFFERS,
            {"name": "torch", "where": "2.13.0 on h0, not installed on h1"},
        ),
        (
            [*EQUAL[:3], rank("h1", software={"torch": "2.12.1"})],
            RankRefusal.SOFTWARE_DIFFERS,
            {"name": "torch", "where": "2.13.0 on h0, 2.12.1 or 2.13.0 on h1"},
        ),
        (
            [rank("h0", {"NCCL_ALGO": "Ring"})] * 2 + EQUAL[2:],
            RankRefusal.VARIABLE_DIFFERS,
            {"name": "NCCL_ALGO", "where": "Ring on h0, not set on h1"},
        ),
        (
            [*EQUAL[:2], rank("h1", {"OMP_NUM_THREADS": "4"}), EQUAL[3]],
            RankRefusal.VARIABLE_DIFFERS,
            {"name": "OMP_NUM_THREADS", "where": "not set on h0, 4 or not set on h1"},
        ),
    ],
)
def test_a_difference_between_ranks_is_refused(
    ranks: list[RankFacts], code: RankRefusal, facts: dict[str, str]
) -> None:
    found = preflight.difference_between(ranks, Expected(2, 2))
    assert found is not None and found.code == code
    assert facts.items() <= found.facts.items()


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
def test_variables_of_debug_output_and_device_names_may_differ(name: str) -> None:
    assert preflight.difference_between([rank("h0", {name: "a"}), rank("h1", {name: "b"})], None) is None


def test_ranks_of_a_host_may_differ_if_every_host_is_the_same() -> None:
    rails = [rank(host, {"UCX_RNDV_SCHEME": scheme}) for host in ("h0", "h1") for scheme in ("get", "put")]
    assert preflight.difference_between(rails, Expected(2, 2)) is None


def test_a_wrong_clock_is_a_remark() -> None:
    [remark] = preflight.clocks_off([*EQUAL, rank("h2", time_s=110.0)])
    assert (remark.code, remark.facts) == (RankRemark.CLOCK_OFF, {"host": "h2", "off_s": 10.0})
