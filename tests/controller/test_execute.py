"""The end of a job: why it failed, and that it ends with its controller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from bench.controller import execute
from bench.controller.messages import OutcomeCode
from bench.controller.root_cause import FailureEvidence
from bench.core.codes import Coded
from bench.core.ends import EndCode
from bench.core.record import Header, Record
from bench.core.secret_values import MASK
from bench.launchers.torchrun import Torchrun
from bench.store import heartbeat, jsonl, lease, runs
from bench.store.heartbeat import End, Heartbeat, LastWords
from tests.controller.test_batch import job
from tests.facts import holds

DOING = "pairs 4M pipelined: preparing"
BEATS = tuple(Heartbeat(rank, "h0", 40 + rank, DOING, 100.0) for rank in range(2))
TOO_LONG = Coded.of(OutcomeCode.TOO_LONG, limit_s=95.0)
SILENCE = Coded.of(OutcomeCode.SILENCE, silent_s=9.0)


def test_a_job_that_is_only_slow_has_a_code_of_its_own(tmp_path: Path) -> None:
    slow = execute._explain(-15, TOO_LONG, FailureEvidence(2, BEATS), tmp_path, job("a"), True)
    assert slow is not None and (slow.code, slow.facts["limit_s"]) == (OutcomeCode.TOO_SLOW, 95.0)
    phase = {"doing": DOING, "num_alike": 2, "num_ranks": 2}
    assert slow.facts == {"limit_s": 95.0, "late": OutcomeCode.TOO_LONG, **phase}
    assert holds(slow.what, "95", "2 of 2 ranks") and DOING in slow.what and "--resume" in slow.what
    silent = execute._explain(-15, SILENCE, FailureEvidence(2, BEATS), tmp_path, job("a"), True)
    assert silent is not None and (silent.code, silent.facts) == (OutcomeCode.SILENCE, {"silent_s": 9.0, **phase})
    assert holds(silent.what, "9", "2 of 2 ranks", DOING)
    others = Coded.of(OutcomeCode.OTHERS_WAIT, rank=1, waited_s=15.0)
    waited = execute._explain(-15, others, FailureEvidence(2, BEATS), tmp_path, job("a"), True)
    assert waited is not None and (waited.code, waited.rank) == (OutcomeCode.OTHERS_WAIT, None)
    assert waited.facts == {"rank": 1, "waited_s": 15.0, **phase}
    nameless = execute._explain(-15, TOO_LONG, FailureEvidence(2), tmp_path, job("a"), True)
    assert nameless is not None and (nameless.code, nameless.what) == (TOO_LONG.code, TOO_LONG.text)


def test_a_late_job_with_a_root_cause_has_its_code(tmp_path: Path) -> None:
    raised = LastWords(End.of(EndCode.ERROR, kind="ValueError", why="no"), 1, "h0")
    late = execute._explain(-15, SILENCE, FailureEvidence(2, BEATS, reports=(raised,)), tmp_path, job("a"), True)
    assert late is not None and (late.code, late.rank, late.host) == (EndCode.ERROR, 1, "h0")
    assert late.facts["late"] == OutcomeCode.SILENCE


def test_a_killed_launcher_is_not_blamed_on_a_rank_that_it_had_not_started(tmp_path: Path) -> None:
    runs.log_file(tmp_path, "a").write_text("")
    not_begun = FailureEvidence(3, BEATS, late=False)
    killed = execute._explain(-9, None, not_begun, tmp_path, job("a"), False)
    assert killed is not None and (killed.code, killed.rank) == (OutcomeCode.LAUNCHER_FAILED, None)
    ended = execute._explain(1, None, not_begun, tmp_path, job("a"), False)
    assert ended is not None and (ended.code, ended.rank) == (OutcomeCode.NEVER_HEARD, 2)


def test_a_ranks_report_comes_before_the_launchers_words_and_those_before_its_exit_code(tmp_path: Path) -> None:
    log = runs.log_file(tmp_path, "a")
    log.write_text("usage: x\nrun.py: error: unrecognized arguments: --x\n")
    bare = execute._explain(2, None, FailureEvidence(2), tmp_path, job("a"), True)
    assert bare is not None and bare.code == OutcomeCode.LAUNCHER_FAILED
    assert (bare.facts["exit_code"], bare.facts["log"]) == (2, str(log))
    assert bare.facts["saying"] == "unrecognized arguments: --x" and repr(bare.facts["saying"]) in bare.what
    words = LastWords(End("cannot-join", {"rank": 1}, "rank 1 cannot join"), 1, "h0")
    reported = execute._explain(2, None, FailureEvidence(2, reports=(words,)), tmp_path, job("a"), True)
    assert reported is not None and (reported.code, reported.rank, reported.host) == ("cannot-join", None, None)
    assert str(log) in reported.what


def test_rows_of_an_earlier_attempt_are_no_success_of_this_one(
    tmp_path: Path, a_record: Callable[..., Record], a_header: Callable[..., Header]
) -> None:
    measured = replace(job("a"), num_records=1)
    jsonl.Writer(runs.results_file(tmp_path, "a"), a_header()).append(a_record())
    runs.log_file(tmp_path, "a").write_text("")
    for exit_code in (250, 0):  # 0: mpirun of Open MPI may not report that it lost a host before its ranks started
        assert execute._explain(exit_code, None, FailureEvidence(2), tmp_path, measured, True) is None
        failed = execute._explain(exit_code, None, FailureEvidence(2), tmp_path, measured, False)
        assert failed is not None and failed.code == OutcomeCode.LAUNCHER_FAILED


def test_a_launcher_that_starts_no_rank_has_failed(tmp_path: Path) -> None:
    idle = replace(job("a"), command=("true",), num_records=1)
    outcome = execute.run(idle, tmp_path, Torchrun(), 60.0, lambda seconds: None)
    assert (outcome.exit_code, outcome.code) == (0, OutcomeCode.LAUNCHER_FAILED)


def test_time_in_which_the_controller_did_not_run_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now_s=100.0, asleep_s=0.0, CLOCK_MONOTONIC=1)
    clock.monotonic = lambda: clock.now_s
    clock.clock_gettime = lambda _: clock.now_s + clock.asleep_s
    monkeypatch.setattr(execute, "time", clock)
    heartbeat.write(tmp_path, replace(BEATS[0], age_s=0.4))
    timer = execute._SilenceTimer(tmp_path, 6.0)

    def polls(seconds: float) -> Coded | None:
        for _ in range(int(seconds)):
            clock.now_s += 1.0
            late = timer.late()
        return late

    assert polls(3) is None
    clock.now_s += 60.0  # a paused machine, or Ctrl-Z
    clock.asleep_s += 30.0
    assert polls(2) is None and timer.silent_s()[0] == pytest.approx(3.4)
    assert timer.paused_s == pytest.approx(61.0) and timer.slept_s() == pytest.approx(30.0)
    late = polls(3)
    assert late is not None and late.code == OutcomeCode.SILENCE


def test_a_job_whose_ranks_wait_for_one_that_ended_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=100.0, CLOCK_MONOTONIC=1)
    clock.monotonic = clock.clock_gettime = lambda *_: clock.now_s
    monkeypatch.setattr(execute, "time", clock)
    refused = replace(BEATS[0], ended=heartbeat.End("host-in-use", {}, "another benchmark measures"))
    heartbeat.write(tmp_path, refused)
    timer = execute._SilenceTimer(tmp_path, 600.0)
    found = []
    for _ in range(20):
        clock.now_s += 1.0
        heartbeat.write(tmp_path, replace(BEATS[1], time_s=clock.now_s))
        found.append(timer.late())
    assert found[:14] == [None] * 14 and found[-1] is not None
    assert (found[-1].code, found[-1].facts["rank"]) == (OutcomeCode.OTHERS_WAIT, BEATS[0].rank)


SLEEP = "import subprocess; job = subprocess.Popen(['/bin/sh', '-c', 'sleep 600 & sleep 600'], start_new_session=True)"
DEAF = SLEEP.replace("sleep 600 & sleep 600", "trap : TERM; sleep 600 & while :; do sleep 600; done")
CONTROLLER = """
import pathlib
from bench.controller.execute import ended_with_controller
with ended_with_controller(job.pid, pathlib.Path({lease!r}), 1.5):
    print(job.pid, flush=True)
    job.wait()
