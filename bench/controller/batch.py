"""All jobs of a run in one allocation of Slurm: submitted by sbatch, watched by squeue, ended with the desk.

In the allocation a desk like this one runs what is missing (`run --resume FOLDER`), launch by launch with srun:
deadlines, supervision and outcomes are those of every run. The desk outside passes on what that one says, and tells how
the allocation itself ended.
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

from bench.config.clusters import Cluster
from bench.controller.jobs import Job
from bench.core.errors import EXIT_REFUSED, BenchError, MeasurementError, RefusedError
from bench.core.world import World
from bench.launchers import slurm
from bench.logs.tool import Installed
from bench.store import runs

Say = Callable[[str], None]

_LIMIT_FACTOR, _LIMIT_SLACK_S = 2.0, 600.0
_FIRST_POLL_S, _LAST_POLL_S = 0.2, 10.0  # thousands of users ask the same controller
_ANSWER_S, _SILENCE_S = 60.0, 600.0  # of one question; of the controller, until it is given up
_FILES_S = 5.0  # a shared file system may show the last lines late
_SAID = "bench: error: "
_UNTOLD = "interrupted"  # what a desk that is ended writes of its job
# Reasons to wait (squeue's %r) that no waiting ends.
_NEVER = re.compile(
    r"PartitionNodeLimit|PartitionTimeLimit|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed|"
    r"DependencyNeverSatisfied|ReservationDeleted|JobHeld\w+|(Assoc|QOS)Max\w*PerJobLimit"
)
_NO_CONTROLLER = re.compile(
    r"fetch.config|contact slurm controller|Connection (refused|timed out)|Socket timed out|configuration source", re.I
)
_ENDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "ran into its time limit: give it more by `time` under `options:`, or less to measure",
    "DEADLINE": "could not end before its deadline",
    "NODE_FAIL": "ended because a node failed",
    "BOOT_FAIL": "ended because its nodes did not boot",
    "OUT_OF_MEMORY": "took more memory than Slurm gave it: ask for more by `mem` under `options:`",
    "PREEMPTED": "had to make room for another job",
}


@dataclass(frozen=True, slots=True)
class End:
    """How an allocation ended. `what` is None when the desk inside told everything; `refused`: nothing could run."""

    what: str | None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class _Gone:
    """Slurm's word for how a job ended; `nodes` is empty when it never had any."""

    state: str
    exit_code: int | None
    nodes: str


def wanted(jobs: Iterable[Job], env: Mapping[str, str]) -> bool:
    """Are there jobs for Slurm, and no allocation around this process?"""
    return "SLURM_JOB_ID" not in env and any(job.launcher == "slurm" for job in jobs)


def script(jobs: Sequence[Job], cluster: Cluster, lines: list[str], output: str = "") -> str:
    """The script for sbatch: room for the largest job and time for all of them; `lines` run in it."""
    room = World(max(job.world.num_nodes for job in jobs), max(job.world.ranks_per_node for job in jobs))
    limit_s = _LIMIT_FACTOR * sum(job.estimate_s for job in jobs) + _LIMIT_SLACK_S
    return slurm.batch(f"bench-{cluster.name}", room, limit_s, cluster.options, lines, output)


def desk(folder: Path, package_root: Path, tools: Mapping[str, Installed], deadline_s: float) -> list[str]:
    """The lines that run what a run's folder still misses, on the first node of an allocation."""
    path = os.pathsep.join(dict.fromkeys(filter(None, (str(package_root), os.environ.get("PYTHONPATH")))))
    places = {
        there.tool.variable: os.path.commonpath([str(Path(program).parent) for program in there.programs.values()])
        for there in tools.values()
        if there.programs
    }
    words = [sys.executable, "-m", "bench", "run", "--resume", str(folder.resolve()), "--no-plots"]
    words += ["--deadline", f"{deadline_s}s"]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in {"PYTHONPATH": path, **places}.items()]
    return [*exports, f"exec {shlex.join(words)}"]


