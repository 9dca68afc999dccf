"""Read the last line of a Python traceback.

The line may begin like `[rank3]: ValueError`. Errors of libraries have their own formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bench.logs.events import _ends
from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

_RAISED = re.compile(
    r"^(?:\[(?:rank|default)(?P<rank>\d{1,6})\]:\s?)?"
    r"(?:[A-Za-z][\w.-]{0,100}\d(?:[\w.-]{0,100})?: )?"  # a host, as pdsh prints it
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
            r"\b(?:(?:ConnectionReset|ConnectionAborted|BrokenPipe|EngineDead|HorovodInternal)Error|"
            r"(?:DeadlockDetected|ProcessExited)Exception)\b|\bRuntimeError: .*(?:communicator was aborted|Broken pipe|"
            r"Connection reset by peer|Socket Timeout|timeout caused pair closure|Engine core initialization failed)"
        ),
        _BROKEN,
    ),
    (re.compile(r"DataLoader worker .* killed by signal: (?:Terminated|Interrupt|Hangup)"), _STOPPED),
)
_IGNORED = "Exception ignored in"
_LONGEST_TRACEBACK = 100
_LONGEST_LABEL = 100
_INPUT_ENDED = ("SystemExit", "GeneratorExit")
_TOLD_TO_STOP = ("SignalException", "SIGTERMException", "KeyboardInterrupt")
_REPORTS = ("ChildFailedError", "CalledProcessError")  # reports about processes; the processes have their own events


class PythonErrors(EventFormat):
    """Yields one event for an exception that no other format recognises."""

    is_general = True
    hints = ("Error", "Exception", "Interrupt")

    def __init__(self) -> None:
        """Start with no ignored exception."""
        self._ignored: dict[str, int] = {}  # label of a process -> line at which Python began to ignore an exception

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield an event for the exception whose name begins the line."""
        if _IGNORED in line.text:
            self._ignored[_label(line.text, line.text.index(_IGNORED))] = line.number
            return
        found = _RAISED.match(line.text)
        if found is None:
            return
        ignored = self._ignored.pop(_label(line.text, found.start("error")), None)
        if ignored is not None and line.number - ignored <= _LONGEST_TRACEBACK:
            return
        name = found["error"].rpartition(".")[2]
        if found["error"] == "Error" or name in _INPUT_ENDED or name in _REPORTS:
            return
        kind = next((kind for pattern, kind in _MEANINGS if pattern.search(found[0])), RAISED)
        if name in _TOLD_TO_STOP:
            kind = _STOPPED
        elif name.startswith("Dist"):
            kind = _COMMUNICATION
        yield event_of(kind, line, found)


FORMAT = PythonErrors


def _label(text: str, end: int) -> str:
    """Return what a launcher printed before a message to name its process: `[rank3]:`, `worker-1:` or nothing."""
    return text[:end].strip()[:_LONGEST_LABEL]
