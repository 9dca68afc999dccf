"""A killed controller ends its job on every host, and the next run starts at once; a stopped one keeps its job."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.controller import guard
from bench.store import lease
from tests.testbed import faults, site
from tests.testbed.hosts import Process, Remote, Testbed

pytestmark = pytest.mark.netns
WITHIN_S = 10.0  # the promise, from the controller's death
SLACK_S = 3.0  # for a busy machine
LAUNCHERS = {"gloo": "torchrun", "mpi": "mpirun"}


class Run:
    """A run that measures for a minute, with one rank on each host. `measures`: wait until all ranks measure."""

    def __init__(self, bed: Testbed, transport: str, measures: bool = True, **cluster: Any) -> None:
        self.bed = bed
        row = {"pattern": "allreduce", "transport": transport, "sizes": [8, 1 << 20], "mode": "isolated"}
        self.folder = site.make(
            bed,
            [{**row, "iterations": 100_000}],
            {"max_seconds": 60},
            ranks_per_node=1,
            launcher=LAUNCHERS[transport],
            **({"env": faults._SHARING} | cluster),
        )
        (self.folder / "scenarios" / "short.yaml").write_text(
            f"measure: [{{pattern: broadcast, transport: {transport}, sizes: [8], iterations: 10}}]\n"
        )
        self.controller = self.start("it")
        if not measures:
            return
        self.wait(lambda: len(list(self.beats("*.json"))) == len(bed.hosts), 100)
        self.wait(lambda: any("samples" in path.read_text() for path in self.beats("*.json")), 60)

    def start(self, scenario: str) -> Remote:
        words = [*site.BENCH, "run", scenario, "--cluster", "bed", "--no-plots"]
        return self.bed.popen("h0", words, env={"PYTHONPATH": str(site.ROOT)}, cwd=self.folder)

    def beats(self, pattern: str) -> Sequence[Path]:
        return sorted(self.folder.glob(f"results/2*/.*.heartbeats/{pattern}"))

    def processes(self) -> list[Process]:
        """Everything of the run but its controller: ranks, launchers, agents, the guard."""
        found = {process.number: process for process in self.bed.processes("BENCH_JOB")}
        others = [process for process in self.bed.processes() if "bench." in process.words]
        return list((found | {process.number: process for process in others}).values())

    def kill(self, *others: Process, but: str = "") -> float:
        """Kill the controller, and others at the same moment. Returns the seconds until nothing of the run is left.

        `but`: processes with this text in their command line may be left.
        """
        for process in others:
            os.kill(process.number, signal.SIGKILL)
        self.controller.signal(signal.SIGKILL)
        killed = time.monotonic()
        self.wait(lambda: not [process for process in self.processes() if not but or but not in process.words], 60)
        return time.monotonic() - killed

    def wait(self, happened: Callable[[], bool], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < end, f"{self.processes()} {self.controller.err}"
            time.sleep(0.1)

    def guards(self) -> list[Process]:
        return [process for process in self.processes() if guard.__name__ in process.words]


def test_a_killed_controller_ends_its_ranks_and_launchers_on_every_host(testbed: Callable[..., Testbed]) -> None:
    run = Run(testbed(2), "gloo")
    seconds = run.kill()
    print(f"all processes were gone after {seconds:.1f} s")
    assert seconds < WITHIN_S + SLACK_S


@pytest.mark.slow
@pytest.mark.parametrize("transport", LAUNCHERS)
def test_the_next_run_starts_at_once(transport: str, testbed: Callable[..., Testbed]) -> None:
    run = Run(testbed(3), transport)
    seconds = run.kill()
    print(f"{transport}: all processes were gone after {seconds:.1f} s")
    assert seconds < WITHIN_S + SLACK_S
    following = run.start("short")
    assert following.wait(100) == 0, following.err


@pytest.mark.slow
@pytest.mark.parametrize("transport", LAUNCHERS)
def test_a_host_that_loses_its_controller_and_guard_ends_its_job(
    transport: str, testbed: Callable[..., Testbed]
) -> None:
    """As after a loss of power: nobody says that the controller is gone, its lease lapses."""
    run = Run(testbed(2), transport)
    time.sleep(2 * lease.RENEW_S)  # ranks ignore a lease that they have not yet seen change
    launcher = [process for process in run.processes() if process.host == "h0" and "hosts" in process.words]
    seconds = run.kill(*run.guards(), *launcher)
    print(f"{transport}: all processes were gone after {seconds:.1f} s")
    assert seconds < WITHIN_S + SLACK_S


# A host's keeper ends torchrun when nobody has been connected for so long.
ENDS = {"gloo": lease.LAPSE_S, "mpi": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("age_s", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("transport", LAUNCHERS)
def test_a_job_that_has_just_begun_ends_with_its_controller_and_guard(
    transport: str, age_s: float, testbed: Callable[..., Testbed]
) -> None:
    """Its ranks have not yet seen the lease change, so they would ignore it.

    Hydra's process on another host may still try to reach an mpirun that has already ended. It has started no rank.
    """
    run = Run(testbed(2), transport, measures=False)
    run.wait(lambda: len(run.guards()) == 1, 100)
    time.sleep(age_s)
    seconds = run.kill(*run.guards(), but="hydra_pmi_proxy" if transport == "mpi" else "")
    assert not [process.words for process in run.processes() if "bench.allreduce" in process.words]
    print(f"{transport}, killed after {age_s} s: all processes were gone after {seconds:.1f} s")
    assert seconds < ENDS[transport] + SLACK_S


@pytest.mark.slow
def test_a_stopped_controller_keeps_its_job(testbed: Callable[..., Testbed]) -> None:
    run = Run(testbed(2), "gloo")
    run.controller.signal(signal.SIGSTOP)
    before = len(run.processes())
    time.sleep(1.5 * WITHIN_S)
    assert len(run.processes()) == before
    assert lease.read(run.beats(lease.NAME)[0]) != lease.LOST
    run.controller.signal(signal.SIGCONT)
    assert run.kill() < WITHIN_S + SLACK_S


@pytest.mark.slow
def test_a_killed_guard_is_replaced_and_the_job_goes_on(testbed: Callable[..., Testbed]) -> None:
    run = Run(testbed(2), "mpi")
    [first] = run.guards()
    os.kill(first.number, signal.SIGKILL)
    time.sleep(1.5 * WITHIN_S)
    [second] = run.guards()
    assert second.number != first.number and run.controller.poll() is None, run.controller.err
    assert run.kill() < WITHIN_S + SLACK_S
