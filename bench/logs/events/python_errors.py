"""Read the last line of a Python traceback.

A launcher may print a prefix before this line, as in `[rank3]: ValueError`. Errors of libraries have formats of their
own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.logs.events import _ends
from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of
from bench.logs.readers import _lines

_RAISED = re.compile(
    r"^(?:\[(?:rank|default)(?P<rank>\d{1,6})\]:\s?)?"
    r"(?:[A-Za-z][\w.-]{0,100}\d(?:[\w.-]{0,100})?: "  # a host, as pdsh prints it
    r"|\[(?P<host>[A-Za-z][\w.-]{0,100}\d[\w.-]{0,100}(?=:\d)|(?=" + _lines.HOST_NAME + r")[\w.-]{1,200})"
    r"(?::\d{1,4})?\]:?\s"  # a host, and the rank on it
    r"|\[[A-Za-z][\w.-]{0,100}\d[\w.-]{0,100}\]:?\s)?"  # a GPU, a model or another word
    r"(?P<error>(?:[A-Za-z_]\w{0,80}\.){0,8}(?:[A-Z]\w{0,80})?(?:Error|Exception|Interrupt|Exit))(?:: "
    r"(?P<message>.*))?$"
)
RAISED = MessageKind(
    "python-error",
    Role.CAUSE,
    "the program raised {error}<: {message}>",
    0.75,
    "correct the program; the lines above this one are its stack",
)
_STOPPED = MessageKind("terminated", Role.STOPPED, "the launcher ended the process: {error}", 0.1)
_COMMUNICATION = MessageKind(
    "communication-failed",
    Role.PEER,
    "an operation of torch's communication failed<: {message}>",
    0.3,
    "look for the rank that ended or failed first",
)
_STORE = replace(
    _ends.STORE_UNREACHABLE,
    what="the rendezvous' store cannot be reached<: {message}>",
    weight=0.7,
    step="check the rendezvous' endpoint, its port and the firewall between the nodes",
    command="nc -vz HOST PORT",
)
_NOT_STARTED = MessageKind(
    "ranks-did-not-start",
    Role.ABSENT,
    "too few nodes reached the rendezvous in time",
    0.7,
    "check that every node started with the same endpoint, id and number of nodes",
)
CLOSED = MessageKind(
    "rendezvous-closed",
    Role.PEER,
    "the rendezvous was closed: other nodes ended before",
    0.3,
    "look for the node that ended first",
)
_BROKEN = MessageKind(
    "connection-broke",
    Role.PEER,
    "the program raised {error}<: {message}>",
    0.3,
    "look for the rank or process that ended first: it closed the connection",
)
_COORDINATION = MessageKind(
    "communication-failed",
    Role.PEER,
    "an operation of JAX's coordination service failed<: {message}>",
    0.3,
    "look for the process that ended, hung or never started",
)
NO_INPUT_OUTPUT = replace(
    RAISED,
    step="check the file or device that the program used: the lines above this one are its stack; without a file, the "
    "terminal of the job closed",
)
COMMAND_FAILED = replace(
    RAISED,
    what="a command that the program started failed<: {message}>",
    weight=0.4,
    step="read the output of this command: it is not in these logs",
)
SCRIPT_FAILED = replace(COMMAND_FAILED, step="read the output of this program, which may be in another file")
SERVER_FAILED = replace(
    RAISED,
    what="a server failed to answer a request of the program: {error}<: {message}>",
    weight=0.7,
    step="read the log of the server: its own exception has the reason",
)
_SPAWNED_ENDED = replace(
    _ends.EXITED,
    what="process {local_rank} of torch.multiprocessing.spawn ended with an exception, whose last line these logs lack",
    step="read this process's own output",
)
LOADER_ENDED = replace(
    RAISED,
    what="a process of the data loader ended<: {message}>",
    step="look for the process's own error, and check whether the kernel ended it for lack of memory",
    command="dmesg -T | grep -iE 'killed process|out of memory'",
)
_LOADER_MEMORY = MessageKind(
    "loader-memory",
    Role.CAUSE,
    "a process of the data loader crashed (bus error): /dev/shm is full or too small",
    0.85,
    "give the container more shared memory, or lower the number of data-loader workers",
    "df -h /dev/shm; docker run --shm-size=8g ...",
)
# The name or the message of an exception -> what it means
_MEANINGS = (
    (
        re.compile(r"\bXlaRuntimeError\b.*(?:Barrier timed out|oordination ?[Ss]ervice|tasks are unhealthy)"),
        _COORDINATION,
    ),
    (re.compile(r"\bRendezvousConnectionError"), _STORE),
    (re.compile(r"connect\(\) timed out\. Original timeout"), _STORE),
    (re.compile(r"\bRendezvousTimeoutError"), _NOT_STARTED),
    (re.compile(r"\bRendezvous(?:Closed|GracefulExit)Error"), CLOSED),
    (re.compile(r"\b(?:ActorDied|RayActor|ActorUnavailable|WorkerCrashed|NodeDied)Error"), _ends.WORKER_LOST),
    (re.compile(r"DataLoader worker .* killed by signal: Bus error"), _LOADER_MEMORY),
    (re.compile(r"DataLoader worker .* killed by signal: Killed"), _ends.KILLED),
    (re.compile(r"DataLoader worker .* exited unexpectedly"), LOADER_ENDED),
    (re.compile(r"\bOSError: \[Errno 5\]"), NO_INPUT_OUTPUT),
    (
        re.compile(
            r"\bCalledProcessError: Command '?\[?'?(?:[^\s',]{0,300}?(?:python[\d.]{0,9}|\b(?:ba|z|da)?sh)\b['\s]"
            r"|\S{1,300}\.(?:py|sh)\b)"
        ),
        SCRIPT_FAILED,
    ),
    (re.compile(r"\bCalledProcessError: Command "), COMMAND_FAILED),
    (
        re.compile(
            r"\b(?:(?:ConnectionReset|ConnectionAborted|BrokenPipe|EngineDead|HorovodInternal)Error|"
            r"(?:DeadlockDetected|ProcessExited)Exception)\b|\bRuntimeError: .*(?:communicator was aborted|Broken pipe|"
            r"Connection reset by peer|Socket Timeout|timeout caused pair closure|Engine core initialization failed)"
            r"|\bException: WorkerProc initialization failed due to an exception in a background process"
        ),
        _BROKEN,
    ),
    (re.compile(r"DataLoader worker .* killed by signal: (?:Terminated|Interrupt|Hangup)"), _STOPPED),
    (
        re.compile(
            r"\bserver\b.{0,60}\b(?:failed|returned|responded|answered|status)\b.{0,30}\b50\d\b|"
            r"\b50\d,? (?:Internal )?Server Error|\b(?:HTTP|status|code)\b.{0,20}\b50\d\b",
            re.IGNORECASE,
        ),
        SERVER_FAILED,
    ),
)
# what web servers print before their own exception: uvicorn, Flask
_IN_SERVER = re.compile(r"Exception in ASGI application|\bException on \S{1,200} \[[A-Z]{3,7}\]")
_OWN_RANK = re.compile(r"\[?[Rr]ank[ :=]{0,2}(?P<rank>\d{1,6})\]?[:,]\s")  # the rank that raised, in its message
# The message of an exception that ends so continues on the next lines. TensorFlow prints the exception of a function
# that it traced below these words.
_CONTINUES = re.compile(r":\s*$")
_TRACED = "in user code:"
_NESTED = re.compile(
    r"^\s{2,80}(?P<error>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt)): (?P<message>\S.*)"
)
_MOST_CONTINUED, _MOST_TRACED = 8, 60  # lines
_LONGEST_CONTINUED = 300  # characters
_FRAME = 'File "'
_PIN_MEMORY = "_pin_memory_loop"  # of the thread of the data loader
_HELPERS = re.compile(
    r"Exception in thread (?:\S{1,80} \(_pin_memory_loop\)|QueueFeederThread)|\bin _pin_memory_loop\b"
)
_CLOSED_PIPE = (
    "EOFError",
    "ConnectionResetError",
    "ConnectionAbortedError",
    "ConnectionRefusedError",
    "BrokenPipeError",
)
_BEGIN = "Traceback (most recent call last):"
_ORIGINAL = "Original Traceback"  # below an exception that torch raised again in another process or thread
# An exception about one of another process, whose traceback follows
_WRAPPER = re.compile(
    r"Exception: CheckpointException ranks:|: Caught \w{1,80} in (?:DataLoader worker|replica|pin memory)"
)
_OF_RANK = re.compile(r"\(RANK (?P<rank>\d{1,6})\)")  # the process of the wrapped exception
_WHOLE_PROGRAM = " in <module>"  # the first frame of the stack of an exception that no code of the program caught
_CHAINED = re.compile(r"(?:The|During handling of the) above exception")  # between two exceptions of one traceback
_LONGEST_GAP = 5  # lines between a handled exception and the words that the next one belongs to it
_SPAWNED = re.compile(r"^-- Process (?P<local_rank>\d{1,6}) terminated with the following error:")
# A line of a logger with a level at which programs report what they handle themselves
_HANDLED = re.compile(
    r"\s{0,8}(?:[DIW]\d{4} \d\d:\d\d:\d\d|"  # glog, absl
    r"(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]{0,10}Z?\]?[\s|:,-]{0,8}"  # a date, and names of loggers
    r"(?:(?!ERROR|CRITICAL|FATAL)(?:\[(?!ERROR)[^\]\s]{1,80}\]|[\w./]{1,80})[\s|:,-]{1,8}){0,5}?)?"
    r"\[?(?:DEBUG|INFO|WARN(?:ING)?)(?![\w.]))"
)
_OF_ERROR = re.compile(
    r"exception|error|fail|\bretr(?:y|ies)|could ?n[o']t|cannot|unable|caught|ignor|skip|traceback", re.IGNORECASE
)
# vLLM's logger prints its prefix before every line of a traceback. Files `serving_*.py` answer requests: an exception
# there is the reason for one answer.
_LOGGED_BY_VLLM = re.compile(
    r"(?:\([^()]{0,200}\)\s{1,4}){0,4}(?:(?:DEBUG|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \["
    r"|ERROR \d\d-\d\d \d\d:\d\d:\d\d \[serving_)"
)
_LAUNCHERS = (
    *("torchrun", "deepspeed", "accelerate", "horovodrun", "mpirun", "mpiexec", "srun", "orterun", "prterun"),
    *("torch.distributed.launch", "torch.distributed.run", "deepspeed.launcher.launch", "accelerate.commands.launch"),
    *("launch.py", "torch_xla.distributed.xla_dist", "composer", "colossalai", "aprun", "jsrun", "ray", "pdsh", "ssh"),
)
_MOST_WORDS = 12  # words of a command in which a launcher is searched
_REPORT_OF_HOROVOD = "Horovod detected that one or more processes exited with non-zero status"
_MAY_BE_HANDLED = (
    RAISED,
    COMMAND_FAILED,
    SCRIPT_FAILED,
    SERVER_FAILED,
    _BROKEN,
)  # with other meanings, the job cannot go on
_IGNORED = "Exception ignored in"
_LONGEST_TRACEBACK = 100
_LONGEST_LABEL = 100
_MOST_LABELS = 4_096
_INPUT_ENDED = ("SystemExit", "GeneratorExit")
_TOLD_TO_STOP = ("SignalException", "SIGTERMException", "KeyboardInterrupt")
_REPORTS = ("ChildFailedError", "ProcessRaisedException")  # about processes, which have their own events


class _Continued:
    """An exception whose message continues on the next lines of its process.

    Lines of other processes may be between the lines of the message.
    """

    def __init__(self, event: Event, is_traced: bool, rank: int | None) -> None:
        """Begin the message with its first line.

        `is_traced`: whether another exception is printed after this exception.
        `rank`: the rank that a launcher printed at the beginning of the line.
        """
        self._event, self.is_traced, self.rank = event, is_traced, rank
        self._parts: list[str] = []
        self._nested: re.Match[str] | None = None

    def add(self, line: EventLine, rest: str | None) -> bool:
        """Add a line. Return whether the next line may continue the message.

        `rest`: the line without the label of the process, or None if the line is from another process.
        """
        if line.number - self._event.line > (_MOST_TRACED if self.is_traced else _MOST_CONTINUED):
            return False
        if rest is None:
            return True
        text = rest.strip()
        is_indented = rest.removeprefix(":").removeprefix(" ")[:1] in ("\t", " ")
        if self.is_traced:
            self._nested = _NESTED.match(rest) or self._nested
            return is_indented or not text
        if not text or not (is_indented or (self._parts and text.endswith(":"))) or _RAISED.match(text):
            return False
        if text.startswith((_BEGIN, _FRAME)) or _CHAINED.match(text) is not None:
            return False
        self._parts.append(text)
        return True

    def event(self) -> Event:
        """Return the exception with its whole message."""
        event, nested = self._event, self._nested
        if nested is not None:
            facts = {**event.facts, "error": nested["error"], "message": nested["message"].strip()[:_LONGEST_CONTINUED]}
            return replace(event, facts=facts, printed=f"{event.printed} {nested[0].strip()}"[:_LONGEST_CONTINUED])
        if not self._parts:
            return event
        message = event.facts["message"]
        for part in self._parts:
            longer = f"{message} {part}"
            if len(longer) > _LONGEST_CONTINUED and message != event.facts["message"]:
                break
            message = longer[:_LONGEST_CONTINUED]
        return replace(event, facts={**event.facts, "message": message}, printed=f"{event.facts['error']}: {message}")


class PythonErrors(EventFormat):
    """Yields one event for an exception that no other format recognises.

    If the program's logger printed an exception after a warning, the program handled the exception, so the event is
    advisory. If the stack begins with the program's first line, the program did not handle the exception.
    """

    is_general = True
    hints = (
        "Error",
        "Exception",
        "Interrupt",
        _BEGIN,
        "above exception",
        _WHOLE_PROGRAM,
        _PIN_MEMORY,
        "terminated with the following error",
    )

    def __init__(self) -> None:
        """Start without any exception."""
        # the label of a process -> the line at which its next exception was announced to be
        self._ignored: dict[str, int] = {}
        self._handled: dict[str, int] = {}
        self._of_server: dict[str, int] = {}
        self._of_helper: dict[str, int] = {}  # of a thread whose pipe the end of its program closes
        self._last_handled: dict[str, int] = {}  # the label of a process -> the line of its last handled exception
        self._continued: set[str] = set()  # the labels of processes whose next traceback continues a handled one
        self._spawned: tuple[EventLine, re.Match[str]] | None = None
        self._nested_line = 0  # the last line that belongs to an exception of a traced function
        self._continues: dict[str, _Continued] = {}  # the label of a process -> its exception, whose message continues
        self._wrappers: dict[str, Event] = {}  # the label of a process -> its exception about another one
        # the label of a process -> the line and the rank of the wrapped exception's traceback
        self._wrapped: dict[str, tuple[int, int | None]] = {}

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the next line may belong to the traceback of a process that torch.multiprocessing started.

        The next line may also continue a message.
        """
        return self._spawned is not None or bool(self._continues)

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield an event for the exception that is named at the beginning of the line."""
        if self._continues:
            yield from self._continued_by(line)
        if line.number == self._nested_line or self._announces(line):
            return
        found = _RAISED.match(line.text)
        if found is None:
            self._read_spawned(line)
            return
        yield from self._old_wrappers(line.number)
        spawned, self._spawned = self._spawned, None
        label = _label(line.text, found.start("error"))
        is_ignored, is_handled, is_of_server, is_of_helper = (
            line.number - announced.pop(label, -_LONGEST_TRACEBACK - 1) <= _LONGEST_TRACEBACK
            for announced in (self._ignored, self._handled, self._of_server, self._of_helper)
        )
        is_handled |= _LOGGED_BY_VLLM.match(line.raw) is not None
        if is_handled:
            _note(self._last_handled, label, line.number)
        if is_ignored or not _is_own(found):
            return
        kind = _kind_of(found, is_handled, is_of_helper)
        facts: dict[str, Any] = {"of_server": True} if is_of_server else {}
        if spawned is not None:
            facts["local_rank"] = int(spawned[1]["local_rank"])
        event = _with_own_rank(event_of(kind, line, found, facts=facts))
        is_wrapper = bool(_WRAPPER.search(found[0]))
        if _CONTINUES.search(found["message"] or "") and not is_wrapper and len(self._continues) < _MOST_LABELS:
            self.claimed = line.number
            self._continues[label] = _Continued(event, found["message"].rstrip().endswith(_TRACED), line.label)
        else:
            yield from self._unwrapped(event, label, is_wrapper)

    def _continued_by(self, line: EventLine) -> Iterator[Event]:
        """Add a line to the messages that the line continues, and yield each exception whose message has ended."""
        for label, continued in list(self._continues.items()):
            tag = _lines.TAG.match(line.raw) if continued.rank is not None else None
            raw = line.raw if tag is None else line.raw[tag.end() :]
            begin = raw.find(label) if label else 0
            is_own = begin >= 0 and line.label == continued.rank
            rest = raw[begin + len(label) :] if is_own else None
            is_open = continued.add(line, rest)
            if rest is not None and continued.is_traced and is_open:
                self._nested_line = line.number
            if not is_open:
                del self._continues[label]
                yield from self._unwrapped(continued.event(), label, is_wrapper=False)

    def _unwrapped(self, event: Event, label: str, is_wrapper: bool) -> Iterator[Event]:
        """Yield an exception.

        If the exception only reports another exception, keep it until the other exception is known.
        """
        begin, rank = self._wrapped.pop(label, (None, None))
        if begin is not None and event.line - begin <= _LONGEST_TRACEBACK:
            wrapper = self._wrappers.pop(label, event)
            event = replace(event, kind=replace(event.kind, advisory=True)) if wrapper.kind.advisory else event
            yield event if rank is None else replace(event, rank=rank)
        elif is_wrapper and (label in self._wrappers or len(self._wrappers) < _MOST_LABELS):
            yield from filter(None, [self._wrappers.pop(label, None)])
            self._wrappers[label] = event
        else:
            yield event

    def _old_wrappers(self, number: int) -> Iterator[Event]:
        """Yield exceptions that announce another exception whose traceback did not follow."""
        for label, event in list(self._wrappers.items()):
            if number - event.line > _LONGEST_TRACEBACK:
                yield self._wrappers.pop(label)

    def finish(self) -> Iterator[Event]:
        """Yield the event of a process whose traceback is incomplete because the file ends."""
        if self._spawned is not None:
            begin, found = self._spawned
            yield event_of(_SPAWNED_ENDED, begin, facts={"local_rank": int(found["local_rank"])})
        self._spawned = None
        for label, continued in self._continues.items():
            yield from self._unwrapped(continued.event(), label, is_wrapper=False)
        self._continues = {}
        yield from self._wrappers.values()

    def _announces(self, line: EventLine) -> bool:
        """Read a line that announces a property of the process's next exception.

        Return whether the line is such an announcement.
        """
        text = line.text
        if (helper := _HELPERS.search(text)) is not None:
            _note(self._of_helper, _label(text, text.find('File "') if _FRAME in text else helper.start()), line.number)
        elif _IGNORED in text:
            _note(self._ignored, _label(text, text.index(_IGNORED)), line.number)
        elif _BEGIN in text:
            self._read_begin(line)
        elif (chained := _CHAINED.search(text)) is not None:
            label = _label(text, chained.start())
            if line.number - self._last_handled.pop(label, -_LONGEST_GAP - 1) <= _LONGEST_GAP:
                self._continued.add(label)
        elif _WHOLE_PROGRAM in text:  # nothing caught the exception
            self._handled.pop(_label(text, max(text.find('File "'), 0)), None)
        elif _IN_SERVER.search(text) is not None:
            self._of_server[""] = line.number
        elif (spawned := _SPAWNED.match(text)) is not None:
            self._spawned = (line, spawned)
        else:
            return False
        return True

    def _read_begin(self, line: EventLine) -> None:
        """Read the first line of a traceback.

        The exception may have been handled, or another exception may have wrapped it.
        """
        label = _label(line.text, line.text.index(_BEGIN)).removesuffix("Original").rstrip()
        of_rank = _OF_RANK.search(line.text)
        if label in self._wrappers and (_ORIGINAL in line.text or of_rank is not None):
            self._wrapped[label] = (line.number, int(of_rank["rank"]) if of_rank is not None else None)
        if label in self._continued or _is_handled(line):
            _note(self._handled, label, line.number)
        self._continued.discard(label)

    def _read_spawned(self, line: EventLine) -> None:
        """Discard the process that torch.multiprocessing named, if the line is not part of this process's traceback."""
        if self._spawned is not None and line.text and not line.raw[:1].isspace():
            self._spawned = None


