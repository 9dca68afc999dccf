"""Run one command on many hosts, and restore lost connections to hosts.

On each host, a process called keeper (controller/keeper.py) runs some of the commands. A command gets a keeper if it
belongs to a job of the controller (BENCH_JOB is set) and has the form `PYTHON -m MODULE ...`. If the agent's process
ends too early, a command with a keeper continues. A new agent then requests the remaining output. A command without a
keeper ends when its agent ends.

For each lost connection, a line of JSON records the host, a code and facts. These lines are in the file
`connections.jsonl` in the job's heartbeat folder, where the controller reads them. Connections that mpirun opens are
not restored. If such a connection fails while mpirun runs, a line in the file `mpirun-connections` records the failure
(launchers/agent.sh).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.controller import keeper
from bench.controller.messages import ConnectionCode
from bench.core.codes import Coded
from bench.core.errors import EXIT_DONE, EXIT_TERMINATED
from bench.store import lease

NAME, _OF_MPIRUN = "connections.jsonl", "mpirun-connections"
_OTHERS_GRACE_S = 10.0  # how long the command may still run on the other hosts after it failed on one
_POLL_S = 0.05
_RESTORE_S = 15.0  # how long a lost connection may take to be restored
_ATTEMPT_S, _BETWEEN_S = 7.0, 0.5  # one attempt (ssh itself gives up after 5 s), and the pause before the next
_UNREACHABLE = 255  # exit code of ssh
_CHUNK = 1 << 16
# (host, command, its stdout) -> the started agent
Start = Callable[[str, Sequence[str], int | None], subprocess.Popen[bytes]]


def run_everywhere(names: Sequence[str], words: Sequence[str], env: Mapping[str, str], start: Start) -> int:
    """Run a command on all hosts in parallel. Returns the exit code of the first host that fails.

    If no host fails, returns EXIT_TERMINATED if a TERM arrived, and 0 otherwise.

    A TERM closes all connections. The function installs a signal handler, so the caller must be in the main thread.
    """
    terminated = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    try:
        running = [Connection(host, node, words, env, start) for node, host in enumerate(names)]
        code, deadline = 0, float("inf")
        while running and time.monotonic() < deadline and not terminated.is_set():
            for connection in list(running):
                if terminated.is_set():  # the agents ended by the same signal, and not because they lost a host
                    break
                ended = connection.poll()
                if ended is None:
                    continue
                running.remove(connection)
                if ended and not code:
                    code = _of_shell(ended)
                    deadline = time.monotonic() + _OTHERS_GRACE_S
                    for other in running:
                        other.others_failed = True
            time.sleep(_POLL_S)
        for connection in running:
            connection.close()
        return code or (EXIT_TERMINATED if terminated.is_set() else EXIT_DONE)
    finally:
        signal.signal(signal.SIGTERM, before)


class Connection:
    """The connection to one host, and the exit code of the command that runs there."""

    def __init__(self, host: str, node: int, words: Sequence[str], env: Mapping[str, str], start: Start) -> None:
        self.host = host
        self.others_failed = False  # set when the command has failed on another host
        self._start_on = start
        self._env, self._node = env, node
        job = env.get("BENCH_JOB", "bench").replace("/", "-")  # torchrun uses the id as the name of a folder
        words = [word.replace("{node}", str(node)).replace("{job}", job) for word in words]
        self._keeper = [words[0], "-m", keeper.__name__] if words[1:2] == ["-m"] and env.get("BENCH_JOB") else []
        self._read, self._data = 0, b""  # number of bytes of all complete frames; bytes of the incomplete frame
        self._found = self._ever_found = False  # whether this connection, or any, reached the keeper
        self._lost_s: float | None = None
        self._code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if self._keeper:
            self._start(*self._keeper, "start", str(node), *words)
        else:
            self._process = start(host, words, None)

    def poll(self) -> int | None:
        """Pass on new output. Returns the command's exit code, or None if the command still runs."""
        if self._process is None:
            return self._attach()
        if not self._keeper:
            return self._process.poll()
        ended = self._process.poll()  # must come before reading the output, or output could be missed
        self._pass_on()
        if self._code is not None:
            if ended is None:  # the agent ends without help
                return None
            self._stop()
            return self._code
        if ended is not None or (self._lost_s is not None and not self._found and self._attempt_is_late()):
            return self._lose(ended)
        return None

    def close(self) -> None:
        """End the agent."""
        if self._process is not None:
            self._process.terminate()

    def _start(self, *words: str) -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._pipe, self._began_s, self._found, self._data = reading, time.monotonic(), False, b""
        self._process = self._start_on(self.host, words, writing)
        os.close(writing)

    def _stop(self) -> None:
        """End the current agent, and discard the agent's output that was not passed on.

        The keeper sends the discarded output again.
        """
        os.close(self._pipe)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _attempt_is_late(self) -> bool:
        return time.monotonic() - self._began_s > _ATTEMPT_S

    def _lose(self, ended: int | None) -> int | None:
        """Handle an agent that ended before the command.

        If the command has started, returns None, because a new agent may reconnect to the command. Otherwise returns an
        exit code.
        """
        self._stop()
        if not self._ever_found:  # the command never started there
            code = _of_shell(ended) if ended is not None else _UNREACHABLE
            if not self.others_failed:  # else this agent may have ended because the job ends
                self._report(ConnectionCode.NOT_OPENED, exit_code=code)
            return code or _UNREACHABLE
        if self._lost_s is None:
            self._lost_s = self._began_s = time.monotonic()
            self._began_s -= _BETWEEN_S
        return None

    def _attach(self) -> int | None:
        """Try to connect again after a pause.

        Returns None while time remains to restore the connection. After this time, returns an exit code.
        """
        now = time.monotonic()
        assert self._lost_s is not None
        if now - self._lost_s > _RESTORE_S:
            self._report(ConnectionCode.LOST, seconds=now - self._lost_s)
            return _UNREACHABLE
        if now - self._began_s >= _BETWEEN_S:
            self._start(*self._keeper, "attach", str(self._node), str(self._read))
        return None

    def _pass_on(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipe, _CHUNK):
                self._data += chunk
        if not self._found:
            before, start, self._data = self._data.partition(keeper.START)
            if not start:
                self._data = before
                return
            _write(1, before)  # text that the login or the set-up lines printed
            self._found = self._ever_found = True
        while (frame := self._frame()) is not None:
            self._handle(*frame)
        if self._lost_s is not None and self._code is None:
            self._restored()

    def _frame(self) -> tuple[int, bytes] | None:
        """Return the next frame, or None if it has not arrived completely yet."""
        size = keeper.FRAME.size
        if len(self._data) < size:
            return None
        kind, length = keeper.FRAME.unpack(self._data[:size])
        if len(self._data) < size + length:
            return None
        data = self._data[size : size + length]
        self._data = self._data[size + length :]
        self._read += size + length
        return kind, data

    def _handle(self, kind: int, data: bytes) -> None:
        if kind == keeper.GONE:
            if self._lost_s is not None:
                self._report(ConnectionCode.LAUNCHER_GONE)
            self._code = _UNREACHABLE
            return
        if kind == keeper.EXIT:
            if self._lost_s is not None:
                self._restored()
            self._code = _of_shell(int(data))
        else:
            _write(kind, data)

    def _restored(self) -> None:
        assert self._lost_s is not None
        self._report(ConnectionCode.RESTORED, seconds=time.monotonic() - self._lost_s)
        self._lost_s = None

    def _report(self, code: ConnectionCode, **facts: object) -> None:
        found = Coded.of(code, host=self.host, **facts)
        _write(2, f"bench: note: {found.text}\n".encode())
        lease_file = self._env.get(lease.VARIABLE)
        if lease_file:
            line = json.dumps(found.to_plain())
            with contextlib.suppress(OSError), Path(lease_file).with_name(NAME).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


def reported(folder: Path) -> tuple[Coded, ...]:
    """Read from a job's heartbeat folder what happened to its connections."""
    try:
        lines = (folder / NAME).read_text(encoding="utf-8").splitlines()
        return tuple(Coded(**json.loads(line)) for line in lines)
    except (OSError, ValueError, TypeError):
        return ()


@dataclass(frozen=True, slots=True)
class MpirunConnection:
    """A connection that mpirun opened and that failed while mpirun ran.

    `first`: whether all other connections were still open when this connection failed. If some connection had failed
        earlier, mpirun may have ended this connection for that reason.
    """

    host: str
    exit_code: int
    first: bool


def failed_of_mpirun(folder: Path) -> tuple[MpirunConnection, ...]:
    """Read from a job's heartbeat folder which connections of mpirun failed, in the order of the failures."""
    try:
        lines = (folder / _OF_MPIRUN).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # another kind of line, or an incomplete one
            what, host, code, order = line.split()
            if what == "failed":
                found.append(MpirunConnection(host, int(code), order == "first"))
    return tuple(found)


def _of_shell(code: int) -> int:
    """Return an exit code of `subprocess` as a shell reports it: 128 + N if signal N ended the process."""
    return code if code >= 0 else 128 - code


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
