"""Read the errors that Open MPI prints before it aborts a job (ompi/errhandler: "*** An error occurred in MPI_Recv").

Such a message has several lines: the call, the process, the communicator and the reason. Each line names the process
that printed it, because the lines of several processes may be mixed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bench.logs.events import launchers
from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, event_of

_PROCESS = r"\[(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,9})\] \*\*\* "
_CALL = re.compile(_PROCESS + r"An error occurred in (?P<error>\S.*)")
_BEFORE_INIT = re.compile(r"^\*\*\* An error occurred in (?P<error>P?MPI_\w+)")  # then no line names its process
_NO_INIT = re.compile(r"It looks like (?P<call>\w+) failed for some reason; your parallel process")
_RETURNED = re.compile(r"--> Returned (?:value )?(?P<value>[^()]{1,200} \(-?\d+\)) instead of")
_RANK = re.compile(_PROCESS + r"reported by process \[(?P<job>\d{1,20}),(?P<rank>\d{1,20})\]")
_REASON = re.compile(
    _PROCESS + r"(?P<error>(?P<class>MPI_ERR_(?!ORS_)\w+)(?::.*)?|Unknown error.*|Error code: -?\d+ \(no associated.*)"
)
# The class of an error -> what it means. Classes that are not listed name a wrong call.
_CLASSES = {
    "MPI_ERR_OTHER": launchers.MPI_UNNAMED,
    "MPI_ERR_INTERN": launchers.MPI_UNNAMED,
    "MPI_ERR_UNKNOWN": launchers.MPI_UNNAMED,
    "MPI_ERR_TRUNCATE": launchers.MPI_SIZES,
    # a peer ended; the process that reports it made no error
    "MPI_ERR_PROC_FAILED": launchers.MPI_PEER_LOST,
    "MPI_ERR_PROC_FAILED_PENDING": launchers.MPI_PEER_LOST,
    "MPI_ERR_PENDING": launchers.MPI_PEER_LOST,
    "MPI_ERR_PROC_ABORTED": launchers.MPI_PEER_LOST,
    "MPI_ERR_REVOKED": launchers.MPI_PEER_LOST,
}
SPAWNED = "is_spawned"  # a fact: the label before the line names the process that spawned this one
_MOST_JOB, _MOST_RANK = 1 << 32, 1 << 24
_MOST_OPEN = 1_000  # processes whose message is incomplete, at most
_MOST_TEXT = 200
_MOST_LINES = 12  # of the report that MPI_Init failed, at most


class OpenMpiErrors(EventFormat):
    """Yields one event for each message."""

    hints = (
        "*** An error occurred in",
        "*** reported by process",
        "*** MPI_ERR_",
        "*** Unknown error",
        "*** Error code",
        "failed for some reason; your parallel process",
    )

    def __init__(self) -> None:
        """Start without a message."""
        self._open: dict[tuple[str | None, int | None], Event] = {}
        self._init: Event | None = None
        self._before = ""
        self._num_lines = 0

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether a report about a failed MPI_Init is incomplete."""
        return self._init is not None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Keep the first lines of a message. Yield the message's event when a line states the reason."""
        yield from self._failed_init(line)
        if (found := _BEFORE_INIT.search(line.text)) is not None:
            yield event_of(launchers.MPI_UNNAMED, line, found)
        elif (found := _CALL.search(line.text)) is not None:
            is_lost = found["error"].startswith("Socket closed")
            event = event_of(launchers.CONNECTION_LOST if is_lost else launchers.MPI_UNNAMED, line, found)
            yield from map(_shown, self._taken(event))
            if len(self._open) < _MOST_OPEN:
                self._open[event.host, event.pid] = event
        elif (found := _RANK.search(line.text)) is not None:
            key = found["host"], int(found["pid"])
            if key in self._open:
                job, event = int(found["job"]), self._open[key]
                facts = {**event.facts, SPAWNED: True} if _is_spawned(job) else event.facts
                self._open[key] = replace(event, rank=_rank(job, int(found["rank"])), facts=facts)
        elif (found := _REASON.search(line.text)) is not None:
            reason = event_of(_kind_of(found["class"]), line, found)
            for event in self._taken(reason) or [replace(reason, facts={})]:
                error = ": ".join(filter(None, (event.facts.get("error"), found["error"].strip())))
                kind = event.kind if event.kind is launchers.CONNECTION_LOST else reason.kind
                yield _shown(replace(event, kind=kind, facts={**event.facts, "error": error}))

    def finish(self) -> Iterator[Event]:
        """Yield the events of messages whose reason is missing."""
        yield from map(_shown, self._open.values())
        if self._init is not None:
            yield self._init

    def _failed_init(self, line: EventLine) -> Iterator[Event]:
        """Yield the event of a failed MPI_Init when a line states the value that the failed call returned."""
        if (found := _NO_INIT.search(line.text)) is not None:
            self._init = event_of(launchers.MPI_UNNAMED, line, facts={"error": found["call"]})
            self._num_lines = 0
        elif self._init is not None:
            self._num_lines += 1
            found = _RETURNED.search(line.text)
            if found is not None:
                error = f"{self._init.facts['error']}: {self._before}: {found['value']}"
                yield replace(self._init, facts={"error": error})
            if found is not None or self._num_lines > _MOST_LINES:
                self._init = None
        self._before = line.text.strip()[:_MOST_TEXT]

    def _taken(self, event: Event) -> list[Event]:
        kept = self._open.pop((event.host, event.pid), None)
        return [] if kept is None else [kept]


FORMAT = OpenMpiErrors


def _kind_of(error_class: str | None) -> MessageKind:
    """Return the meaning of an MPI error class. Some errors state no class."""
    if error_class is None:
        return launchers.MPI_UNNAMED
    return _CLASSES.get(error_class, launchers.MPI_ERROR)


def _shown(event: Event) -> Event:
    """Remove a process id of 0, which Open MPI prints before MPI is initialised."""
    return event if event.pid else replace(event, pid=None)


def _rank(job: int, rank: int) -> int | None:
    """Return the rank. Return None if the process belongs to a spawned job, or if the number is damaged.

    Some releases of Open MPI print numbers whose upper bits are arbitrary.
    """
    return rank if job < _MOST_JOB and not _is_spawned(job) and rank < _MOST_RANK else None


def _is_spawned(job: int) -> bool:
    """Check whether MPI_Comm_spawn started this job.

    The ranks of such a job are counted separately from the ranks of the first job.
    """
    return job < _MOST_JOB and job % (1 << 16) > 1
