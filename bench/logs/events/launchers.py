"""Read launchers' reports of failed jobs: MPICH, Intel MPI (Hydra), Open MPI (ORTE, PRRTE), srun, PALS, and shells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from bench.logs.events import _ends
from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of, numbers

ABORT = MessageKind(
    "mpi-abort",
    Role.CAUSE,
    "rank {rank} called MPI_Abort< with code {error_code}>",
    0.8,
    "read the output of this rank before the abort",
)
MPI_ERROR = MessageKind(
    "mpi-error",
    Role.CAUSE,
    "MPI reported an error<: {error}>",
    0.8,
    "correct this call; the error message names its arguments",
)
_MPI_ALONE = MessageKind(
    "mpi-alone",
    Role.CAUSE,
    "a process is the only one of its communicator: {error}. If the communicator is MPI_COMM_WORLD, an mpirun or srun "
    "of another MPI started the job",
    0.85,
    "start the job with the mpirun of the MPI that the program is linked with",
    "ldd PROGRAM | grep mpi; which mpirun",
)
MPI_SIZES = replace(
    MPI_ERROR,
    what="a rank received an MPI message of another size than its call expects: the ranks' calls differ in size, "
    "type or order<: {error}>",
    step="compare the count, the type, the tag and the order of this call between the ranks",
)
MPI_UNNAMED = MessageKind(
    "mpi-error-unnamed",
    Role.NETWORK,
    "MPI reported an error and does not name its reason<: {error}>",
    0.5,
    "read the error stack below this line, and the other ranks' output before it",
)
MPI_PEER_LOST = MessageKind(
    "mpi-process-failed",
    Role.PEER,
    "MPI reported that another process of the job ended<: {error}>",
    0.35,
    "look for the process that ended first; its own output has the reason",
)
CONNECTION_LOST = MessageKind(
    "launcher-connection-closed",
    Role.PEER,
    "a process lost its connection to the launcher: another process or the launcher ended earlier",
    0.35,
    MPI_PEER_LOST.step,
)
MPI_ASSERTION = MessageKind(
    "mpi-assertion",
    Role.CAUSE,
    "the MPI library found an error in its own state: {error}",
    0.75,
    "search the MPI library's issues for this assertion, and try another version",
)
NOT_STARTED = MessageKind(
    "not-started",
    Role.CAUSE,
    "the launcher could not start the job: {error}",
    0.95,
    "correct the launcher's options",
)
_FATAL = r"Fatal error in (?P<error>(?:P?MPI|internal)_\w+.*"
_ABORTED = (  # MPICH and Intel MPI; the reason follows
    r"(?:\[(?P<host>[\w.-]+)\] - )?Abort\((?P<error_code>-?\d+)\)(?: on node \d+)? "
    r"\(rank (?P<rank>\d+) in comm \S+\): (?:Fatal error in|.{0,200}rror stack) ?(?P<error>.*"
)
_UNNAMED, _OTHER_SIZE = r"Other MPI error.*)", r"(?:[Mm]essage truncated|[Mm]essage sizes do not match).*)"
# Cray MPICH names the rank and the node before an error.
_CRAY = r"(?:\b[Rr]ank (?P<rank>\d{1,9}) \[\w{3} \w{3} [ \d:]{8,24}\] \[(?P<host>[\w.-]{1,253})\] )?"
_NO_PROGRAM = replace(
    NOT_STARTED,
    what="a node could not start the program: {error}",
    weight=0.7,
    step="check that every node has this file, that it may be executed, and that its interpreter is there",
    command="srun ls -l FILE",
)
_NO_HELPER = replace(_NO_PROGRAM, advisory=True)  # the program may be a helper, and the job goes on
_LINES: tuple[tuple[str, MessageKind], ...] = (
    (_ABORTED + _UNNAMED, MPI_UNNAMED),
    (_ABORTED + _OTHER_SIZE, MPI_SIZES),
    (_ABORTED + ")", MPI_ERROR),
    (r"Abort\((?P<error_code>-?\d+)\) on node \d+ \(rank (?P<rank>\d+) in comm \S+\)", ABORT),
    (r"application called MPI_Abort\(\S+ (?P<error_code>-?\d+)\) - process (?P<rank>\d+)", ABORT),
    (r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator", ABORT),
    (_CRAY + _FATAL + _UNNAMED, MPI_UNNAMED),
    (_CRAY + _FATAL + _OTHER_SIZE, MPI_SIZES),
    (_CRAY + _FATAL + ")", MPI_ERROR),
    (r"(?P<error>Invalid rank has value \d+ but must be nonnegative and less than 1\b)", _MPI_ALONE),
    (r"(?P<error>[Mm]essage sizes do not match across processes in the collective.*)", MPI_SIZES),
    (r"Assertion failed in file (?P<error>\S+ at line \d+.*)", MPI_ASSERTION),
    (r"rank (?P<rank>\d+) in job \d+\s+(?P<host>\S+?)_\d+\s+caused collective abort", ABORT),
    (
        r"lost communication with a remote daemon|[Rr]emote daemon\s*: .*? on node (?P<host>[\w.-]+)"
        r"|(?:srun|salloc|sbatch): error: Node failure on (?P<host_2>[\w.,\[\]-]+)|DUE TO NODE FAILURE|NODE_FAIL",
        _ends.NODE_LOST,
    ),
    (
        r"oom[_-]kill(?:er)? event|(?<!: )Out Of Memory|oom-kill:|Out of memory: Killed process (?P<pid>\d+) "
        r"\((?P<program>[^)]*)\)",
        _ends.HOST_MEMORY,
    ),
    (r"APPLICATION TIMED OUT, TIMEOUT = (?P<seconds>\d+)s", _ends.TIME_LIMIT),
    (
        r"Sending Ctrl-C to processes as requested|srun: sending Ctrl-C to|mpirun: Forwarding signal 2 ",
        _ends.INTERRUPTED,
    ),
    (r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE TO (?P<cause>PREEMPTION|JOB REQUEUE)", _ends.CANCELLED),
    (r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT [\w:.-]+ \*\*\*", _ends.STEP_ENDED),
    (r"time limit for job execution has been reached|DUE TO TIME LIMIT|timeout: sending signal", _ends.TIME_LIMIT),
    (
        r"(?P<error>not enough slots available.*|could not (?:access|find) (?:the )?executable.*|"
        r"unable to find (?:the )?(?:specified )?executable.*)|"
        r"srun: error: (?P<error_2>Task launch for \S+ failed on node (?P<host>[\w.-]+).*)",
        NOT_STARTED,
    ),
    (
        r"(?:\[proxy:\d+:\d+@(?P<host>[\w.-]{1,253})\].{0,200}?)?(?P<error>execvp error on file .*)"
        r"|slurmstepd: error: (?P<error_2>execve\(\): .*)",
        _NO_HELPER,
    ),
)
# Patterns for messages that a process ended. srun may name several ranks. `signal_name` is used if the number is
# missing.
_ENDS = (
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on\s+signal (?P<signal>\d+)",
    r"has exited due to process rank (?P<rank>\d+) with PID (?P<pid>\d+) on\s+node (?P<host>\S+)",
    r"Process name: \[\S*[,@]\d+\]?,\s?(?P<rank>\d+)\].*?Exit code:\s+(?P<exit_code>-?\d+)",
    r"srun: error: (?:(?P<host>[\w.-]+): )?tasks? (?P<ranks>[\d,-]+): (?:Exited with exit code (?P<exit_code>\d+)"
    r"|(?P<signal_name>[A-Z][A-Za-z ]+))",
    r"(?<![\w.-])(?P<host>[\w.-]{1,253}): rank (?P<rank>\d+) "
    r"(?:died from signal (?P<signal>\d+)|exited with code (?P<exit_code>\d+))",
    r"\b[Rr]ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?(?:crashed with exit|exited with) code "  # composer
    r"(?P<exit_code>-?\d+)",
    r"^Process (?P<rank>\d+) exit with status code (?P<exit_code>-?\d+)\.",  # horovodrun
    r"^Process name: (?P<rank>\d+) .*?Exit code:\s+(?P<exit_code>-?\d+)",
    r"Rank (?P<rank>\d+) scheduler is dead",  # SGLang
    r"\bprocess \d+ terminated with signal (?P<signal_name>SIG[A-Z]+)",  # torch.multiprocessing; it is no rank
    r"RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT (?P<host>\S+).*?(?:KILLED BY SIGNAL: (?P<signal>\d+)"
    r"|EXIT (?:STATUS|CODE): (?P<exit_code>\d+))",
    r"PID (?P<pid>\d+) RUNNING AT (?P<host>\S+).*?EXIT STRING: [^(]*\(signal (?P<signal>\d+)\)",
    r"PID (?P<pid>\d+) RUNNING AT (?P<host>\S+).*?EXIT CODE: (?P<exit_code>\d+)",
    r"^=\s{2,}EXIT CODE: (?P<exit_code>\d+)",  # older Hydra names no process
    r"\[(?P<host>[\w.-]+):(?P<pid>\d+)\] Signal: [^(]*\((?P<signal>\d+)\)",
    r"\[(?P<host>[\w.-]+):(?P<pid>\d+):\d+:\d+\] Caught signal (?P<signal>\d+)",
    r"\*\*\* (?P<signal_name>SIG[A-Z]+) \(@0x[0-9a-f]+\) received by PID (?P<pid>\d+)",  # glog
    r"Program received signal (?P<signal_name>SIG[A-Z]+)",
    r"\[launch\.py:\d+:\w+\] .* exits with return code = (?P<exit_code>-?\d+)",  # DeepSpeed does not name the rank
    r"command terminated with exit code (?P<exit_code>\d+)",
    r"line \d+:\s+(?P<pid>\d+) (?P<signal_name>Killed|Segmentation fault|Aborted|Bus error|Terminated|"
    r"Floating point exception)\b",
    # Python's fault handler
    r"^(?:\[(?:rank|default)\d{1,6}\]:\s?)?Fatal Python error: "
    r"(?P<signal_name>Segmentation fault|Aborted|Bus error|Illegal instruction)\b",
    r"^(?P<signal_name>Killed|Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception)"
    r"(?: \(core dumped\))?$",
)
_LINE_PATTERNS = tuple((re.compile(pattern), kind) for pattern, kind in _LINES)
_END_PATTERNS = tuple(re.compile(pattern, re.DOTALL) for pattern in _ENDS)
_PROBE = re.compile(r"\bcommand terminated with exit code")  # `kubectl exec`: scripts also use it to ask for a state
# The patterns of the first and of the last line of messages with several lines.
_WRAPPED = re.compile(r"process rank \d+ with PID|Process name: |PID \d+ RUNNING AT")
_WRAPPED_END = re.compile(
    r"exited on\s+signal \d+|Exit code: +-?\d+|KILLED BY SIGNAL|EXIT STRING|EXIT STATUS|calling|FAQ page"
)
_REPORTED_ENDS = (_ends.EXITED, _ends.KILLED, _ends.ABORTED)
_OF_LAUNCHER = re.compile(r"\s*$|\[(?:proxy:|mpiexec@)|(?:srun|slurmstepd|mpiexec|mpirun): |=")
_MOST_AFTER_START = 30  # lines of programs between a program that a node could not start and the report of its end
_MOST_WRAPPED = 12  # lines of a message, at most


class LauncherReports(EventFormat):
    """Yields one event for each process that a launcher reports as ended.

    If a line of srun reports several tasks, each task gives one event.
    """

    hints = (
        "Abort(",
        "MPI_Abort",
        "MPI_ABORT",
        "Fatal error in",
        "essage sizes do not match",
        "Invalid rank has value",
        "execvp error on file",
        "execve(): ",
        "Assertion failed in",
        "Sending Ctrl-C",
        "sending Ctrl-C",
        "Forwarding signal",
        "CANCELLED",
        "received signal",
        "exits with return code",
        "command terminated",
        "salloc: error",
        "*** ",
        "collective abort",
        "remote daemon",
        "Remote daemon",
        "NODE FAIL",
        "NODE_FAIL",
        "Node failure",
        "oom",
        "Out Of Memory",
        "Out of memory",
        "TIMED OUT",
        "time limit",
        "TIME LIMIT",
        "sending signal",
        "slots available",
        "executable",
        "process rank",
        "Process name:",
        "srun: error",
        "died from signal",
        "exited with code",
        "exit with status code",
        "crashed with exit code",
        "scheduler is dead",
        "terminated with signal",
        "RUNNING AT",
        "EXIT CODE: ",
        "Signal: ",
        "Caught signal",
        "Killed",
        "Segmentation fault",
        "Bus error",
        "Aborted",
        "Terminated",
        "Illegal instruction",
        "Floating point exception",
    )

    def __init__(self) -> None:
        """Start with no open message. Some messages have several lines."""
        self._wrapped: list[str] = []
        self._begin: EventLine | None = None
        self._unstarted: Event | None = None
        self._num_after = 0

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether a message is incomplete, or a launcher may still report the end of a program that could not start."""
        return self._begin is not None or self._unstarted is not None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the events of a single line, or of a message with several lines that ends with this line."""
        found = list(self._reported(line))
        yield from found
        yield from self._not_started(line, found)

    def _not_started(self, line: EventLine, found: Sequence[Event]) -> Iterator[Event]:
        """Yield the event of a program that could not start, if a launcher then reports that a process ended."""
        unstarted = next((event for event in found if event.kind is _NO_HELPER), None)
        if unstarted is not None:
            self._unstarted, self._num_after = unstarted, 0
        elif self._unstarted is not None and any(event.kind in _REPORTED_ENDS for event in found):
            yield replace(self._unstarted, kind=_NO_PROGRAM)
            self._unstarted = None
        elif self._unstarted is not None and self._begin is None and _OF_LAUNCHER.match(line.text) is None:
            self._num_after += 1
            if self._num_after > _MOST_AFTER_START:
                self._unstarted = None

    def _reported(self, line: EventLine) -> Iterator[Event]:
        if self._begin is None and _WRAPPED.search(line.text):
            self._begin = line
        if self._begin is not None:
            self._wrapped.append(line.text.lstrip("= "))
            if _WRAPPED_END.search(line.text) is None and len(self._wrapped) < _MOST_WRAPPED:
                return
            text = " ".join(part for part in self._wrapped if part.strip("-"))
            if "EXIT CODE" in text and "EXIT STRING" not in text and len(self._wrapped) < _MOST_WRAPPED:
                return
            yield from self._ended(text)
            return
        for pattern, kind in _LINE_PATTERNS:
            found = pattern.search(line.text)
            if found is not None:
                yield event_of(kind, line, found)
                return
        yield from _ends_of(line, line.text)

    def finish(self) -> Iterator[Event]:
        """Yield the event of a message that is incomplete at the end of the file.

        A program that could not start is a failure if only launchers printed lines after the message about it.
        """
        if self._begin is not None:
            yield from self._ended(" ".join(self._wrapped))
        if self._unstarted is not None and self._num_after == 0:
            yield replace(self._unstarted, kind=_NO_PROGRAM)

    def _ended(self, text: str) -> Iterator[Event]:
        begin, self._begin, self._wrapped = self._begin, None, []
        if begin is not None:
            yield from _ends_of(begin, text)


FORMAT = LauncherReports


def _ends_of(line: EventLine, text: str) -> Iterator[Event]:
    for pattern in _END_PATTERNS:
        found = pattern.search(text)
        if found is None:
            continue
        groups = found.groupdict()
        name = (groups.get("signal_name") or "").strip()
        signal = int(groups["signal"][:4]) if groups.get("signal") else _ends.signal_of(name)
        code = int(groups["exit_code"][:6]) if groups.get("exit_code") else None
        if code is not None and "EXIT CODE: " in text and signal is None:
            signal, code = _of_hydra(code)
        kind = _kind_of(name, signal, code, text)
        if _PROBE.search(text) and kind is _ends.EXITED:
            kind = replace(kind, advisory=True)
        if signal is None and code is not None:
            signal = _ends.signal_of_exit(code)
        facts: dict[str, Any] = {"signal": signal, "exit_code": code, "first_observed": "ranks" not in groups}
        host = (groups.get("host") or "").rstrip(":.,") or None
        fields: dict[str, Any] = {"host": host, "facts": facts, "printed": text}
        if groups.get("pid") and int(groups["pid"][:12]):
            fields["pid"] = int(groups["pid"][:12])
        if code == 0:
            return
        if "ranks" in groups:
            for rank in numbers(groups["ranks"]):
                yield event_of(kind, line, rank=rank, **fields)
        else:
            named = groups.get("rank")
            yield event_of(kind, line, rank=int(named[:9]) if named else None, **fields)
        return


def _of_hydra(code: int) -> tuple[int | None, int | None]:
    """Return the signal and the exit code from Hydra's "EXIT CODE" line.

    Hydra prints a signal's number in the same way as an exit code. Programs rarely exit with 9, 11 or 15, so these
    numbers are treated as signals. Older versions print the wait status, which is a multiple of 256 if the process
    ended itself.
    """
    if code in (9, 11, 15):
        return code, None
    return None, code >> 8 if code >= 256 and code % 256 == 0 else code


def _kind_of(name: str, signal: int | None, code: int | None, text: str) -> MessageKind:
    if name == "Out Of Memory":
        return _ends.HOST_MEMORY
    if signal is not None:
        return _ends.by_signal(signal)
    if code is not None:
        return _ends.by_exit_code(code)
    if "abort" in text:
        return _ends.ABORTED
    return replace(_ends.EXITED, what="the process ended early")