FORMAT = PythonErrors


def _label(text: str, end: int) -> str:
    """Return what a launcher printed before a message to name its process: `[rank3]:`, `worker-1:` or nothing."""
    return text[:end].strip()[:_LONGEST_LABEL]


def _note(lines: dict[str, int], label: str, number: int) -> None:
    """Store the number of a line under the label of its process. Processes beyond the limit are ignored."""
    if label in lines or len(lines) < _MOST_LABELS:
        lines[label] = number


def _is_own(found: re.Match[str]) -> bool:
    """Check whether an exception is an error of its own. Some only report that a process or a generator ended."""
    name, message = found["error"].rpartition(".")[2], found["message"] or ""
    if found["error"] == "Error" or name in (*_INPUT_ENDED, *_REPORTS) or message.startswith(_REPORT_OF_HOROVOD):
        return False
    return name != "CalledProcessError" or not _is_launcher(message)


def _kind_of(found: re.Match[str], is_handled: bool, is_of_helper: bool) -> MessageKind:
    """Return what an exception means.

    `is_of_helper`: whether the exception is from a helper thread that ends with its program.
    """
    name = found["error"].rpartition(".")[2]
    kind = next((kind for pattern, kind in _MEANINGS if pattern.search(found[0])), RAISED)
    if name in _TOLD_TO_STOP:
        kind = _STOPPED
    elif name.startswith("Dist"):
        kind = _COMMUNICATION
    if (is_handled and kind in _MAY_BE_HANDLED) or (is_of_helper and name in _CLOSED_PIPE):
        kind = replace(kind, advisory=True)
    return kind


def _with_own_rank(event: Event) -> Event:
    """Add the rank at the beginning of the exception's message.

    If the message is about missing ranks, remove the host from the event.
    """
    if event.role == Role.ABSENT:
        return replace(event, host=None)
    own = _OWN_RANK.match(event.facts.get("message", ""))
    return replace(event, rank=int(own["rank"])) if event.rank is None and own is not None else event


def _is_launcher(message: str) -> bool:
    """Check whether the command that failed is a launcher of the job: `Command '['torchrun', ...` or similar."""
    words = re.findall(r"[^\s'\"\[\],]+", message[:1000].partition("Command ")[2])[:_MOST_WORDS]
    return any(word.rpartition("/")[2] in _LAUNCHERS and "://" not in word for word in words)


def _is_handled(line: EventLine) -> bool:
    """Check whether a logger printed a traceback after a message about an error.

    The message must be from the same process.

    `line`: the first line of the traceback.
    """
    label, before = line.raw[: line.raw.index(_BEGIN)], line.before
    if _LOGGED_BY_VLLM.match(label) is not None:
        return True
    if not before.startswith(label):
        return False
    message = before[len(label) :]
    return _HANDLED.match(message) is not None and _OF_ERROR.search(message) is not None
