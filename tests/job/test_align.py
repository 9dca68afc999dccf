"""Ranks are matched by group and order, checked, and told by a code where they do not belong together."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.core.codes import Coded
from bench.core.step_trace import StepPart, StepSegment
from bench.job.matching import job_of
from bench.job.messages import JobCode
from bench.job.model import TracedJob
from bench.job.parts import steps_of
from bench.logs import step_traces
from tests.job import synthetic
from tests.job.synthetic import Late, Recording, Schedule, Style

METADATA = [Style.V2023, Style.V2025]  # the size of the job and of its exchanges are stated


def job_from(folder: Path, *parts: tuple[Schedule, Recording]) -> TracedJob:
    """Write the files of each part of a job, and match them all."""
    for number, (schedule, recording) in enumerate(parts):
        (folder / str(number)).mkdir(parents=True)
        synthetic.write(folder / str(number), schedule, recording)
    traces, remarks = step_traces.read([folder])
    assert not remarks
    return job_of(traces)


def facts_of(remarks: tuple[Coded, ...], code: JobCode) -> list[Mapping[str, Any]]:
    return [remark.facts for remark in remarks if remark.code == code]


def codes(job: TracedJob) -> list[str]:
    return [remark.code for remark in job.remarks]


def num_seen(job: TracedJob) -> int:
    """Return how many exchanges have a part of every rank."""
    return sum(len(one.parts) == len(job.traces) for one in job.collectives)


@pytest.mark.parametrize("style", Style)
def test_a_clean_job_has_no_remarks(tmp_path: Path, style: Style) -> None:
    job = job_from(tmp_path, (Schedule(), Recording(style=style)))
    assert codes(job) == []
    assert num_seen(job) == 8
    assert all(one.complete for one in job.collectives) == (style is not Style.V2021)
    sizes = {one.num_bytes for one in job.collectives}
    assert sizes == {None if style is Style.V2021 else 1 << 20}
    assert {(one.op, one.dtype) for one in job.collectives} == {
        ("allreduce", {Style.V2021: None, Style.V2023: "float", Style.V2025: "Float"}[style])
    }


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("lost", [{1: (3,)}, {1: (3,), 2: (6,)}, {1: (2, 3)}], ids=["one", "as-many", "a-step"])
def test_lost_exchanges_are_counted_and_never_compared_with_others(
    tmp_path: Path, style: Style, lost: dict[int, tuple[int, ...]]
) -> None:
    job = job_from(tmp_path, (Schedule(noise=0.02), Recording(style=style, lost=lost)))
    told = facts_of(job.remarks, JobCode.LOST)
    assert [(facts["rank"], facts["num"]) for facts in told] == [(rank, len(places)) for rank, places in lost.items()]
    assert job.alignment.bound_s == pytest.approx(0, abs=1e-8)  # no two different ones were matched
    of_steps = {place // 2 for places in lost.values() for place in places}
    num_lost = sum(map(len, lost.values())) if style is Style.V2025 else 2 * len(of_steps)
    assert num_seen(job) == 8 - num_lost


@pytest.mark.parametrize("style", Style)
def test_drift_is_found_and_corrected(tmp_path: Path, style: Style) -> None:
    schedule = Schedule(num_steps=12, data_us=20_000, noise=0.01)
    recording = Recording(style=style, ranks_per_host=2, drifts_ppm=(0.0, 60.0))
    job = job_from(tmp_path, (schedule, recording))
    told = {facts["rank"]: facts["ppm"] for facts in facts_of(job.remarks, JobCode.DRIFT)}
    assert told == pytest.approx({2: -60, 3: -60}, abs=1)
    assert codes(job) == ["drift", "drift"]
    assert job.alignment.bound_s == pytest.approx(0, abs=3e-6)


def test_clocks_a_second_apart_are_told_and_corrected(tmp_path: Path) -> None:
    schedule = Schedule(late=(Late(3, StepSegment.DATA, 700),))
    job = job_from(tmp_path, (schedule, Recording(ranks_per_host=2, offsets_us=(0, 1_000_000))))
    (facts,) = facts_of(job.remarks, JobCode.CLOCKS_APART)
    assert (facts["ranks"], facts["reference"], facts["apart_s"]) == (["2", "3"], 0, pytest.approx(1.0))
    waits = {one.rank: one.parts[StepPart.IMBALANCE] for one in steps_of(job) if one.step == 0}
    assert waits == pytest.approx({0: 700e-6, 1: 700e-6, 2: 700e-6, 3: 0}, abs=1e-8)


@pytest.mark.parametrize("style", Style)
def test_a_missing_rank_is_told(tmp_path: Path, style: Style) -> None:
    job = job_from(tmp_path, (Schedule(), Recording(style=style, ranks=(0, 1, 3))))
    (facts,) = facts_of(job.remarks, JobCode.MISSING_RANKS)
    assert facts["ranks"] == ["2"]
    assert job.missing == (2,)
    assert not any(one.complete for one in job.collectives)


@pytest.mark.parametrize("style", Style)
def test_one_rank_of_several_is_told(tmp_path: Path, style: Style) -> None:
    job = job_from(tmp_path, (Schedule(), Recording(style=style, ranks=(0,))))
    assert codes(job) == ["one-rank"]
    assert all(one.parts[StepPart.IMBALANCE] == 0 for one in steps_of(job))


@pytest.mark.parametrize("style", METADATA)
def test_a_rank_of_a_job_of_another_size_is_left_out(tmp_path: Path, style: Style) -> None:
    other = Schedule(num_ranks=8, seed=3)
    job = job_from(
        tmp_path, (Schedule(), Recording(style=style, ranks=(0, 1, 2))), (other, Recording(style=style, ranks=(3,)))
    )
    (facts,) = facts_of(job.remarks, JobCode.OTHER_WORLD)
    assert (facts["world_size"], facts["num_ranks"]) == (8, 4)
    assert [*job.traces] == [0, 1, 2]


@pytest.mark.parametrize("style", METADATA)
def test_other_sizes_end_the_comparison(tmp_path: Path, style: Style) -> None:
    other = Schedule(num_elements=77)
    job = job_from(
        tmp_path, (Schedule(), Recording(style=style, ranks=(0, 1, 2))), (other, Recording(style=style, ranks=(3,)))
    )
    (facts,) = facts_of(job.remarks, JobCode.MISMATCH)
    assert (facts["place"], facts["rank"], facts["other"]) == (0, 0, 3)
    assert not job.collectives
    assert job.alignment.bound_s is None


@pytest.mark.parametrize("style", Style)
def test_another_run_of_the_same_job_is_told(tmp_path: Path, style: Style) -> None:
    mine, other = Schedule(noise=0.05), Schedule(noise=0.05, begin_s=7200, seed=1)
    job = job_from(
        tmp_path, (mine, Recording(style=style, ranks=(0, 1, 2))), (other, Recording(style=style, ranks=(3,)))
    )
    (facts,) = facts_of(job.remarks, JobCode.OTHER_RUN)
    assert (facts["ranks"], facts["apart_s"]) == (["3"], pytest.approx(7200, abs=1))


@pytest.mark.parametrize("style", Style)
def test_runs_of_other_durations_are_told_by_an_order_that_cannot_be(tmp_path: Path, style: Style) -> None:
    mine, other = Schedule(), Schedule(noise=0.3, data_us=500, seed=1)
    job = job_from(
        tmp_path, (mine, Recording(style=style, ranks=(0, 1, 2))), (other, Recording(style=style, ranks=(3,)))
    )
    (facts,) = facts_of(job.remarks, JobCode.IMPOSSIBLE_ORDER)
    assert facts["num_all"] == 8
    assert facts["num"] >= 2


@pytest.mark.parametrize("style", Style)
def test_only_steps_that_all_ranks_recorded_are_explained(tmp_path: Path, style: Style) -> None:
    schedule = Schedule(num_steps=6, late=(Late(1, StepSegment.DATA, 600),))
    job = job_from(tmp_path, (schedule, Recording(style=style, first_steps={2: 2, 3: 2})))
    (facts,) = facts_of(job.remarks, JobCode.OTHER_STEPS)
    assert (facts["own"], facts["theirs"]) == ("ProfilerStep#3 to ProfilerStep#8", "ProfilerStep#5 to ProfilerStep#8")
    assert codes(job) == ["other-steps"]
    assert (job.num_steps, num_seen(job)) == (4, 8)
    bound_s = job.alignment.bound_s
    assert bound_s is not None
    assert bound_s < 1e-6
    for one in steps_of(job):
        assert one.parts[StepPart.IMBALANCE] == pytest.approx(0 if one.rank == 1 else 600e-6, abs=bound_s + 1e-8)


def test_steps_of_which_none_matches_are_not_compared(tmp_path: Path) -> None:
    style = Style.V2023
    job = job_from(
        tmp_path,
        (Schedule(), Recording(style=style, ranks_per_host=2, ranks=(0, 1))),
        (Schedule(first_step=50), Recording(style=style, ranks_per_host=2, ranks=(2, 3))),
    )
    assert codes(job) == ["no-match", "not-aligned", "other-steps"]
    assert (job.num_steps, len(job.collectives)) == (0, 0)


@pytest.mark.parametrize("style", Style)
def test_inference_without_collectives_is_told_once(tmp_path: Path, style: Style) -> None:
    job = job_from(tmp_path, (Schedule(exchanges=False), Recording(style=style)))
    assert codes(job) == ["no-collectives"]
    assert all(one.parts[StepPart.IMBALANCE] == one.parts[StepPart.EXPOSED_EXCHANGE] == 0 for one in steps_of(job))


def test_a_second_file_of_a_rank_is_left_out(tmp_path: Path) -> None:
    job = job_from(tmp_path, (Schedule(), Recording()), (Schedule(), Recording(ranks=(2,))))
    (facts,) = facts_of(job.remarks, JobCode.SAME_RANK)
    assert facts["rank"] == 2
    assert len(job.traces) == 4


def test_a_file_without_its_rank_takes_a_free_one(tmp_path: Path) -> None:
    synthetic.write(tmp_path, Schedule(num_ranks=2), Recording(style=Style.V2021))
    shutil.move(tmp_path / "worker0.pt.trace.json", tmp_path / "first.json")
    job = job_of(step_traces.read([tmp_path])[0])
    (facts,) = facts_of(job.remarks, JobCode.RANK_UNKNOWN)
    assert facts["rank"] == 0
    assert num_seen(job) == 8
