"""CPU time: a process that computes uses a CPU or waits for one, and a process that sleeps does neither."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.probes import cpu_time


def test_the_use_of_other_processes() -> None:
    computes = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sleeps = subprocess.Popen(["sleep", "60"])
    try:
        time.sleep(0.2)
        found = cpu_time.uses([computes.pid, sleeps.pid, 1 << 22], 0.5)
    finally:
        for process in (computes, sleeps):
            process.kill()
            process.wait()
    assert found.keys() == {computes.pid, sleeps.pid}, "there is no third process"
    assert found[computes.pid].needed_s > 0.25 and found[sleeps.pid].needed_s < 0.05


def test_the_use_of_this_process() -> None:
    meter = cpu_time.CpuMeter()
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass
    use = meter.use()
    assert use.cpu_s >= 0.1 and use.wall_s >= 0.1 and use.waited_s >= 0
