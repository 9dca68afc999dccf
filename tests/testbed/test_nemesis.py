"""The nemesis: its invariants fail where they must, and five fixed seeds of it pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from bench.core.errors import EXIT_DONE, EXIT_MEASUREMENT
from bench.core.host_use import HostUse
from bench.core.record import Header, Record, Samples
from bench.store.jsonl import Attempt
from tests.testbed import faults, hosts, nemesis
from tests.testbed.nemesis_faults import ENGINES, KINDS, Culprits
from tests.testbed.nemesis_invariants import EFFECT_S, INVARIANTS, Observed, culprit_named, has_culprit, predicted_s

JOB, LARGE = "allreduce-mpi-3x1", 1 << 20
SEEDS = (1, 2, 5, 10, 11)
VICTIM = Culprits(frozenset({1}), frozenset(), frozenset({"h1"}))


def row(payload: int = 8, seconds: float = 0.05, num: int = 3, **changes: Any) -> Record:
    samples = Samples((seconds,) * num, ((seconds,) * num,) * 3)
    return replace(Record("isolated", (payload,), payload, 3, 3, verified=True, samples=samples), **changes)


def written(*records: Record) -> dict[str, tuple[Attempt, ...]]:
    header = Header(JOB, (), "allreduce", "mpi", "float32", "sum", None, None, "world", 3, 3, 1, "perf", False, "")
    return {JOB: (Attempt(header, records),)}


def observed(**changes: Any) -> Observed:
    """A healthy run of three hosts, with changes."""
    rows = frozenset({(JOB, 8), (JOB, LARGE)})
    run = Observed("mpich", ("h0", "h1", "h2"), rows, 3, attempts=written(row(), row(LARGE)))
    return replace(run, **changes)


def failed(**outcome: Any) -> dict[str, Any]:
    return {JOB: {"what": "it failed", "rank": None, "host": None, "facts": {}} | outcome}


HEALTHY = observed()
KILLED = observed(struck=[("rank-killed", VICTIM)], code=EXIT_MEASUREMENT, outcomes=failed(rank=1, host="h1"))
RESUMED = replace(
    KILLED, attempts=written(row()), resumed=True, resumed_code=0, resumed_attempts=written(row(), row(LARGE))
)
WRONG = replace(
    RESUMED,
    struck=[("wrong-data", VICTIM)],
    attempts=written(row(verified=False), row(LARGE)),
    resumed_attempts=written(row(verified=False), row(LARGE), row()),
)
SUMMARY = {"job": JOB, "payload_bytes": 8, "num_samples": 3}
IDLE = HostUse("h1", 1.0, 2, used_s=0.5, stolen_s=0.0, limited_s=0.0, ours_s=0.5, num_ranks=1)
BUSY = replace(IDLE, used_s=1.9)
VIOLATED = {
    "a row with wrong data": ("rows", observed(attempts=written(row(verified=False), row(LARGE)))),
    "a row of a smaller world": ("rows", observed(attempts=written(row(num_ranks=2), row(LARGE)))),
    "a row with too few samples": ("rows", observed(attempts=written(row(num=2), row(LARGE)))),
    "a row twice": ("rows", observed(attempts=written(row(), row(), row(LARGE)))),
    "a row faster than the links": ("rows", observed(attempts=written(row(), row(LARGE, predicted_s(LARGE, 3) / 2)))),
    "a row that is slow without a reason": ("rows", observed(attempts=written(row(), row(LARGE, 30.0, hosts=(IDLE,))))),
    "success without a row": ("rows", observed(attempts=written(row()))),
    "a row of the document twice": ("rows", observed(document={"summaries": [SUMMARY, SUMMARY]})),
    "a row with more samples than measured": (
        "rows",
        observed(document={"summaries": [SUMMARY | {"num_samples": 4}]}),
    ),
    "a row lost by --resume": ("rows", replace(RESUMED, resumed_attempts=written(row(LARGE)))),
    "two runs at once": ("rows", observed(second_measured=True)),
    "a run without an end": ("left", observed(code=None)),
    "a process that is left": ("left", observed(left=("on h1: mpirun",))),
    "an innocent rank": ("named", replace(KILLED, outcomes=failed(rank=2, host="h1"))),
    "an innocent host": ("named", replace(KILLED, outcomes=failed(host="h2"))),
    "a rank on another host": ("named", replace(KILLED, outcomes=failed(rank=1, host="h0"))),
    "an innocent link": ("named", replace(KILLED, outcomes=failed(facts={"links": [["h0", "h2"]]}))),
    "candidates without the culprit": ("named", replace(KILLED, outcomes=failed(facts={"rank_numbers": [0, 2]}))),
    "a row that is missing at the end": ("resume", replace(RESUMED, resumed_attempts=written(row()))),
    "wrong data that are not measured again": ("resume", replace(WRONG, resumed_attempts=WRONG.attempts)),
    "a --resume that fails": ("resume", replace(RESUMED, resumed_code=EXIT_MEASUREMENT)),
    "failures that remain": ("resume", replace(RESUMED, resumed_document={"failures": [{"what": "it failed"}]})),
}


SLOW = observed(attempts=written(row(), row(LARGE, 30.0, hosts=(IDLE, BUSY))))


@pytest.mark.beside
@pytest.mark.parametrize("run", [HEALTHY, KILLED, RESUMED, WRONG, replace(KILLED, outcomes=failed()), SLOW])
def test_all_invariants_hold_for_a_healthy_run_and_for_a_fault_that_is_named_or_unknown(run: Observed) -> None:
    assert {name: check(run) for name, check in INVARIANTS.items()} == {name: [] for name in INVARIANTS}


@pytest.mark.beside
@pytest.mark.parametrize("what", VIOLATED)
def test_an_invariant_fails_for(what: str) -> None:
    name, run = VIOLATED[what]
    assert INVARIANTS[name](run)


@pytest.mark.beside
def test_a_failed_run_has_a_culprit_unless_a_fault_without_one_ended_it() -> None:
    assert has_culprit(KILLED) and culprit_named(KILLED)
    assert not culprit_named(replace(KILLED, outcomes=failed()))
    assert not has_culprit(replace(KILLED, struck=[*KILLED.struck, ("launcher-killed", Culprits())]))
    assert not has_culprit(replace(KILLED, struck=[("rank-crashes", VICTIM)]))  # MPICH: a crash may follow from a loss
    assert not has_culprit(replace(HEALTHY, struck=[("slow-link", VICTIM)], code=EXIT_DONE))


@pytest.mark.beside
def test_a_fault_is_not_the_culprit_of_a_job_that_ran_at_another_time() -> None:
    def counts(began_s: float, ended_s: float, kind: str = "cable", **changes: Any) -> bool:
        faults_s = {kind: (began_s, ended_s)}
        return has_culprit(replace(KILLED, struck=[(kind, VICTIM)], faults_s=faults_s, jobs_s=jobs_s, **changes))

    jobs_s = {JOB: (60.0, 90.0)}
    assert counts(70, 70) and counts(10, 70) and counts(70, 95) and counts(90, 95)
    assert counts(10, 59) and counts(10, 60 - EFFECT_S), "its effect may last"
    assert counts(70, 70, "rank-killed") and not counts(10, 59, "rank-killed"), "it was a process of an earlier job"
    assert not counts(10, 59 - EFFECT_S)
    assert not counts(91, 95)
    earlier = failed() | {"earlier": {"what": "it failed, too"}}
    assert counts(10, 11, outcomes=earlier), "nobody knows when this job ran"
    jobs_s |= {"earlier": (5.0, 12.0)}
    assert counts(10, 11, outcomes=earlier) and not counts(30, 31, outcomes=earlier)
    later = {**failed(), "host-dead": {"what": "it was not started"}}
    assert counts(10, 11, outcomes=later), "a job that was not started has no time"


@pytest.mark.beside
def test_jobs_last_from_the_first_look_with_their_heartbeats_to_the_first_without(tmp_path: Path) -> None:
    scene: Any = SimpleNamespace(results=tmp_path, jobs={"allreduce": "a", "broadcast": "b"})
    times = nemesis.JobTimes(scene)
    folders = [tmp_path / "20261127" / f".{job}.heartbeats" for job in ("a", "b")]
    times.look(1.0)
    folders[0].mkdir(parents=True)
    for now_s in (2.0, 3.0):
        times.look(now_s)
    folders[0].rmdir()
    folders[1].mkdir()
    for now_s in (4.0, 5.0):
        times.look(now_s)
    assert times.found == {"a": (2.0, 4.0), "b": (4.0, 5.0)}


@pytest.mark.beside
def test_seeds_draw_all_kinds_of_faults_on_all_engines_and_the_same_ones_each_time() -> None:
    plans = [nemesis.draw(seed) for seed in range(300)]
    assert {drawn.kind for plan in plans for drawn in plan.drawn} == set(KINDS)
    assert {plan.engine for plan in plans} == set(ENGINES)
    assert {len(plan.drawn) for plan in plans} == {1, 2, 3}
    assert {plan.num_hosts for plan in plans} == {3, 4, 5, 6}
    assert all(plan == nemesis.draw(seed) for seed, plan in enumerate(plans))
    ports = [drawn.victim for plan in plans for drawn in plan.drawn if drawn.kind == "port-taken"]
    assert set(ports) == {0}


@pytest.mark.beside
def test_runs_of_a_file_are_not_repeated_and_all_count_in_the_summary(tmp_path: Path) -> None:
    file = tmp_path / "nemesis.jsonl"
    line = {
        "seed": 7,
        "engine": "mpich",
        "hosts": 3,
        "faults": [{"kind": "cable"}, {"kind": "mtu", "missed": "the run was over"}],
        "code": EXIT_MEASUREMENT,
        "has_culprit": True,
        "culprit_named": True,
        "violations": {name: [] for name in INVARIANTS} | {"rows": ["a row is wrong"]},
        "seconds": 20.0,
    }
    file.write_text(json.dumps(line) + "\n" + json.dumps(line)[:50])
    assert nemesis._stored(file) == [line]
    assert nemesis.to_do(range(6, 9), [line]) == [6, 8]
    text = nemesis.summary([line])
    assert "seeds 7" in text and "1 of 1" in text


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_invariants_hold_for_drawn_faults(
    seed: int, tmp_path: Path, missing: Callable[[str, str], NoReturn]
) -> None:
    engine = nemesis.draw(seed).engine
    for needed, reason in (("netns", hosts.why_not()), (engine, faults.why_not(engine))):
        if reason is not None:
            missing(needed, reason)
    file = tmp_path / "nemesis.jsonl"
    words = [sys.executable, "-m", nemesis.__name__, "--seed", str(seed), "--file", str(file)]
    done = subprocess.run(words, env={**os.environ}, cwd=nemesis.ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == EXIT_DONE, done.stdout + done.stderr
