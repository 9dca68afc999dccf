"""Set aside the messages that did not end the job.

A message did not end the job if the process that printed it went on as usual. Some signs of this are certain:
- The process made further steps, or the job made too many steps for ranks that wait for a dead process. After an
  uncaught exception, more steps are needed, because the program may still write buffered lines.
- A launcher restarted the job, and the next attempt made steps, succeeded, or failed for a reason of its own.
- A launcher reported the end of an earlier run. A later run in the same file made many steps, and then succeeded or
  failed.

Other signs are less certain, and count only if no other message reports a failure:
- A few steps follow in lines that do not name their process.
- The program or its launcher reported success later.
- The program had reported success before the message. At the end of a job, connections break because the processes do
  not exit at the same time.
- The port of a NIC failed, but became active again.

If the job is known to have failed, and no other message says why, a message that did not end the job is still the
likeliest cause. For example, a thread that reads data may die long before the other threads run out of data. If another
message explains the failure, the message that did not end the job is listed as a less likely cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.core.codes import Coded
from bench.explain.crash_causes import DEATHS, FAILS, LOSSES, kind_of
from bench.explain.crash_facts import who, words
from bench.explain.crash_messages import CrashCode
from bench.logs.events import _ends, launchers, nccl_warn
from bench.logs.failure_events import Event, Role

_OWN_STEPS = 3  # a step may end after an error of its process, and the next one may be printed before; not a third
_FILE_STEPS = 5  # the same in lines that do not name their process: those of two processes may follow one another
_MANY_STEPS = 20  # processes that wait for a dead one do not make so many steps, whatever is in their buffers
_BUFFERED_STEPS = 400  # lines of 20 characters in the 8 KiB that a program may still write after its exception
_LAUNCHERS_REPORTS = (*DEATHS, *LOSSES, _ends.TIME_LIMIT.code, launchers.ABORT.code)
_STOPS = (_ends.STEP_ENDED.code, _ends.INTERRUPTED.code, _ends.CANCELLED.code)
_NEVER_SURVIVED = ("xid-79",)  # a process that uses a GPU without its PCIe link cannot go on
_USUAL_AT_EXIT = (Role.PEER, Role.STOPPED)
_STATES_CAUSE = (Role.CAUSE, Role.NETWORK, Role.ABSENT)
_MAY_BE_CAUSE = (Role.CAUSE, Role.NETWORK, Role.WAITED)
_LESS = 0.9  # the weight of a message that the job survived, compared with that of a cause that it did not survive
_MOST_LINES = 4  # on the page


class How(StrEnum):
    """Why a message did not end the job. Each value is a fact of `CrashCode.SURVIVED`."""

    WENT_ON = "went_on"
    SUCCEEDED = "succeeded"
    HAD_ENDED = "had_ended"
    RESTARTED = "restarted"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Survived:
    """A message that did not end the job."""

    event: Event
    how: How


def set_aside(events: Sequence[Event], failed: bool = False) -> tuple[list[Event], list[Survived]]:
    """Divide events into those that may belong to the failure, and messages that did not end the job.

    `failed`: whether the job is known to have failed.
    """
    shown = [event for event in events if event.role in FAILS]
    sure = _survived_for_sure(shown)
    likely = _survived_if_nothing_failed(events, sure)
    if failed or _failing(event for event in shown if id(event) not in sure and id(event) not in likely):
        likely = {}
    found = {**sure, **likely}
    survived = [Survived(event, found[id(event)]) for event in events if id(event) in found]
    failing = _failing(event for event in shown if id(event) not in found)
    if (failed or failing) and not any(event.role in _STATES_CAUSE for event in failing):
        returned = {id(event) for event in _candidates(survived, failing)}
        survived = [each for each in survived if id(each.event) not in returned]
    without = {id(each.event) for each in survived}
    return [event for event in events if id(event) not in without], survived


def doubted_causes(kept: Sequence[Event], survived: Sequence[Survived], failed: bool) -> list[Event]:
    """Return the messages after which the job went on, but which may still be the cause of the failure.

    The list is empty if no failure of the job is known.
    """
    failing = _failing(kept)
    is_known = failed or any(event.role not in _STATES_CAUSE or _is_end(event) for event in failing)
    return _candidates(survived, failing) if is_known else []


def with_doubted(
    ranked: Sequence[tuple[Event, float]], doubted: Sequence[tuple[Event, float]]
) -> list[tuple[Event, float]]:
    """Append the messages that may be causes although the job went on after them.

    The appended messages get less weight than all other causes.
    """
    most = _LESS * min((weight for _, weight in ranked), default=1.0)
    return [*ranked, *((event, min(weight, most)) for event, weight in doubted)]


def _failing(events: Iterable[Event]) -> list[Event]:
    """Return the messages that report a failure, without messages that healthy programs also print."""
    return [event for event in events if event.role in FAILS and not event.kind.advisory]


def _candidates(survived: Sequence[Survived], failing: Sequence[Event]) -> list[Event]:
    """Return the messages after which the job went on, but which may have caused a later failure.

    A message cannot be the cause if the launcher restarted the job afterwards, or if the message belongs to an earlier
    run in the same file. If a message of the same kind did end the job, that message is used instead.
    """
    ends = _last_lines(each.event for each in survived if _is_end(each.event))
    kinds = {kind_of(event) for event in failing}
    events = [each.event for each in survived if each.how is not How.RESTARTED and not each.event.kind.advisory]
    events = [event for event in events if event.role in _MAY_BE_CAUSE and kind_of(event) not in kinds]
    return [event for event in events if event.line > ends.get(event.source, 0)]


def _last_lines(events: Iterable[Event]) -> dict[str, int]:
    """Return the line number of the last event in each file."""
    last: dict[str, int] = {}
    for event in events:
        last[event.source] = max(event.line, last.get(event.source, 0))
    return last


def _survived_for_sure(events: Sequence[Event]) -> dict[int, How]:
    """Return why messages certainly did not end the job, by the id of the message.

    A message is proven to be harmless if the process that printed it made further steps, or if the job made more steps
    than waiting processes can make. A message is also harmless if the job was restarted, and the next attempt made
    steps, succeeded, or failed for a reason of its own.
    """
    latest = _latest_attempts(events, _STATES_CAUSE)
    latest_wait = _latest_attempts(events, (*_STATES_CAUSE, Role.WAITED))
    last = {event.source: event for event in sorted(_failing(events), key=lambda event: event.line)}
    found: dict[int, How] = {}
    for event in events:
        later = event.later
        has_next = bool(later.steps_since_restart) or later.has_success
        attempts = latest if event.role in _STATES_CAUSE else latest_wait
        if later.restarts_left and (has_next or attempts.get(event.source, 0) > later.num_restarts):
            found[id(event)] = How.RESTARTED
        elif (_is_end(event) or event.code in _STOPS) and _is_end_of_earlier_run(event, last.get(event.source, event)):
            found[id(event)] = How.WENT_ON
    ends = _last_lines(event for event in events if id(event) in found and _is_end(event))
    for event in events:
        if _is_end(event) or event.code in (*_STOPS, *_NEVER_SURVIVED) or id(event) in found:
            continue
        later = event.later
        is_own = later.is_labelled and later.own_steps >= _OWN_STEPS and event.role != Role.WAITED
        if later.is_uncaught and event.line > ends.get(event.source, 0):
            is_over = later.all_steps >= _BUFFERED_STEPS
        else:
            is_over = later.all_steps >= _MANY_STEPS or is_own
        if is_over:
            found[id(event)] = How.WENT_ON
    return found


def _is_end_of_earlier_run(event: Event, last: Event) -> bool:
    """Check whether a launcher or the scheduler ended an earlier run, and a later run in the same file is complete.

    `last`: the last message of a failure in this file.
    """
    steps = event.later.all_steps
    is_over = event.later.has_success or event.code in _STOPS
    is_over = is_over or (last.line > event.line and steps - last.later.all_steps >= _MANY_STEPS)
    return is_over and steps >= _MANY_STEPS


def _survived_if_nothing_failed(events: Sequence[Event], sure: Mapping[int, How]) -> dict[int, How]:
    """Return why messages probably did not end the job, by the id of the message.

    The result is used only if no other message reports a failure.
    """
    shown = [event for event in events if event.role in FAILS and id(event) not in sure]
    likely = {id(event): how for event in shown if (how := _likely(event)) is not None}
    ports = _recovered_ports(events)
    return likely | {id(event): How.RECOVERED for event in shown if id(event) in ports and id(event) not in likely}


def _likely(event: Event) -> How | None:
    """Return why a message probably did not end the job, or None.

    The evidence is a few further steps, or a report of success before or after the message.

    If only the shell or the kernel reports that a process was killed, the process may be a helper. If the job succeeds
    later, the end of the helper was harmless. After an uncaught exception, a report of success counts only if many
    steps preceded the report. Even a failed program may report success when it exits.
    """
    later = event.later
    if event.code in _NEVER_SURVIVED:
        return None
    if event.role == Role.PEER:
        # it does not matter whose steps follow a lost connection that ended no process
        is_over = max(later.own_steps, later.file_steps) >= _FILE_STEPS
    else:
        is_over = event.role == Role.CAUSE and later.own_steps >= _FILE_STEPS
    is_helper = event.rank is None and event.host is None and event.code == _ends.KILLED.code
    is_end = (_is_end(event) and not is_helper) or event.code in _STOPS
    if is_over and not later.is_uncaught and not is_end and not is_helper:
        return How.WENT_ON
    if later.has_success and not is_end and (not later.is_uncaught or later.all_steps >= _MANY_STEPS):
        return How.SUCCEEDED
    is_usual = event.role in _USUAL_AT_EXIT or event.code in (*_STOPS, launchers.NOT_STARTED.code)
    return How.HAD_ENDED if later.after_success and is_usual else None


def _is_end(event: Event) -> bool:
    """Check whether a launcher, a scheduler or a shell reported that a process or a node of the job ended.

    The kernel and Python also report killed processes, which may be helpers.
    """
    is_of_kernel = event.code == _ends.HOST_MEMORY.code and event.pid is not None
    return (
        event.code in _LAUNCHERS_REPORTS and "error" not in event.facts and not event.kind.advisory and not is_of_kernel
    )


def _latest_attempts(events: Sequence[Event], roles: Collection[Role]) -> dict[str, int]:
    """Return, for each file, how many restarts preceded the last message with one of these roles.

    An attempt that did not reach the store is ignored, because it does not show why the previous attempt failed.
    """
    latest: dict[str, int] = {}
    for event in _failing(events):
        if event.role in roles and event.code != _ends.STORE_UNREACHABLE.code and not _is_end(event):
            latest[event.source] = max(event.later.num_restarts, latest.get(event.source, 0))
    return latest


def _recovered_ports(events: Sequence[Event]) -> set[int]:
    """Return the ids of events about a NIC port that became active again later in the same file."""
    found = set()
    for event in events:
        if event.kind is nccl_warn.PORT_EVENT:
            place = (event.source, event.host, event.facts.get("hca"))
            later = (other for other in events if other.kind is nccl_warn.SUBNET_EVENT and other.line > event.line)
            again = (other for other in later if (other.source, other.host, other.facts.get("hca")) == place)
            found |= {id(event)} if any("port active" in other.facts["event"] for other in again) else set()
    return found


def survived_lines(survived: Sequence[Survived]) -> list[Coded]:
    """Return one line for each kind of message that did not end the job. Usual warnings are left out."""
    groups: dict[tuple[str, How], list[Event]] = {}
    for each in survived:
        if not each.event.kind.advisory:
            groups.setdefault((each.event.code, each.how), []).append(each.event)
    lines = []
    for (code, how), alike in list(groups.items())[:_MOST_LINES]:
        first, last = alike[0], alike[-1]
        ranks = sorted({event.rank for event in alike if event.rank is not None})
        later = last.later
        num_steps = later.rise if later.all_steps >= later.own_steps else later.own_steps
        facts = {
            "kind": code,
            "who": who(ranks),
            "ranks": ranks or None,
            "what": words(first),
            "where": f"{first.source}:{first.line}",
            "line": first.line,
            "count": len(alike) if len(alike) > 1 else None,
            "num_steps": num_steps if how is How.WENT_ON else None,
        }
        lines.append(Coded.of(CrashCode.SURVIVED, **facts, **{str(how): True}))
    return lines
