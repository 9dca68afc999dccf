"""Set aside the messages that a job survived.

One question decides: did the process that printed the message go on as usual? The answer is yes in these cases:
- The process made further steps. Steps of other processes prove less: a rank that ends stops the others soon, but not
  at once, so many steps are needed. If the job failed later, the same holds for lines without a label. After an
  exception that nothing caught, a program may still write steps that it made before.
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
from bench.explain.crash_causes import DEATHS, FAILS, FOLLOWS, LOSSES
from bench.explain.crash_facts import who, words
from bench.explain.crash_messages import CrashCode
from bench.logs.events import _ends, launchers, nccl_warn
from bench.logs.failure_events import Event, Role

_OWN_STEPS = 3  # steps of a process that prove that it survived
_FILE_STEPS = 5  # the same in a file whose lines do not name their process, if the job did not fail later
_MANY_STEPS = 20  # steps of any process that prove that all processes survived
_BUFFERED_STEPS = 400  # more than the lines that a program may still write after its exception (8 KiB)
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
    shown = sorted((event for event in events if event.role in FAILS), key=lambda event: -event.line)
    first = _Judgement(failed, shown)
    second = _Judgement(failed, shown, frozenset(first.files_with_ends))
    survived = second.survived
    recovered = _recovered_ports(events)
    if not failed and all(event.kind.advisory or id(event) in recovered for event in second.kept):
        survived |= {id(event): Survived(event, How.RECOVERED) for event in second.kept if id(event) in recovered}
    kept = [event for event in events if id(event) not in survived]
    return kept, [survived[id(event)] for event in events if id(event) in survived]


class _Judgement:
    """Decides for each message how the job survived it. Later messages come first, because they decide about others.

    `kept`: the messages that the job did not survive.
    `files_with_ends`: the files with reports of launchers that the job did not survive. Launchers often write a file of
        their own, so that such a report counts for the messages of all files.
    """

    def __init__(self, failed: bool, events: Sequence[Event], files_with_ends: frozenset[str] = frozenset()) -> None:
        """Decide about messages of which the last lines come first."""
        self.survived: dict[int, Survived] = {}
        self.kept: list[Event] = []
        self.files_with_ends = set(files_with_ends)
        self._failed = failed
        self._latest = _latest_attempts(events)
        self._steps_after: dict[str, int] = {}  # a file -> the fewest steps after a message of `kept`
        self._ended: dict[str, int] = {}  # a file -> the last report of a launcher about an earlier run
        for event in events:
            how = self._how_uncaught(event) if self._is_uncaught(event) else self._how(event)
            if how is not None:
                self.survived[id(event)] = Survived(event, how)
                if _is_end(event):
                    self._ended.setdefault(event.source, event.line)
                continue
            self.kept.append(event)
            if not event.kind.advisory:
                steps = event.later.all_steps
                self._steps_after[event.source] = min(steps, self._steps_after.get(event.source, steps))
            if _is_end(event):
                self.files_with_ends.add(event.source)

    def _has_failed_after(self, event: Event) -> bool:
        return self._failed or event.source in self._steps_after or bool(self.files_with_ends - {event.source})

    def _is_uncaught(self, event: Event) -> bool:
        """Check whether an exception ended its program, unless a launcher reports the end of this run."""
        return event.later.is_uncaught and not _is_end(event) and event.line > self._ended.get(event.source, 0)

    def _how(self, event: Event) -> How | None:
        """Return how the job survived a message, or None if it may not have survived it."""
        later = event.later
        has_next = bool(later.steps_since_restart) or later.has_success
        if later.restarts_left and (has_next or self._latest.get(event.source, 0) > later.num_restarts):
            return How.RESTARTED
        if _is_end(event) or event.code in _STOPS:
            how = self._how_end(event)
        else:
            how = self._how_message(event)
        is_usual = event.role in _USUAL_AT_EXIT or event.code in _STOPS
        if how is None and later.after_success and is_usual and not self.files_with_ends and not self._failed:
            return How.HAD_ENDED
        return how

    def _how_message(self, event: Event) -> How | None:
        later, has_failed = event.later, self._has_failed_after(event)
        if later.all_steps >= _MANY_STEPS or (later.is_labelled and later.own_steps >= _OWN_STEPS):
            return How.WENT_ON
        # A lost connection is a consequence. If nothing failed, it does not matter whose steps follow.
        steps = later.all_steps if event.role in FOLLOWS else later.own_steps
        if steps >= _FILE_STEPS and not has_failed:
            return How.WENT_ON
        return How.SUCCEEDED if later.has_success and not has_failed else None

    def _how_end(self, event: Event) -> How | None:
        """Return how the job survived that a launcher or the scheduler ended it: by a later run in the same file.

        A process that only the shell or the kernel reports as killed may be a helper of a job that succeeds later.
        """
        later = event.later
        num_until_failure = later.all_steps - self._steps_after.get(event.source, later.all_steps)
        is_run_over = later.has_success or num_until_failure >= _MANY_STEPS or event.code in _STOPS
        if later.all_steps >= _MANY_STEPS and is_run_over:
            return How.WENT_ON
        is_helper = event.rank is None and event.host is None and event.code == _ends.KILLED.code
        return How.SUCCEEDED if is_helper and later.has_success and not self._has_failed_after(event) else None

    def _how_uncaught(self, event: Event) -> How | None:
        """Return how the job survived an exception with the stack of a whole program. It may be a helper's.

        A program that ends so may still write lines that it printed before, so a few steps after it prove nothing.
        """
        how = self._how(event)
        if how is not How.WENT_ON or event.later.all_steps >= _BUFFERED_STEPS:
            return how
        return How.SUCCEEDED if event.later.has_success and not self._has_failed_after(event) else None


def _is_end(event: Event) -> bool:
    """Check whether a launcher, a scheduler or a shell reported that a process or a node of the job ended.

    The kernel and Python also report killed processes, which may be helpers.
    """
    is_of_kernel = event.code == _ends.HOST_MEMORY.code and event.pid is not None
    return event.code in _OF_LAUNCHER and "error" not in event.facts and not event.kind.advisory and not is_of_kernel


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
