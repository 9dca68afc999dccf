"""Starts one job in a session of its own, watches it, and leaves nothing of it behind.

The command runs under a shell with the cluster's set-up lines. Its ranks write the results file; what they print goes
to the job's log. Every process of the job carries BENCH_JOB=<id> in its environment, which is how the ones that a
launcher left behind are found: only our own processes are ever ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.controller import guard, root_cause, supervise
from bench.controller.jobs import Job
from bench.controller.root_cause import FailureEvidence, RootCause
from bench.core.errors import EXIT_REFUSED, RefusedError, UsageError
from bench.core.launcher import Launcher
from bench.logs.tool import DOCUMENT
from bench.probes import processes
from bench.store import heartbeat, jsonl, runs

_POLL_S = 0.1
_LOOK_S = 1.0  # between looks at all ranks' heartbeats
_TERM_GRACE_S = 3.0
_LIMIT_FACTOR, _LIMIT_SLACK_S = 3.0, 60.0
# What a launcher, or the shell that starts it, says of its own failure: `run.py: error: unrecognized arguments: --x`.
_OWN_WORDS = re.compile(r"^(?:\S+: error: |/bin/sh: \d+: )(.+)$", re.MULTILINE)
_NO_END = "no end within"
_SLOW = "; nothing hung, it is only far slower than the estimate: measure less at a time (sizes, ranks), or --resume"
_RANKS_LATER_S = 8.0  # a rank ends itself only when the desk, which knows more, has not done so


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. `what` is None when it ended well; `exit_code` is the launcher's.

    `rank` and `host` are those at fault, where that is known.
    """

    job: str
    exit_code: int
    seconds: float
    what: str | None = None
    rank: int | None = None
    host: str | None = None
    refused: bool = False  # its ranks found, before the first row, that they are not what was asked for


def run(
    job: Job, folder: Path, package_root: Path, launcher: Launcher, deadline_s: float, on_poll: Callable[[float], None]
) -> Outcome:
    """Run a job to its end. `on_poll` gets the seconds so far; what it raises ends the job.

    It is ended when one of its ranks gives no sign of life for `deadline_s`, or when it takes far longer than planned.
    What another tool's job prints on stdout is kept by itself (runs.output_file), for its parser.
    """
    beats = runs.heartbeat_folder(folder, job.name)
    beats.mkdir(exist_ok=True)
    _empty(beats)
    runs.document_file(folder, job.name).unlink(missing_ok=True)  # nobody writes over what is there
    job_id = f"{folder.name}/{job.name}/{os.getpid()}"
    reached = supervise.JobHosts(job.hosts, job.agent, package_root, job.python, job.setup, job.env)
    limit_s = _LIMIT_FACTOR * job.estimate_s + _LIMIT_SLACK_S
    silence = _Silence(beats, deadline_s if not job.tool else limit_s)
    began = time.monotonic()
    late = None
    evidence = None
    with contextlib.ExitStack() as files:
        log = files.enter_context(runs.log_file(folder, job.name).open("ab", buffering=0))
        log_from = log.tell()
        out = files.enter_context(runs.output_file(folder, job.name).open("wb")) if job.tool else log
        process = _start(job, folder, package_root, job_id, deadline_s, out.fileno(), log.fileno())
        try:
            files.enter_context(guard.guarded(process.pid))
            while process.poll() is None and late is None:
                on_poll(time.monotonic() - began)
                time.sleep(_POLL_S)
                late = silence.late() or _too_long(time.monotonic() - began, limit_s)
            if process.returncode != 0 or _cut_short(beats):
                said = _said(folder, job, log_from)
                evidence = supervise.gather(
                    job_id,
                    job.world.num_ranks,
                    beats,
                    said,
                    launcher.blamed(said),
                    reached,
                    late is not None,
                    silence.silent_s(),
                )
                evidence = replace(evidence, no_room=runs.write_error(folder))
        finally:
            left = _end(process, job_id, reached, well=process.returncode == 0)
            with contextlib.suppress(OSError):
                log.write(supervise.stacks(beats).encode())
    seconds = time.monotonic() - began
    guilt = _explain(process.returncode, late, evidence, folder, job)
    shutil.rmtree(beats, ignore_errors=True)  # a rank that nobody reaches any more may still write there
    if guilt is None:
        return Outcome(job.name, process.returncode, seconds)
    if left:
        guilt = replace(guilt, what=f"{guilt.what}; what still runs on {', '.join(left)} could not be ended from here")
    refused = process.returncode == EXIT_REFUSED or _blames_refusal(evidence)
    return Outcome(job.name, process.returncode, seconds, guilt.what, guilt.rank, guilt.host, refused)


def _blames_refusal(evidence: FailureEvidence | None) -> bool:
    """torchrun ends with an exit code of its own, and tells the rank's."""
    lost = evidence.launcher if evidence is not None else None
    return lost is not None and lost.how == f"ended with exit code {EXIT_REFUSED}"


