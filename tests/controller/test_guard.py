"""A job ends with its desk, also when that is killed, and only then."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil

from bench.controller.guard import guarded

SLEEP = "import subprocess; job = subprocess.Popen(['/bin/sh', '-c', 'sleep 600 & sleep 600'], start_new_session=True)"
DESK = """
from bench.controller.guard import guarded
with guarded(job.pid):
    print(job.pid, flush=True)
    job.wait()
"""


def test_a_job_ends_when_its_desk_is_killed() -> None:
    desk = subprocess.Popen((sys.executable, "-c", SLEEP + DESK), stdout=subprocess.PIPE, text=True)
    assert desk.stdout is not None
    leader = psutil.Process(int(desk.stdout.readline()))
    for _ in range(200):
        if len(job := [leader, *leader.children()]) == 3:
            break
        time.sleep(0.05)
    desk.send_signal(signal.SIGKILL)
    desk.wait()
    desk.stdout.close()
    _, left = psutil.wait_procs(job, timeout=20)
    left = [each for each in left if each.status() != psutil.STATUS_ZOMBIE]
    for each in left:
        each.kill()
    assert left == []


def test_a_job_that_is_guarded_no_more_is_left_alone() -> None:
    job = subprocess.Popen(("sleep", "600"), start_new_session=True)
    try:
        with guarded(job.pid):
            pass
        assert job.poll() is None
    finally:
        job.kill()
        job.wait()
