"""Run one job in a process session of its own, watch the job, and end all its processes.

A shell runs the cluster's set-up lines and then the command. The command's ranks write the results file. The output of
the ranks goes to the job's log. Every process of the job has BENCH_JOB=<id> in its environment. The controller finds
leftover processes by this id and ends no other processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.config import paths
from bench.controller import connections, ends_with_parent, links, root_cause, watch
from bench.controller.jobs import Job
from bench.controller.messages import ConnectionCode, ControllerError, OutcomeCode
from bench.controller.root_cause import FailureEvidence
from bench.core.codes import Coded
from bench.core.errors import EXIT_REFUSED, RefusedError, UsageError
from bench.core.launcher import BlameCode, Launcher
from bench.core.record import Failure
from bench.core.remarks import CodedRemark
from bench.core.seal import SECRET_VARIABLE
from bench.core.secret_values import masked_file, resolved, secrets_of
from bench.logs.tool import DOCUMENT
from bench.probes import processes
from bench.store import heartbeat, jsonl, lease, runs

_POLL_S = 0.1
_HEARTBEATS_EVERY_S = 1.0  # interval between checks of all heartbeats
_TERM_GRACE_S = 3.0
_LIMIT_FACTOR, _LIMIT_SLACK_S = 3.0, 60.0
_OTHERS_END_S = 15.0  # a launcher that ends the other ranks after a failure does so sooner
_PAUSE_S = 2.0  # a longer interval between two polls means that this process did not run
# An error line of the launcher or of its shell, such as `run.py: error: unrecognized arguments: --x`.
_OWN_WORDS = re.compile(r"^(?:\S+: error: |/bin/sh: \d+: )(.+)$", re.MULTILINE)
# A rank's own timeout is this much longer than the controller's timeout, because the controller knows more.
_RANKS_LATER_S = 8.0
_UNDER_LEASE, _SHARE = "bench.rank.under_lease", "--share-hosts"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended.

    `what`: the description of the failure, or None if the job succeeded.
    `code`, `facts`: the failure's code, and the facts that belong to this code.
    `exit_code`: the exit code of the launcher.
    `rank`, `host`: the rank and the host that caused the failure, if known.
    `refused`: whether the ranks refused to measure before they measured a row.
    `remarks`: a remark for each host whose connection was lost and restored.
    """

    job: str
    exit_code: int
    seconds: float
    what: str | None = None
    rank: int | None = None
    host: str | None = None
    refused: bool = False
    code: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[CodedRemark, ...] = ()

    def failed(self, failure: Failure) -> Outcome:
        """Return a copy of this outcome that describes `failure`."""
        return replace(
            self, what=failure.what, rank=failure.rank, host=failure.host, code=failure.code, facts=failure.facts
        )


def run(
    job: Job,
    folder: Path,
    launcher: Launcher,
    deadline_s: float,
    on_poll: Callable[[float], None],
    share_hosts: bool = False,
) -> Outcome:
    """Run a job to its end. `on_poll` is called with the elapsed seconds.

    If `on_poll` raises an exception, the controller ends the job. The controller ends the job if a rank writes no
    heartbeat for `deadline_s`, or if the job takes far longer than estimated. The stdout of another tool goes to a
    separate file (runs.output_file) for the tool's parser.
    """
    beats = runs.heartbeat_folder(folder, job.name)
    beats.mkdir(exist_ok=True)
    _empty(beats)
    runs.document_file(folder, job.name).unlink(missing_ok=True)  # tools do not overwrite an existing file
    limit_s = _LIMIT_FACTOR * job.estimate_s + _LIMIT_SLACK_S
    running = _RunningJob(job, folder, launcher, deadline_s if not job.tool else limit_s)
    with contextlib.ExitStack() as files:
        log = files.enter_context(runs.open_log(folder, job.name))
        running.log_from = log.tell()
        out = files.enter_context(runs.open_output(folder, job.name)) if job.tool else log
        process = _start(job, folder, running.job_id, deadline_s, share_hosts, out.fileno(), log.fileno())
        try:
            renew_guard = files.enter_context(
                ended_with_controller(process.pid, beats / lease.NAME, launcher.ends_within_s)
            )
            late = running.wait(process, limit_s, renew_guard, on_poll)
            evidence = running.evidence(process.returncode, late)
        finally:
            left = _end(process, running.job_id, running.hosts, well=process.returncode == 0)
            with contextlib.suppress(OSError):
                log.write(watch.stacks(beats).encode())
            _mask(folder, job, running.log_from)
    outcome = running.outcome(process.returncode, late, evidence, left)
    # A rank on an unreachable host may still write there, so errors are ignored.
    shutil.rmtree(beats, ignore_errors=True)
    return outcome


