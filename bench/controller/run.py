"""Run a plan: create the folder, run the jobs, store the outcomes. Or resume an incomplete run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.controller import batch, continued, execute, hosts, links, survey, tool_results
from bench.controller.jobs import Job, JobSpec, Plan, Site, job_of
from bench.controller.links import LinkTest
from bench.controller.messages import OutcomeCode, ResumeCode
from bench.controller.progress import Follow, ProgressMeter, ignore
from bench.core.contention import rounds
from bench.core.errors import (
    EXIT_DONE,
    EXIT_MEASUREMENT,
    BenchError,
    Interrupted,
    MeasurementError,
    RefusedError,
    UsageError,
)
from bench.core.pattern import Pattern
from bench.core.record import Failure, Record
from bench.core.remarks import CodedRemark
from bench.core.secret_values import resolved
from bench.core.skips import SkipCode
from bench.core.units import format_duration
from bench.store import jsonl, run_lock, runs

Say = Callable[[str], None]
_ASK_S = 5.0  # timeout for the reply of a host that was lost in an earlier job


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run: its folder and its failed jobs. `refused`: the jobs that failed before their first row."""

    folder: Path
    failed: Mapping[str, Failure]
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run needs in addition to its jobs.

    `say`: prints a line.
    `tick`: shows the current state and replaces the state that was shown before.
    `follow`: a function that gets the progress of the run.
    `deadline_s`: the longest time between two heartbeats of a rank.
    `check_hosts`: whether to check hosts before jobs start.
    `config`: the bench.yaml that the user named, if any.
    `share_hosts`: whether to measure even if other benchmarks may be running on the same hosts.
    `only_launch`: the number of the launch to measure, or None to measure all launches.
    """

    site: Site
    results: Path
    deadline_s: float
    say: Say
    tick: Say
    check_hosts: bool = True
    config: Path | None = None
    share_hosts: bool = False
    follow: Follow = ignore
    only_launch: int | None = None

    def chosen(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs of the launch `only_launch`. If `only_launch` is None, return all jobs."""
        return [job for job in jobs if self.only_launch in (None, job.launch)]

    def check(self, jobs: Sequence[Job]) -> LinkTest:
        """Check on this machine and all hosts that jobs can run. Raises RefusedError if jobs cannot run.

        Prints the findings that do not prevent jobs. Returns the test of the links between the hosts, which the run
        stores in its folder.
        """
        for job in jobs:
            resolved(job.env)  # raises an error if a value refers to a variable that is not set
        if not self.check_hosts or all(job.case.traits.modelled for job in jobs):
            return LinkTest()
        note = survey.waiting_note(self.site.cluster)
        if note is not None:
            self.say(note)
        found = survey.ask(self.site, jobs, self.results)
        for finding in survey.refuse(found, self.site.cluster.name):
            self.say(finding.what)
        return found.links


def start(plan: Plan, scenario_text: str, context: RunContext) -> RunResult:
    """Run every job of a plan in a new folder. Rows measured before an error or an interrupt are kept."""
    jobs = context.chosen(plan.jobs)
    tested = context.check(jobs)
    folder = runs.create(context.results, runs.new_run_id(plan.cluster.name, plan.scenario))
    runs.write_plan(folder, plan.to_plain(scenario_text))
    links.store(folder, links.BEFORE, tested)
    if batch.needed(jobs, os.environ):
        try:
            return _submit(jobs, folder, context)
        except RefusedError:
            runs.discard(folder)
            raise
    with run_lock.held(folder):
        return run_jobs(jobs, folder, context)


def resume(folder: Path, context: RunContext) -> RunResult:
    """Measure the rows that are in a run's plan but not in its files.

    Raises RefusedError if another process uses the run.
    """
    with run_lock.held(folder):
        incomplete = _incomplete(folder, context)
        _settle(folder, incomplete, context)
        jobs = context.chosen(incomplete)
        links.store(folder, links.BEFORE, context.check(jobs))
        if not batch.needed(jobs, os.environ):
            return run_jobs(jobs, folder, context)
    return _submit(jobs, folder, context)  # the controller inside the allocation takes the lock


def measure_more(jobs: Sequence[Job], folder: Path, context: RunContext) -> RunResult:
    """Measure further jobs of a run. The run's plan already contains these jobs.

    Raises RefusedError if another process uses the run.
    """
    if batch.needed(jobs, os.environ):
        return _submit(jobs, folder, context)
    with run_lock.held(folder):
        return run_jobs(jobs, folder, context)


