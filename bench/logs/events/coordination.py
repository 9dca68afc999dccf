"""Read errors of TensorFlow's collectives, and of the coordination service that JAX and TensorFlow use.

The messages are in coordination_service.cc and client.h of XLA. Each process is a task, and the number of the task is
the rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

_STACKS = "read the logs of these processes, or their stacks while the job hangs"
_ABSENT = MessageKind(
    "missing-at-barrier",
    Role.ABSENT,
    "{who} did not reach the barrier {barrier} of the coordination service",
    0.9,
    _STACKS,
    "py-spy dump --pid PID",
)
_ABSENT_UNNAMED = MessageKind(
    _ABSENT.code,
    Role.ABSENT,
    "some processes did not reach the barrier {barrier} of the coordination service<: {num_joined} of {num_tasks} did>",
    0.7,
    _ABSENT.step,
    _ABSENT.command,
)
_SILENT = MessageKind(
    "heartbeats-stopped",
    Role.ABSENT,
    "the coordination service got no more heartbeats of {who}: the process ended or hung, or the network failed",
    0.8,
    "read the logs of these processes, and the scheduler's record of their nodes",
    "sacct -j JOB -o State,Reason,ExitCode,Comment",
)
_LEADER = MessageKind(
    "coordinator-lost",
    Role.PEER,
    "the coordination service did not answer: process 0, which runs it, ended before, or the network failed",
    0.4,
    "look for the error of process 0",
)
_ELSEWHERE = MessageKind(
    "coordination-stopped",
    Role.PEER,
    "another process of the job failed before, so JAX ended this process",
    0.35,
    "look for the process that ended first; its own output has the reason",
)
_AGENT = MessageKind(
    "coordination-error",
    Role.PEER,
    "the coordination service reported an error: {error}",
    0.35,
    "check that process 0 runs and that this host can reach it; then look for the process that ended first",
)
_COLLECTIVES = MessageKind(
    "collectives-aborted",
    Role.PEER,
    "TensorFlow's collectives stopped: {error}",
    0.3,
    "look for the process that ended first; its own output has the reason",
)
_COLLECTIVES_AT_EXIT = replace(_COLLECTIVES, advisory=True)  # usual when the other processes end earlier
_TASK_LOST = MessageKind(
    "task-unreachable",
    Role.NETWORK,
    "the process {peer} did not answer: it ended or hung, or the network failed",
    0.5,
    "read the log of this process, and check that its address and port can be reached",
)
_TASK_NOT_SURE = replace(_TASK_LOST, advisory=True)  # without the status, the call may have ended as usual
_BARRIER = re.compile(r"Barrier timed out\. (?:Barrier_i|I)d: (?P<barrier>\S{1,200}?)\.(?=\s|\\n|$)")
_UNHEALTHY = re.compile(r"following tasks are unhealthy \(stopped sending heartbeats\):")
_TASK = r"/job:\w{1,100}/replica:\d{1,6}/task:(\d{1,6})\b"
_LABEL = re.compile(r"^\[(?:default|rank)\d{1,6}\]:")
_TASKS = re.compile(rf"(?:\s{{0,8}},?\s{{0,8}}{_TASK})+")
_CONNECTED = re.compile(rf"{_TASK} has connected to coordination service")
_COUNTS = re.compile(r"# of tasks that reached the barrier: (?P<num_joined>\d{1,6})/(?P<num_tasks>\d{1,6})")
_NAMES = re.compile(r"[Tt]imed out task names:|" + _UNHEALTHY.pattern)
_AT_EXIT = "Failed to disconnect from coordination service"  # the leader may end before the other processes
_REMOTE = re.compile(r"Additional GRPC error information from remote target (?P<peer>/job:\S{1,200}/task:\d{1,6})")
_STATUS = re.compile(r"\bgrpc_status\"?: ?\"?(?P<status>\d{1,2})\b")
_NO_ANSWER = (4, 14)  # DEADLINE_EXCEEDED, UNAVAILABLE; with any other status the peer did answer
_SIGNS = (
    (re.compile(rf"Task {_TASK.replace('(', '(?P<ranks>')} heartbeat timeout\. This"), _SILENT),
    (re.compile(r"Failed to send RPC to coordination service\. Either the leader"), _LEADER),
    (re.compile(r"Terminating process because the \w+ distributed service detected fatal errors"), _ELSEWHERE),
    (
        # CANCELLED is usual when a process ends
        re.compile(r"Coordination service agent in error status: (?P<error>(?!CANCELLED).*)"),
        _AGENT,
    ),
    (
        # the same line with CANCELLED or OUT_OF_RANGE is usual at the end of a data set
        re.compile(r"CollectiveExecutor::StartAbort (?P<error>(?i:deadline[_ ]exceeded|internal)\b.*)"),
        _COLLECTIVES,
    ),
    (re.compile(r"CollectiveExecutor::StartAbort (?P<error>(?i:unavailable)\b.*)"), _COLLECTIVES_AT_EXIT),
)
_LONGEST_GAP = 20  # lines of other processes inside a list, at most
_LONGEST_REMOTE = 3  # lines between an error of a remote call and its status
_MOST_OPEN = 64
_MOST_KEPT = 4_000


@dataclass(eq=False)
class _Report:
    """A message that continues on the following lines.

    `barrier`: the barrier at which tasks were missing, or None if the message is about heartbeats.
    `is_listing`: whether the message's list of tasks has begun.
    `last_line`: the number of the last line that belongs to the message.
    """

    begin: EventLine
    barrier: str | None
    last_line: int
    is_listing: bool = False
    tasks: list[int] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def takes(self, text: str) -> bool:
        """Read the tasks and the counts from a part of the message.

        Return whether the text is a part of the message.
        """
        is_part = False
        for part in _LABEL.sub("", text).split("\\n"):  # a string in JSON contains the characters \ and n
            counts, names = _COUNTS.search(part), _NAMES.search(part)
            if counts is not None:
                self.facts |= counts.groupdict()
            if names is not None:
                self.is_listing, part = True, part[names.end() :]
            found = _TASKS.match(part) if self.is_listing else None
            ends_here = found is not None and not part[found.end() :].strip(" \t,.")
            if found is not None and ends_here:
                self.tasks += [int(task) for task in re.findall(_TASK, found[0])]
            elif part.strip() and names is None and "\\n" in text:
                self.is_listing = False
            is_part |= ends_here or counts is not None or names is not None
        return is_part

    def event(self) -> Event:
        """Return the event that this message describes."""
        tasks, facts = tuple(sorted(set(self.tasks))), self.facts
        if self.barrier is None:
            kind = _SILENT if tasks else _ELSEWHERE
        else:
            kind, facts = (_ABSENT if tasks else _ABSENT_UNNAMED), {**facts, "barrier": self.barrier}
        return _about(event_of(kind, self.begin, facts=facts), tasks)


class CoordinationService(EventFormat):
    """Yields one event for each message. The lines after a message may list the tasks to which the message applies.

    Lines of other processes may be inside the list. If the heartbeats of a task stopped, but the task connected again,
    it is not treated as failed.
    """

    hints = (
        "Barrier timed out",
        "tasks are unhealthy",
        "heartbeat timeout. This",
        "oordination service",
        "distributed service detected",
        "CollectiveExecutor::StartAbort",
        "from remote target /job",
    )

    def __init__(self) -> None:
        """Start with no message."""
        self._reports: list[_Report] = []
        self._remote: tuple[EventLine, re.Match[str]] | None = None  # a message whose status is on a line below it
        self._silent: list[Event] = []

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the next line may belong to a message that has begun."""
        return bool(self._reports) or self._remote is not None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the event of a line, or of a message that ended before this line."""
        yield from self._end([report for report in self._reports if report.last_line < line.number - _LONGEST_GAP])
        yield from self._of_remote(line)
        barrier, connected = _BARRIER.search(line.text), _CONNECTED.search(line.text)
        if connected is not None:
            self._returned(int(connected[1]))
        elif barrier is not None or _UNHEALTHY.search(line.text):
            report = _Report(line, barrier["barrier"] if barrier else None, line.number)
            report.takes(line.text[barrier.end() :] if barrier else line.text)
            earlier = self._report(line.label)  # the next message of the same process ends it
            yield from self._end(self._reports[:-_MOST_OPEN] if earlier is None else [earlier])
            self._reports.append(report)
        elif (report_here := self._report(line.label)) is not None and report_here.takes(line.text):
            report_here.last_line = line.number
        elif _AT_EXIT not in line.text:
            for pattern, kind in _SIGNS:
                found = pattern.search(line.text)
                if found is not None:
                    event = event_of(kind, line, found)
                    yield from self._sure(_about(event, event.ranks) if event.ranks else event)
                    return

    def finish(self) -> Iterator[Event]:
        """Yield the events of messages that are incomplete when the file ends, and of tasks that did not reconnect."""
        if self._remote is not None:
            yield event_of(_TASK_NOT_SURE, *self._remote)
        for report in self._reports:
            yield from self._sure(report.event())
        yield from self._silent
        self._remote, self._reports, self._silent = None, [], []

    def _report(self, label: int | None) -> _Report | None:
        """Return the last incomplete message of the process whose lines have this label."""
        same = [report for report in self._reports if label is None or report.begin.label in (label, None)]
        return same[-1] if same else None

    def _end(self, ended: list[_Report]) -> Iterator[Event]:
        """Yield the events of messages that have ended."""
        if ended:
            self._reports = [report for report in self._reports if report not in ended]
        for report in ended:
            yield from self._sure(report.event())

    def _sure(self, event: Event) -> Iterator[Event]:
        """Yield an event, or keep it until the end because the silent task may connect again."""
        if event.kind is not _SILENT:
            yield event
        elif len(self._silent) < _MOST_KEPT:
            self._silent.append(event)

    def _returned(self, task: int) -> None:
        """Remove a task that connected again from all reports of silent tasks."""
        for report in [report for report in self._reports if report.barrier is None and task in report.tasks]:
            report.tasks = [other for other in report.tasks if other != task]
            if not report.tasks:
                self._reports.remove(report)
        left = ((event, tuple(rank for rank in event.ranks if rank != task)) for event in self._silent)
        self._silent = [_about(event, ranks) for event, ranks in left if ranks]

    def _of_remote(self, line: EventLine) -> Iterator[Event]:
        """Yield an event for a failed remote call if the call's status says that the other process did not answer."""
        begun = _REMOTE.search(line.text)
        if begun is not None:
            if self._remote is not None:
                yield event_of(_TASK_NOT_SURE, *self._remote)
            self._remote = (line, begun)
        if self._remote is None:
            return
        status = _STATUS.search(line.text)
        if status is None and line.number - self._remote[0].number <= _LONGEST_REMOTE:
            return
        if status is None or int(status["status"]) in _NO_ANSWER:
            yield event_of(_TASK_NOT_SURE if status is None else _TASK_LOST, *self._remote)
        self._remote = None


FORMAT = CoordinationService


def _about(event: Event, ranks: tuple[int, ...]) -> Event:
    """Return the event with these ranks as the affected ranks."""
    return replace(event, ranks=ranks, rank=ranks[0] if len(ranks) == 1 else None)