class _RunningJob:
    """A running job, and what the controller knows about the job.

    `deadline_s`: the timeout of a rank's heartbeats.
    `log_from`: the position in the job's log at which the output of this attempt begins.
    """

    def __init__(self, job: Job, folder: Path, launcher: Launcher, deadline_s: float) -> None:
        self._job, self._folder, self._launcher = job, folder, launcher
        self._beats = runs.heartbeat_folder(folder, job.name)
        self._stored_before = _size(runs.results_file(folder, job.name))
        networks, passed = links.known_before(folder)
        self.job_id = f"{folder.name}/{job.name}/{os.getpid()}"
        self.hosts = watch.JobHosts(
            hosts=job.hosts,
            agent=job.agent,
            python=job.python,
            setup=job.setup,
            env=job.env,
            networks=networks,
            passed=passed,
        )
        self.log_from = 0
        self._meeting_port = watch.MeetingPort(self.job_id, self.hosts, launcher.blamed)
        self._silence = _SilenceTimer(self._beats, deadline_s)
        self._began = time.monotonic()

    def wait(
        self,
        process: subprocess.Popen[bytes],
        limit_s: float,
        renew_guard: Callable[[], None],
        on_poll: Callable[[float], None],
    ) -> Coded | None:
        """Wait until the job ends or exceeds a timeout. Return the timeout, or None if the job ended by itself."""
        late: Coded | None = None
        while process.poll() is None and late is None:
            on_poll(self._seconds())
            renew_guard()
            if not self._job.tool and not self._silence.silent_s():  # no rank has begun
                self._meeting_port.look(runs.log_file(self._folder, self._job.name), self.log_from)
            time.sleep(_POLL_S)
            late = self._silence.late() or _too_long(self._seconds() - self._silence.paused_s, limit_s)
        on_poll(self._seconds())  # read the last rows before the folder of heartbeats is removed
        return late

    def evidence(self, exit_code: int | None, late: Coded | None) -> FailureEvidence | None:
        """Gather the evidence that shows why the job failed. Return None if the job succeeded."""
        heard = self._has_rows() or heartbeat.read_all(self._beats)
        if exit_code == 0 and heard and not _cut_short(self._beats):
            return None
        printed = _printed(self._folder, self._job, self.log_from)
        evidence = watch.gather(
            job_id=self.job_id,
            num_ranks=self._job.world.num_ranks,
            beats_folder=self._beats,
            log=printed,
            launcher=self._launcher.blamed(printed),
            reached=self.hosts,
            late=late is not None,
            silent_s=self._silence.silent_s(),
            running_s=self._seconds(),
            seen_before=self._meeting_port.answer(),
        )
        links.store(self._folder, self._job.name, evidence.links)
        return replace(
            evidence,
            no_room=runs.write_error(self._folder),
            slept_s=self._silence.slept_s(),
            connections=connections.reported(self._beats),
            failed_of_mpirun=connections.failed_of_mpirun(self._beats),
            aborted=self._launcher.aborted(printed),
        )

    def outcome(
        self, exit_code: int, late: Coded | None, evidence: FailureEvidence | None, not_ended_on: Sequence[str]
    ) -> Outcome:
        """Return how the job ended.

        `not_ended_on`: the hosts on which processes of the job could not be ended.
        """
        remarks = [CodedRemark(found.code, found.facts, found.text) for found in connections.reported(self._beats)]
        restored = tuple(remark for remark in remarks if remark.code == ConnectionCode.RESTORED)
        outcome = Outcome(self._job.name, exit_code, self._seconds(), remarks=restored)
        failure = _explain(exit_code, late, evidence, self._folder, self._job, self._has_rows())
        if failure is None:
            return outcome
        if not_ended_on:
            what = f"{failure.what}; processes on {', '.join(not_ended_on)} could not be ended from here"
            failure = replace(failure, what=what, facts={**failure.facts, "not_ended_on": not_ended_on})
        refused = exit_code == EXIT_REFUSED or _lost_a_refused_rank(evidence)
        return replace(outcome.failed(failure), refused=refused)

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _has_rows(self) -> bool:
        """Check whether this attempt stored a row. The rows of a tool are written later, from its output."""
        return self._job.tool != "" or _size(runs.results_file(self._folder, self._job.name)) > self._stored_before


