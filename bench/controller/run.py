"""The desk's side of a run, step by step: plan, folder, jobs, outcomes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.config.clusters import Cluster
from bench.controller import batch, execute, tool_results
from bench.controller.jobs import Job, LocalMachine, Plan, job_of
from bench.core.case import Case, from_argv, to_argv
from bench.core.contention import rounds
from bench.core.errors import BenchError, Interrupted, MeasurementError, RefusedError, UsageError
from bench.core.launcher import Launcher
from bench.core.pattern import Pattern
from bench.core.record import Record
from bench.core.skips import SkipCode
from bench.core.units import format_duration
from bench.core.world import World
from bench.logs.tool import Installed
from bench.store import jsonl, runs

Say = Callable[[str], None]
Ready = Callable[[Cluster, Sequence[Job]], None]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run left: its folder and the jobs that failed, each with a sentence; `refused`: before their first row."""

    folder: Path
    failed: Mapping[str, str]
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RunContext:
    """What carrying out a plan takes. `say` takes lines that stay, `tick` what is going on just now.

    `deadline_s`: how long a rank may give no sign of life. `tools`: those that the jobs name, as found here. `ready`
    raises RefusedError where jobs can not run on a cluster as it is now.
    """

    package_root: Path
    launchers: Mapping[str, Launcher]
    tools: Mapping[str, Installed]
    deadline_s: float
    say: Say
    tick: Say
    ready: Ready


def machine(
    python: str | None,
    mpirun: str | None,
    num_cpus: int,
    num_gpus: int,
    lacks: Mapping[str, str],
    default_launcher: Mapping[str, str],
    separates: frozenset[str],
) -> LocalMachine:
    """The machine at hand, with the site's mpirun, else the one that belongs to the interpreter, else that on PATH."""
    beside = Path(python or sys.executable).parent / "mpirun"
    mpirun = mpirun or (str(beside) if beside.exists() else shutil.which("mpirun") or "mpirun")
    interpreter = python or sys.executable
    return LocalMachine(num_cpus, num_gpus, lacks, interpreter, mpirun, default_launcher, _mpi_of(mpirun), separates)


def _mpi_of(mpirun: str) -> str:
    """Whose mpirun it is, from the program that each of them lays beside it; empty when neither is there."""
    folder = Path(mpirun).resolve().parent
    beside = {"ompi_info": "openmpi", "mpichversion": "mpich"}
    return next((mpi for program, mpi in beside.items() if (folder / program).exists()), "")


def other_mpirun(chosen: str) -> str | None:
    """A note when the site has an mpirun of its own beside the one that will be used."""
    folder = str(Path(chosen).parent)
    elsewhere = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if part != folder)
    site = shutil.which("mpirun", path=elsewhere)
    if site is None or not Path(chosen).is_absolute() or Path(site).resolve() == Path(chosen).resolve():
        return None
    return f"mpirun: {chosen}; this site also has {site}: name it by `mpirun:` in bench.yaml to use that one"


def start(plan: Plan, scenario_text: str, results: Path, means: RunContext) -> Ran:
    """Run every job of a plan in a new folder. What was measured before an error or an interrupt is kept."""
    means.ready(plan.cluster, plan.jobs)
    folder = runs.create(results, runs.new_run_id(plan.cluster.name, plan.scenario))
    runs.write_plan(folder, to_plain(plan, scenario_text))
    if batch.wanted(plan.jobs, os.environ):
        try:
            return _submit(plan.jobs, plan.cluster, folder, means)
        except RefusedError:
            runs.discard(folder)
            raise
    return run_jobs(plan.jobs, folder, means)


def resume(folder: Path, here: LocalMachine, patterns: Mapping[str, Pattern], means: RunContext) -> Ran:
    """Run what a run's plan asked for and its files do not hold."""
    launchers, tools, say = means.launchers, means.tools, means.say
    stored = runs.read_plan(folder)
    cluster = cluster_of(stored["cluster"])
    todo, ended = [], runs.outcomes_or_error(folder)
    for job in stored["jobs"]:
        case = from_argv(job["case"])
        world = World(**job["world"])
        tool, file = job.get("tool", ""), runs.results_file(folder, job["name"])
        if tool:
            well = ended.get(job["name"], {"what": None})["what"] is None
            missing = () if well and _is_told(file) else case.sizes
        else:
            missing = _missing(case, world, patterns[case.pattern], file)
        if case.schedule == "ladder" and ended.get(job["name"], {"what": ""})["what"] is not None:
            missing = case.sizes  # how many rounds it takes is known only at its end
        if missing and tool and tools[tool].tool.program(case) not in tools[tool].programs:
            say(f"{job['name']} is left out: {tools[tool].lacks}")
        elif missing:
            partial = replace(case, sizes=missing)
            launch = job.get("launch", 1)
            todo.append(
                job_of(
                    job["name"], partial, world, job["factors"], cluster, here, patterns, launchers, launch, tool, tools
                )
            )
    say(f"{len(todo)} of {len(stored['jobs'])} jobs have something missing")
    means.ready(cluster, todo)
    return _submit(todo, cluster, folder, means) if batch.wanted(todo, os.environ) else run_jobs(todo, folder, means)


