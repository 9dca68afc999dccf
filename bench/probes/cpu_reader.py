"""Read the state of a host's CPUs repeatedly: clock, temperature, throttling and utilisation."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from bench.core.device_use import CPUS, DeviceReading
from bench.probes.sysfs import ROOT, number, read

_MOST_CPUS = 4  # number of CPUs whose clocks are read, because reading a clock may interrupt its CPU
_MHZ = re.compile(rb"^cpu MHz\s*: ([\d.]+)$", re.MULTILINE)
# Seconds between two readings of /proc/cpuinfo and of /proc/stat. These two files take the longest time to read. The
# kernel counts ticks of 10 ms.
_INFO_S, _STAT_S = 1.0, 0.1
_FIRST_BYTES = 1 << 12  # the size of a read; Python takes tens of microseconds to allocate a megabyte
_PACKAGE = re.compile(r"x86_pkg_temp|cpu|soc", re.IGNORECASE)


class CpuReader:
    """The CPUs of this host that ranks may use."""

    device = CPUS

    def __init__(self, cpus: Collection[int], root: Path = ROOT) -> None:
        """Find the files to read."""
        chosen = sorted(cpus)[:: max(1, len(cpus) // _MOST_CPUS)][:_MOST_CPUS]
        folder = root / "sys/devices/system/cpu"
        clocks = [folder / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in chosen]
        self._clocks = [_OpenFile(file) for file in clocks if read(file)]
        self._stat, self._info = _OpenFile(root / "proc/stat"), _OpenFile(root / "proc/cpuinfo")
        self._info_hz: float | None = None
        self._info_at_s = self._stat_at_s = -1.0
        self._throttled = [folder / f"cpu{cpu}/thermal_throttle/core_throttle_count" for cpu in cpus]
        zones = (root / "sys/class/thermal").glob("thermal_zone*")
        self._zones = [_OpenFile(zone / "temp") for zone in zones if _PACKAGE.search(read(zone / "type") or "")]
        self._energy = [file for file in (root / "sys/class/powercap").glob("intel-rapl:?/energy_uj") if read(file)]
        self._lines = tuple(f"cpu{cpu} ".encode() for cpu in cpus)
        self._before = self._times()
        self._busy: float | None = None

    def read(self) -> DeviceReading:
        """Return the median clock of the CPUs, the highest temperature, and the share of time in which the CPUs worked.

        The share is computed at most every 0.1 s. A call within 0.1 s of the last computation returns the same share
        again.
        """
        heat = [value for zone in self._zones if (value := zone.number()) is not None]
        return DeviceReading(
            hz=self._hz(),
            temperature_c=max(heat) / 1000 if heat else None,
            busy=self._busy_now(),
        )

    def _busy_now(self) -> float | None:
        now = time.monotonic()
        if now - self._stat_at_s >= _STAT_S:
            self._stat_at_s = now
            busy, total = self._times()
            worked, passed = busy - self._before[0], total - self._before[1]
            self._before = busy, total
            self._busy = min(1.0, worked / passed) if passed > 0 else None
        return self._busy

    def _hz(self) -> float | None:
        clocks = [1e3 * value for file in self._clocks if (value := file.number()) is not None]
        if clocks:
            return _middle(clocks)
        now = time.monotonic()
        if now - self._info_at_s >= _INFO_S:  # virtual machines lack the files of clocks
            self._info_at_s = now
            self._info_hz = _middle([1e6 * float(value) for value in _MHZ.findall(self._info.data())[:_MOST_CPUS]])
        return self._info_hz

    def _times(self) -> tuple[int, int]:
        """Return two sums over the CPUs, in clock ticks: the time in which CPUs worked, and the whole time."""
        busy = total = 0
        for line in self._stat.data().split(b"\nintr", 1)[0].splitlines():
            if line.startswith(self._lines):
                ticks = [int(word) for word in line.split()[1:9]]
                total += sum(ticks)
                busy += sum(ticks) - ticks[3] - ticks[4]  # idle, and waiting for a device
        return busy, total

    def counters(self) -> Mapping[str, int]:
        """Return how often the CPUs were throttled because of heat, and the energy of CPU packages in microjoules."""
        found = {}
        counts = [value for file in self._throttled if (value := number(file)) is not None]
        if counts:
            found["thermal_throttles"] = sum(counts)
        energy = [value for file in self._energy if (value := number(file)) is not None]
        if energy:
            found["energy_uj"] = sum(energy)
        return found

    def close(self) -> None:
        """Close the files."""
        for file in (*self._clocks, *self._zones, self._stat, self._info):
            file.close()


class _OpenFile:
    """A file of the kernel that is opened once and read many times. A missing file is empty."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        self._num_bytes = _FIRST_BYTES
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY)

    def data(self) -> bytes:
        """Return the current contents."""
        if self._descriptor is None:
            return b""
        try:
            while len(found := os.pread(self._descriptor, self._num_bytes, 0)) == self._num_bytes:
                self._num_bytes *= 2
        except OSError:
            return b""
        return found

    def number(self) -> int | None:
        """Return the integer in the file, or None if the file contains anything else."""
        try:
            return int(self.data())
        except ValueError:
            return None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _middle(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
