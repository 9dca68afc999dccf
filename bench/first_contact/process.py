"""Run one step in its own process group. A time limit ends the step even if it hangs in a driver."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.probes import processes

# After an interrupt, pytest and the suite's own commands can still write their results.
_SIGNALS = ((signal.SIGINT, 8.0), (signal.SIGTERM, 4.0), (signal.SIGKILL, 4.0))
STDOUT, STDERR = "stdout.txt", "stderr.txt"


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended.

    The exit code is the negative signal number if a signal ended the process. The exit code is None if the process
    cannot be killed.
    """

    exit_code: int | None
    timed_out: bool
    wall_s: float


def run(
    words: Sequence[str], folder: Path, cwd: Path, limit_s: float, job_id: str, env: Mapping[str, str]
) -> ProcessEnd:
    """Run a command with its output in `folder`.

    Before the function returns, it kills all processes of the command that still run. Some processes, such as those
    that hang in a driver, cannot be killed. The command's environment has BENCH_JOB=`job_id`. All child processes of
    the command inherit BENCH_JOB, so the function can find them. A command that cannot start has exit code 127, as in a
    shell.
    """
    began = time.monotonic()
    with (folder / STDOUT).open("wb") as out, (folder / STDERR).open("wb") as err:
        try:
            process = subprocess.Popen(
                list(words),
                cwd=cwd,
                env={**os.environ, **env, processes.JOB_VARIABLE: job_id},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            err.write(f"{words[0]}: {error.strerror}\n".encode())
            return ProcessEnd(127, False, time.monotonic() - began)
        timed_out = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            _end(process)
        except BaseException:
            _end(process)
            processes.end_job(job_id)
            raise
    with contextlib.suppress(ProcessLookupError):  # ends processes that the command left in its group
        os.killpg(process.pid, signal.SIGKILL)
    processes.end_job(job_id)
    return ProcessEnd(process.poll(), timed_out, time.monotonic() - began)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, grace_s in _SIGNALS:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
            return


def tail(path: Path, num_lines: int = 20) -> list[str]:
    """Return the last lines of a file, at most 64 KiB. The result is empty if the file does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 16)))
            return file.read().decode(errors="replace").splitlines()[-num_lines:]
    except OSError:
        return []
