"""Read the state of a GPU or of this host's CPUs while rows are timed. A thread reads this state every 20 ms.

The thread uses less than 1 % of a CPU. If a reading takes more than 0.08 ms of CPU time, the pause before the next
reading is longer than 20 ms. If this rank is bound to a few CPUs, the thread runs on other CPUs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Mapping
from typing import Protocol

from bench.core.device_use import DeviceReading, DeviceUse, condensed

# interval, and largest share of one CPU for readings; with the switches between threads, work slows by less than 1 %
INTERVAL_S, _MOST_COST = 0.02, 0.004


class DeviceReader(Protocol):
    """Reads one device. If the device does not report a value, the value is None or missing."""

    device: str

    def read(self) -> DeviceReading:
        """Return the current state."""

    def counters(self) -> Mapping[str, int]:
        """Return the device's counters by name, counted since a fixed moment.

        This method takes longer than the method `read`. The sampler therefore never reads counters while a row is
        timed.
        """

    def close(self) -> None:
        """Release the device's library."""


class DeviceSampler:
    """Reads one device while rows are timed. One thread calls `begin` before each row and `use` after the row."""

    def __init__(self, reader: DeviceReader, host: str, interval_s: float = INTERVAL_S) -> None:
        """Start the thread. The thread waits until a row begins."""
        self._reader, self._host, self._interval_s = reader, host, interval_s
        self._wake, self._ends = threading.Condition(), False
        self._active = False
        self._readings: list[DeviceReading] = []
        self._before: Mapping[str, int] = {}
        self._cpu_s = self._began = 0.0
        self._thread = threading.Thread(target=self._run, name="device-sampler", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Start to read."""
        self._before = self._reader.counters()
        with self._wake:
            self._readings, self._cpu_s, self._began, self._active = [], 0.0, time.monotonic(), True
            self._wake.notify()

    def use(self) -> DeviceUse:
        """Stop reading. Return the use of the device since `begin`."""
        with self._wake:
            self._active = False
            readings, cpu_s, wall_s = self._readings, self._cpu_s, time.monotonic() - self._began
            self._wake.notify()
        after = self._reader.counters()
        grown = {name: after[name] - before for name, before in self._before.items() if name in after}
        interval_s = wall_s / len(readings) if readings else None
        cost = cpu_s / wall_s if wall_s else None
        return condensed(self._host, self._reader.device, readings or [self._reader.read()], grown, interval_s, cost)

    def close(self) -> None:
        """End the thread and release the device."""
        with self._wake:
            self._ends = True
            self._wake.notify()
        self._thread.join(5.0)
        self._reader.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # affects only this thread
            spare = _spare_cpus()
            if spare:
                os.sched_setaffinity(0, spare)
        pause_s = self._interval_s
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._ends or self._active)
                if self._ends:
                    return
            began = time.thread_time()
            reading = self._reader.read()
            cost_s = time.thread_time() - began
            pause_s = max(self._interval_s, cost_s / _MOST_COST)
            with self._wake:
                if self._active:
                    self._readings.append(reading)
                    self._cpu_s += cost_s
                self._wake.wait_for(lambda: self._ends or not self._active, timeout=pause_s)


def _spare_cpus() -> Collection[int]:
    """Return the CPUs that this rank does not use.

    The result is empty if the rank is bound to more than half of the CPUs.
    """
    mine, num = os.sched_getaffinity(0), os.cpu_count() or 1
    if len(mine) * 2 > num:
        return ()
    return set(range(num)) - mine
