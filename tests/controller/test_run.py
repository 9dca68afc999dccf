"""The jobs of a run, one after the other, when a host is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.config.clusters import Cluster
from bench.controller import execute, run
from bench.controller.jobs import Job, LocalMachine, Site
from bench.controller.messages import OutcomeCode
from bench.core.record import Failure
from bench.launchers.torchrun import LAUNCHER
from bench.store import runs
from tests.controller.test_batch import job


def jobs_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Failure, back: bool = False
) -> tuple[list[str], run.RunResult]:
    """(The jobs that were started, the result) of four jobs: the second loses h2, the third needs it."""
    agent, started = tmp_path / "agent", []
    agent.write_text('#!/bin/sh\n[ "$1" != h2 ] || [ -e "$0.back" ] || exit 255\n')
    agent.chmod(0o755)

    def execute_job(made: Job, *_: object) -> execute.Outcome:
        started.append(made.name)
        if back:
            agent.with_name("agent.back").touch()
        outcome = execute.Outcome(made.name, 0, 1.0)
        return outcome.failed(failure) if made.name == "b" else outcome

    monkeypatch.setattr(execute, "run", execute_job)
    machine = LocalMachine(2, 0, {}, "python3", "mpirun", {})
    site = Site(Cluster("c"), machine, {}, {"slurm": LAUNCHER})
    context = run.RunContext(site, tmp_path, 60.0, lambda line: None, lambda line: None)
    on = {"a": ("h0", "h1"), "b": ("h0", "h1", "h2"), "c": ("h1", "h2"), "d": ("h0", "h1")}
    jobs = [replace(job(name), hosts=hosts, agent=(str(agent), "{host}")) for name, hosts in on.items()]
    return started, run.run_jobs(jobs, tmp_path, context)


@pytest.mark.parametrize(
    "failure",
    [
        Failure("gone", None, "h2", OutcomeCode.HOST_UNREACHABLE),
        Failure("lost", 3, "h2", OutcomeCode.RANK_LOST, {"not_ended_on": ["h2"]}),
    ],
)
def test_a_job_on_a_dead_host_is_skipped_and_others_run(
    failure: Failure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, ran = jobs_run(tmp_path, monkeypatch, failure)
    assert started == ["a", "b", "d"]
    skipped = ran.failed["c"]
    assert (skipped.code, skipped.host, skipped.facts) == (OutcomeCode.HOST_DEAD, "h2", {"since": "b"})
    assert set(ran.failed) == {"b", "c"} and ran.refused == frozenset()
    assert runs.read_outcomes(tmp_path)["c"]["code"] == OutcomeCode.HOST_DEAD


def test_a_host_that_answers_again_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Failure("gone", None, "h2", OutcomeCode.HOST_UNREACHABLE)
    started, ran = jobs_run(tmp_path, monkeypatch, gone, back=True)
    assert started == ["a", "b", "c", "d"] and set(ran.failed) == {"b"}