def _incomplete(folder: Path, context: RunContext) -> list[Job]:
    """Return the incomplete jobs of a run, each with only the sizes that are not yet measured.

    A job of another tool is left out if the tool's program is missing.
    """
    stored, ended = runs.read_plan(folder), runs.outcomes_or_error(folder)
    jobs = []
    for stored_job in stored["jobs"]:
        spec = JobSpec.from_plain(stored_job)
        missing = _missing(spec, context.site, folder, ended.get(spec.name))
        if not missing:
            continue
        tool = context.site.tools[spec.tool] if spec.tool else None
        if tool is not None and tool.tool.program(spec.case) not in tool.programs:
            context.say(f"{spec.name} is skipped: {tool.lacks}")
            continue
        jobs.append(job_of(replace(spec, case=replace(spec.case, sizes=missing)), context.site))
    context.say(f"{len(jobs)} of {len(stored['jobs'])} jobs are incomplete")
    return jobs


def _settle(folder: Path, incomplete: Iterable[Job], context: RunContext) -> None:
    """If a failed job has all of its rows, mark the job as succeeded, and store its failure as a remark.

    This function does not change jobs of other tools.
    """
    missing = {job.name for job in incomplete}
    outcomes = runs.read_outcomes(folder)
    for job in runs.read_plan(folder)["jobs"]:
        ended = outcomes.get(job["name"], {})
        if ended.get("what") is None or job["name"] in missing or job.get("tool"):
            continue
        facts = {"earlier": ended["what"], "earlier_code": ended.get("code")}
        remark = CodedRemark.of(ResumeCode.FAILED_AFTER_ROWS, **facts)
        outcomes[job["name"]] = asdict(
            execute.Outcome(job["name"], EXIT_DONE, ended.get("seconds", 0.0), remarks=(remark,))
        )
        _store(folder, outcomes, None)
        context.say(f"{job['name']}: {remark.text}")


def run_jobs(jobs: Iterable[Job], folder: Path, context: RunContext) -> RunResult:
    """Run jobs one after the other. Each outcome is stored as soon as it is known."""
    say, site = context.say, context.site
    jobs = list(jobs)
    outcomes = runs.read_outcomes(folder)
    dead: dict[str, str] = {}  # host -> the job in which the host stopped answering
    meter = ProgressMeter(jobs, folder, context.follow)
    for number, job in enumerate(jobs, start=1):
        say(f"[{number}/{len(jobs)}] {job.name}: {job.num_rows} rows, about {format_duration(job.estimate_s)}")

        def on_poll(seconds: float, name: str = job.name) -> None:
            context.tick(f"{name}: {seconds:.0f} s")
            meter.look()

        meter.begin()
        if (failure := _dead_host(job, dead)) is not None:
            outcomes[job.name] = asdict(execute.Outcome(job.name, EXIT_MEASUREMENT, 0.0).failed(failure))
            _store(folder, outcomes, failure.what)
            say(f"    SKIPPED: {failure.what}")
            meter.end()
            continue
        began = datetime.now(UTC)
        try:
            launcher = site.launchers[job.launcher]
            outcome = execute.run(job, folder, launcher, context.deadline_s, on_poll, context.share_hosts)
            if job.tool:  # also stores the output of a failed tool
                failure = tool_results.store(job, site.tools[job.tool].tool, folder, began, context.share_hosts)
                if failure is not None and outcome.what is None:
                    outcome = outcome.failed(failure)
        except (BenchError, OSError, KeyboardInterrupt) as error:
            if not isinstance(error, (Interrupted, KeyboardInterrupt)):
                _check_folder(folder, job.name)
            outcomes[job.name] = batch.interrupted()
            # report the interruption even if the disk is full
            with contextlib.suppress(UsageError):
                runs.write_outcomes(folder, outcomes)
            _say_interrupted(folder, context)
            raise
        meter.end()
        _check_folder(folder, job.name)
        silent = {*outcome.facts.get("not_ended_on", ()), *_unreachable(outcome)}
        dead |= dict.fromkeys(silent.intersection(job.hosts), job.name)
        outcomes[job.name] = asdict(outcome)
        _store(folder, outcomes, outcome.what)
        for remark in outcome.remarks:
            say(f"    note: {remark.text}")
        if outcome.what is not None:
            say(f"    FAILED: {outcome.what}")
    return _ran(folder, outcomes)


def _check_folder(folder: Path, job: str) -> None:
    """Raise MeasurementError if somebody removed the folder of the run, because nothing more can be stored."""
    if not folder.is_dir():
        raise MeasurementError.of(OutcomeCode.FOLDER_REMOVED, folder=str(folder), job=job)


def _unreachable(outcome: execute.Outcome) -> tuple[str, ...]:
    return (outcome.host,) if outcome.code == OutcomeCode.HOST_UNREACHABLE and outcome.host else ()


def _dead_host(job: Job, dead: Mapping[str, str]) -> Failure | None:
    """Return why a job is not started, or None if nothing prevents it.

    A job is not started if it needs a lost host. A host is lost if an earlier job lost contact with the host, and if
    the host still does not answer.
    """
    suspects = {host: hosts.HostCommand(("true",)) for host in job.hosts if host in dead}
    replies = hosts.ask(job.agent, suspects, _ASK_S)
    for host, reply in replies.items():
        if reply.exit_code != 0:
            facts = {"since": dead[host]}
            text = OutcomeCode.HOST_DEAD.words({"host": host, **facts})
            return Failure(text, None, host, OutcomeCode.HOST_DEAD, facts)
    return None


