"""Real processes: what runs a command line of the suite, and what must be there for it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from tests.warm_ranks import Rank, WarmRanks, port_of_ranks

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = Path(sys.executable).parent

Missing = Callable[[str, str], NoReturn]
_LOADED = (  # and what torch loads late, for strategies
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
)


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(word, ..., cwd=..., env={...}, timeout_s=...)`: a command in a scratch folder, ended if it hangs."""

    def go(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout_s: float = 250) -> Ran:
        done = subprocess.run(
            words,
            cwd=cwd or tmp_path,
            env=environment(env or {}),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return go


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with the checkout importable, mpirun found, and Open MPI content with root."""
    ours = {
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join([str(SCRIPTS), os.environ["PATH"]]),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return {**os.environ, **ours, **more}


@pytest.fixture
def mpirun(missing: Missing) -> Callable[[int], tuple[str, ...]]:
    """`mpirun(4)`: the words that start 4 ranks, whatever MPI it is, on however few CPUs."""
    program = SCRIPTS / "mpirun"
    if not program.exists() or importlib.util.find_spec("mpi4py") is None:
        missing("mpi", "no mpirun and mpi4py beside the interpreter")
    return lambda ranks: (
        str(program),
        "--map-by",
        ":OVERSUBSCRIBE",
        "--bind-to",
        "none",
        "-n",
        str(ranks),
        sys.executable,
    )


@pytest.fixture
def torchrun(missing: Missing) -> Callable[[int], tuple[str, ...]]:
    """`torchrun(2)`: the words that start 2 ranks on this host."""
    if importlib.util.find_spec("torch") is None:
        missing("torch", "torch is not installed")
    return lambda ranks: (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmRanks]:
    """The process that has loaded torch for all tests of this session that fork ranks."""
    with WarmRanks(*_LOADED) as started:
        yield started


@pytest.fixture
def torch_ranks(missing: Missing, warm: WarmRanks, tmp_path: Path) -> Run:
    """`torch_ranks(2, word, ...)`: as `run(*torchrun(2), word, ...)`, with torch loaded once for all tests.

    The code is that of the first rank that failed, which torchrun does not pass on.
    """
    if importlib.util.find_spec("torch") is None:
        missing("torch", "torch is not installed")

    def go(num_ranks: int, *words: str, timeout_s: float = 250) -> Ran:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port_of_ranks())}
        world = {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1"}
        places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
        ranks = [Rank(words, environment({**meeting, **world, **place}), str(tmp_path)) for place in places]
        ended = warm.run(ranks, timeout_s, ends_others=True)
        code = next((one.code for one in ended if one.code > 0), ended[0].code)
        return Ran(code, "".join(one.out for one in ended), "".join(one.err for one in ended))

    return go
