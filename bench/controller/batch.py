"""Run all jobs of a run in one Slurm allocation: submit it with sbatch, watch it with squeue, cancel it with scancel.

Inside the allocation a second controller (`run --resume FOLDER`) starts each launch with srun. The second controller
applies the same deadlines and stores the same outcomes as a controller without Slurm. The first controller, outside the
allocation, forwards the second controller's output and reports how the allocation ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.config import paths
from bench.config.clusters import Cluster
from bench.controller.jobs import Job
from bench.controller.messages import AllocationCode, OutcomeCode
from bench.core.codes import Coded
from bench.core.errors import EXIT_REFUSED, BenchError, MeasurementError, RefusedError
from bench.core.world import World
from bench.launchers import slurm
from bench.logs.tool import Installed
from bench.store import runs
from bench.store.heartbeat import ERROR_LINE

Say = Callable[[str], None]

_LIMIT_FACTOR, _LIMIT_SLACK_S = 2.0, 600.0
_FIRST_POLL_S, _LAST_POLL_S = 0.2, 10.0  # poll slowly, because many users share one slurmctld
_ANSWER_S, _SILENCE_S = 60.0, 600.0  # timeout of one command; longest time without a reply from slurmctld
_FILES_S = 5.0  # how long to wait for the last lines, which a shared file system may show late
# Reasons for a pending job (squeue's %r) that never go away.
_NEVER = re.compile(
    r"PartitionNodeLimit|PartitionTimeLimit|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed|"
    r"DependencyNeverSatisfied|ReservationDeleted|JobHeld\w+|(Assoc|QOS)Max\w*PerJobLimit"
)
_NO_CONTROLLER = re.compile(
    r"fetch.config|contact slurm controller|Connection (refused|timed out)|Socket timed out|configuration source", re.I
)
_CODES = {
    "CANCELLED": AllocationCode.CANCELLED,
    "TIMEOUT": AllocationCode.TIMEOUT,
    "DEADLINE": AllocationCode.DEADLINE,
    "NODE_FAIL": AllocationCode.NODE_FAIL,
    "BOOT_FAIL": AllocationCode.BOOT_FAIL,
    "OUT_OF_MEMORY": AllocationCode.OUT_OF_MEMORY,
    "PREEMPTED": AllocationCode.PREEMPTED,
}


@dataclass(frozen=True, slots=True)
class AllocationEnd:
    """How an allocation ended.

    `failure`: why the allocation failed. The value is None if Slurm's state of the allocation is COMPLETED, or if the
        second controller stored the outcome of every job.
    `refused`: whether the failure prevented all jobs from running.
    """

    failure: Coded | None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class _SlurmState:
    """The state of a finished Slurm job. `nodes` is empty if the job never got nodes."""

    state: str
    exit_code: int | None
    nodes: str


def needed(jobs: Iterable[Job], env: Mapping[str, str]) -> bool:
    """Check whether a job needs Slurm and this process is outside an allocation."""
    return "SLURM_JOB_ID" not in env and any(job.launcher == "slurm" for job in jobs)


def script(jobs: Sequence[Job], cluster: Cluster, lines: list[str], output: str = "") -> str:
    """Return the sbatch script that runs `lines`.

    The script requests the nodes of the largest job, and the total time of all jobs.
    """
    room = World(max(job.world.num_nodes for job in jobs), max(job.world.ranks_per_node for job in jobs))
    limit_s = _LIMIT_FACTOR * sum(job.estimate_s for job in jobs) + _LIMIT_SLACK_S
    return slurm.batch(f"bench-{cluster.name}", room, limit_s, cluster.options, lines, output)


def inner_controller(
    folder: Path,
    tools: Mapping[str, Installed],
    deadline_s: float,
    config: Path | None = None,
    share_hosts: bool = False,
    only_launch: int | None = None,
) -> list[str]:
    """Return the shell lines that resume the run in `folder` on the first node of an allocation."""
    path = os.pathsep.join(dict.fromkeys(filter(None, (str(paths.PACKAGE_ROOT), os.environ.get("PYTHONPATH")))))
    variables = {"PYTHONPATH": path}
    for installed in tools.values():
        folders = [str(Path(program).parent) for program in installed.programs.values()]
        if folders:
            variables[installed.tool.variable] = os.path.commonpath(folders)
    words = [sys.executable, "-m", "bench", "run", "--resume", str(folder.resolve()), "--no-plots"]
    words += ["--deadline", f"{deadline_s}s", "--config", str(paths.config_file(config).resolve())]
    words += ["--share-hosts"] if share_hosts else []
    words += ["--only-launch", str(only_launch)] if only_launch is not None else []
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return [*exports, f"exec {shlex.join(words)}"]


def run(jobs: Sequence[Job], text: str, folder: Path, cluster: str, say: Say, tick: Say) -> AllocationEnd:
    """Submit the script `text` and wait until its Slurm job ends.

    If the user presses Ctrl-C or `tick` raises an exception, the Slurm job is cancelled.

    Raises RefusedError if Slurm rejects the job or reports that it can never start. Raises MeasurementError if
    slurmctld stops answering.
    """
    job_id = _submit(text, folder, cluster)
    say(f"Slurm job {job_id}: submitted")
    output = _Tail(folder / f"slurm-{job_id}.err")
    try:
        _watch(job_id, output, say, tick)
    except MeasurementError:
        raise
    except BaseException:
        _ask("scancel", job_id)
        with contextlib.suppress(BenchError, KeyboardInterrupt):
            _watch(job_id, output, say, lambda state: None)
        raise
    ended = _state_at_end(job_id)
    if ended.state in ("COMPLETED", "FAILED") and ended.nodes:
        names = {job.name for job in jobs}
        until = time.monotonic() + _FILES_S
        while not (all_reported := names <= _reported(folder)) and not output.error and time.monotonic() < until:
            time.sleep(_FIRST_POLL_S)
            output.lines()
        if all_reported or ended.state == "COMPLETED":
            return AllocationEnd(None)
    failure = _failure(job_id, ended, output.error, folder)
    return AllocationEnd(failure, not ended.nodes or ended.exit_code == EXIT_REFUSED)


INTERRUPTED = Coded.of(OutcomeCode.INTERRUPTED)


def interrupted() -> dict[str, Any]:
    """Return the outcome of a job whose controller was interrupted."""
    return {"exit_code": None, "seconds": None, "what": INTERRUPTED.text, "code": INTERRUPTED.code, "facts": {}}


def outcomes(jobs: Sequence[Job], folder: Path, failure: Coded | None) -> dict[str, Any]:
    """Return the outcomes of all jobs.

    The outcome of a failed job also names the allocation's failure, which may be the cause. A job that was interrupted
    or has no outcome gets the allocation's failure as its outcome.
    """
    merged: dict[str, Any] = dict(runs.read_outcomes(folder))
    if failure is None:
        return merged
    for job in jobs:
        outcome = merged.get(job.name, interrupted())
        if outcome.get("what") is None:
            continue
        if outcome.get("code") == OutcomeCode.INTERRUPTED:
            outcome = {**outcome, "what": failure.text, "code": failure.code, "facts": dict(failure.facts)}
        else:
            facts = {**(outcome.get("facts") or {}), "allocation": failure.code}
            outcome = {**outcome, "what": f"{outcome['what']}; {failure.text}", "facts": facts}
        merged[job.name] = outcome
    return merged


def _reported(folder: Path) -> set[str]:
    """Return the names of the jobs for which the second controller has stored an outcome."""
    found = runs.read_outcomes(folder)
    return {name for name, outcome in found.items() if outcome.get("code") != OutcomeCode.INTERRUPTED}


def _failure(job_id: str, ended: _SlurmState, error: str, folder: Path) -> Coded:
    """Return how the allocation ended, and the reason if it is known."""
    code = _CODES.get(ended.state, AllocationCode.OTHER)
    why = ""
    if code == AllocationCode.NODE_FAIL:
        nodes = _failed_nodes(ended.nodes)
        why = f": node {nodes}" if nodes else ""
    elif code == AllocationCode.CANCELLED:
        why = "" if ended.nodes else " before it could start"
    elif code == AllocationCode.OTHER:
        why = f": {error}" if error else f"; its output is in {folder}/slurm-{job_id}.out and .err"
    return Coded.of(code, job_id=job_id, why=why, state=ended.state, exit_code=ended.exit_code)


class _Tail:
    """Reads a growing file and returns each line once."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.error = ""  # the inner controller's error, if it had one

    def lines(self) -> list[str]:
        """Return the complete lines that were added since the last call, except error lines.

        The attribute `error` has the last error line.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        others = []
        for line in lines:
            if line.startswith(ERROR_LINE):
                self.error = line.removeprefix(ERROR_LINE)
            else:
                others.append(line)
        return others


def _submit(text: str, folder: Path, cluster: str) -> str:
    file = folder / "slurm.sh"
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8")
    code, out, err = _ask("sbatch", "--parsable", str(file))
    number = out.strip().partition(";")[0]  # jobid;cluster in a federation
    if code != 0 or not number.isdecimal():
        refused = _not_taken(cluster, err.strip() or out.strip())
        raise RefusedError.of(refused[0], **refused[1])
    return number


def refusal(jobs: Sequence[Job], cluster: Cluster) -> Coded | None:
    """Return why Slurm would reject these jobs, or None if it would accept them.

    `sbatch --test-only` submits nothing.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:
        file.write(script(jobs, cluster, []))
        file.flush()
        code, out, err = _ask("sbatch", "--test-only", file.name)
    if code == 0:
        return None
    refused = _not_taken(cluster.name, err.strip() or out.strip())
    return Coded.of(refused[0], **refused[1])


