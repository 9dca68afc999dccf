"""Read the state of a host's CPUs repeatedly: clock, temperature, throttling and utilisation."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from bench.core.device_use import CPUS, DeviceReading
from bench.probes.sysfs import ROOT, number, read

_MOST_CPUS = 4  # number of CPUs whose clocks are read, because reading a clock may interrupt its CPU
_MHZ = re.compile(r"^cpu MHz\s*: ([\d.]+)$", re.MULTILINE)
_PACKAGE = re.compile(r"x86_pkg_temp|cpu|soc", re.IGNORECASE)


class CpuReader:
    """The CPUs of this host that ranks may use."""

    device = CPUS

    def __init__(self, cpus: Collection[int], root: Path = ROOT) -> None:
        """Find the files to read."""
        chosen = sorted(cpus)[:: max(1, len(cpus) // _MOST_CPUS)][:_MOST_CPUS]
        folder = root / "sys/devices/system/cpu"
        clocks = [folder / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in chosen]
        self._clocks = [file for file in clocks if read(file)]
        self._stat, self._info = root / "proc/stat", root / "proc/cpuinfo"
        self._throttled = [folder / f"cpu{cpu}/thermal_throttle/core_throttle_count" for cpu in cpus]
        zones = (root / "sys/class/thermal").glob("thermal_zone*")
        self._zones = [zone / "temp" for zone in zones if _PACKAGE.search(read(zone / "type") or "")]
        self._energy = [file for file in (root / "sys/class/powercap").glob("intel-rapl:?/energy_uj") if read(file)]
        self._lines = tuple(f"cpu{cpu} " for cpu in cpus)
        self._before = self._times()

    def read(self) -> DeviceReading:
        """Return the median clock of some CPUs, the highest temperature, and the fraction of time that CPUs worked."""
        busy, total = self._times()
        worked, passed = busy - self._before[0], total - self._before[1]
        self._before = busy, total
        heat = [value for zone in self._zones if (value := number(zone)) is not None]
        return DeviceReading(
            hz=self._hz(),
            temperature_c=max(heat) / 1000 if heat else None,
            busy=min(1.0, worked / passed) if passed > 0 else None,
        )

    def _hz(self) -> float | None:
        clocks = [1e3 * value for file in self._clocks if (value := number(file)) is not None]
        if not clocks:  # virtual machines have no clocks
            clocks = [1e6 * float(value) for value in _MHZ.findall(read(self._info) or "")[:_MOST_CPUS]]
        return sorted(clocks)[len(clocks) // 2] if clocks else None

    def _times(self) -> tuple[int, int]:
        """Return two counts of clock ticks, summed over the CPUs: the ticks in which a CPU worked, and all ticks."""
        busy = total = 0
        for line in (read(self._stat) or "").splitlines():
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
        """Do nothing, because nothing is open."""
