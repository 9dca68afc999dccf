"""Measure the launches of a search on real ranks, in one run folder, and continue an interrupted search.

Each launch is a job of the run's plan, and each block of launches adds its jobs to the plan. The commands `report` and
`run --resume` therefore work on the folder. Before each decision, the search computes how many launches the budget
still allows. search.json contains the request and all these numbers. A continued search uses the stored numbers and
the launches that were already measured, so it makes the same decisions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.controller import expand, links, run
from bench.controller.jobs import Job, Plan
from bench.controller.run import RunContext
from bench.core.codes import Coded
from bench.core.errors import MeasurementError, RefusedError, UsageError
from bench.core.record import Failure
from bench.rank.messages import RankRefusal
from bench.results import collect
from bench.store import runs
from bench.tune.engine import LEAST_PAIRS, Setting, TuneSearch, least_launches, search
from bench.tune.messages import DroppedCode, TuneError
from bench.tune.space import TuneSpace


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """The request of a search. Times are in seconds.

    `argv`: the words of the command `linkbench tune`, without --resume.
    """

    what: str
    argv: tuple[str, ...]
    budget_s: float
    delta: float
    together: bool


@dataclass
class TuneRun:
    """A search and its run folder.

    `dropped`: why settings could not run.
    `spent_s`: the time of all launches.
    """

    request: TuneRequest
    space: TuneSpace
    context: RunContext
    folder: Path | None = None
    dropped: dict[Setting, Coded] = field(default_factory=dict)
    spent_s: float = 0.0
    num_launches: int = 0
    allowed: list[int] = field(default_factory=list)  # every result of _launches_left, in order
    _replayed: int = 0  # how many of these results were used again
    _estimate_s: float = 0.0

    def search(self) -> TuneSearch:
        """Measure until the engine has an answer. Raises UsageError if the budget is too small."""
        space, request = self.space, self.request
        baseline = (0,) * len(space.num_values)
        first = self._job(1, baseline)
        if not isinstance(first, Job):
            raise RefusedError.of(TuneError.BASELINE_FAILED, why=first.text)
        self._estimate_s = first.estimate_s
        self._check_budget()
        if self.folder is None:
            self.folder = self._begun(first)
        found = search(space.num_values, self._measure, self._launches_left, request.delta, request.together)
        facts = {"launch_s": self._launch_s, "budget_s": request.budget_s}
        self.dropped |= {setting: Coded.of(DroppedCode.NO_TIME, **facts) for setting in found.untried}
        if baseline in found.failed:
            raise MeasurementError.of(TuneError.BASELINE_FAILED, why=self.dropped[baseline].text)
        return found

    def _check_budget(self) -> None:
        least = least_launches(self.space.num_values, self.request.together)
        allowed = int(self.request.budget_s / self._estimate_s)
        if allowed < least:
            raise UsageError.of(
                TuneError.SMALL_BUDGET,
                num_settings=least - 2 * LEAST_PAIRS,
                least=least,
                launch_s=self._estimate_s,
                budget_s=self.request.budget_s,
                allowed=allowed,
                needed_s=least * self._estimate_s,
            )

    # -- the run's folder

    def _begun(self, first: Job) -> Path:
        site, context = self.context.site, self.context
        tested = context.check([first])
        folder = runs.create(context.results, runs.new_run_id(site.cluster.name, f"tune-{self.request.what}"))
        links.store(folder, links.BEFORE, tested)
        runs.write_plan(folder, self._plan_of([]).to_plain(self.space.yaml_of([(0,) * len(self.space.num_values)])))
        self._store(folder)
        return folder

    def _plan_of(self, jobs: Sequence[Job]) -> Plan:
        site = self.context.site
        return Plan(f"tune-{self.request.what}", site.cluster, False, tuple(jobs), (), (), None)

    def _store(self, folder: Path) -> None:
        request = self.request
        asked = {name: getattr(request, name) for name in ("what", "argv", "budget_s", "delta", "together")}
        runs.write_search(folder, {**asked, "allowed": self.allowed})

    # -- functions that the engine calls

    @property
    def _launch_s(self) -> float:
        """The mean time of a launch in seconds, or an estimate before the first launch."""
        return self.spent_s / self.num_launches if self.num_launches else self._estimate_s

    def _launches_left(self) -> int:
        if self._replayed < len(self.allowed):
            self._replayed += 1
            return self.allowed[self._replayed - 1]
        left = max(0, int((self.request.budget_s - self.spent_s) / max(self._launch_s, 1e-3)))
        self.allowed.append(left)
        self._replayed += 1
        return left

    def _measure(self, block: int, settings: Sequence[Setting]) -> list[float | None]:
        assert self.folder is not None
        jobs: dict[Setting, Job] = {}
        for setting in settings:
            job = self._job(block, setting)
            if isinstance(job, Job):
                jobs[setting] = job
            else:
                self.dropped[setting] = Coded.of(DroppedCode.SKIPPED, why=job.text)
        jobs = self._planned(jobs)
        stored = {setting: _seconds(self.folder, job.name) for setting, job in jobs.items()}
        missing = [job for setting, job in jobs.items() if stored[setting] is None]
        outcomes = runs.read_outcomes(self.folder)
        self.num_launches += len(jobs) - len(missing)
        known = [outcomes.get(job.name, {}).get("seconds", 0.0) for job in jobs.values() if job not in missing]
        self.spent_s += sum(known)
        if missing:
            self._store(self.folder)
            began = time.monotonic()
            try:
                ran = run.measure_more(missing, self.folder, self.context)
            finally:
                self.spent_s += time.monotonic() - began
            self.num_launches += len(missing)
            self._refuse_shared_hosts([ran.failed[job.name] for job in missing if job.name in ran.failed])
            for setting, job in jobs.items():
                if job.name in ran.failed and _seconds(self.folder, job.name) is None:
                    self.dropped[setting] = Coded.of(DroppedCode.FAILED, why=ran.failed[job.name].what)
        return [self._found(setting, jobs) for setting in settings]

    @staticmethod
    def _refuse_shared_hosts(failures: Sequence[Failure]) -> None:
        """Raise RefusedError if launches failed because another benchmark uses a host.

        A failure of this kind does not depend on the setting.
        """
        for failure in failures:
            if failure.code == RankRefusal.HOST_IN_USE:
                raise RefusedError.coded(Coded(RankRefusal.HOST_IN_USE, failure.facts, failure.what))

    def _found(self, setting: Setting, jobs: Mapping[Setting, Job]) -> float | None:
        """Return the seconds of a launch. If the launch has no time, record the reason and return None."""
        assert self.folder is not None
        if setting in self.dropped:
            return None
        seconds = _seconds(self.folder, jobs[setting].name)
        if isinstance(seconds, Coded):
            self.dropped[setting] = seconds
            return None
        if seconds is None:
            self.dropped[setting] = Coded.of(DroppedCode.FAILED, why=f"{jobs[setting].name} has no row")
        return seconds

    def _job(self, block: int, setting: Setting) -> Job | Coded:
        """Return the job of one launch, or why it cannot run here."""
        scenario = self.space.scenario_of([setting], launches=block)
        plan = expand.expand(scenario, self.context.site, False)
        jobs = [job for job in plan.jobs if job.launch == block]
        return jobs[0] if jobs else plan.skipped[0].reason

    def _planned(self, jobs: Mapping[Setting, Job]) -> dict[Setting, Job]:
        """Add jobs to the stored plan. If an earlier process already planned a job, the job keeps its name."""
        assert self.folder is not None
        stored = runs.read_plan(self.folder)
        by_name = {job["name"]: job for job in stored["jobs"]}
        named: dict[Setting, Job] = {}
        for setting, job in jobs.items():
            plain = self._plan_of([job]).to_plain("")["jobs"][0]
            name, number = job.name, 2
            while name in by_name and not _is_same(by_name[name], plain):
                name, number = f"{job.name}-{number}", number + 1
            named[setting] = replace(job, name=name)
            by_name[name] = {**plain, "name": name}
        if len(by_name) > len(stored["jobs"]):
            runs.write_plan(self.folder, {**stored, "jobs": list(by_name.values())})
        return named


def _is_same(stored: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    return all(stored[key] == job[key] for key in ("case", "world", "factors", "launch"))


def _seconds(folder: Path, job: str) -> float | Coded | None:
    """Return the time of a job, or why the job failed; None if the job is not measured yet."""
    file = runs.results_file(folder, job)
    if not file.exists():
        return None
    try:
        document = collect.document(file)
    except UsageError:  # the rank was killed while it wrote the header
        return None
    rows = [row for row in document.summaries if row.median_s is not None]
    if rows and rows[-1].verified is not False:
        return rows[-1].median_s
    if rows:
        return Coded.of(DroppedCode.FAILED, why="wrong data")
    for row in document.failures:
        return Coded.of(DroppedCode.FAILED, why=str(row.get("what")))
    for row in document.skipped:
        return Coded.of(DroppedCode.SKIPPED, why=str(row.get("reason")))
    return None


def stored_request(folder: Path) -> tuple[TuneRequest, list[int]]:
    """Return the request of a search, and the numbers of launches that were allowed so far.

    Raises UsageError if the folder contains no search.
    """
    stored = runs.read_search(folder)
    if stored is None:
        raise UsageError.of(TuneError.NOT_A_SEARCH, folder=str(folder))
    asked = {name: stored[name] for name in ("what", "budget_s", "delta", "together")}
    return TuneRequest(argv=tuple(stored["argv"]), **asked), list(stored["allowed"])
