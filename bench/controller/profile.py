"""Record one additional launch under a profiler. The launch's traces are kept, and its rows are deleted."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from bench.controller import batch, execute
from bench.controller.jobs import Job, JobSpec, job_of
from bench.controller.messages import ControllerError
from bench.controller.run import RunContext
from bench.core.errors import MeasurementError, NotInstalledError, UsageError
from bench.probes import nsys
from bench.store import runs

KINDS = ("torch", "nsys")
FOLDER = "profile"
_SAMPLES = 20  # of each row: a trace of all samples would be too large


def check(kind: str, jobs: Iterable[Job]) -> Job:
    """Return the first job of the plan that can be profiled.

    Raises NotInstalledError if the profiler is missing, and UsageError if no job can be profiled.
    """
    if kind == "nsys" and not nsys.is_installed(os.environ):
        raise NotInstalledError.of(ControllerError.NO_NSYS)
    if kind == "torch" and importlib.util.find_spec("torch") is None:
        raise NotInstalledError.of(ControllerError.NO_TORCH_PROFILER)
    for job in jobs:
        if not job.tool and not job.manifest and not job.case.traits.modelled:
            if batch.needed([job], os.environ):
                raise UsageError.of(ControllerError.PROFILE_ELSEWHERE)
            return job
    raise UsageError.of(ControllerError.NO_PROFILED_JOB)


def launch(kind: str, job: Job, folder: Path, context: RunContext) -> list[Path]:
    """Launch the job under the profiler. Returns the traces, which are in the folder of the run.

    Raises MeasurementError if the launch fails or leaves no trace. A MeasurementError does not invalidate the results
    of the run.
    """
    target = (folder / FOLDER).resolve()
    target.mkdir(exist_ok=True)
    case = replace(job.case, iterations=min(job.case.iterations or _SAMPLES, _SAMPLES))
    spec = JobSpec(job.name, case, job.world, tuple(job.factors.items()), job.launch)
    short = job_of(spec, context.site)
    command = (*short.command, "--profile", f"{kind}={target}")
    if kind == "nsys":
        command = (*nsys.profile_words(target / job.name), *command)
    outcome = execute.run(
        replace(short, command=command, num_records=None),
        target,
        context.site.launchers[job.launcher],
        context.deadline_s,
        lambda seconds: context.tick(f"{kind} profile of {job.name}: {seconds:.0f} s"),
        context.share_hosts,
    )
    for report in target.glob("*.nsys-rep"):
        nsys.export(report, os.environ)
    runs.results_file(target, job.name).unlink(missing_ok=True)
    log = runs.log_file(target, job.name)
    if outcome.what is not None or not (found := traces(folder)):
        why = outcome.what or "no trace was written"
        raise MeasurementError.of(ControllerError.NOT_PROFILED, why=why, log=str(log))
    log.unlink(missing_ok=True)
    return found


def traces(folder: Path) -> list[Path]:
    """Return the traces of a run's profiled launch."""
    found = (folder / FOLDER).glob("*")
    return sorted(path for path in found if path.name.endswith((".json.gz", ".nsys-rep", ".sqlite")))
