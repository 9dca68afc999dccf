"""Variables reach other hosts through the agent's standard input, never in a command line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.controller import connections, hosts, keeper
from bench.controller.messages import ConnectionCode
from bench.probes import processes
from bench.store import lease

ROOT = Path(__file__).resolve().parents[2]
SECRET = "hunter2-'quoted'\nand a second line"
# A login on a host: no variables, the command as one word, and, as with ssh, a process that waits with it in its words.
AGENT = ("env", "-i", f"PATH={os.environ['PATH']}", "sh", "-c", 'sh -c "$1"; exit $?', "{host}")
# Prints the variable, and every command line of this machine that holds it.
LOOK = """
import glob, os, sys
value = os.environ["HF_TOKEN"]
found = []
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        words = open(path, "rb").read()
    except OSError:
        continue
    if value[:7].encode() in words:
        found.append(words)
assert not found, found
assert not sys.stdin.read()
print(repr((value, os.environ.get("SET_UP"))))
"""


@pytest.fixture
def look(tmp_path: Path) -> list[str]:
    script = tmp_path / "look.py"
    script.write_text(LOOK)
    return [sys.executable, str(script)]


@pytest.fixture
def env() -> dict[str, str]:
    own = {
        "BENCH_AGENT": shlex.join(AGENT),
        "BENCH_CARRY": "HF_TOKEN,PYTHONPATH",
        "BENCH_SETUP": "SET_UP=$HF_TOKEN\nexport SET_UP",
        "HF_TOKEN": SECRET,
    }
    return {**os.environ, **own}


def test_what_ranks_and_mpi_start_on_hosts_has_no_value_in_a_command_line(look: list[str], env: dict[str, str]) -> None:
    module = [sys.executable, "-m", "bench.controller.hosts"]
    for words in ([*module, "h", "--", *look], [*module, "--as-ssh", "-x", "h", shlex.join(look)]):
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, f"{(SECRET, SECRET)!r}\n"), done.stderr


def test_questions_to_hosts_have_no_value_in_a_command_line(look: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    asked = hosts.in_rank_environment(look, ("SET_UP=1", "export SET_UP"), {"HF_TOKEN": "from-environment"})
    replies = hosts.ask(AGENT, {"a": asked, "b": asked}, 20)
    replies["here"] = hosts.run_locally(asked, 20)
    for reply in replies.values():
        assert (reply.exit_code, reply.out) == (0, f"{hosts.MARK}\n{(SECRET, '1')!r}\n"), reply.err


def test_torchrun_on_each_host_knows_its_number_and_the_job() -> None:
    """Without the job's id, a host of another job that finds the same port would take part in this job."""
    asked: list[tuple[str, ...]] = []

    def start(host: str, words: Sequence[str], out: int | None) -> subprocess.Popen[bytes]:
        asked.append((host, *words))
        return subprocess.Popen(["true"])

    words = ["torchrun", "--node-rank={node}", "--rdzv-id={job}"]
    for env in ({}, {"BENCH_JOB": "20261127-010115-c-s/allreduce/7"}):
        assert connections.run_everywhere(["a", "b"], words, env, start) == 0
    job = "20261127-010115-c-s-allreduce-7"
    assert [(host, number[-1], id_.partition("=")[2]) for host, _, number, id_ in asked] == [
        ("a", "0", "bench"),
        ("b", "1", "bench"),
        ("a", "0", job),
        ("b", "1", job),
    ]


def test_an_agent_without_input_ends_with_a_sentence_that_names_the_option() -> None:
    asked = hosts.in_rank_environment(["true"], (), {"A": "1"})
    reply = hosts.run_locally(hosts.HostCommand(asked.words), 20)
    assert reply.exit_code == hosts.NO_INPUT and hosts.MARK in reply.out
    assert "docker exec -i" in reply.err and "kubectl exec -i" in reply.err


