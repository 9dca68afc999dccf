"""A process that is no rank of the run cannot join it, and runs nothing inside it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.core.seal import SECRET_VARIABLE
from tests.end_to_end.conftest import environment
from tests.warm_ranks import Ended, Rank, WarmRanks, port_of_ranks

pytestmark = [pytest.mark.alone, pytest.mark.torch]

STRANGER = str(Path(__file__).parent / "stranger.py")
PREFIXES = (f"bench-{hashlib.sha256(b'job').hexdigest()[:16]}-0", "bench-0")  # today's, and that of older versions
ALLREDUCE = ("-m", "bench.allreduce", "--transport", "gloo", "--sizes", "1K", "-n", "3", "--timeout", "20")


def variables(rank: int, port: str, secret: str) -> dict[str, str]:
    """A place of a world of two."""
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    return {**place, **meeting, "BENCH_JOB": "job", SECRET_VARIABLE: secret}


class World:
    """Two places of a world, whose processes are started one by one."""

    def __init__(self) -> None:
        self._port = str(port_of_ranks())
        self.started: list[subprocess.Popen[str]] = []

    def start(self, rank: int, *words: str, secret: str = "") -> subprocess.Popen[str]:
        env = environment(variables(rank, self._port, secret))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.started.append(subprocess.Popen([sys.executable, *words], env=env, **pipes))  # type: ignore[call-overload]
        return self.started[-1]


@pytest.fixture
def world(missing: object) -> Iterator[World]:
    found = World()
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


def met(warm: WarmRanks, folder: Path, *stranger: str) -> Ended:
    """How rank 0, which knows the secret, ends where something else takes the place of rank 1."""
    port = str(port_of_ranks())
    ranks = [
        Rank(words, environment(variables(rank, port, secret)), str(folder))
        for rank, (words, secret) in enumerate(((ALLREDUCE, "s3cr3t"), (stranger, "")))
    ]
    return warm.run(ranks, 280, ends_others=True)[0]


@pytest.mark.parametrize("prefix", [PREFIXES[0], pytest.param(PREFIXES[1], marks=pytest.mark.slow)])
def test_a_pickled_command_of_a_stranger_runs_nowhere(warm: WarmRanks, prefix: str, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    victim = met(warm, tmp_path, STRANGER, prefix, f"touch {marker}")
    assert victim.code in (3, 4), victim.err
    assert not marker.exists()
    assert "s3cr3t" not in victim.err


def test_a_rank_without_the_secret_is_refused_by_name(warm: WarmRanks, tmp_path: Path) -> None:
    victim = met(warm, tmp_path, *ALLREDUCE)
    assert victim.code == 4
    assert "secret" in victim.err


@pytest.mark.slow
def test_ranks_of_one_secret_meet_and_listen_on_their_own_address(world: World) -> None:
    first = world.start(0, *ALLREDUCE, secret="s3cr3t")
    listening: set[str] = set()
    deadline = time.monotonic() + 60
    while not listening and time.monotonic() < deadline:
        found = psutil.Process(first.pid).net_connections("inet") if first.poll() is None else []
        listening = {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}
        time.sleep(0.05)
    second = world.start(1, *ALLREDUCE, secret="s3cr3t")
    for process in (first, second):
        _, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
    assert listening == {"127.0.0.1"}
