"""Reach other hosts with the site's agent (`agent:` in bench.yaml), ssh by default.

The command for the remote shell is appended to the agent's words as one string, as for ssh. Any program of this form
works: ssh with options, `kubectl exec POD -- sh -c`, `docker exec NAME sh -c`.

    python -m bench.controller.hosts h0,h1 -- COMMAND ...     COMMAND on every host at once; {node} in it is 0, 1, ...
    python -m bench.controller.hosts --as-ssh HOST WORDS ...  called by MPI in place of ssh (launchers/agent.sh)

Both read BENCH_AGENT (the agent's words), BENCH_CARRY (names of variables to pass on) and BENCH_SETUP (shell lines to
run first on the host). A login on another host has none of the caller's variables.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.core.launcher import SSH

MARK = "bench-reached"
MOST_AT_ONCE = 64
_OTHERS_GRACE_S = 10.0  # how long the other hosts may go on after one has failed
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class CommandReply:
    """A host's reply. `exit_code` is None if the command timed out or the agent could not be started."""

    exit_code: int | None
    out: str
    err: str


def agent_words(agent: Sequence[str], host: str) -> list[str]:
    """The agent's words for one host; the host is added at the end if no word has `{host}`."""
    words = [word.replace("{host}", host) for word in agent or SSH]
    return words if words != list(agent or SSH) else [*words, host]


def command(agent: Sequence[str], host: str, words: Sequence[str]) -> list[str]:
    """The command line that runs `words` on `host`."""
    return [*agent_words(agent, host), shlex.join(words)]


def ask(agent: Sequence[str], words_of: Mapping[str, Sequence[str]], timeout_s: float) -> dict[str, CommandReply]:
    """Run each host's command on that host, in parallel, each for at most `timeout_s`."""
    if not words_of:
        return {}
    with ThreadPoolExecutor(min(len(words_of), MOST_AT_ONCE)) as pool:
        answers = pool.map(lambda item: _run(command(agent, *item), timeout_s), words_of.items())
        return dict(zip(words_of, answers, strict=True))


def run_locally(words: Sequence[str], timeout_s: float) -> CommandReply:
    """Run a command on this machine, without an agent."""
    return _run(list(words), timeout_s)


def in_rank_environment(
    words: Sequence[str], setup: Sequence[str], env: Mapping[str, str], package_root: str
) -> list[str]:
    """Wrap a command so it runs in the ranks' environment: after the set-up lines, with the cluster's variables.

    The shell prints MARK first, as proof that the host was reached.
    """
    path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    variables = [f"{name}={value}" for name, value in {**env, "PYTHONPATH": path}.items()]
    script = "\n".join([f"echo {MARK}", *setup, 'exec "$@"'])
    return ["sh", "-c", script, "sh", "env", *variables, *words]


def _run(words: Sequence[str], timeout_s: float) -> CommandReply:
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return CommandReply(None, "", f"no answer within {timeout_s:.0f} s")
    except OSError as error:
        return CommandReply(None, "", f"{words[0]}: {error.strerror}")
    return CommandReply(done.returncode, done.stdout, done.stderr)


def with_environment(line: str, env: Mapping[str, str]) -> str:
    """A shell line, preceded by exports of the passed variables and by the site's set-up lines."""
    names = [name for name in env.get("BENCH_CARRY", "").split(",") if name in env]
    exports = [f"export {name}={shlex.quote(env[name])}" for name in names]
    return "\n".join([*exports, *filter(None, (env.get("BENCH_SETUP"),)), line])


def run_everywhere(hosts: Sequence[str], words: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command on all hosts in parallel. Returns the exit code of the first host that fails, else 0."""
    agent = shlex.split(env.get("BENCH_AGENT", ""))
    running = [
        subprocess.Popen(
            [*agent_words(agent, host), with_environment(f"exec {shlex.join(_of_node(words, node))}", env)]
        )
        for node, host in enumerate(hosts)
    ]
    code, deadline = 0, float("inf")
    while running and time.monotonic() < deadline:
        for process in [process for process in running if process.poll() is not None]:
            running.remove(process)
            if process.returncode and not code:
                code = process.returncode if process.returncode > 0 else 128 - process.returncode
                deadline = time.monotonic() + _OTHERS_GRACE_S
        time.sleep(_POLL_S)
    for process in running:
        process.terminate()
    return code


def _of_node(words: Sequence[str], node: int) -> list[str]:
    return [word.replace("{node}", str(node)) for word in words]


def _as_ssh(words: list[str], env: Mapping[str, str]) -> None:
    """Replace this process by the agent. MPI calls `ssh [-x] HOST WORDS...`; the remote shell parses the words."""
    while words and words[0].startswith("-"):
        words = words[1:]
    if len(words) < 2:
        raise SystemExit("bench: error: --as-ssh needs a host and a command")
    agent = agent_words(shlex.split(env.get("BENCH_AGENT", "")), words[0])
    os.execvp(agent[0], [*agent, with_environment(" ".join(words[1:]), env)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-ssh"]:
        _as_ssh(sys.argv[2:], os.environ)
    if sys.argv[2:3] != ["--"] or len(sys.argv) < 4:
        raise SystemExit("bench: error: usage: python -m bench.controller.hosts HOST,HOST -- COMMAND ...")
    sys.exit(run_everywhere(sys.argv[1].split(","), sys.argv[3:], os.environ))