TALK = """
import sys, time
for number in range(20):
    print("line", number, flush=True)
    time.sleep(0.1)
sys.exit(3)
"""


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A job of the controller on two hosts. Each prints lines for 2 s and ends with code 3."""
    (tmp_path / "talk.py").write_text(TALK)
    own = {
        "BENCH_AGENT": shlex.join(AGENT),
        "BENCH_CARRY": "BENCH_JOB,BENCH_LEASE,PYTHONPATH",
        "BENCH_JOB": str(tmp_path),
        "BENCH_LEASE": str(tmp_path / lease.NAME),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
    }
    words = [sys.executable, "-m", "bench.controller.hosts", "a,b", "--", sys.executable, "-m", "talk"]
    with subprocess.Popen(words, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True) as process:
        yield process


def test_a_lost_connection_loses_and_doubles_no_line(talking: subprocess.Popen[str], tmp_path: Path) -> None:
    assert talking.stdout is not None
    first = [talking.stdout.readline() for _ in range(6)]
    agents = psutil.Process(talking.pid).children()
    agents[0].kill()
    lines = [*first, *talking.stdout]
    assert sorted(lines) == sorted(2 * [f"line {number}\n" for number in range(20)])
    assert talking.wait(30) == 3
    (lost,) = connections.reported(tmp_path)
    assert lost.code == ConnectionCode.RESTORED and lost.facts["host"] in ("a", "b")


def test_a_connection_whose_launcher_is_gone_is_named(talking: subprocess.Popen[str], tmp_path: Path) -> None:
    assert talking.stdout is not None
    first = [talking.stdout.readline()]
    while first.count("line 0\n") < 2:  # the command runs on both hosts
        first.append(talking.stdout.readline())
    agent = psutil.Process(talking.pid).children()[0]
    for process in processes.of_job(str(tmp_path)):
        if keeper.__name__ in process.cmdline() and os.getsid(process.pid) == process.pid:
            process.kill()
    agent.kill()
    talking.stdout.read()
    assert talking.wait(30) == 255
    assert {found.code for found in connections.reported(tmp_path)} <= {ConnectionCode.LAUNCHER_GONE}


@pytest.mark.parametrize(("ends", "exit_code"), [("exit 255", 255), ("exit 3", 3), ("exit 0", 0), ("kill -9 $$", 137)])
def test_a_host_whose_agent_ends_before_the_launcher_begins_is_named(tmp_path: Path, ends: str, exit_code: int) -> None:
    code, found = _not_opened(tmp_path, f'case $0 in b) {ends};; esac; exec sh -c "$1"')
    assert (code, found) == (exit_code or 255, [{"host": "b", "exit_code": exit_code}])


def test_a_host_whose_agent_ends_after_another_failed_is_not_named(tmp_path: Path) -> None:
    code, found = _not_opened(tmp_path, "[ $0 = a ] && exit 3; sleep 0.5; exit 255")
    assert (code, found) == (3, [{"host": "a", "exit_code": 3}])


def _not_opened(folder: Path, agent: str) -> tuple[int, list[Mapping[str, Any]]]:
    """The exit code of the command, and the facts of each connection that it reports as not opened."""
    own = {
        "BENCH_AGENT": shlex.join(["sh", "-c", agent, "{host}"]),
        "BENCH_CARRY": "BENCH_JOB,BENCH_LEASE,PYTHONPATH",
        "BENCH_JOB": str(folder),
        "BENCH_LEASE": str(folder / lease.NAME),
        "PYTHONPATH": str(ROOT),
    }
    words = [sys.executable, "-m", "bench.controller.hosts", "a,b", "--", sys.executable, "-m", "this"]
    done = subprocess.run(words, env={**os.environ, **own}, capture_output=True, check=False)
    found = connections.reported(folder)
    assert {one.code for one in found} == {ConnectionCode.NOT_OPENED}
    return done.returncode, [one.facts for one in found]
