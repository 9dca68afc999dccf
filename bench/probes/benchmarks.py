"""Find benchmarks of other programs that run on this host.

A benchmark that does not use a CPU is assumed not to measure at the moment.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

import psutil

from bench.probes.processes import JOB_VARIABLE

# Program names of nccl-tests and rccl-tests, OSU, perftest, Intel MPI Benchmarks and nvbandwidth.
_PROGRAMS = re.compile(
    r"(all_reduce|all_gather|alltoallv?|broadcast|gather|hypercube|reduce|reduce_scatter|scatter|sendrecv)_perf(_mpi)?"
    r"|osu_[a-z_]+|ib_(atomic|read|send|write)_(bw|lat)|raw_ethernet_(bw|lat)|IMB-[A-Z0-9]+|nvbandwidth"
)
_SAMPLE_S = 0.5
_LEAST_CPU = 0.2  # share of one CPU; a program that only waits for its peers uses less and does not disturb


@dataclass(frozen=True, slots=True)
class ForeignBenchmark:
    """A benchmark that runs on this host.

    `measures`: whether the benchmark used a CPU while it was observed.
    """

    program: str
    process: int
    user: str
    measures: bool


def running(job_id: str) -> list[ForeignBenchmark]:
    """Return the benchmarks on this host that do not belong to the job.

    If such a benchmark runs, the function measures CPU use for 0.5 s.
    """
    before = {}
    for process in psutil.process_iter():
        try:
            if _PROGRAMS.fullmatch(process.name()) and process.pid != os.getpid() and not _is_ours(process, job_id):
                before[process] = _cpu_s(process)
        except psutil.Error:  # the process has ended
            continue
    if not before:
        return []
    began = time.monotonic()
    time.sleep(_SAMPLE_S)
    found = []
    for process, used_s in before.items():
        try:
            share = (_cpu_s(process) - used_s) / (time.monotonic() - began)
            found.append(ForeignBenchmark(process.name(), process.pid, process.username(), share >= _LEAST_CPU))
        except psutil.Error:
            continue
    return found


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _is_ours(process: psutil.Process, job_id: str) -> bool:
    try:
        return bool(job_id) and process.environ().get(JOB_VARIABLE) == job_id
    except (psutil.Error, OSError):  # another user's process
        return False
