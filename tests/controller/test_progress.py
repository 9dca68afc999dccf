"""How far a run is: rows are counted and passed on, and estimates follow what jobs really took."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.controller import progress
from bench.controller.progress import Progress, ProgressMeter
from bench.store import row_events, runs
from bench.store.row_events import RowEvent

ROW = RowEvent("allreduce", 8, "isolated", median_s=1e-6)


@dataclass(frozen=True)
class PlannedJob:
    """What the meter asks of a job."""

    name: str
    num_rows: int
    estimate_s: float


@dataclass
class Clock:
    """Stands in for the module `time`."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class FollowedRun:
    """A run of jobs whose rows and clock the test moves."""

    folder: Path
    clock: Clock
    jobs: list[Any]
    states: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.meter = ProgressMeter(self.jobs, self.folder, self.states.append)

    def begin(self, job: int) -> None:
        self.beats = runs.heartbeat_folder(self.folder, self.jobs[job].name)
        self.beats.mkdir()
        self.meter.begin()

    def measure(self, num: int, seconds: float) -> None:
        for _ in range(num):
            self.clock.now += seconds / num
            row_events.append(self.beats, ROW)
            self.meter.look()


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FollowedRun:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return FollowedRun(tmp_path, clock, [PlannedJob("a", 4, 20.0), PlannedJob("b", 6, 30.0)])


def test_rows_are_counted_and_passed_on(followed: FollowedRun) -> None:
    followed.begin(0)
    followed.measure(3, 3.0)
    assert [row for state in followed.states for row in state.rows] == [ROW] * 3
    last = followed.states[-1]
    assert (last.job, last.number, last.num_jobs, last.num_done, last.num_rows) == ("a", 1, 2, 3, 10)
    followed.meter.end()
    followed.begin(1)
    assert followed.states[-1].num_done == 4, "a job that has ended counts as a whole"


def test_without_rows_the_state_is_reported_now_and_then(followed: FollowedRun) -> None:
    followed.begin(0)
    before = len(followed.states)
    for _ in range(100):
        followed.clock.now += 0.1
        followed.meter.look()
    assert 15 <= len(followed.states) - before <= 21


@pytest.mark.parametrize(("took_s", "left_s"), [(20.0, 30.0), (40.0, 50.0), (5.0, 15.0)], ids=["right", "slow", "fast"])
def test_the_time_of_a_job_corrects_the_estimates_of_others(
    followed: FollowedRun, took_s: float, left_s: float
) -> None:
    followed.begin(0)
    assert followed.states[-1].left_s == pytest.approx(50.0)
    followed.clock.now += took_s
    followed.meter.end()
    followed.begin(1)
    assert followed.states[-1].left_s == pytest.approx(left_s)


def test_the_pace_of_rows_corrects_the_estimate_of_their_job(followed: FollowedRun) -> None:
    followed.begin(0)
    followed.measure(4, 20.0)
    followed.meter.end()
    followed.begin(1)
    followed.measure(5, 100.0)
    assert 15.0 < followed.states[-1].left_s < 25.0, "20 s a row, one row is left"
    followed.measure(1, 20.0)
    assert followed.states[-1].left_s == pytest.approx(0.0)
