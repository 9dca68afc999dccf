"""Read how long the threads of processes ran on a CPU, and how long they waited for a CPU (Linux)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from bench.core.cpu_use import CpuUse

Threads = dict[str, tuple[int, int]]  # thread id -> nanoseconds (on a CPU, ready to run but without a CPU)


class CpuMeter:
    """Measures the CPU use of this process from the meter's construction to `use`. A reading takes 10 us per thread.

    The waiting time comes from /proc/PID/schedstat. On systems that lack /proc/PID/schedstat, the reported waiting time
    is 0.
    """

    def __init__(self) -> None:
        self._began, self._cpu_s, self._threads = time.monotonic(), time.process_time(), threads("self")

    def use(self) -> CpuUse:
        """Return the CPU use so far."""
        wall_s, cpu_s = time.monotonic() - self._began, time.process_time() - self._cpu_s
        _, waited_s = between(self._threads, threads("self"))
        return CpuUse(cpu_s, waited_s, wall_s)


def uses(processes: Iterable[int], seconds: float) -> dict[int, CpuUse]:
    """Return the CPU use of other processes of this host in the next `seconds`.

    Processes that cannot be read are left out.
    """
    before = {process: threads(process) for process in processes}
    began = time.monotonic()
    time.sleep(seconds)
    wall_s = time.monotonic() - began
    found = {}
    for process, own in before.items():
        now = threads(process)
        if own and now:
            found[process] = CpuUse(*between(own, now), wall_s)
    return found


def threads(process: int | str) -> Threads:
    """Return the kernel's counters for each thread of a process, or an empty mapping if they cannot be read."""
    found = {}
    folder = Path(f"/proc/{process}/task")
    with contextlib.suppress(OSError):
        for thread in os.listdir(folder):  # noqa: PTH208  # three times as fast as iterdir
            with contextlib.suppress(OSError, IndexError, ValueError):
                on_cpu, waited, *_ = (folder / thread / "schedstat").read_bytes().split()
                found[thread] = (int(on_cpu), int(waited))
    return found


def between(before: Threads, after: Threads) -> tuple[float, float]:
    """Return how long all threads ran on a CPU, and how long they waited for a CPU, in seconds.

    Threads that ended between the two readings are left out.
    """
    cpu_ns = waited_ns = 0
    for thread, (on_cpu, waited) in after.items():
        cpu_before, waited_before = before.get(thread, (0, 0))
        cpu_ns += max(0, on_cpu - cpu_before)
        waited_ns += max(0, waited - waited_before)
    return cpu_ns * 1e-9, waited_ns * 1e-9
