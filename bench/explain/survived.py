"""Set aside the messages that a job survived.

One question decides: did the process that printed the message go on as usual? The answer is yes in these cases:
- The process made further steps. Steps of other processes prove less: a rank that ends stops the others soon, but not
  at once, so many steps are needed. If the job failed later, the same holds for lines without a label.
- The program or its launcher reported success later, and no launcher reports that a process failed.
- The job had ended with success before. Connections then break as the processes end one after another.
- A launcher restarted the job, and the next attempt made steps, succeeded, or failed for a reason of its own.
- A port of a NIC became active again, and nothing else failed.

A launcher's report that a process or a node ended is the end of an attempt. It is set aside only if a later run in the
same file made many steps, and then succeeded or failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.core.codes import Coded
from bench.explain.crash_causes import DEATHS, FAILS, LOSSES
from bench.explain.crash_facts import who, words
from bench.explain.crash_messages import CrashCode
from bench.logs.events import _ends, launchers, nccl_warn
from bench.logs.failure_events import Event, Role

_OWN_STEPS = 3  # steps of a process that prove that it survived
_FILE_STEPS = 5  # the same in a file whose lines do not name their process, if the job did not fail later
_MANY_STEPS = 20  # steps of any process that prove that all processes survived
_STATES_CAUSE = (Role.CAUSE, Role.NETWORK, Role.ABSENT, Role.WAITED)
_OF_LAUNCHER = (*DEATHS, *LOSSES, _ends.TIME_LIMIT.code, launchers.ABORT.code)
_STOPS = (_ends.STEP_ENDED.code, _ends.INTERRUPTED.code, _ends.CANCELLED.code)
_USUAL_AT_EXIT = (Role.PEER, Role.STOPPED, Role.NETWORK)
_MOST_LINES = 4


class How(StrEnum):
    """How a job survived a message. The values are facts of `CrashCode.SURVIVED`."""

    WENT_ON = "went_on"
    SUCCEEDED = "succeeded"
    HAD_ENDED = "had_ended"
    RESTARTED = "restarted"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Survived:
    """A message that the job survived."""

    event: Event
    how: How


def set_aside(events: Sequence[Event], failed: bool = False) -> tuple[list[Event], list[Survived]]:
    """Divide events into those that may belong to the failure, and messages that the job survived.

    `failed`: whether the job is known to have failed.
    """
    shown = [event for event in events if event.role in FAILS]
    latest, recovered = _latest_attempts(shown), _recovered_ports(events)
    survived: dict[int, Survived] = {}
    kept: list[Event] = []
    # Later messages first: whether a message was survived depends on whether the job failed after it. Reports of
    # launchers count in all files, because a launcher often writes a file of its own.
    by_line = sorted(shown, key=lambda event: (not _is_end(event), -event.line))
    for event in by_line:
        how = _how(event, kept, latest, failed)
        if how is None and id(event) in recovered and not failed and all(other.kind.advisory for other in kept):
            how = How.RECOVERED
        if how is None:
            kept.append(event)
        else:
            survived[id(event)] = Survived(event, how)
    return [event for event in events if id(event) not in survived], [
        survived[id(event)] for event in events if id(event) in survived
    ]


def _how(event: Event, kept: Sequence[Event], latest: dict[str, int], failed: bool) -> How | None:
    """Return how the job survived a message, or None if it may not have survived it.

    `kept`: the reports of launchers, and the later messages, that the job did not survive.
    `latest`: a file -> the number of restarts before its last attempt that made steps or states a cause.
    """
    later = event.later
    has_next = bool(later.steps_since_restart) or later.has_success
    if later.restarts_left and (has_next or latest.get(event.source, 0) > later.num_restarts):
        return How.RESTARTED
    ends = [other for other in kept if _is_end(other)]
    has_failed = failed or any(_is_after(other, event) for other in kept if not other.kind.advisory)
    if _is_end(event) or event.code in _STOPS:
        is_run_over = later.has_success or any(_is_after_steps(other, event) for other in kept)
        is_helper = later.has_success and event.rank is None and event.host is None and event.code == _ends.KILLED.code
        if later.all_steps >= _MANY_STEPS and is_run_over:
            return How.WENT_ON
        if is_helper and not has_failed:
            return How.SUCCEEDED
    elif (
        later.all_steps >= _MANY_STEPS
        or (later.is_labelled and later.own_steps >= _OWN_STEPS)
        or (later.own_steps >= _FILE_STEPS and not has_failed)
    ):
        return How.WENT_ON
    elif later.has_success and not has_failed:
        return How.SUCCEEDED
    if later.after_success and not ends and not failed and (event.role in _USUAL_AT_EXIT or event.code in _STOPS):
        return How.HAD_ENDED
    return None


def _is_end(event: Event) -> bool:
    """Check whether a launcher, a scheduler or a shell reported that a process or a node of the job ended.

    The kernel and Python also report killed processes, which may be helpers.
    """
    is_of_kernel = event.code == _ends.HOST_MEMORY.code and event.pid is not None
    return event.code in _OF_LAUNCHER and "error" not in event.facts and not event.kind.advisory and not is_of_kernel


def _is_after(event: Event, other: Event) -> bool:
    """Check whether an event may be later than another. Reports of launchers in other files may be."""
    return event.line > other.line if event.source == other.source else _is_end(event)


def _is_after_steps(event: Event, other: Event) -> bool:
    """Check whether an event is later in the same file than another, with many steps between them."""
    num_steps = other.later.all_steps - event.later.all_steps
    return event.source == other.source and event.line > other.line and num_steps >= _MANY_STEPS


def _latest_attempts(events: Sequence[Event]) -> dict[str, int]:
    """Return for each file the number of restarts before the last message that states a cause."""
    latest: dict[str, int] = {}
    for event in events:
        if event.role in _STATES_CAUSE and not event.kind.advisory and not _is_end(event):
            latest[event.source] = max(event.later.num_restarts, latest.get(event.source, 0))
    return latest


def _recovered_ports(events: Sequence[Event]) -> set[int]:
    """Return the ids of events of a NIC whose port became active again later in the same file."""
    found = set()
    for event in events:
        if event.kind is nccl_warn.PORT_EVENT:
            place = (event.source, event.host, event.facts.get("hca"))
            later = (other for other in events if other.kind is nccl_warn.SUBNET_EVENT and other.line > event.line)
            again = (other for other in later if (other.source, other.host, other.facts.get("hca")) == place)
            found |= {id(event)} if any("port active" in other.facts["event"] for other in again) else set()
    return found


def survived_lines(survived: Sequence[Survived]) -> list[Coded]:
    """Return one line for each kind of message that the job survived. Usual warnings are left out."""
    groups: dict[tuple[str, How], list[Event]] = {}
    for each in survived:
        if not each.event.kind.advisory:
            groups.setdefault((each.event.code, each.how), []).append(each.event)
    lines = []
    for (code, how), alike in list(groups.items())[:_MOST_LINES]:
        first, last = alike[0], alike[-1]
        ranks = sorted({event.rank for event in alike if event.rank is not None})
        later = last.later
        num_steps = max(later.own_steps, later.all_steps if later.all_steps >= _MANY_STEPS else 0)
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
