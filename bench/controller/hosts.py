"""Reach other hosts with the site's agent (`agent:` in bench.yaml), ssh by default.

As with ssh, the last argument of every agent is the command for the remote shell, as one string. Examples of agents are
ssh with options, `kubectl exec -i POD -- sh -c` and `docker exec -i NAME sh -c`. Variables and set-up lines may contain
secrets, and every user of a machine can read all command lines. Therefore variables and set-up lines go through the
agent's standard input.

    python -m bench.controller.hosts h0,h1 -- COMMAND ...     COMMAND on every host at once; {node} in it is 0, 1, ...
    python -m bench.controller.hosts --as-ssh HOST WORDS ...  called by MPI in place of ssh (launchers/agent.sh)

If a connection is lost, the first form of the command keeps the ranks' launchers running (controller/connections.py).

Both forms of the command read three environment variables. BENCH_AGENT has the words of the agent's command.
BENCH_CARRY has the names of the variables that the other host must get. BENCH_SETUP has the shell lines that run before
the command. These variables are necessary because a login on another host does not set the job's variables.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.controller import connections
from bench.controller.ends_with_parent import end_with
from bench.core.launcher import SSH
from bench.core.secret_values import resolved

MARK = "bench-reached"
MOST_AT_ONCE = 64
NO_INPUT = 97  # exit code on the host if the agent passed no standard input
_LAST_LINE = "# bench: end of the variables"


@dataclass(frozen=True, slots=True)
class CommandReply:
    """A host's reply. `exit_code` is None if the command timed out or the agent could not be started.

    `ended_at`: when the reply came, by this machine's monotonic clock.
    """

    exit_code: int | None
    out: str
    err: str
    ended_at: float | None = None

    @property
    def last_line(self) -> str:
        """The last line of the command's standard error. If standard error is empty, the exit code as text."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.exit_code}"


@dataclass(frozen=True, slots=True)
class HostCommand:
    """A command for a host, and the text that the command reads from its standard input (`given`)."""

    words: tuple[str, ...]
    given: str = ""


def agent_words(agent: Sequence[str], host: str) -> list[str]:
    """Return the agent's command line for one host.

    The host's name replaces `{host}` in the words. If no word contains `{host}`, the name is added at the end.
    """
    words = [word.replace("{host}", host) for word in agent or SSH]
    return words if words != list(agent or SSH) else [*words, host]


def ask(agent: Sequence[str], commands: Mapping[str, HostCommand], timeout_s: float) -> dict[str, CommandReply]:
    """Run one command on each host, on all hosts in parallel. Each command has a timeout of `timeout_s` seconds."""
    if not commands:
        return {}

    def run(host: str) -> CommandReply:
        asked = commands[host]
        return _run([*agent_words(agent, host), shlex.join(asked.words)], timeout_s, asked.given)

    with ThreadPoolExecutor(min(len(commands), MOST_AT_ONCE)) as pool:
        return dict(zip(commands, pool.map(run, commands), strict=True))


def run_locally(command: HostCommand, timeout_s: float, env: Mapping[str, str] | None = None) -> CommandReply:
    """Run a command on this machine, without an agent. `env`: variables in addition to those of this process."""
    return _run(command.words, timeout_s, command.given, env)


def in_rank_environment(words: Sequence[str], setup: Sequence[str], env: Mapping[str, str]) -> HostCommand:
    """Wrap a command so that it runs in the ranks' environment, with the cluster's set-up lines and variables.

    The shell prints MARK first, as proof that the host was reached. Raises RefusedError if a variable refers to an
    environment variable that is not set.
    """
    from bench.config import paths  # as a program, this module must start quickly

    path = os.pathsep.join(filter(None, (str(paths.PACKAGE_ROOT), os.environ.get("PYTHONPATH"))))
    given = _given({**resolved(env), "PYTHONPATH": path}, setup, variables_last=True)
    return HostCommand(("sh", "-c", f'echo {MARK}; {_reader(given)}; exec "$@"', "sh", *words), given)