def run(jobs: Sequence[Job], text: str, folder: Path, cluster: str, say: Say, tick: Say) -> End:
    """Submit a script for these jobs and watch it to its end. What `tick` raises, and Ctrl-C, cancels it.

    Raises RefusedError when Slurm does not take it, or says that it can never start; MeasurementError when the
    controller answers no more.
    """
    job_id = _submit(text, folder, cluster)
    say(f"Slurm job {job_id}: submitted")
    said = _Tail(folder / f"slurm-{job_id}.err")
    try:
        _watch(job_id, said, say, tick)
    except MeasurementError:
        raise
    except BaseException:
        _ask("scancel", job_id)
        with contextlib.suppress(BenchError, KeyboardInterrupt):
            _watch(job_id, said, say, lambda state: None)
        raise
    gone = _gone(job_id)
    if gone.state in ("COMPLETED", "FAILED") and gone.nodes:
        names = {job.name for job in jobs}
        end = time.monotonic() + _FILES_S
        while not (told_all := names <= _told(folder)) and not said.error and time.monotonic() < end:
            time.sleep(_FIRST_POLL_S)
            said.lines()
        if told_all or gone.state == "COMPLETED":
            return End(None)
    return End(_sentence(job_id, gone, said.error, folder), not gone.nodes or gone.exit_code == EXIT_REFUSED)


def outcomes(jobs: Sequence[Job], folder: Path, what: str | None) -> dict[str, Any]:
    """The outcomes, with `what` for each of the jobs that did not end well: the allocation's end may be why."""
    merged: dict[str, Any] = dict(runs.read_outcomes(folder))
    for name in (job.name for job in jobs if what is not None):
        outcome = merged.get(name, {"exit_code": None, "seconds": None, "what": _UNTOLD})
        if outcome["what"] is not None:
            merged[name] = {**outcome, "what": what if outcome["what"] == _UNTOLD else f"{outcome['what']}; {what}"}
    return merged


def _told(folder: Path) -> set[str]:
    """The jobs whose end the desk inside has told."""
    return {name for name, outcome in runs.read_outcomes(folder).items() if outcome["what"] != _UNTOLD}


def _sentence(job_id: str, gone: _Gone, error: str, folder: Path) -> str:
    """How the allocation ended, and what is known of why."""
    if gone.state == "NODE_FAIL":
        why = f": node {nodes}" if (nodes := _failed_nodes(gone.nodes)) else ""
    elif gone.state == "CANCELLED":
        why = "" if gone.nodes else " before it could start"
    elif gone.state in _ENDS:
        why = ""
    else:
        why = f": {error}" if error else f"; its output is in {folder}/slurm-{job_id}.out and .err"
    return f"Slurm job {job_id} {_ENDS.get(gone.state, f'ended as {gone.state} with exit code {gone.exit_code}')}{why}"


class _Tail:
    """The lines of a growing file, each given once."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.error = ""  # the sentence of the desk inside, when it had one

    def lines(self) -> list[str]:
        """Whole lines that are new; errors are kept back, for the sentence that tells the end."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        self.error = next((line.removeprefix(_SAID) for line in lines if line.startswith(_SAID)), self.error)
        return [line for line in lines if not line.startswith(_SAID)]


def _submit(text: str, folder: Path, cluster: str) -> str:
    file = folder / "slurm.sh"
    file.write_text(text, encoding="utf-8")
    code, out, err = _ask("sbatch", "--parsable", str(file))
    number = out.strip().partition(";")[0]  # jobid;cluster in a federation
    if code != 0 or not number.isdecimal():
        raise RefusedError(_not_taken(cluster, err.strip() or out.strip()))
    return number


