"""Variables reach other hosts through the agent's standard input, never in a command line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.controller import hosts

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
    asked = hosts.in_rank_environment(look, ("SET_UP=1", "export SET_UP"), {"HF_TOKEN": "from-environment"}, "/suite")
    replies = hosts.ask(AGENT, {"a": asked, "b": asked}, 20)
    replies["here"] = hosts.run_locally(asked, 20)
    for reply in replies.values():
        assert (reply.exit_code, reply.out) == (0, f"{hosts.MARK}\n{(SECRET, '1')!r}\n"), reply.err


def test_an_agent_without_input_ends_with_a_sentence_that_names_the_option() -> None:
    asked = hosts.in_rank_environment(["true"], (), {"A": "1"}, "/suite")
    reply = hosts.run_locally(hosts.HostCommand(asked.words), 20)
    assert reply.exit_code == hosts.NO_INPUT and hosts.MARK in reply.out
    assert "docker exec -i" in reply.err and "kubectl exec -i" in reply.err