def _given(env: Mapping[str, str], setup: Sequence[str], variables_last: bool = False) -> str:
    """Return shell lines that set the variables and run the set-up lines."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    lines = [*setup, *exports] if variables_last else [*exports, *setup]
    return "\n".join([*lines, _LAST_LINE, ""])


def _reader(given: str) -> str:
    """Return shell code that reads the lines of `given` from standard input and then runs them as commands.

    Later commands read an empty standard input.
    """
    problem = "the agent passes no standard input: add -i to `agent:` (docker exec -i, kubectl exec -i; ssh without -n)"
    return (
        f"bench_given=$(head -n {given.count(chr(10))}); "
        f"case $bench_given in *{shlex.quote(_LAST_LINE)}) ;; "
        f"*) echo {shlex.quote(f'bench: error: {problem}')} >&2; exit {NO_INPUT};; esac; "
        'exec </dev/null; eval "$bench_given"; unset bench_given'
    )


def _run(words: Sequence[str], timeout_s: float, given: str = "", env: Mapping[str, str] | None = None) -> CommandReply:
    try:
        done = subprocess.run(
            words,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,
            env=None if env is None else {**os.environ, **env},
        )
    except subprocess.TimeoutExpired:
        return CommandReply(None, "", f"no answer within {timeout_s:.0f} s")
    except OSError as error:
        return CommandReply(None, "", f"{words[0]}: {error.strerror}")
    return CommandReply(done.returncode, done.stdout, done.stderr, time.monotonic())


def with_environment(line: str, env: Mapping[str, str]) -> HostCommand:
    """Return a command that exports the variables in BENCH_CARRY, runs the set-up lines, and then runs `line`."""
    carried = {name: env[name] for name in env.get("BENCH_CARRY", "").split(",") if name in env}
    given = _given(carried, tuple(filter(None, (env.get("BENCH_SETUP"),))))
    return HostCommand(("sh", "-c", f"{_reader(given)}; {line}"), given)


def _input(given: str) -> int:
    """Write the text to a file in memory, and return a descriptor from which the text can be read."""
    descriptor = os.memfd_create("bench")
    os.write(descriptor, given.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _start_on(host: str, words: Sequence[str], out: int | None) -> subprocess.Popen[bytes]:
    """Start a command on a host, with the variables and set-up lines of this process's environment.

    `out`: the file descriptor for the command's stdout. If `out` is None, the command writes to this process's stdout.
    """
    agent = agent_words(shlex.split(os.environ.get("BENCH_AGENT", "")), host)
    command = with_environment(f"exec {shlex.join(words)}", os.environ)
    given = _input(command.given)
    try:
        return subprocess.Popen([*agent, shlex.join(command.words)], stdin=given, stdout=out)
    finally:
        os.close(given)


def _as_ssh(words: list[str], env: Mapping[str, str]) -> None:
    """Replace this process with the agent's command.

    MPI calls this module in place of ssh, with the arguments `[-x] HOST WORDS...`. The shell on the remote host parses
    WORDS. A shell (launchers/agent.sh) starts this process, and BENCH_SHELL has the shell's process id. The agent ends
    when the shell ends.
    """
    if "BENCH_SHELL" in env:
        end_with(int(env["BENCH_SHELL"]))
    while words and words[0].startswith("-"):
        words = words[1:]
    if len(words) < 2:
        raise SystemExit("bench: error: --as-ssh needs a host and a command")
    agent = agent_words(shlex.split(env.get("BENCH_AGENT", "")), words[0])
    asked = with_environment(" ".join(words[1:]), env)
    os.dup2(_input(asked.given), 0)
    for number in (signal.SIGINT, signal.SIGQUIT):  # a shell makes its background processes ignore these
        signal.signal(number, signal.SIG_DFL)
    os.execvp(agent[0], [*agent, shlex.join(asked.words)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-ssh"]:
        _as_ssh(sys.argv[2:], os.environ)
    if sys.argv[2:3] != ["--"] or len(sys.argv) < 4:
        raise SystemExit("bench: error: usage: python -m bench.controller.hosts HOST,HOST -- COMMAND ...")
    sys.exit(connections.run_everywhere(sys.argv[1].split(","), sys.argv[3:], os.environ, _start_on))
