"""Find and end the processes of a job by an environment variable that they inherit.

`python -m bench.probes.processes look|stacks|end JOB [--port=N] [HOST:PROCESS ...]` finds the processes on its host and
prints a JSON object. `stacks` also measures the ranks' CPU use and makes each rank write its stacks (SIGUSR1). `--port`
also finds who listens on a TCP port.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from bench.probes import cpu_time, tcp_table

JOB_VARIABLE = "BENCH_JOB"
PORT_OPTION = "--port="
_TERM_GRACE_S = 2.0
_KILL_GRACE_S = 2.0
_CPU_S = 1.0  # the duration of ten periods of a CPU quota


def of_job(job_id: str) -> tuple[psutil.Process, ...]:
    """Return the processes of a job on this host, except this process, sorted by id.

    A process belongs to the job if its environment has BENCH_JOB=`job_id`. Processes inherit the variable, so the
    function finds all descendants, even in other sessions or without a parent. Processes of other users are skipped,
    because their environment is not readable.
    """
    found = [process for process in _others() if _job_of(process) == job_id]
    return tuple(sorted(found, key=lambda process: process.pid))


def end_job(job_id: str) -> tuple[int, ...]:
    """End every process of a job on this host. Send SIGTERM first, and then SIGKILL. Return the ids of the processes.

    The search is repeated, because a launcher may start more processes while it ends.
    """
    ended: dict[int, None] = {}
    for _ in range(3):
        processes = of_job(job_id)
        if not processes:
            break
        ended.update(dict.fromkeys(process.pid for process in processes))
        end(processes)
    return tuple(ended)


def end(processes: Iterable[psutil.Process]) -> None:
    """Send SIGTERM and then SIGKILL to processes.

    The system reuses process ids. The start time of each process is therefore also checked, so that no other process is
    ended.
    """
    alive = list(processes)
    for signal_all, grace_s in ((psutil.Process.terminate, _TERM_GRACE_S), (psutil.Process.kill, _KILL_GRACE_S)):
        for process in alive:
            with contextlib.suppress(psutil.Error):
                signal_all(process)
        _, alive = psutil.wait_procs(alive, timeout=grace_s)


def look(job_id: str) -> dict[str, Any]:
    """Return a dictionary with the keys "host", "processes", "others" and "up_s".

    The value of "processes" maps the id of each process of the job to its state in psutil's words, such as 'sleeping'
    or 'zombie'. The value of "others" is a list of other jobs that have processes on this host. The value of "up_s" is
    the time since the host was booted, in seconds, or None if the system has no clock for this time.
    """
    states, others = {}, set()
    for process in _others():
        job = _job_of(process)
        if job == job_id:
            with contextlib.suppress(psutil.Error):
                states[str(process.pid)] = process.status()
        elif job:
            others.add(job)
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    up_s = None if boot_clock is None else time.clock_gettime(boot_clock)
    return {"host": socket.gethostname(), "processes": states, "others": sorted(others), "up_s": up_s}


def ask_for_stacks(job_id: str, ranks: Iterable[int]) -> None:
    """Send SIGUSR1 to the ranks of a job only, because the signal would end the job's other processes."""
    wanted = set(ranks)
    for process in of_job(job_id):
        if process.pid in wanted:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGUSR1)


def holders(port: int, job_id: str) -> list[dict[str, str | None]]:
    """Find the sockets that keep a job from listening on a TCP port.

    Return "job", "user" and "address" for each of these sockets. Sockets of the job itself are left out. Sockets that
    listen only for IPv6 are also left out, because torchrun can still listen for IPv4. The value of "job" is None if a
    process has no BENCH_JOB, or if the environment of the process is not readable. If a user has no name, "user" is the
    user's number.
    """
    sockets = {f"socket:[{each.inode}]": each for each in _in_the_way(port)}
    jobs: dict[str, str | None] = {}
    for process in _others() if sockets else ():
        jobs |= dict.fromkeys(sockets.keys() & _open_files(process.pid), _job_of(process))
    found = []
    for name, each in sockets.items():
        if jobs.get(name) != job_id:
            found.append({"job": jobs.get(name), "user": _user(each.user), "address": each.address})
    return found


def _in_the_way(port: int) -> list[tcp_table.Listener]:
    """Return the sockets that listen for IPv4 on this TCP port, at any address of this host.

    A socket with the address :: may also listen for IPv4. This is certain if the port is in use and no other socket
    uses it.
    """
    if not _is_taken(port):
        return []
    found = tcp_table.listeners(port)
    ipv4 = [each for each in found if ":" not in each.address]
    return ipv4 or [each for each in found if each.address == "::"]


def _is_taken(port: int) -> bool:
    """Check whether another socket prevents this host from listening on this TCP port at all its IPv4 addresses."""
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _open_files(process: int) -> set[str]:
    """Return the names of a process's open files, or an empty set for processes of other users."""
    found = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(path.readlink()))
    return found


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _others() -> Iterator[psutil.Process]:
    return (process for process in psutil.process_iter() if process.pid != os.getpid())


def _job_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(JOB_VARIABLE)
    except (psutil.Error, OSError):  # the process has ended or belongs to another user
        return None


def answer(verb: str, job_id: str, words: Iterable[str] = ()) -> dict[str, Any]:
    """Reply to the controller with the result of `look`. For `end`, also end the job's processes.

    For `stacks`, the reply also has "cpu", which maps the process id of each rank to the fields of CpuUse. If `words`
    has a port, the reply also has "holders".

    `words`: optional arguments. PORT_OPTION with a number gives the port. HOST:PROCESS gives the host and the process
        id of a rank. Ranks of other hosts are ignored.
    """
    found = look(job_id)
    ranks = []
    for word in words:
        if word.startswith(PORT_OPTION):
            found["holders"] = holders(int(word.removeprefix(PORT_OPTION)), job_id)
        else:
            ranks.append(word)
    if verb == "stacks":
        parts = (rank.rpartition(":") for rank in ranks)
        here = [int(process) for host, _, process in parts if host == found["host"] and process in found["processes"]]
        found["cpu"] = {str(process): asdict(use) for process, use in cpu_time.uses(here, _CPU_S).items()}
        ask_for_stacks(job_id, here)
    if verb == "end":
        end_job(job_id)
    return found


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], sys.argv[2], sys.argv[3:])))
