"""Victims and aggressors on one host: real processes, over MPI and Gloo."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.store import jsonl
from tests.facts import holds

Run = Callable[..., Any]
Start = Callable[[int], tuple[str, ...]]
AGAINST = ("--sizes", "4K", "--mode", "isolated", "--max-seconds", "20ms", "--aggressor")


def checked(out: str, aggressors: int) -> dict[str, Any]:
    """The one row of contention of a document whose data were right."""
    document = json.loads(out)
    (row,), (found,) = document["summaries"], document["interferences"]
    assert row["verified"] is True and row["num_ranks"] == found["num_ranks"]
    assert found["num_aggressors"] == aggressors
    assert found["aggressor_bytes_per_s"] > 0 and found["aggressor_alone_bytes_per_s"] > 0
    assert found["alone_s"] > 0 and found["disturbed_s"] == pytest.approx(row["median_s"])
    return dict(found)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(
    "aggressor",
    [
        "alltoall:64K",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("incast:64K", "sendrecv:64K", "pingpong:64K", "alltoallv:64K")
        ),
    ],
)
def test_any_pattern_disturbs_a_collective_over_mpi(run: Run, mpirun: Start, aggressor: str) -> None:
    ran = run(*mpirun(4), "-m", "bench.allreduce", *AGAINST, aggressor, "--format", "json")
    assert ran.code == 0, ran.err
    assert checked(ran.out, 2)["aggressor"] == aggressor.partition(":")[0]


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(
    "pattern", ["pairs", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sendrecv", "barrier"))]
)
def test_any_pattern_can_be_the_victim_and_some_ranks_idle(run: Run, mpirun: Start, pattern: str) -> None:
    ran = run(*mpirun(5), "-m", f"bench.{pattern}", *AGAINST, "allreduce:64K", "--split", "0,4/1-2", "--format", "json")
    assert ran.code == 0, ran.err
    checked(ran.out, 2)


@pytest.mark.slow
@pytest.mark.torch
def test_two_collectives_at_once_over_gloo(run: Run, torchrun: Start) -> None:
    ran = run(*torchrun(4), "-m", "bench.allreduce", *AGAINST, "allreduce:64K", "--format", "json")
    assert ran.code == 0, ran.err
    checked(ran.out, 2)


@pytest.mark.mpi
def test_the_file_keeps_both_sides_block_by_block(run: Run, mpirun: Start, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    ran = run(*mpirun(4), "-m", "bench.allreduce", *AGAINST, "alltoall:64K", "--records", str(file), "-n", "42")
    assert ran.code == 0, ran.err
    (record,) = jsonl.read(file).attempts[0].records
    assert record.contention is not None and record.samples is not None
    assert (record.group, record.contention.samples_per_block) == ("victims", 2)
    assert len(record.contention.alone_s) == len(record.samples.seconds) == 42
    assert len(record.contention.busy) == len(record.contention.rates_bytes_per_s) == 21
    assert holds(ran.out, "alltoall", "64K", "2 ranks", "aggressor")


@pytest.mark.mpi
@pytest.mark.parametrize("words", [("barrier",), ("alltoall", "--split", "0/7")])
def test_an_aggressor_that_cannot_disturb_is_refused(run: Run, mpirun: Start, words: tuple[str, ...]) -> None:
    ran = run(*mpirun(2), "-m", "bench.broadcast", *AGAINST, *words)
    assert (ran.code, ran.out.count("against")) == (2, 0)  # the reasons: tests/rank and tests/core
