"""Training steps of real ranks over Gloo: layers sleep, gradients are exchanged and checked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.rank.messages import RankRefusal
from bench.store import jsonl

pytestmark = pytest.mark.torch
Run = Callable[..., Any]
TIMED = ("--timed", "layers=4,forward=2ms,backward=4ms,bytes=256K")
STEP = ("-m", "bench.step", *TIMED)
SPOILING = """
import sys
from bench.rank.main import run_pattern
from bench.transports import _torch_step
from bench.transports.strategies import _hooks
start = _hooks.BucketExchange.start
timing = []
def spoilt(self, gradients, bucket):
    future = start(self, gradients, bucket)
    if self._build.rank != 1 or sys.argv[1] == "late" and len(timing) < 10:
        return future
    def flipped(done):
        mean = done.value()
        mean[7] += 1
        return mean
    return future.then(flipped)
run = _torch_step.StepTrainer.run
def noted(self, variant, num_steps):
    timing.append(variant)
    return run(self, variant, num_steps)
_hooks.BucketExchange.start, _torch_step.StepTrainer.run = spoilt, noted
run_pattern("step", sys.argv[2:])
"""
DYING = """
import os, sys
from bench.rank.main import run_pattern
from bench.transports.strategies import _hooks
start = _hooks.BucketExchange.start
calls = []
def dying(self, gradients, bucket):
    calls.append(gradients)
    if self._build.rank == 1 and len(calls) > 60:
        os._exit(9)
    return start(self, gradients, bucket)
_hooks.BucketExchange.start = dying
run_pattern("step", sys.argv[1:])
"""


def test_a_late_rank_is_named_and_parts_sum_to_the_step(torch_ranks: Run) -> None:
    ran = torch_ranks(2, *STEP, "--inject", "rank=1,segment=backward,delay=60ms", "-n", "9", "--format", "json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    (row,) = document["summaries"]
    (step,) = document["steps"]
    assert row["verified"] is True and row["payload_bytes"] == 4 << 18
    assert (step["late_rank"], step["late_segment"]) == (1, "backward")
    # Sleeps never end early, so these hold however busy the machine is.
    assert step["late_s"] > 0.05 and step["step_s"] >= 0.024 + 0.06
    assert step["parts_s"]["compute"][1] >= 0.024 + 0.06
    sums = [sum(by_rank[rank] for by_rank in step["parts_s"].values()) for rank in range(2)]
    assert sums == pytest.approx([sums[0]] * 2, rel=0.1)
    assert {"exposed_by_removal", "loader_by_removal", "copies_by_removal"} <= set(step)
    assert sum(step["bucket_bytes"]) == 4 << 18
    # On a busy host, either clock may be late.
    assert "logger-disagrees" not in row["flags"] or "busy-host" in row["flags"]


@pytest.mark.slow
def test_a_trace_is_written_after_timing_and_can_be_explained(run: Run, torch_ranks: Run, tmp_path: Path) -> None:
    folder, records = tmp_path / "trace", tmp_path / "r.jsonl"
    timed = ("--timed", "layers=4,forward=2ms,backward=4ms,bytes=256K,data=40ms")
    words = ("-n", "5", "--trace", str(folder), "--records", str(records), "--format", "json")
    ran = torch_ranks(2, "-m", "bench.step", *timed, *words)
    assert ran.code == 0, ran.err
    (step,) = json.loads(ran.out)["steps"]
    assert step["profiler"] is not None
    (attempt,) = jsonl.read(records).attempts
    (record,) = attempt.records
    assert record.step is not None and len(record.step.profiled_ratios) == 5
    forward_s, its_s = record.step.logged_s["forward"]  # of sleeping layers, by our clocks and by torch's logger
    assert min(forward_s, its_s) >= 0.008
    explained = run(sys.executable, "-m", "bench", "job", "explain", str(folder), "--format", "json")
    assert explained.code == 0, explained.err
    document = json.loads(explained.out)
    assert document["num_ranks"] == 2 and document["steps"] >= 4
    assert all(rank["parts"]["data_wait_s"] >= 0.04 for rank in document["ranks"])


@pytest.mark.parametrize(("when", "num_rows"), [("first", 0), pytest.param("late", 1, marks=pytest.mark.slow)])
def test_an_exchange_that_corrupts_gradients_ends_with_4(
    torch_ranks: Run, tmp_path: Path, when: str, num_rows: int
) -> None:
    script = tmp_path / "spoiling.py"
    script.write_text(SPOILING, encoding="utf-8")
    ran = torch_ranks(2, str(script), when, *TIMED, "-n", "3", "--format", "json")
    document = json.loads(ran.out)
    assert len(document["summaries"]) == num_rows and document["steps"] == []
    if num_rows:
        assert document["summaries"][0]["verified"] is False
    else:
        assert document["failures"][0]["rank"] == 1 and "rank 1, element" in document["failures"][0]["what"]
    assert ran.code == 4


@pytest.mark.slow
def test_a_delay_of_a_rank_that_does_not_exist_is_refused(torch_ranks: Run) -> None:
    ran = torch_ranks(2, *STEP, "--inject", "rank=2,segment=data,delay=1ms", "--format", "json")
    (failure,) = json.loads(ran.out)["failures"]
    assert failure["code"] == RankRefusal.NO_SUCH_RANK


@pytest.mark.slow
def test_a_rank_that_dies_in_backward_ends_the_others(torch_ranks: Run, tmp_path: Path) -> None:
    script, records = tmp_path / "dying.py", tmp_path / "r.jsonl"
    script.write_text(DYING, encoding="utf-8")
    began = time.monotonic()
    ran = torch_ranks(2, str(script), *TIMED, "--max-seconds", "30", "--records", str(records))
    assert ran.code != 0 and time.monotonic() - began < 60  # Gloo's own timeout is longer
    (attempt,) = jsonl.read(records).attempts
    assert not attempt.records
