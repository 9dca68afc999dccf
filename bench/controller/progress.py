"""Estimate how much time a run still needs. The times of finished jobs correct the estimates."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.controller.jobs import Job
from bench.store import runs
from bench.store.row_events import RowEvent, RowEventReader

_EVERY_S = 0.5  # between two reports without new rows
_PRIOR_S = 10.0  # weight of the estimates: as if jobs of this total length had run as estimated
_FACTORS = (0.2, 5.0)  # the smallest and the largest correction of the estimates


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run. Of the `num_rows` rows of all jobs, `num_done` are measured, skipped or failed.

    `number`: the number of the running job.
    `rows`: the rows that are new since the last report.
    `left_s`: the estimated time until the run ends, corrected by the times of finished jobs.
    """

    job: str
    number: int
    num_jobs: int
    num_done: int
    num_rows: int
    left_s: float
    rows: tuple[RowEvent, ...] = ()


Follow = Callable[[Progress], None]


class ProgressMeter:
    """Follows the jobs of a run one after another, and reports the progress of the run.

    The meter calls `follow` whenever the job has new rows, and otherwise twice a second.
    """

    def __init__(self, jobs: Sequence[Job], folder: Path, follow: Follow) -> None:
        self._jobs, self._folder, self._follow = jobs, folder, follow
        self._num_rows = sum(job.num_rows for job in jobs)
        self._estimated_s = self._taken_s = 0.0  # sums over the jobs that have ended
        self._ended = 0
        self._rows_before = self._rows = 0  # rows of the jobs that have ended, and of the running job
        self._began = self._looked = self._first_s = 0.0  # times of the running job: begin, last report, first row
        self._reader: RowEventReader | None = None

    def begin(self) -> None:
        """Begin the next job."""
        self._began, self._rows = time.monotonic(), 0
        self._first_s, self._looked = 0.0, 0.0
        self._reader = RowEventReader(runs.heartbeat_folder(self._folder, self._job.name))
        self.look()

    def look(self) -> None:
        """Report the state if there are new rows, or if the last report is old."""
        now = time.monotonic()
        rows = tuple(self._reader.new()) if self._reader is not None else ()
        if not rows and now - self._looked < _EVERY_S:
            return
        self._looked = now
        if rows and not self._rows:
            self._first_s = now
        self._rows = min(self._rows + len(rows), self._job.num_rows)
        done = self._rows_before + self._rows
        state = Progress(self._job.name, self._ended + 1, len(self._jobs), done, self._num_rows, self.left_s(now), rows)
        self._follow(state)

    def end(self) -> None:
        """End the running job. All rows of this job count as done, even if the job failed."""
        job, self._reader = self._job, None
        self._estimated_s += job.estimate_s
        self._taken_s += time.monotonic() - self._began
        self._rows_before += job.num_rows
        self._ended += 1

    def left_s(self, now: float) -> float:
        """Return the seconds that the run still needs.

        Each job has an estimated time. The finished jobs give the ratio of actual time to estimated time. The estimates
        of all other jobs are multiplied by this ratio. As the running job finishes rows, its estimate depends more and
        more on the pace of these rows.
        """
        least, most = _FACTORS
        factor = min(most, max(least, (_PRIOR_S + self._taken_s) / (_PRIOR_S + self._estimated_s)))
        later_s = sum(job.estimate_s for job in self._jobs[self._ended + 1 :]) * factor
        by_estimate_s = max(0.0, self._job.estimate_s * factor - (now - self._began))
        if self._rows < 2:
            return later_s + by_estimate_s
        share = self._rows / self._job.num_rows
        by_pace_s = (now - self._first_s) / (self._rows - 1) * (self._job.num_rows - self._rows)
        return later_s + (1 - share) * by_estimate_s + share * by_pace_s

    @property
    def _job(self) -> Job:
        return self._jobs[self._ended]


def ignore(state: Progress) -> None:
    """Do nothing. A run without a terminal sends its progress reports to this function."""