def refusal(jobs: Sequence[Job], cluster: Cluster) -> str | None:
    """Why Slurm would not take these jobs, by its own test, which submits nothing; None when it would."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:
        file.write(script(jobs, cluster, []))
        file.flush()
        code, out, err = _ask("sbatch", "--test-only", file.name)
    return _not_taken(cluster.name, err.strip() or out.strip()) if code != 0 else None


def _not_taken(cluster: str, told: str) -> str:
    said = [line.removeprefix("sbatch: error: ") for line in told.splitlines() if line.startswith("sbatch: error: ")]
    why = "; ".join(said) or told
    if _NO_CONTROLLER.search(told):
        return (
            f"Slurm's controller can not be reached from here for cluster {cluster!r} ({why}): see that slurmctld runs "
            "(`scontrol ping`) and that slurm.conf is right here, or run this on the cluster's login node"
        )
    return f"Slurm does not take the job of cluster {cluster!r} ({why}): mend its `options:`, or its `nodes:`"


def _watch(job_id: str, said: _Tail, say: Say, tick: Say) -> None:
    """Until squeue knows the job no more."""
    reason_told, wait_s, answered = "", _FIRST_POLL_S, time.monotonic()
    while True:
        state, reason = _state(job_id)
        if state != "?":
            answered = time.monotonic()
        elif time.monotonic() - answered > _SILENCE_S:
            raise MeasurementError(
                f"Slurm's controller has not answered for {_SILENCE_S:.0f} s; job {job_id} may still run"
            )
        if state == "PENDING":
            if _NEVER.fullmatch(reason):
                raise RefusedError(
                    f"Slurm job {job_id} can never start ({reason}): mend `options:` or `nodes:` of the cluster"
                )
            if reason not in (reason_told, "None", "Priority"):
                say(f"Slurm job {job_id} waits: {reason}")
                reason_told = reason
        for line in said.lines():
            say(line)
        if not state:
            break
        tick(f"Slurm job {job_id}: {state.lower()}{f' ({reason})' if state == 'PENDING' else ''}")
        time.sleep(wait_s)
        wait_s = min(_LAST_POLL_S, wait_s * 1.1)


def _state(job_id: str) -> tuple[str, str]:
    """Slurm's word and reason; '' when the job has left the queue, '?' when the controller did not answer."""
    code, out, err = _ask("squeue", "-h", "-j", job_id, "-o", "%T|%r")
    if code != 0:
        return ("" if "Invalid job id" in err else "?"), ""
    state, _, reason = out.strip().partition("|")
    return state, reason


def _gone(job_id: str) -> _Gone:
    """Of a job that has ended: what the controller, which forgets, still knows, else accounting."""
    code, out, _ = _ask("scontrol", "show", "job", "-o", job_id)
    if code == 0:
        found = dict(word.split("=", 1) for word in out.split() if "=" in word)
        return _Gone(found["JobState"], _exit_code(found.get("ExitCode", "")), _nodes(found.get("NodeList", "")))
    code, out, _ = _ask("sacct", "-j", job_id, "-X", "-n", "-P", "-o", "State,ExitCode,NodeList")
    if code == 0 and out.strip():
        state, ended, nodes = out.splitlines()[0].split("|")
        return _Gone(state.split()[0], _exit_code(ended), _nodes(nodes))
    return _Gone("unknown to scontrol and sacct", None, "?")


def _nodes(text: str) -> str:
    return "" if text in ("(null)", "None assigned") else text


def _exit_code(text: str) -> int | None:
    """Of Slurm's `code:signal`."""
    code = text.partition(":")[0]
    return int(code) if code.isdecimal() else None


def _failed_nodes(nodes: str) -> str:
    """`n3 (down: power lost)` of each node that is out of order now."""
    _, out, _ = _ask("sinfo", "-h", "-N", "-n", nodes, "-o", "%N|%T|%E")
    rows = dict.fromkeys(tuple(line.split("|", 2)) for line in out.splitlines() if line.count("|") == 2)
    return ", ".join(
        f"{name} ({state}: {why})" for name, state, why in rows if state.startswith(("down", "fail", "drain"))
    )


def answers() -> bool:
    """Is there a controller behind the programs of Slurm? A machine may have them and belong to no cluster."""
    return _ask("sinfo", "-h")[0] == 0


def _ask(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a client of Slurm; a code of its own when there is no answer."""
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