def to_plain(plan: Plan, scenario_text: str) -> dict[str, Any]:
    """A plan as it is kept in plan.json and printed by `bench plan --format json`."""
    return {
        "scenario": plan.scenario,
        "scenario_text": scenario_text,
        "cluster": asdict(plan.cluster),
        "modelled": plan.modelled,
        "budget_s": plan.budget_s,
        "estimate_s": plan.estimate_s,
        "notes": list(plan.notes),
        "skipped": [asdict(skip) for skip in plan.skipped],
        "jobs": [
            {
                "name": job.name,
                "case": to_argv(job.case),
                "world": asdict(job.world),
                "launcher": job.launcher,
                "command": list(job.command),
                "script": job.script(),
                "factors": {k: v for k, v in job.env.items() if k not in plan.cluster.env},
                "launch": job.launch,
                "tool": job.tool,
                "num_rounds": job.num_rounds,
                "num_rows": job.num_rows,
                "estimate_s": job.estimate_s,
            }
            for job in plan.jobs
        ],
    }


def cluster_of(stored: Mapping[str, Any]) -> Cluster:
    """The cluster as a plan keeps it."""
    tuples: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    return Cluster(**tuples)


def run_jobs(jobs: Iterable[Job], folder: Path, means: RunContext) -> Ran:
    """Run jobs one after the other; each outcome is kept as soon as it is known."""
    say = means.say
    jobs = list(jobs)
    outcomes = runs.read_outcomes(folder)
    for number, job in enumerate(jobs, start=1):
        say(f"[{number}/{len(jobs)}] {job.name}: {job.num_rows} rows, about {format_duration(job.estimate_s)}")

        def poll(seconds: float, name: str = job.name) -> None:
            means.tick(f"{name}: {seconds:.0f} s")

        began = datetime.now(UTC)
        try:
            outcome = execute.run(
                job, folder, means.package_root, means.launchers[job.launcher], means.deadline_s, poll
            )
            if job.tool:  # what it printed before it failed, or was ended, is kept as well
                wrong = tool_results.keep(job, means.tools[job.tool].tool, folder, began)
                outcome = replace(outcome, what=outcome.what or wrong)
        except (BenchError, KeyboardInterrupt):
            outcomes[job.name] = {"exit_code": None, "seconds": None, "what": "interrupted"}
            with contextlib.suppress(UsageError):  # a full disk: the interruption is what matters
                runs.write_outcomes(folder, outcomes)
            say(f"interrupted; what was measured is in {folder}; go on with: python -m bench run --resume {folder}")
            raise
        outcomes[job.name] = asdict(outcome)
        _keep(folder, outcomes, outcome.what)
        if outcome.what is not None:
            say(f"    FAILED: {outcome.what}")
    return _ran(folder, outcomes)


def _submit(jobs: Sequence[Job], cluster: Cluster, folder: Path, means: RunContext) -> Ran:
    """All jobs in one allocation of Slurm, in which this desk runs again; what it left unsaid is said here."""
    again = {job.name for job in jobs}
    runs.write_outcomes(folder, {name: end for name, end in runs.read_outcomes(folder).items() if name not in again})
    inside = batch.desk(folder, means.package_root, means.tools, means.deadline_s)
    text = batch.script(jobs, cluster, inside, str(folder.resolve() / "slurm-%j"))
    try:
        ended = batch.run(jobs, text, folder, cluster.name, means.say, means.tick)
    except (Interrupted, KeyboardInterrupt):
        runs.write_outcomes(folder, batch.outcomes(jobs, folder, "interrupted"))
        means.say(f"interrupted; what was measured is in {folder}; go on with: python -m bench run --resume {folder}")
        raise
    outcomes = batch.outcomes(jobs, folder, ended.what)
    runs.write_outcomes(folder, outcomes)
    if ended.what is not None:
        if not runs.jobs_in(folder):
            raise (RefusedError if ended.refused else MeasurementError)(ended.what)
        means.say(f"    FAILED: {ended.what}; go on with: python -m bench run --resume {folder}")
    return _ran(folder, outcomes)


def _ran(folder: Path, outcomes: Mapping[str, Mapping[str, Any]]) -> Ran:
    failed = {name: outcome["what"] for name, outcome in outcomes.items() if outcome.get("what")}
    return Ran(folder, failed, frozenset(name for name in failed if outcomes[name].get("refused")))


def _keep(folder: Path, outcomes: Mapping[str, Mapping[str, Any]], what: str | None) -> None:
    """Raises MeasurementError where no more can be kept: the jobs to come would be measured for nothing."""
    try:
        runs.write_outcomes(folder, outcomes)
    except UsageError as error:
        raise MeasurementError(what or str(error)) from None


def _missing(case: Case, world: World, pattern: Pattern, file: Path) -> tuple[int, ...]:
    """The sizes of a case whose rows are not all there (or failed, or were dropped for lack of time)."""
    if not file.exists():
        return case.sizes
    try:
        records = [record for attempt in jsonl.read(file).attempts for record in attempt.records]
    except UsageError:
        return case.sizes  # killed while the header was being written
    if case.schedule == "ladder":  # its next rounds follow from its first: it is whole, or it is climbed again
        return () if records and all(map(_is_whole, records)) else case.sizes
    all_rounds = rounds(case, world, pattern.topology_of(case.topology))
    wanted = len(case.modes) * len(all_rounds) * len(all_rounds[0])
    whole: dict[int, set[tuple[str, str]]] = {size: set() for size in case.sizes}
    for record in records:
        if _is_whole(record):
            for size in record.requested_bytes:
                whole.setdefault(size, set()).add((record.mode, record.group))
    return tuple(size for size in case.sizes if len(whole[size]) < wanted)


def _is_told(file: Path) -> bool:
    """Did a tool tell something of all that it was asked for?"""
    if not file.exists():
        return False
    try:
        attempts = jsonl.read(file).attempts
    except UsageError:
        return False
    return bool(attempts) and all(map(_is_whole, attempts[-1].records))


def _is_whole(record: Record) -> bool:
    """Is there nothing more to measure for this record?"""
    return record.failed is None and (record.skipped is None or record.skipped.code != SkipCode.BUDGET)
