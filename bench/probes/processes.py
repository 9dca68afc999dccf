"""Processes of our own jobs, found by the variable that each of them inherited, and the only code that ends any.

`python -m bench.probes.processes look|stacks|end JOB [HOST:PROCESS ...]` does it on the host where it runs, and prints
one JSON object; `stacks` asks those processes of the job that are ranks for their stacks (SIGUSR1).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import psutil

JOB_VARIABLE = "BENCH_JOB"
_TERM_GRACE_S = 2.0
_KILL_GRACE_S = 2.0


def of_job(job_id: str) -> tuple[psutil.Process, ...]:
    """Processes on this host whose environment has BENCH_JOB=`job_id`, this one excepted, by id.

    An environment is read as it was when the program started, so children of children are found wherever they hide
    (a session of their own, a parent that has ended). Other users' processes can not be read and are left out.
    """
    found = [process for process in _others() if _job_of(process) == job_id]
    return tuple(sorted(found, key=lambda process: process.pid))


def end_job(job_id: str) -> tuple[int, ...]:
    """End every process of a job on this host: TERM, then KILL for those that stay. Returns the ids of those found.

    Asks again after each round, since a launcher that is told to end may start helpers of its own.
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
    """TERM, then KILL. A process is known by its id and start time, so an id used again is never hit."""
    alive = list(processes)
    for signal_all, grace_s in ((psutil.Process.terminate, _TERM_GRACE_S), (psutil.Process.kill, _KILL_GRACE_S)):
        for process in alive:
            with contextlib.suppress(psutil.Error):
                signal_all(process)
        _, alive = psutil.wait_procs(alive, timeout=grace_s)


def look(job_id: str) -> dict[str, Any]:
    """{"host", "processes": {process id: state}}; the states are psutil's: 'stopped', 'sleeping', 'zombie', ..."""
    states = {}
    for process in of_job(job_id):
        with contextlib.suppress(psutil.Error):
            states[str(process.pid)] = process.status()
    return {"host": socket.gethostname(), "processes": states}


def ask_for_stacks(job_id: str, ranks: Iterable[int]) -> None:
    """SIGUSR1 to the ranks among a job's processes: it would end anything else."""
    wanted = set(ranks)
    for process in of_job(job_id):
        if process.pid in wanted:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGUSR1)


def _others() -> Iterator[psutil.Process]:
    return (process for process in psutil.process_iter() if process.pid != os.getpid())


def _job_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(JOB_VARIABLE)
    except (psutil.Error, OSError):  # ended meanwhile, or not ours to read
        return None


def answer(verb: str, job_id: str, ranks: Iterable[str] = ()) -> dict[str, Any]:
    """What the desk asks of a host. `ranks`: HOST:PROCESS of every rank, of which this host's are meant."""
    found = look(job_id)
    if verb == "stacks":
        told = (rank.rpartition(":") for rank in ranks)
        ask_for_stacks(job_id, [int(process) for host, _, process in told if host == found["host"]])
    if verb == "end":
        end_job(job_id)
    return found


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], sys.argv[2], sys.argv[3:])))