def _not_taken(cluster: str, printed: str) -> tuple[AllocationCode, dict[str, str]]:
    """Find in the output of sbatch why it rejected a job. Returns a code and its facts."""
    errors = []
    for line in printed.splitlines():
        if line.startswith("sbatch: error: "):
            errors.append(line.removeprefix("sbatch: error: "))
    code = AllocationCode.NO_CONTROLLER if _NO_CONTROLLER.search(printed) else AllocationCode.NOT_TAKEN
    return code, {"cluster": cluster, "why": "; ".join(errors) or printed}


def _watch(job_id: str, output: _Tail, say: Say, tick: Say) -> None:
    """Wait until the job has left Slurm's queue."""
    reason_shown, wait_s, answered = "", _FIRST_POLL_S, time.monotonic()
    while True:
        state, reason = _state(job_id)
        if state != "?":
            answered = time.monotonic()
        elif time.monotonic() - answered > _SILENCE_S:
            raise MeasurementError.of(AllocationCode.NO_ANSWER, silent_s=_SILENCE_S, job_id=job_id)
        if state == "PENDING":
            if _NEVER.fullmatch(reason):
                raise RefusedError.of(AllocationCode.NEVER_STARTS, job_id=job_id, reason=reason)
            if reason not in (reason_shown, "None", "Priority"):
                say(f"Slurm job {job_id} waits: {reason}")
                reason_shown = reason
        for line in output.lines():
            say(line)
        if not state:
            break
        tick(f"Slurm job {job_id}: {state.lower()}{f' ({reason})' if state == 'PENDING' else ''}")
        time.sleep(wait_s)
        wait_s = min(_LAST_POLL_S, wait_s * 1.1)