def _lost_a_refused_rank(evidence: FailureEvidence | None) -> bool:
    """Check whether the launcher reports a rank that exited with EXIT_REFUSED.

    The exit code of torchrun is the same, whether or not a rank exited with EXIT_REFUSED.
    """
    if evidence is None or evidence.launcher is None:
        return False
    how = evidence.launcher.how
    return how.code == BlameCode.EXITED and how.facts["exit_code"] == EXIT_REFUSED


class _SilenceTimer:
    """Measures the time since each rank's last new heartbeat. Only this machine's clock is used.

    The timer leaves out the time in which this process itself did not run (Ctrl-Z, a paused machine). During such a
    pause, the ranks may have been paused as well. `paused_s` is the sum of all pauses in seconds.
    """

    def __init__(self, folder: Path, deadline_s: float) -> None:
        self._folder, self._deadline_s = folder, deadline_s
        self._seen: dict[int, tuple[float, float]] = {}
        self._looked = self._polled = self._began = time.monotonic()
        self._sleep_at_start_s = _machine_slept_s()
        self.paused_s = 0.0

    def late(self) -> Coded | None:
        """Return the heartbeat timeout that has expired, or None if no timeout has expired."""
        now = time.monotonic()
        if now - self._polled > _PAUSE_S:
            self._pause(now - self._polled)
        self._polled = now
        if now - self._looked < min(_HEARTBEATS_EVERY_S, self._deadline_s / 4):
            return None
        self._looked = now
        beats = heartbeat.read_all(self._folder)
        for beat in beats:
            if self._seen.get(beat.rank, (None,))[0] != beat.time_s:
                self._seen[beat.rank] = (beat.time_s, now - beat.age_s)
        if not beats:
            allowed_s = heartbeat.allowance_s(heartbeat.STARTING, self._deadline_s)
            if now - self._began <= allowed_s:
                return None
            return Coded.of(OutcomeCode.NO_SIGN_OF_LIFE, allowed_s=allowed_s)
        silent_s = self.silent_s()
        alone = [beat for beat in beats if beat.ended is not None and not beat.ended_well]
        if alone and min(silent_s[beat.rank] for beat in alone) > _OTHERS_END_S:
            return Coded.of(OutcomeCode.OTHERS_WAIT, rank=alone[0].rank, waited_s=_OTHERS_END_S)
        late = [
            silent_s[beat.rank]
            for beat in beats
            if beat.ended is None and silent_s[beat.rank] > heartbeat.allowance_s(beat.doing, self._deadline_s)
        ]
        return Coded.of(OutcomeCode.SILENCE, silent_s=max(late)) if late else None

    def _pause(self, seconds: float) -> None:
        self.paused_s += seconds
        self._began += seconds
        self._looked += seconds
        self._seen = {rank: (time_s, seen + seconds) for rank, (time_s, seen) in self._seen.items()}

    def slept_s(self) -> float:
        """Return the total seconds for which this machine was suspended since the job began."""
        return _machine_slept_s() - self._sleep_at_start_s

    def silent_s(self) -> dict[int, float]:
        """Return the seconds since the last new heartbeat, for each rank that has written a heartbeat."""
        return {rank: self._looked - seen for rank, (_, seen) in self._seen.items()}


def _machine_slept_s() -> float:
    """Return the total seconds for which this machine was suspended since it booted.

    The result is 0 if the system has no clock that includes the time in suspension.
    """
    boot_clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(boot_clock) - time.monotonic()


def _too_long(seconds: float, limit_s: float) -> Coded | None:
    return Coded.of(OutcomeCode.TOO_LONG, limit_s=limit_s) if seconds > limit_s else None


