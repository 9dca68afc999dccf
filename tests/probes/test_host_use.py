"""How busy this host is: counters of the kernel, other programs, limits, states; recorded trees and real loops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.probes import host_use
from bench.probes.host_use import HostMeter, ProgramMeter

LOOP = [sys.executable, "-c", "while True: pass"]


def _stat(root: Path, *cpus: tuple[int, int, int, int]) -> None:
    """Write /proc/stat: user, system, softirq and steal of each CPU, in ticks."""
    lines = ["cpu 1 2 3"]
    for number, (user, system, softirq, steal) in enumerate(cpus):
        lines.append(f"cpu{number} {user} 0 {system} 500 9 7 {softirq} {steal} 0 0")
    (root / "proc").mkdir(parents=True, exist_ok=True)
    (root / "proc/stat").write_text("\n".join([*lines, "intr 1 2 3"]) + "\n")


def test_only_usable_cpus_count_and_interrupts_do_not(tmp_path: Path) -> None:
    _stat(tmp_path, (100, 0, 0, 0), (100, 0, 0, 0), (100, 0, 0, 0))
    meter = HostMeter({0, 1}, tmp_path)
    _stat(tmp_path, (150, 10, 900, 3), (100, 20, 900, 0), (999, 0, 0, 999))
    use = meter.use()
    assert use is not None
    assert use.num_cpus == 2
    assert [use.used_s, use.stolen_s] == pytest.approx([0.8, 0.03])


@pytest.mark.parametrize("stat", [None, "", "cpu 0 0\n", "cpu 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"])
def test_a_system_that_counts_nothing_is_unknown(tmp_path: Path, stat: str | None) -> None:
    (tmp_path / "proc").mkdir()
    if stat is not None:
        (tmp_path / "proc/stat").write_text(stat)
    assert HostMeter({0}, tmp_path).use() is None


@pytest.mark.parametrize(
    ("group", "file", "before", "after"),
    [
        ("0::/job", "job/cpu.stat", "usage_usec 9\nthrottled_usec 1000000\n", "throttled_usec 1500000\n"),
        ("0::/", "cpu.stat", "throttled_usec 0\n", "throttled_usec 500000\n"),
        ("2:cpu:/job", "cpu/job/cpu.stat", "throttled_time 7\n", "throttled_time 500000007\n"),
    ],
    ids=["version 2", "in a container", "version 1"],
)
def test_the_time_in_which_a_cpu_limit_stopped_the_group(
    tmp_path: Path, group: str, file: str, before: str, after: str
) -> None:
    _stat(tmp_path, (0, 0, 0, 0))
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    counts = tmp_path / "sys/fs/cgroup" / file
    counts.parent.mkdir(parents=True)
    counts.write_text(before)
    meter = HostMeter({0}, tmp_path)
    _stat(tmp_path, (100, 0, 0, 0))
    counts.write_text(after)
    use = meter.use()
    assert use is not None
    assert use.limited_s == pytest.approx(0.5)


def test_the_state_of_a_host(tmp_path: Path) -> None:
    assert host_use.state({0}, tmp_path) == {}
    cpu = tmp_path / "sys/devices/system/cpu/cpu1"
    (cpu / "cpufreq").mkdir(parents=True)
    (cpu / "cpufreq/scaling_cur_freq").write_text("2500000\n")
    (cpu / "thermal_throttle").mkdir()
    (cpu / "thermal_throttle/core_throttle_count").write_text("3\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text("10.50 2.00 1.00 3/1040 8915\n")
    expected = {"load": [10.5, 2.0, 1.0], "num_running": 3, "cpu_hz": 2.5e9, "num_throttled": 3}
    assert host_use.state({0, 1}, tmp_path) == expected


def test_another_program_is_seen_and_named() -> None:
    loop = subprocess.Popen(LOOP)
    try:
        meter = ProgramMeter()
        use, busiest = meter.used_while_idle(0.4)
        _, others = meter.used()
    finally:
        loop.kill()
        loop.wait()
    assert loop.pid in [program.process for program in others]
    assert busiest, "on a busy machine three others may be ahead of the loop"
    assert use is not None
    assert use.others_s > 0.1


def test_our_own_work_is_not_other_work() -> None:
    programs, meter = ProgramMeter(), HostMeter(os.sched_getaffinity(0))
    while (use := meter.use()) is None or use.used_s < 0.2:
        pass
    ours, others = programs.used()
    assert os.getpid() in [program.process for program in ours]
    assert os.getpid() not in [program.process for program in others]
