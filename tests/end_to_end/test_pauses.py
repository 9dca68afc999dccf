"""Real jobs with a short deadline: pauses, starved ranks and large buffers are not taken for other faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.controller.messages import OutcomeCode
from bench.core.ends import EndCode
from bench.probes.processes import JOB_VARIABLE
from bench.store import heartbeat, runs
from tests.end_to_end import starving
from tests.end_to_end.conftest import environment
from tests.end_to_end.test_starved_ranks import control_groups as control_groups

Run = Callable[..., Any]
Start = Callable[[int], tuple[str, ...]]

ENDLESS = "max_seconds: 500\nmeasure:\n  - {pattern: allreduce, transport: mpi, sizes: [64K], iterations: 9000000}\n"
FILLS_FOR_10_S = """
import sys, time
from bench.rank import main
from bench.rank.verify import Verifier
prepare = Verifier.prepare
def slow(self, *rest):
    end = time.monotonic() + 10
    while time.monotonic() < end:
        pass
    Verifier.prepare = prepare
    prepare(self, *rest)
Verifier.prepare = slow
main.run_pattern("allreduce", sys.argv[1:])
"""

pytestmark = [pytest.mark.mpi, pytest.mark.slow]


@contextmanager
def running(folder: Path, deadline: str) -> Iterator[subprocess.Popen[str]]:
    """A controller whose job of two ranks has taken samples and goes on for hours."""
    (folder / "scenarios").mkdir()
    (folder / "scenarios" / "endless.yaml").write_text(ENDLESS, encoding="utf-8")
    (folder / "bench.yaml").write_text("clusters: {local: {nodes: 1, ranks_per_node: 2}}\n", encoding="utf-8")
    words = (sys.executable, "-m", "bench", "run", "endless", "--no-preflight", "--deadline", deadline)
    controller = subprocess.Popen(
        words, cwd=folder, env=environment({}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield controller
    finally:
        controller.terminate()
        controller.communicate()


def rank_1(folder: Path) -> int:
    """The process of rank 1, once it takes samples."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for beats in folder.glob("results/*/*/"):
            for beat in heartbeat.read_all(beats):
                if beat.rank == 1 and beat.doing.endswith("samples"):
                    return beat.process
        time.sleep(0.1)
    raise AssertionError("rank 1 took no samples")


def processes_of(controller: subprocess.Popen[str], folder: Path) -> list[psutil.Process]:
    """The controller, its guard, the launcher and the ranks."""
    found = []
    for process in psutil.process_iter():
        try:
            of_job = process.environ().get(JOB_VARIABLE, "").startswith(f"{folder.name}/")
        except psutil.Error:
            continue
        if of_job:
            found.append(process)
    me = psutil.Process(controller.pid)
    return list({process.pid: process for process in [me, *me.children(recursive=True), *found]}.values())


def outcome(folder: Path) -> dict[str, Any]:
    [(_, found)] = runs.read_outcomes(next(folder.glob("results/*/"))).items()
    return dict(found)


@pytest.mark.parametrize("paused_s", [6, 17])
def test_a_paused_machine_is_named_only_if_it_was_paused_longer_than_the_deadline(
    tmp_path: Path, mpirun: Start, paused_s: float
) -> None:
    with running(tmp_path, "4s") as controller:
        rank_1(tmp_path)
        paused = processes_of(controller, next(tmp_path.glob("results/*/")))
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in paused:
                process.send_signal(number)
            time.sleep(paused_s if number == signal.SIGSTOP else 0)
        if paused_s < 12:  # ranks may be silent for 8 s longer than the controller's deadline
            time.sleep(5)
            assert controller.poll() is None
            return
        controller.communicate(timeout=120)
        assert controller.returncode == 4
        assert outcome(tmp_path)["code"] in (EndCode.PAUSED, OutcomeCode.HOST_PAUSED)


@pytest.mark.usefixtures("control_groups")
def test_a_late_job_names_the_starved_rank(tmp_path: Path, mpirun: Start) -> None:
    with running(tmp_path, "4s") as controller:
        starved = rank_1(tmp_path)
        starving.limit(starved, 0.01)
        controller.communicate(timeout=200)
        found = outcome(tmp_path)
        assert (controller.returncode, found["code"], found["rank"]) == (4, OutcomeCode.RANK_STARVED, 1)
        assert found["host"] == os.uname().nodename
    starving.folder_of(starved).rmdir()


def test_filling_large_buffers_may_take_longer_than_the_deadline(run: Run, mpirun: Start, tmp_path: Path) -> None:
    script = tmp_path / "filling.py"
    script.write_text(FILLS_FOR_10_S, encoding="utf-8")
    ran = run(*mpirun(1), str(script), "--sizes", "4K", "-n", "3", "--deadline", "8s", "--format", "json")
    assert ran.code == 0, ran.err
    assert all(row["verified"] for row in json.loads(ran.out)["summaries"])