def _start(
    job: Job,
    folder: Path,
    job_id: str,
    deadline_s: float,
    share_hosts: bool,
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
        *([_SHARE] if share_hosts else []),
    ]
    words = [str(runs.document_file(folder, job.name).resolve()) if w == DOCUMENT else w for w in job.command]
    command = _under_lease(words, job, share_hosts) if job.tool else [*words, *reports]
    # Set-up lines may contain secrets, so they are not arguments of the command: all users can read a command line.
    # If this process and the guard are both killed, the kernel ends the launcher.
    tied = [sys.executable, "-I", "-S", str(Path(ends_with_parent.__file__).resolve()), str(os.getpid())]
    shell = ["/bin/sh", "-c", 'set -e; eval "$BENCH_SETUP"; exec "$@"', "/bin/sh"]
    env = {**os.environ, **resolved(job.env), "BENCH_JOB": job_id, SECRET_VARIABLE: secrets.token_hex(16)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(paths.PACKAGE_ROOT), os.environ.get("PYTHONPATH"))))
    tools = dict.fromkeys(str(Path(word).parent) for word in (job.command[0], sys.executable) if os.sep in word)
    env["PATH"] = os.pathsep.join([*tools, os.environ.get("PATH", "")])
    # hosts.py passes these variables to the other hosts, because a login there does not set them.
    env["BENCH_PYTHON"] = sys.executable
    env["BENCH_CARRY"] = ",".join([*job.env, "BENCH_JOB", SECRET_VARIABLE, lease.VARIABLE, "PYTHONPATH"])
    env[lease.VARIABLE] = str((runs.heartbeat_folder(folder, job.name) / lease.NAME).resolve())
    env["BENCH_SETUP"] = "\n".join(job.setup)
    try:
        return subprocess.Popen(
            [*tied, *shell, *command], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True
        )
    except OSError as error:
        raise RefusedError.of(
            ControllerError.NOT_STARTED, job=job.name, why=error.strerror, program=job.command[0]
        ) from None


def _under_lease(command: Sequence[str], job: Job, share_hosts: bool) -> list[str]:
    """Return a tool's command in which a wrapper starts the tool's program.

    The wrapper first acquires the same leases as a rank of this suite. Then the wrapper starts the program.
    """
    words = [job.python, "-m", _UNDER_LEASE, *([_SHARE] if share_hosts else [])]
    at = command.index(job.tool_program)
    return [*command[:at], *words, *command[at:]]


def _expected(job: Job) -> str:
    """Return the job's world as a value of the option `--expect`. The value names the hosts if their order is known."""
    hosts = "" if any("--rdzv-backend" in word for word in job.command) else ",".join(job.hosts)
    return f"{hosts or job.world.num_nodes}x{job.world.ranks_per_node}"


@contextlib.contextmanager
def ended_with_controller(group: int, lease_file: Path, ends_within_s: float) -> Iterator[Callable[[], None]]:
    """Return a context that ends a job if this process dies, even by SIGKILL or the OOM killer.

    A guard process (controller/guard.py) waits on a pipe. Only the controller's process keeps the write end of the pipe
    open. While the controller's process lives, the guard renews the lease. The lease tells the ranks on all hosts that
    the controller lives. When the controller's process has ended, the guard sends TERM to the local process group.
    After `ends_within_s` seconds, the guard sends KILL. A stopped controller (Ctrl-Z) does not end the job.

    Without a guard, no process renews the lease, and the lease expires. The context therefore yields a function that
    starts a new guard if the guard has ended. Raises RefusedError if the first guard cannot be started.
    """
    reading, writing = os.pipe()
    try:
        guard, started_s = _guard(group, lease_file, ends_within_s, reading), time.monotonic()

        def renew() -> None:
            nonlocal guard, started_s
            if guard.poll() is None or time.monotonic() - started_s < lease.RENEW_S:
                return
            started_s = time.monotonic()
            with contextlib.suppress(RefusedError):  # the next call tries again
                guard = _guard(group, lease_file, ends_within_s, reading)

        try:
            yield renew
        finally:
            os.write(writing, b"\n")
            guard.wait()
    finally:
        os.close(reading)
        os.close(writing)


