"""The parts of a step come back from the files of a simulated job, whatever the files look like."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from bench.core.step_trace import RankTrace, StepPart, StepSegment
from bench.job import lateness, parts
from bench.job.matching import job_of
from bench.job.messages import JobCode
from bench.job.model import Late, RankStep, TracedJob
from bench.logs import step_traces
from tests.job import synthetic
from tests.job.synthetic import Recording, Schedule, Style, Truth
from tests.job.transfers import transfers_s

# The sum of four timestamps, each rounded to the file's resolution.
TICKS = 4


def explained(traces: list[RankTrace]) -> tuple[TracedJob, list[RankStep], list[Late]]:
    """Match, align and divide."""
    job = job_of(traces)
    timelines = parts.timelines_of(job)
    return job, parts.steps_of(job, timelines), lateness.late_of(job, timelines)


def read(folder: Path) -> list[RankTrace]:
    """Read the files of a folder, in which nothing may be wrong."""
    traces, remarks = step_traces.read([folder])
    assert not remarks
    assert not [remark.code for trace in traces for remark in trace.remarks]
    return traces


def random_job(seed: int) -> tuple[Schedule, Recording]:
    """Return a small job of random shape in files of random style. Seven of ten have a late rank."""
    random = np.random.default_rng(seed)

    def number(low: int, high: int) -> int:
        return int(random.integers(low, high))

    num_ranks, num_hosts = number(2, 5), 2
    late = synthetic.Late(number(0, num_ranks), [*StepSegment][number(0, 6)], number(300, 3000))
    schedule = Schedule(
        num_ranks=num_ranks,
        num_steps=number(2, 4),
        num_layers=number(1, 5),
        blocking=random.random() < 0.3,
        layers_per_bucket=number(1, 4),
        data_us=number(20, 800),
        host_us=number(5, 100),
        copy_us=number(10, 200),
        forward_us=number(30, 300),
        backward_us=number(60, 400),
        optimizer_us=number(20, 200),
        transfer_us=number(10, 900),
        gap_us=number(0, 2) * number(0, 300),
        noise=float(random.choice([0.0, 0.02])),
        late=(late,) if random.random() < 0.7 else (),
        seed=seed,
    )
    recording = Recording(
        style=[*Style][number(0, 3)],
        ranks_per_host=2,
        offsets_us=tuple(number(-90_000, 90_000) for _ in range(num_hosts)),
        end_spread_us=number(0, 2) * number(0, 5),
        is_shuffled=random.random() < 0.5,
        is_packed=random.random() < 0.2,
    )
    return schedule, recording


def check_parts(steps: list[RankStep], truth: Truth, limit_s: float) -> None:
    """Compare the parts of all steps with the truth, and their sum with the step."""
    assert {(one.rank, one.step) for one in steps} == set(truth.parts)
    for one in steps:
        assert sum(one.parts.values()) == pytest.approx(one.end_s - one.start_s, abs=1e-9)
        for part, expected in truth.parts[one.rank, one.step].items():
            assert one.parts[part] == pytest.approx(expected, abs=limit_s), (one.rank, one.step, part)


@pytest.mark.parametrize("seeds", [range(first, first + 20) for first in range(0, 100, 20)], ids=lambda seeds: seeds[0])
def test_parts_clocks_and_late_ranks_come_back_exactly(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        schedule, recording = random_job(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        truth = synthetic.write(folder, schedule, recording)
        job, steps, late = explained(read(folder))
        bound_s = job.alignment.bound_s
        assert bound_s is not None
        assert bound_s <= (recording.end_spread_us + 1) * 1e-6
        limit_s = bound_s + TICKS * recording.style.tick_ns * 1e-9
        num_phases = schedule.num_layers if schedule.blocking else 1
        check_parts(steps, truth, limit_s * num_phases)
        check_clocks(job, truth, limit_s)
        check_late(late, truth, schedule, limit_s)
        for transfer_s in transfers_s(job):
            spread_s = recording.end_spread_us * 1e-6
            assert transfer_s == pytest.approx(schedule.transfer_us * 1e-6, abs=limit_s + spread_s)
        assert {remark.code for remark in job.remarks} <= {JobCode.CLOCKS_APART}


def check_clocks(job: TracedJob, truth: Truth, limit_s: float) -> None:
    """Compare the starts of all steps on the reference's clock."""
    reference = job.alignment.reference
    for (rank, step), start_s in truth.starts_s.items():
        own = job.alignment.aligned(rank, job.traces[rank].steps[step][0])
        theirs = job.alignment.aligned(reference, job.traces[reference].steps[step][0])
        assert own - theirs == pytest.approx(start_s - truth.starts_s[reference, step], abs=limit_s)


def check_late(late: list[Late], truth: Truth, schedule: Schedule, limit_s: float) -> None:
    """Compare the late ranks. Lateness that noise can cause has no segment."""
    least_s = 100e-6 + limit_s
    latest = {one.collective: one for one in reversed(late)}.values()
    found = [(one.step, one.rank, one.late_s) for one in reversed(latest) if one.late_s > least_s]
    expected = [one for one in truth.late if one[2] > least_s]
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    assert [one[2] for one in found] == pytest.approx([one[2] for one in expected], abs=2 * limit_s)
    segments = {one.segment for one in late if one.late_s > 300e-6}
    assert segments <= {one.segment for one in schedule.late}


@pytest.mark.parametrize("style", Style)
def test_a_queue_of_exchanges_is_exchange_and_not_waiting_for_a_rank(tmp_path: Path, style: Style) -> None:
    """The kernel of an exchange that queues behind another starts late, though its rank was ready."""
    schedule = Schedule(transfer_us=900, late=(synthetic.Late(2, StepSegment.DATA, 500),))
    truth = synthetic.write(tmp_path, schedule, Recording(style=style))
    job, steps, late = explained(read(tmp_path))
    check_parts(steps, truth, 1e-8)
    assert [(one.step, one.rank, one.segment) for one in late] == [(step, 2, StepSegment.DATA) for step in range(4)]
    assert [one.late_s for one in late] == pytest.approx([500e-6] * 4, abs=1e-8)
    assert transfers_s(job) == pytest.approx([900e-6] * 8, abs=1e-8)


def test_a_launch_bound_step_is_host_bound(tmp_path: Path) -> None:
    truth = synthetic.write(tmp_path, Schedule(gap_us=400, forward_us=50))
    _, steps, _ = explained(read(tmp_path))
    check_parts(steps, truth, 1e-8)
    assert all(one.parts[StepPart.HOST_BOUND] > 1.2e-3 for one in steps)


@pytest.mark.slow
def test_a_thousand_ranks(tmp_path: Path) -> None:
    schedule = Schedule(
        num_ranks=1000, num_steps=3, noise=0.01, late=(synthetic.Late(777, StepSegment.BACKWARD, 2000),)
    )
    offsets = tuple(int(offset) for offset in np.random.default_rng(1).integers(-50_000, 50_000, 125))
    truth = synthetic.write(tmp_path, schedule, Recording(ranks_per_host=8, offsets_us=offsets, end_spread_us=3))
    traces = read(tmp_path)
    begin = time.process_time()
    job, steps, late = explained(traces)
    assert time.process_time() - begin < 30
    assert job.num_ranks == 1000
    limit_s = 5e-6
    check_parts(steps, truth, limit_s)
    check_clocks(job, truth, limit_s)
    check_late(late, truth, schedule, limit_s)
    ranks = lateness.late_ranks(late, limit_s + 100e-6, job.num_steps)
    assert [(one.rank, one.segment, one.share) for one in ranks] == [(777, StepSegment.BACKWARD, 1.0)]
