"""The late rank and its segment are named; a clean job accuses nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.step_trace import StepSegment
from bench.job import lateness, parts
from bench.job.matching import job_of
from bench.job.model import LateRank
from bench.logs import step_traces
from tests.job import synthetic
from tests.job.synthetic import Late, Recording, Schedule, Style

SEEDS = range(9)
LIMIT_S = 100e-6


def late_ranks(folder: Path, schedule: Schedule, recording: Recording | None = None) -> list[LateRank]:
    """Write the files of a job and return its late ranks."""
    folder.mkdir(exist_ok=True)
    synthetic.write(folder, schedule, recording)
    job = job_of(step_traces.read([folder])[0])
    late = lateness.late_of(job, parts.timelines_of(job))
    return lateness.late_ranks(late, max(LIMIT_S, job.alignment.bound_s or 0.0), job.num_steps)


@pytest.mark.parametrize("blocking", [False, True], ids=["buckets", "blocking"])
@pytest.mark.parametrize("segment", StepSegment)
def test_the_late_rank_and_its_segment_are_named(tmp_path: Path, segment: StepSegment, blocking: bool) -> None:
    # A backward pass without exchanges makes a rank late in the next step.
    schedule = Schedule(blocking=blocking, num_layers=2, noise=0.01, late=(Late(2, segment, 800),))
    (found,) = late_ranks(tmp_path, schedule)
    assert (found.rank, found.segment) == (2, segment)
    usual_s = 400e-6 if blocking and segment is StepSegment.FORWARD else 800e-6  # divided among its two layers
    assert found.late_s == pytest.approx(usual_s, rel=0.05)


def test_a_rank_that_is_late_in_some_steps(tmp_path: Path) -> None:
    schedule = Schedule(num_steps=10, late=(Late(1, StepSegment.HOST, 900, steps=(2, 5, 8)),))
    (found,) = late_ranks(tmp_path, schedule)
    assert (found.rank, found.segment) == (1, StepSegment.HOST)
    assert found.share == pytest.approx(0.3)
    assert found.total_s == pytest.approx(3 * 900e-6, abs=1e-8)


def test_two_late_ranks_are_ordered_by_their_cost(tmp_path: Path) -> None:
    first, second = Late(1, StepSegment.DATA, 900, steps=(0,)), Late(3, StepSegment.BACKWARD, 700, steps=(1, 2, 3))
    found = late_ranks(tmp_path, Schedule(late=(first, second)))
    assert [(one.rank, one.segment, one.share) for one in found] == [
        (3, StepSegment.BACKWARD, 0.75),
        (1, StepSegment.DATA, 0.25),
    ]


@pytest.mark.parametrize("transfer_us", [20, 3000], ids=["fast", "slow-link"])
def test_clean_jobs_accuse_nobody(tmp_path: Path, transfer_us: int) -> None:
    for seed in SEEDS:
        style = [*Style][seed % 3]
        schedule = Schedule(num_ranks=3, num_steps=3, noise=0.01, transfer_us=transfer_us, seed=seed)
        assert not late_ranks(tmp_path, schedule, Recording(style=style, end_spread_us=3, offsets_us=(seed * 1000,)))


def test_a_rank_that_began_the_recording_late_is_not_accused(tmp_path: Path) -> None:
    schedule = Schedule(num_steps=2, late=(Late(2, StepSegment.OPTIMIZER, 800, steps=(0,)),))
    (found,) = late_ranks(tmp_path / "whole", schedule)
    assert (found.rank, found.segment) == (2, StepSegment.OPTIMIZER)
    assert not late_ranks(tmp_path / "second step", schedule, Recording(first_steps=dict.fromkeys(range(4), 1)))


def test_a_lateness_within_the_bound_of_the_clocks_is_not_claimed(tmp_path: Path) -> None:
    schedule = Schedule(num_steps=8, late=(Late(2, StepSegment.DATA, 150),))
    assert late_ranks(tmp_path / "sharp", schedule)
    assert not late_ranks(tmp_path / "blurred", schedule, Recording(end_spread_us=400))


def test_a_rank_without_a_file_is_not_accused_and_nobody_in_its_place(tmp_path: Path) -> None:
    schedule = Schedule(late=(Late(2, StepSegment.DATA, 800),))
    assert not late_ranks(tmp_path, schedule, Recording(ranks=(0, 1, 3)))