class _Silence:
    """Knows for how long each rank has given no new sign of life, by this machine's clock alone."""

    def __init__(self, folder: Path, deadline_s: float) -> None:
        self._folder, self._deadline_s = folder, deadline_s
        self._seen: dict[int, tuple[float, float]] = {}
        self._looked = self._began = time.monotonic()

    def late(self) -> str | None:
        """What has taken too long, in words; None when nothing has."""
        now = time.monotonic()
        if now - self._looked < min(_LOOK_S, self._deadline_s / 4):
            return None
        self._looked = now
        beats = heartbeat.read_all(self._folder)
        for beat in beats:
            if self._seen.get(beat.rank, (None,))[0] != beat.time_s:
                self._seen[beat.rank] = (beat.time_s, now)
        if not beats:
            allowed_s = heartbeat.allowance_s(heartbeat.STARTING, self._deadline_s)
            return f"no sign of life of any rank within {allowed_s:g} s" if now - self._began > allowed_s else None
        silent_s = self.silent_s()
        late = [
            silent_s[beat.rank]
            for beat in beats
            if beat.ended is None and silent_s[beat.rank] > heartbeat.allowance_s(beat.doing, self._deadline_s)
        ]
        return f"no sign of life for {max(late):.0f} s" if late else None

    def silent_s(self) -> dict[int, float]:
        """For how long each rank that was ever heard has said nothing new."""
        return {rank: self._looked - seen for rank, (_, seen) in self._seen.items()}


def _too_long(seconds: float, limit_s: float) -> str | None:
    return f"{_NO_END} {limit_s:.0f} s" if seconds > limit_s else None


def _start(
    job: Job,
    folder: Path,
    package_root: Path,
    job_id: str,
    deadline_s: float,
    out: int,
    log: int,
) -> subprocess.Popen[bytes]:
    reports = [
        "--records",
        str(runs.results_file(folder, job.name).resolve()),
        "--job",
        job.name,
        "--launch",
        str(job.launch),
        "--expect",
        _expected(job),
        "--deadline",
        f"{deadline_s + _RANKS_LATER_S:.0f}",
        "--timeout",
        f"{deadline_s + _RANKS_LATER_S:.0f}",
        "--heartbeats",
        str(runs.heartbeat_folder(folder, job.name).resolve()),
    ]
    words = [str(runs.document_file(folder, job.name).resolve()) if w == DOCUMENT else w for w in job.command]
    command = shlex.join([*words, *([] if job.tool else reports)])
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


def _expected(job: Job) -> str:
    """The world of a job as its ranks are told it, with the names of its hosts where their order is known."""
    hosts = "" if any("--rdzv-backend" in word for word in job.command) else ",".join(job.hosts)
    return f"{hosts or job.world.num_nodes}x{job.world.ranks_per_node}"


def _end(process: subprocess.Popen[bytes], job_id: str, reached: supervise.JobHosts, well: bool) -> tuple[str, ...]:
    """TERM, then KILL, of the job's process group and of whatever else still carries its id, on every host.

    Returns the hosts that could not be asked to.
    """
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if well:
        processes.end_job(job_id)
        return ()
    return supervise.end_everywhere(job_id, reached)


def _said(folder: Path, job: Job, start: int) -> str:
    """What this attempt's ranks and launcher have written so far."""
    with runs.log_file(folder, job.name).open("rb") as log:
        log.seek(start)
        return log.read().decode(errors="replace")


def _explain(
    exit_code: int,
    late: str | None,
    evidence: FailureEvidence | None,
    folder: Path,
    job: Job,
) -> RootCause | None:
    """Why a job failed, and by whom, where that is known.

    A job whose rows are all there did not fail, whatever its launcher says: every row may have been skipped.
    """
    guilt = root_cause.judge(evidence) if evidence is not None else None
    if late is not None:
        at = root_cause.doing(evidence) if evidence is not None else ""
        slow = _SLOW if at and late.startswith(_NO_END) else ""
        return replace(guilt, what=f"{late}: {guilt.what}") if guilt else RootCause(f"{late}{at}{slow}")
    if (exit_code == 0 and evidence is None) or (not job.tool and _is_whole(folder, job)):
        return None
    if guilt is not None and (exit_code >= 0 or guilt.rank is not None):
        return guilt
    where = f"its output is in {runs.log_file(folder, job.name)}"
    if exit_code >= 0 and evidence is not None and (words := root_cause.last_words(evidence)):
        return RootCause(f"{words}; {where}")
    how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
    own = _OWN_WORDS.findall(_said(folder, job, 0))
    why = f", saying {own[-1]!r}," if own else ""
    if job.tool:  # whose rows say what they can
        return RootCause(f"{job.tool} {how}{why}; {where} and {runs.output_file(folder, job.name)}")
    return RootCause(f"the launcher ({Path(job.command[0]).name}) {how}{why} and no rank said why; {where}")


def _is_whole(folder: Path, job: Job) -> bool:
    try:
        attempts = jsonl.read(runs.results_file(folder, job.name)).attempts
    except UsageError:
        return False
    return job.num_records is not None and len(attempts[-1].records) >= job.num_records


def _cut_short(beats: Path) -> bool:
    """Did a rank end without saying that all went well? Some launchers take exit code 0 for that."""
    return any(beat.ended != "" for beat in heartbeat.read_all(beats))


def _empty(beats: Path) -> None:
    for file in beats.iterdir():
        file.unlink()
