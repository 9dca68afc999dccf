"""Read the use of this host: CPU time of all programs, the busiest programs, CPU limits, load and frequency (Linux).

One reading of a HostMeter takes about 0.2 ms, and about 1 ms on a machine with hundreds of CPUs.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.core.host_use import HostUse
from bench.probes import machine
from bench.probes.sysfs import ROOT, number, read

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# number of programs that are named, and the CPUs that such a program uses at least
_MOST_PROGRAMS, _LEAST_CPUS = 3, 0.05
_MOST_FREQUENCIES = 8  # number of CPUs whose frequency is read, because a reading may interrupt the CPU
_PROBE = b"bench.probes."  # in the command line of a linkbench program that only probes


@dataclass(frozen=True, slots=True)
class _Reading:
    """Counters of this host, in seconds."""

    time_s: float
    num_cpus: int
    used_s: float
    stolen_s: float
    limited_s: float


@dataclass(frozen=True, slots=True)
class _Program:
    process: int
    name: str
    parent: int
    started: int  # identifies a program together with the process id, because kernel threads change their names
    cpu_s: float


class HostMeter:
    """Measures the CPU use of this host from the meter's construction to `use`.

    `cpus`: the CPUs that ranks may use.
    """

    def __init__(self, cpus: Iterable[int], root: Path = ROOT) -> None:
        self._cpus, self._root = frozenset(cpus), root
        self._limits = _limit_files(root)
        self._before = self._read()

    def use(self) -> HostUse | None:
        """Return the CPU use since the construction, or None if this system does not count CPU time."""
        before, now = self._before, self._read()
        if before is None or now is None or now.used_s <= before.used_s:  # some sandboxes count nothing
            return None
        return HostUse(
            socket.gethostname(),
            now.time_s - before.time_s,
            now.num_cpus,
            now.used_s - before.used_s,
            max(0.0, now.stolen_s - before.stolen_s),
            max(0.0, now.limited_s - before.limited_s),
        )

    def _read(self) -> _Reading | None:
        """Return the counters, or None without /proc/stat.

        The columns of the file are user, nice, system, idle, iowait, irq, softirq and steal. The two columns for
        interrupts (irq, softirq) are ignored, because the ranks' own messages cause interrupts.
        """
        num_cpus, used, stolen = 0, 0, 0
        try:
            with (self._root / "proc/stat").open("rb") as file:
                next(file)
                for line in file:
                    if not line.startswith(b"cpu"):
                        break
                    name, *ticks = line.split()
                    if int(name[3:]) in self._cpus:
                        num_cpus += 1
                        used += sum(map(int, ticks[:3]))
                        stolen += int(ticks[7])
        except (OSError, ValueError, IndexError, StopIteration):
            return None
        if num_cpus == 0:
            return None
        limited_s = sum(_limited_s(file) or 0.0 for file in self._limits)
        return _Reading(time.monotonic(), num_cpus, used * _TICK_S, stolen * _TICK_S, limited_s)


def _limit_files(root: Path) -> tuple[Path, ...]:
    """Return the files that count how long CPU limits have stopped this process's control group and its parents."""
    groups = [*machine.control_groups(root, ""), *machine.control_groups(root, "cpu")]
    return tuple(group / "cpu.stat" for group in groups if _limited_s(group / "cpu.stat") is not None)


def _limited_s(file: Path) -> float | None:
    """Return how long, in seconds, a CPU limit has stopped the processes of a control group.

    `file`: the group's file with this time. The unit is microseconds in version 2 of control groups, and nanoseconds in
        version 1.
    """
    found = re.search(r"^throttled_(usec|time) (\d+)$", read(file) or "", re.MULTILINE)
    return None if found is None else int(found[2]) * (1e-6 if found[1] == "usec" else 1e-9)


