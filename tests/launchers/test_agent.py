"""The script that mpirun calls in place of ssh passes signals on, and says which connection of mpirun failed first."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from bench import launchers
from bench.controller import connections
from bench.controller.connections import MpirunConnection
from bench.store import lease

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(Path(launchers.__file__).with_name("agent.sh"))


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    own = {
        "BENCH_AGENT": shlex.join(["sh", "-c", 'exec sh -c "$1"', "{host}"]),
        "BENCH_LEASE": str(tmp_path / lease.NAME),
        "BENCH_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "UP": str(tmp_path / "up"),
        "GO": str(tmp_path / "go"),
    }
    return {**os.environ, **own}


def mpirun(env: Mapping[str, str], line: str) -> int:
    """`line` calls the script ("$1") in place of ssh, as mpirun does. Returns its exit code."""
    words = ["sh", "-c", line, "mpirun", SCRIPT]
    (Path(env["BENCH_LEASE"]).parent / "mpirun-connections").unlink(missing_ok=True)
    return subprocess.run(words, env=env, stderr=subprocess.DEVNULL, check=False, timeout=30).returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_ends_with_its_shell(env: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    shell = subprocess.Popen([SCRIPT, "-x", "h1", 'touch "$UP"; sleep 60'], env=env)
    _wait_for(tmp_path / "up")
    (agent,) = psutil.Process(shell.pid).children()
    began = psutil.Process(shell.pid).children(recursive=True)
    try:
        shell.send_signal(number)
        assert shell.wait(10) == (128 + number if number == signal.SIGTERM else -number)
        agent.wait(10)
    finally:
        shell.kill()
        for process in began:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    assert connections.failed_of_mpirun(tmp_path) == (), "whoever ended the shell ended this connection"


@pytest.mark.parametrize(
    ("line", "exit_code", "failed"),
    [
        ('"$1" -x h0 true; exit $?', 0, ()),
        ('"$1" -x h1 "exit 3"; exit $?', 3, (MpirunConnection("h1", 3, True),)),
        ('"$1" user@h2 "kill -9 \\$\\$"; exit $?', 137, (MpirunConnection("user@h2", 137, True),)),
    ],
)
def test_the_exit_code_is_that_of_the_agent(
    env: dict[str, str], tmp_path: Path, line: str, exit_code: int, failed: tuple[MpirunConnection, ...]
) -> None:
    assert mpirun(env, line) == exit_code
    assert connections.failed_of_mpirun(tmp_path) == failed


def test_what_an_agent_starts_can_be_interrupted(env: dict[str, str], tmp_path: Path) -> None:
    assert mpirun(env, '"$1" h0 "grep SigIgn /proc/self/status > $UP"; exit $?') == 0
    ignored = int((tmp_path / "up").read_text().split()[1], 16)
    for number in (signal.SIGINT, signal.SIGQUIT):
        assert not ignored >> (number - 1) & 1


def test_a_connection_failed_first_if_all_others_were_open(env: dict[str, str], tmp_path: Path) -> None:
    first = '"$1" h1 "touch $UP; until [ -e $GO ]; do sleep 0.02; done; exit 4" & '
    assert mpirun(env, first + 'until [ -e $UP ]; do sleep 0.02; done; "$1" h2 "exit 3"; touch $GO; wait') == 0
    assert connections.failed_of_mpirun(tmp_path) == (MpirunConnection("h2", 3, True), MpirunConnection("h1", 4, False))


def test_a_connection_is_not_the_first_if_another_ended_without_a_word(env: dict[str, str], tmp_path: Path) -> None:
    dies = '"$1" h1 "touch $UP; sleep 1" & shell=$!; until [ -e $UP ]; do sleep 0.02; done; kill -9 $shell; wait; '
    assert mpirun(env, dies + '"$1" h2 "exit 3"; exit $?') == 3
    assert connections.failed_of_mpirun(tmp_path) == (MpirunConnection("h2", 3, False),)


def test_a_connection_that_ends_after_mpirun_did_not_fail(env: dict[str, str], tmp_path: Path) -> None:
    ends = '"$1" h3 "touch $UP; sleep 0.3; touch $GO; exit 3" & until [ -e $UP ]; do sleep 0.02; done; exit 0'
    assert mpirun(env, ends) == 0
    _wait_for(tmp_path / "go")
    time.sleep(0.3)
    assert connections.failed_of_mpirun(tmp_path) == ()


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