def _state(job_id: str) -> tuple[str, str]:
    """Return the job's state and the reason why it is pending.

    The state is '' if the job has left the queue, and '?' if slurmctld did not answer.
    """
    code, out, err = _ask("squeue", "-h", "-j", job_id, "-o", "%T|%r")
    if code != 0:
        return ("" if "Invalid job id" in err else "?"), ""
    state, _, reason = out.strip().partition("|")
    return state, reason


def _state_at_end(job_id: str) -> _SlurmState:
    """Return the final state of a job.

    The state comes from slurmctld. If slurmctld no longer lists the job, the state comes from the accounting (sacct).
    """
    code, out, _ = _ask("scontrol", "show", "job", "-o", job_id)
    if code == 0:
        found = dict(word.split("=", 1) for word in out.split() if "=" in word)
        nodes = _nodes(found.get("NodeList", ""))
        return _SlurmState(found["JobState"], _exit_code(found.get("ExitCode", "")), nodes)
    code, out, _ = _ask("sacct", "-j", job_id, "-X", "-n", "-P", "-o", "State,ExitCode,NodeList")
    if code == 0 and out.strip():
        state, ended, nodes = out.splitlines()[0].split("|")
        return _SlurmState(state.split()[0], _exit_code(ended), _nodes(nodes))
    return _SlurmState("unknown to scontrol and sacct", None, "?")


def _nodes(text: str) -> str:
    return "" if text in ("(null)", "None assigned") else text


def _exit_code(text: str) -> int | None:
    """Return the exit code from a Slurm text of the form `code:signal`, or None if the code is not a number."""
    code = text.partition(":")[0]
    return int(code) if code.isdecimal() else None


def _failed_nodes(nodes: str) -> str:
    """Return the nodes that are down, failed or drained now, such as `n3 (down: power lost)`."""
    _, out, _ = _ask("sinfo", "-h", "-N", "-n", nodes, "-o", "%N|%T|%E")
    rows = dict.fromkeys(tuple(line.split("|", 2)) for line in out.splitlines() if line.count("|") == 2)
    failed = [row for row in rows if row[1].startswith(("down", "fail", "drain"))]
    return ", ".join(f"{name} ({state}: {why})" for name, state, why in failed)


def slurmctld_answers() -> bool:
    """Check whether slurmctld answers. A machine can have Slurm's programs without belonging to a cluster."""
    return _ask("sinfo", "-h")[0] == 0


def _ask(*words: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a Slurm command.

    The exit code is 127 if the command cannot start or times out.
    """
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, "", str(error)
    return done.returncode, done.stdout, done.stderr