def state(cpus: Iterable[int], root: Path = ROOT) -> dict[str, Any]:
    """Return the state of this host at one moment. A value that the host does not report is absent.

    `load`: the load averages over 1, 5 and 15 minutes.
    `num_running`: the number of programs that run or wait for a CPU. `load` and `num_running` include the job's own
        ranks and, in a container, all programs of the machine.
    `cpu_hz`: the median frequency of some CPUs.
    `num_throttled`: how often, since the boot, a CPU was throttled because it was too hot.
    """
    found: dict[str, Any] = {}
    load = (read(root / "proc/loadavg") or "").split()
    with contextlib.suppress(ValueError, IndexError):
        found["num_running"] = int(load[3].partition("/")[0])
        found["load"] = [float(word) for word in load[:3]]
    folders = [root / f"sys/devices/system/cpu/cpu{cpu}" for cpu in sorted(cpus)]
    kilohertz = [number(folder / "cpufreq/scaling_cur_freq") for folder in folders[:_MOST_FREQUENCIES]]
    known = sorted(value for value in kilohertz if value is not None)
    if known:
        found["cpu_hz"] = known[len(known) // 2] * 1e3
    counts = [number(folder / "thermal_throttle/core_throttle_count") for folder in folders]
    if any(count is not None for count in counts):
        found["num_throttled"] = sum(filter(None, counts))
    return found


class ProgramMeter:
    """Measures which programs of this host use CPU time after the construction of the meter.

    A reading takes 10 us per program.
    """

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), _programs()

    def used(self, local_size: int = 0) -> tuple[list[_Program], list[_Program]]:
        """Return linkbench's own programs and all other programs, each program with the CPU time that it has used.

        linkbench's own programs are this process, its ancestors and its probes. If `local_size` is above 1, linkbench's
        other ranks on this host also count as its own programs.
        """
        now = _programs()
        own = _family(now, local_size)
        ours: list[_Program] = []
        others: list[_Program] = []
        for process, program in now.items():
            earlier = self._before.get(process)
            if earlier is not None and earlier.started == program.started:
                program = replace(program, cpu_s=max(0.0, program.cpu_s - earlier.cpu_s))
            if program.cpu_s > 0:
                (ours if process in own or _is_probe(process) else others).append(program)
        return ours, others

    def busiest(self, local_size: int = 0) -> list[dict[str, Any]]:
        """Return the busiest programs that are not linkbench's own. Each entry has "name", "process" and "cpus".

        `process` is the process id. `cpus` is the average number of CPUs that the program used.
        """
        _, others = self.used(local_size)
        return self._described(others)

    def _described(self, programs: Iterable[_Program]) -> list[dict[str, Any]]:
        wall_s = time.monotonic() - self._began
        busiest = sorted(programs, key=lambda program: -program.cpu_s)[:_MOST_PROGRAMS]
        return [
            {"name": program.name, "process": program.process, "cpus": round(program.cpu_s / wall_s, 3)}
            for program in busiest
            if program.cpu_s >= _LEAST_CPUS * wall_s
        ]

    def used_while_idle(self, seconds: float) -> tuple[HostUse | None, list[dict[str, Any]]]:
        """Sleep. Return the host's CPU use during the sleep, and its busiest programs.

        Several probes of linkbench may run on the host at the same time. The CPU time of all programs of linkbench is
        therefore reported as the ranks' own time.
        """
        meter = HostMeter(os.sched_getaffinity(0))
        time.sleep(seconds)
        use = meter.use()
        ours, others = self.used()
        if use is not None:
            use = replace(use, ours_s=sum(program.cpu_s for program in ours))
        return use, self._described(others)


def _programs() -> dict[int, _Program]:
    """Return all readable processes, by process id."""
    found = {}
    for entry in os.listdir("/proc") if Path("/proc/stat").exists() else ():  # noqa: PTH208  # faster than iterdir
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            line = Path("/proc", entry, "stat").read_bytes().decode(errors="replace")
            name, _, rest = line.partition("(")[2].rpartition(") ")
            words = rest.split()
            cpu_s = (int(words[11]) + int(words[12])) * _TICK_S
            found[int(entry)] = _Program(int(entry), name, int(words[1]), int(words[19]), cpu_s)
    return found


def _family(programs: Mapping[int, _Program], local_size: int) -> set[int]:
    """Return the ids of this process and its ancestors.

    If several ranks run on this host, the result also has the other ranks: processes with the same parent and the same
    name.
    """
    me = programs.get(os.getpid())
    if me is None:
        return set()
    family, ancestor = {me.process}, me.parent
    if local_size > 1:
        family |= {one.process for one in programs.values() if one.parent == me.parent and one.name == me.name}
    while ancestor > 1 and ancestor in programs:
        family.add(ancestor)
        ancestor = programs[ancestor].parent
    return family


def _is_probe(process: int) -> bool:
    try:
        return _PROBE in Path("/proc", str(process), "cmdline").read_bytes()
    except OSError:
        return False