"""


@pytest.mark.parametrize("start", [SLEEP, DEAF])
def test_a_job_ends_when_its_controller_is_killed_and_its_lease_is_lost(start: str, tmp_path: Path) -> None:
    lease_file = tmp_path / lease.NAME
    program = start + CONTROLLER.format(lease=str(lease_file))
    controller = subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    leader = psutil.Process(int(controller.stdout.readline()))
    for _ in range(600):
        if len(processes := [leader, *leader.children()]) == 3:
            break
        time.sleep(0.05)
    controller.send_signal(signal.SIGSTOP)
    before = lease.read(lease_file)
    wait_until(lambda: lease.read(lease_file) not in (before, lease.LOST, None))  # a stopped controller keeps it
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    wait_until(lambda: lease.read(lease_file) == lease.LOST)
    controller.stdout.close()
    _, left = psutil.wait_procs(processes, timeout=60)
    left = [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
    for process in left:
        process.kill()
    assert left == []


def test_a_guard_that_is_killed_is_replaced_so_its_job_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.1)
    guards: list[subprocess.Popen[bytes]] = []
    start = execute._guard

    def start_and_keep(*words: Any) -> subprocess.Popen[bytes]:
        guards.append(start(*words))
        return guards[-1]

    monkeypatch.setattr(execute, "_guard", start_and_keep)
    lease_file = tmp_path / lease.NAME
    with execute.ended_with_controller(os.getpid(), lease_file, 35.0) as renew_guard:
        wait_until(lambda: lease.read(lease_file) is not None)
        guards[0].kill()
        guards[0].wait()
        lease_file.unlink()

        def renewed() -> bool:
            renew_guard()
            return lease.read(lease_file) is not None

        wait_until(renewed)
    assert [guard.returncode for guard in guards] == [-signal.SIGKILL, 0]


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_job_that_ended_well_is_left_alone(tmp_path: Path) -> None:
    sleeping = subprocess.Popen(("sleep", "600"), start_new_session=True)
    try:
        with execute.ended_with_controller(sleeping.pid, tmp_path / lease.NAME, 35.0):
            pass
        assert sleeping.poll() is None
    finally:
        sleeping.kill()
        sleeping.wait()


def test_secrets_that_a_job_printed_are_masked_after_it(tmp_path: Path) -> None:
    log = runs.log_file(tmp_path, "a")
    log.write_text("earlier: hunter22\nrank 0: hunter22\n")
    execute._mask(tmp_path, replace(job("a"), env={"HF_TOKEN": "hunter22"}), len("earlier: hunter22\n"))
    assert log.read_text() == f"earlier: hunter22\nrank 0: {MASK}\n"
