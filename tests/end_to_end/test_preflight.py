"""Ranks that are not the run that was asked for end with exit code 3 and one sentence, before anything is measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ALLREDUCE = ("-m", "bench.allreduce", "--sizes", "8", "--iterations", "2")


def told(err: str) -> set[str]:
    """Our own sentences."""
    return {line.partition("bench: error: ")[2] for line in err.splitlines() if "bench: error: " in line}


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("expected", "sentence"),
    [
        ("1x3", "3 ranks (1 x 3) were to be started, and this one is of 2 (told by mpirun)"),
        ("2x1", "2 x 1 ranks (hosts x ranks) were to be started, and the hosts are "),
    ],
)
def test_another_world_is_refused(run: Any, mpirun: Any, expected: str, sentence: str) -> None:
    done = run(*mpirun(2), *ALLREDUCE, "--expect", expected)
    [said] = told(done.err)
    assert (done.code, done.out) == (3, "")
    assert sentence in said


@pytest.mark.mpi
def test_the_world_that_was_meant_is_measured(run: Any, mpirun: Any) -> None:
    done = run(*mpirun(2), *ALLREDUCE, "--expect", "1x2")
    assert done.code == 0, done.err


def test_ranks_that_all_think_they_are_alone_are_refused(run: Any) -> None:
    done = run(sys.executable, *ALLREDUCE, "--expect", "2x2")
    assert (done.code, done.out) == (3, "")
    assert "4 ranks (2 x 2) were to be started, and this one is of 1" in done.err
    done = run(sys.executable, *ALLREDUCE, env={"FLUX_JOB_SIZE": "4"})
    assert (done.code, done.out) == (3, "")
    assert "FLUX_JOB_SIZE=4 says that there are 4 ranks" in done.err


@pytest.mark.torch
def test_a_rank_that_never_comes_is_named_with_its_host(run: Any) -> None:
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
        env={**rank, "MASTER_PORT": str(free_port())},
    )
    assert (done.code, done.out) == (3, "")
    [said] = told(done.err)
    assert said.startswith("rank 1 on there: did not come to rank 0 on ")


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


@pytest.mark.mpi
def test_over_mpi_rank_0_names_those_that_are_silent(run: Any, mpirun: Any, tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(_LATE)
    done = run(*mpirun(3), str(program))
    assert done.code == 3, done.err
    assert {line.strip() for line in done.out.splitlines()} >= {"rank 0 misses (1,)", "rank 2 misses ()"}


@pytest.mark.mpi
def test_over_mpi_all_that_come_go_on(run: Any, mpirun: Any, tmp_path: Path) -> None:
    program = tmp_path / "here.py"
    patient = _LATE.replace("world.rank == 1", "False").replace("MPI.BYTE, 5.0", "MPI.BYTE, 60.0")
    program.write_text(patient + "os.write(1, f'all {world.rank}\\n'.encode())\n")
    done = run(*mpirun(3), str(program))
    assert (done.code, sorted(done.out.split())) == (0, ["0", "1", "2", "all", "all", "all"]), done.err
