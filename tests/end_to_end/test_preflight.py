"""Ranks that are not the requested world end with exit code 3 and one error, before anything is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.core.ends import EndCode
from bench.rank.messages import RankRefusal
from bench.store import heartbeat

ALLREDUCE = ("-m", "bench.allreduce", "--sizes", "8", "--iterations", "2")


def codes(out: str) -> list[str]:
    """The codes of the failures in a JSON document."""
    return [failure["code"] for failure in json.loads(out)["failures"]]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("expected", "code"), [("1x3", RankRefusal.OTHER_NUM_RANKS), ("2x1", RankRefusal.OTHER_LAYOUT)]
)
def test_another_world_is_refused(run: Any, mpirun: Any, expected: str, code: RankRefusal) -> None:
    done = run(*mpirun(2), *ALLREDUCE, "--expect", expected, "--format", "json")
    assert (done.code, codes(done.out)) == (3, [code])
    assert len({words.end.text for words in heartbeat.last_words(done.err)}) == 1


@pytest.mark.mpi
def test_the_requested_world_is_measured(run: Any, mpirun: Any) -> None:
    done = run(*mpirun(2), *ALLREDUCE, "--expect", "1x2")
    assert done.code == 0, done.err


def test_ranks_that_all_think_they_are_alone_are_refused(run: Any) -> None:
    done = run(sys.executable, *ALLREDUCE, "--expect", "2x2", "--format", "json")
    assert (done.code, codes(done.out)) == (3, [RankRefusal.OTHER_NUM_RANKS])
    done = run(sys.executable, *ALLREDUCE, "--format", "json", env={"FLUX_JOB_SIZE": "4"})
    assert (done.code, codes(done.out)) == (3, [RankRefusal.FOREIGN_LAUNCHER])
    assert "FLUX_JOB_SIZE=4" in done.err


@pytest.mark.torch
def test_an_absent_rank_is_named_with_its_host(run: Any, tmp_path: Path) -> None:
    rank = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    done = run(
        sys.executable,
        *ALLREDUCE,
        "--transport",
        "gloo",
        "--timeout",
        "1",
        "--expect",
        "here,therex1",
        "--heartbeats",
        str(tmp_path / "beats"),
        env={**rank, "MASTER_PORT": str(free_port())},
    )
    assert (done.code, done.out) == (3, "")
    [words] = heartbeat.last_words(done.err)
    assert (words.end.code, words.rank, words.host) == (EndCode.ABSENT, 1, "there")


def free_port() -> int:
    """A port of this machine."""
    from bench.probes import ports

    return ports.free_port()


_LATE = """
import os, time
from bench.core.errors import AbsentError
from bench.transports import _arrival
from mpi4py import MPI  # last: all ranks leave its start together
world = MPI.COMM_WORLD
if world.rank == 1:
    time.sleep(200)
try:
    _arrival.over_mpi(world, MPI.BYTE, 5.0)
except AbsentError as error:
    os.write(1, f"rank {world.rank} misses {error.ranks}\\n".encode())  # in one piece
    if world.rank == 0:
        time.sleep(10)  # the others write first
        world.Abort(3)
    time.sleep(200)
"""


@pytest.mark.slow
@pytest.mark.mpi
def test_over_mpi_rank_0_names_the_absent_ranks(run: Any, mpirun: Any, tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(_LATE)
    done = run(*mpirun(3), str(program))
    assert done.code == 3, done.err
    assert {line.strip() for line in done.out.splitlines()} >= {"rank 0 misses (1,)", "rank 2 misses ()"}


@pytest.mark.mpi
def test_over_mpi_all_ranks_that_arrive_continue(run: Any, mpirun: Any, tmp_path: Path) -> None:
    program = tmp_path / "here.py"
    patient = _LATE.replace("world.rank == 1", "False").replace("MPI.BYTE, 5.0", "MPI.BYTE, 60.0")
    program.write_text(patient + "os.write(1, f'all {world.rank}\\n'.encode())\n")
    done = run(*mpirun(3), str(program))
    assert (done.code, sorted(done.out.split())) == (0, ["0", "1", "2", "all", "all", "all"]), done.err
