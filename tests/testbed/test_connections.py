"""A lost connection to a host does not end a healthy job; a host that cannot be reached again is named."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.controller.messages import ConnectionCode, OutcomeCode
from tests.testbed import faults, site
from tests.testbed.hosts import Process, Remote, Testbed

pytestmark = [pytest.mark.netns, pytest.mark.alone]
LAUNCHERS = {"gloo": "torchrun", "mpi": "mpirun"}


class Run:
    """A run with one rank on each host. 5,000 iterations take some seconds. `begun`: wait for the first samples."""

    def __init__(self, bed: Testbed, transport: str, iterations: int, begun: bool = True, **cluster: Any) -> None:
        self.bed = bed
        row = {"pattern": "allreduce", "transport": transport, "sizes": [8], "mode": "isolated"}
        self.folder = site.make(
            bed,
            [{**row, "iterations": iterations}],
            {"max_seconds": 60},
            ranks_per_node=1,
            launcher=LAUNCHERS[transport],
            env=faults._SHARING,
            **cluster,
        )
        words = [*site.BENCH, "run", "it", "--cluster", "bed", "--no-plots", "--deadline", "8s"]
        words += [] if begun else ["--no-preflight"]
        self.controller: Remote = bed.popen("h0", words, env={"PYTHONPATH": str(site.ROOT)}, cwd=self.folder)
        if begun:
            self.wait(lambda: any("samples" in path.read_text() for path in self.beats()), 100)

    def beats(self) -> Sequence[Path]:
        return sorted(self.folder.glob("results/2*/.*.heartbeats/*.json"))

    def agents(self, host: str) -> list[Process]:
        """The agents that hold the connections to a host."""
        return [found for found in self.bed.processes() if "agent.py" in found.words and f" {host} " in found.words]

    def kill_agents(self, host: str) -> None:
        found = self.agents(host)
        assert found
        for process in found:
            os.kill(process.number, signal.SIGKILL)

    def outcome(self) -> dict[str, Any]:
        (path,) = self.folder.glob("results/2*/outcomes.json")
        (outcome,) = json.loads(path.read_text()).values()
        return dict(outcome)

    def wait(self, happened: Callable[[], bool], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < end, f"{self.bed.processes()} {self.controller.err}"
            time.sleep(0.1)


@pytest.mark.slow
def test_a_lost_connection_is_restored_and_the_job_goes_on(testbed: Callable[..., Testbed]) -> None:
    run = Run(testbed(2), "gloo", 5000)
    run.kill_agents("h1")
    assert run.controller.wait(100) == 0, run.controller.err
    outcome = run.outcome()
    (remark,) = outcome["remarks"]
    print(remark["text"])
    assert (remark["code"], remark["facts"]["host"]) == (ConnectionCode.RESTORED, "h1")
    assert (outcome["exit_code"], outcome["what"]) == (0, None)
    run.wait(lambda: not run.bed.processes("BENCH_JOB"), 10)


@pytest.mark.slow
def test_connections_to_all_hosts_are_lost_twice(testbed: Callable[..., Testbed]) -> None:
    run = Run(testbed(2), "gloo", 15_000)
    for _ in range(2):
        for host in run.bed.hosts:
            run.kill_agents(host)
        run.wait(lambda: all(run.agents(host) for host in run.bed.hosts), 10)
        time.sleep(3)
    assert run.controller.wait(60) == 0, run.controller.err
    remarks = run.outcome()["remarks"]
    assert sorted(remark["facts"]["host"] for remark in remarks) == ["h0", "h0", "h1", "h1"]


@pytest.mark.slow
def test_a_host_that_stays_out_of_reach_is_named(testbed: Callable[..., Testbed]) -> None:
    run = Run(testbed(2), "gloo", 100_000)
    run.bed.unreachable("h1")
    run.kill_agents("h1")
    began = time.monotonic()
    assert run.controller.wait(100) == 4, run.controller.err
    print(f"ended after {time.monotonic() - began:.1f} s")
    outcome = run.outcome()
    assert (outcome["code"], outcome["host"]) == (OutcomeCode.HOST_UNREACHABLE, "h1")
    run.wait(lambda: not [found for found in run.bed.processes("BENCH_JOB") if found.host == "h1"], 15)


@pytest.mark.slow
def test_a_connection_of_mpich_that_is_lost_before_the_ranks_begin_is_named(testbed: Callable[..., Testbed]) -> None:
    bed = testbed(3)
    bed.suspend("h2")  # nothing starts there
    run = Run(bed, "mpi", 100, begun=False)
    run.wait(lambda: bool(run.agents("h2")), 60)
    run.kill_agents("h2")
    bed.wake("h2")
    assert run.controller.wait(100) == 4, run.controller.err
    outcome = run.outcome()
    assert (outcome["code"], outcome["rank"], outcome["host"]) == (ConnectionCode.OF_MPIRUN, None, "h2")
    run.wait(lambda: not run.bed.processes("BENCH_JOB"), 10)


@pytest.mark.slow
def test_ranks_of_mpich_do_not_need_the_connection(testbed: Callable[..., Testbed]) -> None:
    run = Run(testbed(2), "mpi", 100_000)
    run.kill_agents("h1")
    time.sleep(1)
    assert not run.agents("h1") and run.controller.poll() is None, run.controller.err
    assert run.controller.wait(100) == 0, run.controller.err
    outcome = run.outcome()
    assert (outcome["exit_code"], outcome["what"], outcome["remarks"]) == (0, None, [])
    run.wait(lambda: not run.bed.processes("BENCH_JOB"), 10)


@pytest.mark.slow
def test_a_torchrun_job_that_has_ended_since_is_named_for_the_port_that_it_had(
    testbed: Callable[..., Testbed],
) -> None:
    run = Run(testbed(2), "gloo", 4000, port=29555)
    first = run.beats()[0].parent
    words = [*site.BENCH, "run", "it", "--cluster", "bed", "--no-plots", "--no-preflight", "--share-hosts"]
    second = run.bed.popen("h0", [*words, "--results", "second"], env={"PYTHONPATH": str(site.ROOT)}, cwd=run.folder)
    assert second.wait(100) == 4, second.err
    assert run.controller.wait(100) == 0, run.controller.err
    (path,) = run.folder.glob("second/2*/outcomes.json")
    (outcome,) = json.loads(path.read_text()).values()
    assert (outcome["code"], outcome["host"]) == (OutcomeCode.MEETING_PORT_TAKEN, "h0")
    (by,) = outcome["facts"]["by"]
    assert by["job"].startswith(f"{first.parent.name}/")
