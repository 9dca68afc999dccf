"""Sample how much CPU time the ranks of a training job on this host get, and how long they wait for a CPU.

The sampler finds the ranks by two environment variables. One variable has a value that is unique for the job, and all
processes of the job inherit it. The launcher sets the other variable to the number of the rank. Only Linux counts how
long a thread is ready to run but has no CPU.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.probes import cpu_time, machine
from bench.probes.cpu_time import Threads

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
SCHEMA = "bench.cpus/1"
INTERVAL_S = 0.5
_MOST_SAMPLES = 4096  # if there are more samples, every second one is kept


class JobCpus:
    """CPU samples of the ranks of one job. The environment of the ranks contains `variable=value`."""

    def __init__(self, variable: str, value: str) -> None:
        self._marker = f"{variable}={value}".encode()
        self._ranks: dict[int, int] = {}  # process -> rank
        self._strangers: set[int] = set()
        self._threads: dict[int, Threads] = {}
        self._used: dict[int, float] = defaultdict(float)
        self._waited: dict[int, float] = defaultdict(float)
        self._cpus: dict[int, set[int]] = {}
        self._samples: list[tuple[float, dict[int, tuple[float, float]]]] = []
        self._every = self._num_calls = 1

    def sample(self) -> None:
        """Read the ranks' processes once."""
        self._num_calls += 1
        if self._num_calls % self._every:
            return
        for process in _processes():
            if process not in self._strangers and (rank := self._rank_of(process)) is not None:
                self._add(process, rank)
        if self._used:
            now = {rank: (self._used[rank], self._waited[rank]) for rank in self._used}
            self._samples.append((time.time(), now))
        if len(self._samples) > _MOST_SAMPLES:
            self._samples = self._samples[::2]
            self._every *= 2

    def record(self) -> Mapping[str, Any] | None:
        """Return all samples as plain data, or None if no rank was seen.

        `used_s`: the CPU time since the first sample, summed over all threads of a rank.
        `waited_s`: how long the rank's main thread waited for a CPU since the first sample.
        """
        if not self._samples:
            return None
        ranks = {}
        for rank in sorted(self._used):
            own = [now.get(rank, (0.0, 0.0)) for _, now in self._samples]
            used, waited = ([round(one[side], 4) for one in own] for side in (0, 1))
            ranks[str(rank)] = {"cpus": sorted(self._cpus[rank]), "used_s": used, "waited_s": waited}
        return {
            "schema": SCHEMA,
            "host": os.uname().nodename,
            "quota_cpus": machine.cpu_quota(),
            "times": [round(at, 4) for at, _ in self._samples],
            "ranks": ranks,
        }

    def _rank_of(self, process: int) -> int | None:
        """Return the rank of a process.

        Return None for a process of another job, for a launcher, and for a process that has no rank yet.
        """
        if process in self._ranks:
            return self._ranks[process]
        try:
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            variables = []
        if self._marker not in variables:
            self._strangers.add(process)
            return None
        named = dict(one.split(b"=", 1) for one in variables if b"=" in one)
        stated = next((named[name.encode()] for name in RANK_VARIABLES if name.encode() in named), b"")
        if stated.isdigit():
            self._ranks[process] = int(stated)
        return self._ranks.get(process)

    def _add(self, process: int, rank: int) -> None:
        """Add the CPU time that the threads of a process used since the last sample.

        If the process is the rank itself, also add the time for which its main thread waited for a CPU.
        """
        threads = cpu_time.threads(process)
        if not threads:
            return
        before = self._threads.get(process)
        self._threads[process] = threads
        try:
            self._cpus.setdefault(rank, set()).update(os.sched_getaffinity(process))
        except OSError:
            return
        if before is None:
            self._used[rank] += 0.0
            return
        used_s, _ = cpu_time.between(before, threads)
        main = str(process)
        _, waited_s = cpu_time.between({main: before[main]}, {main: threads[main]}) if main in before else (0.0, 0.0)
        self._used[rank] += used_s
        if self._is_first(process, rank):
            self._waited[rank] += waited_s

    def _is_first(self, process: int, rank: int) -> bool:
        """Check whether a process is the rank itself and not one of its child processes."""
        return process == min(other for other, own in self._ranks.items() if own == rank)


def _processes() -> Iterable[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
