"""Divide the messages of a failed job into causes and consequences, and rank the causes.

A message is a consequence in these cases:
- The same rank had waited or lost a connection before.
- The launcher ended the process, or the job was stopped from outside before.
- Another rank is known to have failed before, or its death is the only one that a launcher reports, which may be late.
- The message says that ranks are missing, and each of these ranks has an error or an end of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from bench.logs.events import _ends, gloo, launchers, python_errors
from bench.logs.failure_events import Event, Role

_LEAST_WEIGHT = 0.15  # causes with a lower weight are not shown
FAILS = (Role.CAUSE, Role.NETWORK, Role.ABSENT, Role.ENDED, Role.WAITED, Role.PEER, Role.STOPPED)
FOLLOWS = (Role.WAITED, Role.PEER, Role.STOPPED)
DEATHS = (_ends.KILLED.code, _ends.CRASHED.code, _ends.ABORTED.code, _ends.EXITED.code)
_OWN_ENDS = (_ends.ABORTED.code, _ends.EXITED.code)  # the process ended itself after an error
LOSSES = (_ends.NODE_LOST.code, _ends.HOST_MEMORY.code)
_HARD = (*DEATHS, *LOSSES, launchers.ABORT.code)  # these messages never follow from the rank's own waiting
# the lines in which the next process of a stopped job ends, and in which it crashes or reports an error
_MOST_STOP_LINES = 2000
_SOON_LINES = 100
_AT_START = (_ends.STORE_UNREACHABLE.code, "gloo-cannot-connect", "ranks-did-not-start")  # errors of the next run
# errors that a process prints while the job is stopped; they do not count against a stop by an unknown reason
_ERRORS_OF_STOP = (
    launchers.MPI_ERROR.code,
    launchers.ABORT.code,
    launchers.MPI_ASSERTION.code,
)
_RAISED_AT_STOP = (python_errors.NO_INPUT_OUTPUT, python_errors.LOADER_ENDED)
# errors that processes print if a peer is dead
_FROM_DEAD_PEER = (
    "ib-retry-exceeded",
    "ucx-retry-exceeded",
    "ucx-transfer-failed",
    "ucx-unreachable",
    "ofi-failed",
    "ofi-cancelled",
    "cannot-connect",
    "task-unreachable",
    launchers.MPI_UNNAMED.code,
)
_NUMBER = re.compile(r"\d+")
_SAME_LOSS = (*LOSSES, "gpu-broken")  # several programs report the same loss


def divided(events: Sequence[Event], reporters: Collection[int | None]) -> tuple[list[Event], list[Event]]:
    """Divide events into causes and consequences.

    If all events are consequences, the cause is unknown, and the function returns the consequences as causes.

    `reporters`: the ranks that printed why they failed.
    """
    ordered = sorted(events, key=order)
    follows = {id(event) for event in ordered if event.role == Role.STOPPED}
    follows |= _after_own_waiting(ordered) | _after_stop(ordered) | (ended_by_srun := _ended_by_srun(ordered))
    follows |= _later_ends([event for event in ordered if id(event) not in ended_by_srun], reporters)
    follows |= _answers_of_servers(ordered)
    named = [event for event in ordered if id(event) not in follows and event.role not in FOLLOWS]
    follows |= _after_failure(named) | _missing_after_own_end(named)
    causes = [event for event in named if id(event) not in follows]
    if all(event.kind.advisory for event in causes):
        causes += [event for event in ordered if event.role in (Role.WAITED, Role.PEER) and id(event) not in follows]
    causes = causes or ordered
    kept = {id(event) for event in causes}
    return causes, [event for event in ordered if id(event) not in kept]


def _after_failure(events: Sequence[Event]) -> set[int]:
    """Return the ids of network errors that follow from the failure of a process.

    A network error follows from an error of a known process, unless the log shows that the network error came first. If
    a process was killed or crashed, the order of the lines does not matter, because launchers and operators report the
    end of this process after the other processes have lost their connections. If a network error is about an
    unreachable loopback address, any earlier error in the same file counts as the failure.
    """
    sure = [event for event in events if event.role == Role.CAUSE and not event.kind.advisory]
    died = first_of([event for event in sure if event.rank is not None or event.pid])
    has_pod_died = any(_is_end_of_pod(event) for event in sure)
    dead = _first_dead(events)
    follows = set()
    for event in events:
        if event.role != Role.NETWORK:
            continue
        is_after = died is not None and not _is_before(event, died)
        is_after |= has_pod_died and event.code not in LOSSES
        is_after |= dead is not None and event.rank != dead.rank and event.code in _FROM_DEAD_PEER
        if event.kind is gloo.LOOPBACK:
            is_after |= any(other.source == event.source and other.line < event.line for other in sure)
        if is_after:
            follows.add(id(event))
    return follows


def _answers_of_servers(events: Sequence[Event]) -> set[int]:
    """Return the ids of exceptions which say that a server failed to answer.

    The result is empty if no event is an exception inside a server.
    """
    sure = [event for event in events if not event.kind.advisory]
    if not any(event.facts.get("of_server") for event in sure):
        return set()
    return {id(event) for event in sure if event.kind is python_errors.SERVER_FAILED}


def without_reports(events: Sequence[Event]) -> list[Event]:
    """Return the events without redundant reports that a command failed.

    The report is an exception in the program that ran the command. The report is redundant if an earlier line of the
    same file has an event, which the command may have printed. A command that is a Python program or a script may be
    the job itself. If the command is a Python program or a script, the report is therefore redundant if any file has an
    event.
    """
    reports = (python_errors.COMMAND_FAILED, python_errors.SCRIPT_FAILED)
    others = [event for event in events if event.role != Role.STOPPED and not event.kind.advisory]
    others = [event for event in others if event.kind not in reports]
    first_in: dict[str, int] = {}
    for event in others:
        first_in[event.source] = min(event.line, first_in.get(event.source, event.line))

    def is_kept(event: Event) -> bool:
        if event.kind is python_errors.SCRIPT_FAILED:
            return not others
        return event.kind is not python_errors.COMMAND_FAILED or first_in.get(event.source, event.line) >= event.line

    return [event for event in events if is_kept(event)]


def _first_dead(events: Sequence[Event]) -> Event | None:
    """Return the launcher's report that a rank was killed or crashed, if this rank ended first.

    If another rank exited by itself earlier, the result is None. A rank that exits by itself may have lost its network
    connection, after which the launcher kills all other ranks.
    """
    ends = [event for event in events if event.code in (*DEATHS, launchers.ABORT.code, _ends.HOST_MEMORY.code)]
    first = first_of([event for event in ends if event.rank is not None])
    is_dead = first is not None and first.code in (_ends.KILLED.code, _ends.CRASHED.code, _ends.HOST_MEMORY.code)
    return first if is_dead else None


def _ended_by_srun(events: Sequence[Event]) -> set[int]:
    """Return the ids of events about tasks that srun killed because another task failed (`--kill-on-bad-exit`).

    srun may print the killed tasks before the failed task. A failed task is not the reason if this task had lost a
    connection before it failed. If more tasks failed than srun killed, the failures do not explain the killed tasks.
    """
    victims = {event.rank for event in events if event.role in FOLLOWS and event.role != Role.STOPPED}
    follows: set[int] = set()
    if any(event.code == _ends.HOST_MEMORY.code for event in events):
        return follows
    for source in dict.fromkeys(event.source for event in events):
        tasks = [event for event in events if event.source == source and event.facts.get("first_observed") is False]
        tasks = [event for event in tasks if event.rank is not None and "local_rank" not in event.facts]
        killed = [event for event in tasks if event.code == _ends.KILLED.code]
        failed = [event for event in tasks if event.code == _ends.EXITED.code]
        if failed and len(killed) >= len(failed) and not victims & {event.rank for event in failed}:
            last = max(event.line for event in failed)
            follows |= {id(event) for event in killed if event.line >= last - _SOON_LINES}
    return follows


def _is_end_of_pod(event: Event) -> bool:
    """Check whether an operator of Kubernetes reported that a pod was killed or crashed."""
    is_named = event.host is not None and event.rank is None and event.pid is None
    return is_named and event.code in (_ends.KILLED.code, _ends.CRASHED.code)


def _missing_after_own_end(events: Sequence[Event]) -> set[int]:
    """Return the ids of events about missing ranks, if other events explain why each of these ranks is missing.

    A rank that raised an exception or was killed reaches no barrier and sends no heartbeats. The report that a rank was
    killed or crashed may come after the event about missing ranks, because launchers report the end of a rank late.
    Other errors count only if they come earlier, because later errors may be consequences.
    """
    own = [event for event in events if event.role in (Role.CAUSE, Role.ENDED) and not event.kind.advisory]
    follows = set()
    for missing in events:
        if missing.role == Role.ABSENT and missing.ranks:
            explained = {event.rank for event in own if event.code in DEATHS or not _is_before(missing, event)}
            follows |= {id(missing)} if explained.issuperset(missing.ranks) else set()
    return follows


def _after_own_waiting(events: Sequence[Event]) -> set[int]:
    """Return the ids of errors and exits of a rank that had waited or lost a connection before.

    An earlier line of the same file reports that the same rank waited or lost a connection.
    """
    follows = set()
    waited: set[tuple[str, int]] = set()
    for event in sorted(events, key=lambda event: (event.source, event.line)):
        if event.rank is None:
            continue
        by_itself = event.code not in _HARD or event.code in _OWN_ENDS
        if event.role in FOLLOWS:
            waited.add((event.source, event.rank))
        elif event.role in (Role.CAUSE, Role.ENDED) and by_itself and (event.source, event.rank) in waited:
            follows.add(id(event))
    return follows


def _later_ends(events: Sequence[Event], reporters: Collection[int | None]) -> set[int]:
    """Return the ids of events in which a process ended as a consequence of the failure.

    An end is a consequence if another process ended earlier, or if an earlier message of the same rank explains the
    end.
    """
    observed = first_of([event for event in events if event.facts.get("first_observed") and event.code in DEATHS])
    follows = set()
    first_in: dict[str, Event] = {}
    for event in events:
        if event.code not in DEATHS:
            continue
        if event.code in _OWN_ENDS and event.rank is not None and event.rank in reporters:
            follows.add(id(event))
        first = first_in.setdefault(event.source, observed or event)
        same_pid = event.pid is not None and event.pid == first.pid
        same_rank = event.rank is not None and event.rank == first.rank
        if not (event is first or same_pid or same_rank or event.facts.get("first_observed")):
            follows.add(id(event))
    return follows


def _after_stop(events: Sequence[Event]) -> set[int]:
    """Return the ids of events that follow from a stop of the job by a user, the scheduler or a time limit.

    The scheduler may also stop a job because it failed. If the scheduler stopped a failed job, only killed processes,
    missing ranks and lost connections are consequences. A file may also contain the next run of the job. Therefore, an
    event counts only if its line is near the stop, or near another consequence of the stop. The end of a process counts
    up to many lines after the stop. All other consequences count only soon after the stop.
    """
    last: dict[tuple[str, bool], Event] = {}
    follows = set()
    for event in sorted(events, key=lambda event: (event.source, event.line)):
        for from_outside in (True, False):
            stop = last.get((event.source, from_outside))
            if stop is not None and event.line - stop.line <= _lines_after_stop(event, from_outside):
                follows.add(id(event))
                last[event.source, from_outside] = event
        if event.kind in (*_ends.STOPS, _ends.STEP_ENDED, _ends.AGENT_ENDED):
            last[event.source, event.kind in _ends.STOPS] = event
    return follows


def _lines_after_stop(event: Event, from_outside: bool) -> int:
    """Return how many lines after a stop the event may come and still count as a consequence; -1 if it never counts."""
    if event.code == _ends.KILLED.code:
        return _MOST_STOP_LINES
    if event.role in (Role.ABSENT, Role.NETWORK) and event.code not in (*_AT_START, *LOSSES):
        return _SOON_LINES
    if not from_outside:
        return -1
    if event.code in DEATHS and event.code != _ends.CRASHED.code:
        return _MOST_STOP_LINES
    is_error = event.code in (_ends.CRASHED.code, *_ERRORS_OF_STOP) or event.kind in _RAISED_AT_STOP
    is_lost = event.role == Role.PEER or event.code == _ends.NODE_LOST.code
    return _SOON_LINES if is_error or is_lost else -1


def _is_before(event: Event, other: Event) -> bool:
    """Check whether an event is known to be earlier than another.

    The event must be earlier by more than a second, or on an earlier line of the same file.
    """
    if event.time_s is not None and other.time_s is not None:
        return event.time_s + 1 < other.time_s
    return event.source == other.source and event.line < other.line


def order(event: Event) -> tuple[float, str, int]:
    """Return the sort key of an event: the time (if the line states a time), the file and the line."""
    return (event.time_s if event.time_s is not None else float("inf"), event.source, event.line)


def first_of(events: Sequence[Event]) -> Event | None:
    """Return the earliest event, or None if there are no events.

    Events are sorted by time if all events have a time, and otherwise by file and line.
    """
    if not events:
        return None
    if all(event.time_s is not None for event in events):
        return min(events, key=order)
    return min(events, key=lambda event: (event.source, event.line))


def ranked_causes(causes: Sequence[Event]) -> list[tuple[Event, float]]:
    """Return (earliest message, weight) for each kind of cause. The likeliest cause comes first.

    Different exceptions are different causes.
    """
    by_kind: dict[tuple[str, ...], list[Event]] = {}
    for event in causes:
        by_kind.setdefault(kind_of(event), []).append(event)
    earliest = []
    for alike in by_kind.values():
        alike = [event for event in alike if not event.kind.advisory] or alike
        chosen = first_of([event for event in alike if event.facts.get("first_observed")] or alike)
        earliest += [_named(chosen, alike)] if chosen is not None else []
    likely = [event for event in earliest if event.kind.weight >= _LEAST_WEIGHT]
    found = [(event, event.kind.weight) for event in likely or earliest[:1]]
    return sorted(found, key=lambda pair: -pair[1])


def kind_of(event: Event) -> tuple[str, ...]:
    """Return what two messages of the same cause have in common.

    Two exceptions that differ only in numbers, such as the rank, are the same cause.
    """
    if event.code != python_errors.RAISED.code:
        return (event.code,)
    return (event.code, event.facts.get("error", ""), _NUMBER.sub("#", event.facts.get("message", "")))


def _named(event: Event, alike: Sequence[Event]) -> Event:
    """Add a rank and host to a message about a loss, if the message names neither a rank nor a host.

    All other messages about this loss must name the same process.
    """
    if event.code not in _SAME_LOSS:
        return event
    places = {(other.rank, other.host) for other in alike if (other.rank, other.host) != (None, None)}
    if (event.rank, event.host) != (None, None) or len(places) != 1 or event.pid is not None:
        return event
    [(rank, host)] = places
    return replace(event, rank=rank, host=host)


def absent_ranks(causes: Sequence[Event], followed: Sequence[Event], first: Event) -> tuple[int, ...]:
    """Return the ranks that never reached the operation, according to the likeliest message about absent ranks."""
    if first.role == Role.ABSENT:
        return first.ranks or ((first.rank,) if first.rank is not None else ())
    named = [event for event in (*causes, *followed) if event.role == Role.ABSENT and event.ranks]
    return max(named, key=lambda event: event.kind.weight).ranks if named else ()