def _guard(group: int, lease_file: Path, ends_within_s: float, reading: int) -> subprocess.Popen[bytes]:
    words = (str(group), str(lease_file.resolve()), str(ends_within_s))
    try:
        return subprocess.Popen(
            [sys.executable, "-S", "-m", "bench.controller.guard", *words],
            cwd=paths.PACKAGE_ROOT,
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise RefusedError.of(ControllerError.NO_GUARD, why=error.strerror) from None


def _end(process: subprocess.Popen[bytes], job_id: str, hosts: watch.JobHosts, well: bool) -> tuple[str, ...]:
    """Send TERM, then KILL, to the job's process group and to all processes with the job's id.

    The function ends the processes on every host, or only on this machine if the job succeeded (`well`). Returns the
    hosts that did not answer.
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
    return watch.end_everywhere(job_id, hosts)


def _printed(folder: Path, job: Job, start: int) -> str:
    """Return the output of the ranks and the launcher in this attempt.

    This output is the part of the job's log after byte `start`.
    """
    with runs.log_file(folder, job.name).open("rb") as log:
        log.seek(start)
        return log.read().decode(errors="replace")


def _mask(folder: Path, job: Job, log_from: int) -> None:
    """Mask secrets in the output of this attempt.

    The output is in the log from byte `log_from` on. The output of another tool is also in a separate file.
    """
    known = (*secrets_of(job.env), *secrets_of(job.factors))
    with contextlib.suppress(OSError):
        masked_file(runs.log_file(folder, job.name), known, log_from)
        if job.tool:
            masked_file(runs.output_file(folder, job.name), known)


def _explain(
    exit_code: int,
    late: Coded | None,
    evidence: FailureEvidence | None,
    folder: Path,
    job: Job,
    has_rows: bool,
) -> Failure | None:
    """Return why a job failed, with rank and host if known, or None if it succeeded.

    A job has succeeded if all its rows are stored, even if its launcher reports an error. A skipped row also counts as
    stored.
    `has_rows`: whether this attempt stored a row. Rows of earlier attempts do not count.
    """
    cause = root_cause.find(evidence) if evidence is not None else None
    if late is not None:
        return _explain_late(late, cause, evidence)
    if (exit_code == 0 and evidence is None) or (not job.tool and has_rows and _is_whole(folder, job)):
        return None
    # A launcher that was killed may not have started all ranks. A rank without any heartbeat is then not the cause.
    if cause is not None and (exit_code >= 0 or (cause.rank is not None and cause.code != OutcomeCode.NEVER_HEARD)):
        return cause
    log = str(runs.log_file(folder, job.name))
    words = root_cause.last_words(evidence) if evidence is not None else None
    if exit_code >= 0 and words is not None:
        return replace(words, what=f"{words.what}; its output is in {log}", rank=None, host=None)
    how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
    own = _OWN_WORDS.findall(_printed(folder, job, 0))
    facts: dict[str, Any] = {"how": how, "saying": own[-1] if own else None, "log": log, "exit_code": exit_code}
    if job.tool:  # a tool's stdout is in a separate file
        output = str(runs.output_file(folder, job.name))
        return Failure.of(OutcomeCode.TOOL_FAILED, tool=job.tool, output=output, **facts)
    return Failure.of(OutcomeCode.LAUNCHER_FAILED, launcher=Path(job.command[0]).name, **facts)


def _explain_late(late: Coded, cause: Failure | None, evidence: FailureEvidence | None) -> Failure:
    """Return why the controller had to end a job that exceeded a timeout."""
    if cause is not None and late.code == OutcomeCode.OTHERS_WAIT:
        return replace(cause, facts={**cause.facts, "late": late.code})
    if cause is not None:
        return replace(cause, what=f"{late.text}: {cause.what}", facts={**cause.facts, "late": late.code})
    phase = root_cause.phase(evidence) if evidence is not None else {}
    if phase and late.code == OutcomeCode.TOO_LONG:
        return Failure.of(OutcomeCode.TOO_SLOW, late=late.code, **late.facts, **phase)
    code, facts = OutcomeCode(late.code), {**late.facts, **phase}
    return Failure(code.words(facts), None, None, code, facts)  # a rank in the facts only ended; it is not the cause


def _size(file: Path) -> int:
    """Return a file's size in bytes, or 0 if there is no file.

    The function opens the file first, because NFS may otherwise not show what other hosts wrote.
    """
    with contextlib.suppress(OSError), file.open("rb") as opened:
        return opened.seek(0, os.SEEK_END)
    return 0


def _is_whole(folder: Path, job: Job) -> bool:
    try:
        attempts = jsonl.read(runs.results_file(folder, job.name)).attempts
    except UsageError:
        return False
    return job.num_records is not None and len(attempts[-1].records) >= job.num_records


def _cut_short(beats: Path) -> bool:
    """Check whether a rank ended before it finished its work.

    Some launchers report exit code 0 even if a rank ended early.
    """
    return any(not beat.ended_well for beat in heartbeat.read_all(beats))


def _empty(beats: Path) -> None:
    for file in beats.iterdir():
        file.unlink()
