"""Starts one job in a session of its own, watches it, and leaves nothing of it behind.

The command runs under a shell with the cluster's set-up lines. Its ranks write the results file; what they print goes
to the job's log. Every process of the job carries BENCH_JOB=<id> in its environment, which is how the ones that a
launcher left behind are found: only our own processes are ever ended.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.core.errors import RefusedError, UsageError
from bench.driver.expand import Job
from bench.probes import processes
from bench.store import heartbeat, jsonl, runs

_POLL_S = 0.1
_TERM_GRACE_S = 3.0
_DEADLINE_FACTOR, _DEADLINE_SLACK_S = 3.0, 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. `what` is None when it ended well; `exit_code` is the launcher's."""

    job: str
    exit_code: int
    seconds: float
    what: str | None = None


def run(job: Job, folder: Path, package_root: Path, on_poll: Callable[[float], None]) -> Outcome:
    """Run a job to its end or its deadline. `on_poll` gets the seconds so far; what it raises ends the job.

    What another tool's job prints on stdout is kept by itself (runs.output_file), for its parser.
    """
    beats = runs.heartbeat_folder(folder, job.name)
    beats.mkdir(exist_ok=True)
    for stale in beats.glob("*.json"):
        stale.unlink()
    job_id = f"{folder.name}/{job.name}/{os.getpid()}"
    deadline_s = _DEADLINE_FACTOR * job.estimate_s + _DEADLINE_SLACK_S
    began = time.monotonic()
    with contextlib.ExitStack() as files:
        log = files.enter_context(runs.log_file(folder, job.name).open("ab"))
        out = files.enter_context(runs.output_file(folder, job.name).open("wb")) if job.tool else log
        process = _start(job, folder, package_root, job_id, out.fileno(), log.fileno())
        try:
            while process.poll() is None and time.monotonic() - began < deadline_s:
                on_poll(time.monotonic() - began)
                time.sleep(_POLL_S)
        finally:
            expired = process.poll() is None
            who = heartbeat.silent(heartbeat.read_all(beats), job.world.num_ranks) if expired else ""
            _end(process, job_id)
    seconds = time.monotonic() - began
    what = f"no end within {deadline_s:.0f} s; {who}" if expired else _explain(process.returncode, folder, job)
    _remove(beats)
    return Outcome(job.name, process.returncode, seconds, what)


def _start(job: Job, folder: Path, package_root: Path, job_id: str, out: int, log: int,
           ) -> subprocess.Popen[bytes]:  # fmt: skip
    reports = [
        "--records", str(runs.results_file(folder, job.name).resolve()), "--job", job.name,
        "--launch", str(job.launch),
        "--heartbeats", str(runs.heartbeat_folder(folder, job.name).resolve()),
    ]  # fmt: skip
    command = shlex.join([*job.command, *([] if job.tool else reports)])
    script = "\n".join(["set -e", *job.setup, f"exec {command}"])
    env = {**os.environ, **job.env, "BENCH_JOB": job_id}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package_root), os.environ.get("PYTHONPATH"))))
    tools = dict.fromkeys(str(Path(word).parent) for word in (job.command[0], sys.executable) if os.sep in word)
    env["PATH"] = os.pathsep.join([*tools, os.environ.get("PATH", "")])
    # For hosts.py, which reaches the other hosts: a login there knows nothing of this.
    env["BENCH_PYTHON"] = sys.executable
    env["BENCH_CARRY"] = ",".join([*job.env, "BENCH_JOB", "PYTHONPATH"])
    env["BENCH_SETUP"] = "\n".join(job.setup)
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", script], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True
        )
    except OSError as error:
        raise RefusedError(f"job {job.name} could not be started ({error.strerror}): {job.command[0]}") from None


def _end(process: subprocess.Popen[bytes], job_id: str) -> None:
    """TERM, then KILL, of the job's process group and of whatever else still carries its id."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    processes.end_job(job_id)


def _explain(exit_code: int, folder: Path, job: Job) -> str | None:
    """Why a job failed: the first sentence that a rank of ours printed, else the launcher's exit code.

    A job whose rows are all there did not fail, whatever its launcher says: every row may have been skipped.
    """
    if exit_code == 0:
        return None
    log = runs.log_file(folder, job.name)
    with log.open(encoding="utf-8", errors="replace") as lines:
        said = [line.partition("bench: error: ")[2].strip() for line in lines if "bench: error: " in line]
    if said:
        return said[-1] if len(set(said)) == 1 else said[0]
    if not job.tool and _is_whole(folder, job):
        return None
    how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return f"the launcher ended with {how} and no rank said why; its output is in {log}"


def _is_whole(folder: Path, job: Job) -> bool:
    try:
        attempts = jsonl.read(runs.results_file(folder, job.name)).attempts
    except UsageError:
        return False
    return len(attempts[-1].records) >= job.num_rows


def _remove(beats: Path) -> None:
    for file in beats.iterdir():
        file.unlink()
    beats.rmdir()
