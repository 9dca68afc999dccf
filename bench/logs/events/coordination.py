"""Read errors of the coordination service of JAX and TensorFlow, and of TensorFlow's collectives.

The messages are in coordination_service.cc and client.h of XLA. A task is a process; its number is the rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
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
_TASK_LOST = MessageKind(
    "task-unreachable",
    Role.NETWORK,
    "the process {peer} did not answer: it ended or hung, or the network failed",
    0.5,
    "read the log of this process, and check that its address and port can be reached",
)
_BARRIER = re.compile(r"Barrier timed out\. (?:Barrier_i|I)d: (?P<barrier>\S{1,200}?)\.(?=\s|\\n|$)")
_UNHEALTHY = re.compile(r"following tasks are unhealthy \(stopped sending heartbeats\):")
_TASK = re.compile(r"/job:\w{1,100}/replica:\d{1,6}/task:(\d{1,6})")
_TASK_LINE = re.compile(r"^\s*/job:\w{1,100}/replica:\d{1,6}/task:\d{1,6}\s*$")
_COUNTS = re.compile(r"# of tasks that reached the barrier: (?P<num_joined>\d{1,6})/(?P<num_tasks>\d{1,6})")
_NAMES = re.compile(r"[Tt]imed out task names:")
_SIGNS = (
    (re.compile(r"Task /job:\w{1,100}/replica:\d{1,6}/task:(?P<ranks>\d{1,6}) heartbeat timeout\. This"), _SILENT),
    (re.compile(r"Failed to send RPC to coordination service\. Either the leader"), _LEADER),
    (re.compile(r"Terminating process because the \w+ distributed service detected fatal errors"), _ELSEWHERE),
    (re.compile(r"Coordination service agent in error status: (?P<error>.*)"), _AGENT),
    (
        # the same line with CANCELLED or OUT_OF_RANGE is usual at the end of a data set
        re.compile(r"CollectiveExecutor::StartAbort (?P<error>(?i:unavailable|deadline[_ ]exceeded|internal)\b.*)"),
        _COLLECTIVES,
    ),
    (re.compile(r"Additional GRPC error information from remote target (?P<peer>/job:\S+/task:\d+)"), _TASK_LOST),
)


class CoordinationService(EventFormat):
    """Yields one event for each message. A message may list tasks on the lines below it."""

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
        """Start with no message that lists tasks."""
        self._begin: EventLine | None = None
        self._barrier: str | None = None
        self._facts: dict[str, Any] = {}
        self._tasks: list[int] = []

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the next line may name a task of the last message."""
        return self._begin is not None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the event of a line, or of a message whose list of tasks ends before this line."""
        if self._begin is not None and self._continues(line.text):
            return
        yield from self.finish()
        barrier = _BARRIER.search(line.text)
        if barrier is not None or _UNHEALTHY.search(line.text):
            self._begin, self._barrier = line, barrier["barrier"] if barrier else None
            self._continues(line.text[barrier.end() :] if barrier else line.text)
            return
        for pattern, kind in _SIGNS:
            found = pattern.search(line.text)
            if found is not None:
                yield event_of(kind, line, found)
                return

    def finish(self) -> Iterator[Event]:
        """Yield the event of the last message that lists tasks."""
        begin, barrier, facts, tasks = self._begin, self._barrier, self._facts, tuple(sorted(set(self._tasks)))
        self._begin, self._barrier, self._facts, self._tasks = None, None, {}, []
        if begin is None:
            return
        if barrier is None:
            kind = _SILENT if tasks else _ELSEWHERE
        else:
            kind, facts = (_ABSENT if tasks else _ABSENT_UNNAMED), {**facts, "barrier": barrier}
        event = event_of(kind, begin, ranks=tasks, facts=facts)
        yield replace(event, rank=tasks[0]) if len(tasks) == 1 else event

    def _continues(self, text: str) -> bool:
        """Take the tasks and the counts from a part of the open message. Return whether the text is such a part."""
        counts, names = _COUNTS.search(text), _NAMES.search(text)
        if counts is not None:
            self._facts |= counts.groupdict()
        if names is not None:
            text = text[names.end() :]
        elif _UNHEALTHY.search(text) is None and not _TASK_LINE.match(text):
            return counts is not None or "The first task at the barrier" in text
        self._tasks += [int(task) for task in _TASK.findall(text)]
        return True


FORMAT = CoordinationService
