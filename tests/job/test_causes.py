"""The injected cause is named, with its rank; what its removal returns is what the same job without it saves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from bench.core import spans
from bench.core.step_trace import RankTrace, StepSegment, TracedCollective
from bench.job.explain import explain
from bench.job.messages import CauseCode, WhatIf
from bench.job.model import Explained
from bench.logs import step_traces
from tests.job import synthetic
from tests.job.synthetic import Late, Recording, Schedule

HEALTHY = Schedule(num_steps=8, forward_us=900, backward_us=1800, transfer_us=300, num_layers=8, noise=0.005)
LATE = tuple(
    (segment, replace(HEALTHY, late=(Late(2, segment, 4000),)))
    for segment in StepSegment
    if segment is not StepSegment.H2D
)


def explained(folder: Path, schedule: Schedule, recording: Recording | None = None) -> Explained:
    """Write the files of a job and explain them."""
    folder.mkdir(exist_ok=True)
    synthetic.write(folder, schedule, recording)
    return explain(step_traces.read([folder])[0])


def codes(found: Explained) -> list[str]:
    """Return the codes of the causes."""
    return [cause.code for cause in found.causes]


def step_s(found: Explained) -> float:
    """Return the step of the job."""
    assert found.step_s is not None
    return found.step_s


@pytest.mark.parametrize("transfer_us", [50, 900])
@pytest.mark.parametrize("num_ranks", [2, 5])
def test_a_healthy_job_has_no_cause(tmp_path: Path, num_ranks: int, transfer_us: int) -> None:
    for seed in range(4):
        schedule = replace(HEALTHY, num_ranks=num_ranks, transfer_us=transfer_us, seed=seed)
        found = explained(tmp_path / str(seed), schedule, Recording(end_spread_us=4))
        assert codes(found) == [] and found.closure < 1e-3


@pytest.mark.parametrize(("segment", "schedule"), LATE, ids=[str(segment) for segment, _ in LATE])
def test_a_late_rank_is_named_and_its_gain_is_what_a_healthy_job_saves(
    tmp_path: Path, segment: StepSegment, schedule: Schedule
) -> None:
    late, healthy = explained(tmp_path / "late", schedule), explained(tmp_path / "healthy", HEALTHY)
    assert codes(late) == [CauseCode.LATE_RANK]
    [cause] = late.causes
    assert cause.ranks == (2,) and cause.words.facts["segment"] == segment.value
    assert cause.gain_s == pytest.approx(step_s(late) - step_s(healthy), rel=0.05)


def test_late_input_of_all_ranks(tmp_path: Path) -> None:
    schedule = replace(HEALTHY, data_us=5000)
    found, healthy = explained(tmp_path / "late", schedule), explained(tmp_path / "healthy", HEALTHY)
    assert codes(found) == [CauseCode.LATE_INPUT]
    assert found.causes[0].gain_s == pytest.approx(step_s(found) - step_s(healthy) + HEALTHY.data_us * 1e-6, rel=0.05)


def test_every_time_another_rank(tmp_path: Path) -> None:
    late = tuple(Late(step % 3, StepSegment.BACKWARD, 4000, steps=(step,)) for step in range(8))
    assert codes(explained(tmp_path, replace(HEALTHY, late=late))) == [CauseCode.RANDOM_LATENESS]


def test_two_late_ranks_of_which_one_always_hides_the_other(tmp_path: Path) -> None:
    both = (Late(1, StepSegment.FORWARD, 4000), Late(3, StepSegment.FORWARD, 4100))
    found = explained(tmp_path, replace(HEALTHY, num_ranks=5, late=both))
    assert {one.rank for one in found.late_ranks} == {1, 3}


def test_an_exchange_longer_than_the_backward_pass(tmp_path: Path) -> None:
    schedule = replace(HEALTHY, transfer_us=6000)
    found = explained(tmp_path / "slow", schedule)
    assert codes(found)[0] == CauseCode.EXCHANGE_CANNOT_HIDE
    without = next(gain for gain in found.gains if gain.name == WhatIf.NO_NETWORK)
    none = explained(tmp_path / "none", replace(HEALTHY, transfer_us=1))
    assert step_s(found) - without.gain_s == pytest.approx(step_s(none), rel=0.02)


def test_one_large_bucket_that_could_hide(tmp_path: Path) -> None:
    found = explained(tmp_path, replace(HEALTHY, layers_per_bucket=8, transfer_us=4000))
    assert codes(found) == [CauseCode.EXCHANGE_NOT_HIDDEN]


def test_blocking_exchanges_cannot_hide(tmp_path: Path) -> None:
    found = explained(tmp_path, replace(HEALTHY, blocking=True, transfer_us=1500))
    assert CauseCode.EXCHANGE_CANNOT_HIDE in codes(found)
    assert found.causes[0].words.facts["blocking"]


def test_a_host_that_launches_too_slowly(tmp_path: Path) -> None:
    found = explained(tmp_path, replace(HEALTHY, gap_us=2000))
    assert codes(found)[0] == CauseCode.HOST_BOUND


def test_one_rank_alone_cannot_tell(tmp_path: Path) -> None:
    schedule = replace(HEALTHY, transfer_us=9000)
    found = explained(tmp_path, schedule, Recording(ranks=(1,)))
    assert codes(found) == [CauseCode.UNKNOWN]
    assert found.causes[0].words.facts["waits"]


def test_a_replay_without_a_change_gives_back_the_steps(tmp_path: Path) -> None:
    late = (Late(0, StepSegment.DATA, 900), Late(2, StepSegment.HOST, 700, steps=(1, 3)))
    for seed, blocking in enumerate((False, True)):
        found = explained(tmp_path / str(seed), replace(HEALTHY, blocking=blocking, noise=0.2, late=late, seed=seed))
        assert found.closure < 1e-3


def test_gains_have_an_interval_and_a_confidence(tmp_path: Path) -> None:
    late = tuple(Late(2, StepSegment.BACKWARD, 3000 + 500 * step, steps=(step,)) for step in range(8))
    [cause] = explained(tmp_path, replace(HEALTHY, late=late)).causes
    assert cause.gain_low_s < cause.gain_s < cause.gain_high_s
    assert cause.gain_s == pytest.approx(median(3000 + 500 * step for step in range(8)) * 1e-6, rel=0.1)
    assert 0.9 < cause.confidence < 1


def overlapped(factor: float, spread: float = 0.0) -> RankTrace:
    """Return a rank of eight steps of 40 equal kernels. Half run beside an exchange, `factor` times as long."""
    spans_of_work, exchanges, steps, now = [], [], [], 0.0
    for step in range(8):
        begin = now
        for number in range(40):
            length = 100e-6 * (1 + spread * (number % 5)) * (factor if number >= 20 else 1.0)
            spans_of_work.append((now, now + length))
            now += length
        exchanges.append(TracedCollective("allreduce", step, spans_of_work[-20][0], now, launch_s=begin, group_size=1))
        steps.append((begin, now))
    work = spans.of(spans_of_work)
    return RankTrace(
        "file",
        True,
        work,
        work[:, 0] - 1e-3,
        tuple(exchanges),
        steps=tuple(steps),
        step_names=tuple(f"step {number}" for number in range(8)),
        rank=0,
        compute_kind=np.zeros(len(work), dtype=np.int32),
    )


def test_kernels_that_an_exchange_slows_down() -> None:
    found = explain([overlapped(1.5)])
    assert codes(found) == [CauseCode.COSTLY_OVERLAP]
    assert found.causes[0].words.facts["factor"] == pytest.approx(1.5)
    assert 0.8 * 20 * 50e-6 < found.causes[0].gain_s <= 20 * 50e-6  # the end of the exchange allows no more


@pytest.mark.parametrize("trace", [overlapped(1.0), overlapped(1.5, spread=0.2)], ids=["equal", "of different lengths"])
def test_kernels_that_differ_anyway_accuse_no_exchange(trace: RankTrace) -> None:
    assert codes(explain([trace])) == []