def _say_interrupted(folder: Path, context: RunContext) -> None:
    command = continued.command(folder, context.config)
    context.say(f"interrupted; what was measured is in {folder}; continue with: {command}")


def _submit(jobs: Sequence[Job], folder: Path, context: RunContext) -> RunResult:
    """Run all jobs in one Slurm allocation, where a second controller starts them. Print the allocation's failure."""
    names, site = {job.name for job in jobs}, context.site
    runs.write_outcomes(folder, {name: end for name, end in runs.read_outcomes(folder).items() if name not in names})
    lines = batch.inner_controller(
        folder,
        site.tools,
        context.deadline_s,
        context.config,
        context.share_hosts,
        context.only_launch,
    )
    text = batch.script(jobs, site.cluster, lines, str(folder.resolve() / "slurm-%j"))
    try:
        ended = batch.run(jobs, text, folder, site.cluster.name, context.say, context.tick)
    except (Interrupted, KeyboardInterrupt):
        runs.write_outcomes(folder, batch.outcomes(jobs, folder, batch.INTERRUPTED))
        _say_interrupted(folder, context)
        raise
    outcomes = batch.outcomes(jobs, folder, ended.failure)
    runs.write_outcomes(folder, outcomes)
    if ended.failure is not None:
        if not runs.jobs_in(folder):
            raise (RefusedError if ended.refused else MeasurementError).coded(ended.failure)
        context.say(f"    FAILED: {ended.failure.text}; continue with: {continued.command(folder, context.config)}")
    return _ran(folder, outcomes)


def _ran(folder: Path, outcomes: Mapping[str, Mapping[str, Any]]) -> RunResult:
    failed = {name: runs.failure_of(outcome) for name, outcome in outcomes.items() if outcome.get("what")}
    return RunResult(folder, failed, frozenset(name for name in failed if outcomes[name].get("refused")))


def _store(folder: Path, outcomes: Mapping[str, Mapping[str, Any]], what: str | None) -> None:
    """Write the outcomes.

    Raises MeasurementError if the outcomes cannot be written, because later results would also be lost.
    """
    try:
        runs.write_outcomes(folder, outcomes)
    except UsageError as error:
        raise MeasurementError(what or str(error)) from None


def _missing(spec: JobSpec, site: Site, folder: Path, outcome: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Return the sizes of a job that must still be measured."""
    case, file = spec.case, runs.results_file(folder, spec.name)
    if spec.tool:
        failed = outcome is not None and outcome["what"] is not None
        missing = case.sizes if failed or not _has_whole_rows(file) else ()
    else:
        missing = _missing_sizes(spec, site.patterns[case.pattern], file)
    if case.is_ladder and (outcome is None or outcome["what"] is not None):
        return case.sizes  # the number of rounds is known only at the end
    return missing


def _missing_sizes(spec: JobSpec, pattern: Pattern, file: Path) -> tuple[int, ...]:
    """Return the sizes with a row that is missing, failed, has wrong data, or was skipped for lack of time."""
    case = spec.case
    if not file.exists():
        return case.sizes
    try:
        records = [record for attempt in jsonl.read(file).attempts for record in attempt.records]
    except UsageError:
        return case.sizes  # the rank was killed while it wrote the header
    # In a ladder, later rounds depend on earlier rounds. Some patterns plan their own rows. These jobs run again as a
    # whole.
    if case.is_ladder or pattern.plans_own_rows:
        return () if records and all(map(_is_whole, records)) else case.sizes
    all_rounds = rounds(case, spec.world, pattern.topology_of(case.topology))
    wanted = len(case.modes) * len(all_rounds) * len(all_rounds[0])
    whole: dict[int, set[tuple[str, str]]] = {size: set() for size in case.sizes}
    for record in records:
        if _is_whole(record):
            for size in record.requested_bytes:
                whole.setdefault(size, set()).add((record.mode, record.group))
    return tuple(size for size in case.sizes if len(whole[size]) < wanted)


def _has_whole_rows(file: Path) -> bool:
    """Check that a tool made at least one attempt, and that no row of the last attempt needs another measurement."""
    if not file.exists():
        return False
    try:
        attempts = jsonl.read(file).attempts
    except UsageError:
        return False
    return bool(attempts) and all(map(_is_whole, attempts[-1].records))


def _is_whole(record: Record) -> bool:
    """Check whether this record needs no further measurement. A row with wrong data is measured again."""
    if record.failed is not None or record.verified is False:
        return False
    return record.skipped is None or record.skipped.code != SkipCode.BUDGET
