"""Collect the events of many files, and divide the files into jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from bench.core.codes import Coded
from bench.core.log_traits import log_traits
from bench.explain.crash import Crash, crash_of
from bench.explain.crash_causes import FAILS
from bench.explain.crash_facts import words
from bench.explain.crash_messages import CrashCode
from bench.explain.log_hints import Hint
from bench.explain.survived import set_aside, survived_lines
from bench.logs.events import flight_recorder, nccl_inspector
from bench.logs.failure_events import LARGEST_DOCUMENT, Event, Role, document_events, may_be_document
from bench.logs.foreign import OK, TRUNCATED, ForeignRun
from bench.logs.imports import Log
from bench.logs.progress import NO_COURSE, Course

_HEAD = 4096
_MARKED = ("no_rdma", "refused", "no_nvls")  # kinds of hints that say what NCCL could not use


@dataclass(frozen=True, slots=True)
class EventLog:
    """One file with its runs and its events. A dump is read as one document, and any other file as text.

    `course`: the steps that the job made and whether it succeeded, as far as this file shows them.
    """

    log: Log
    events: tuple[Event, ...]
    course: Course = NO_COURSE

    @property
    def runs(self) -> tuple[ForeignRun, ...]:
        """The runs in the file, except runs that another tool recorded from a running job.

        A recording is not a run of its own, because the files of the recorded job show the run.
        """
        return tuple(run for run in self.log.runs if not log_traits(run.tool).of_running_job)

    def between(self, first: float, last: float) -> list[Event]:
        """Return the events from line `first` to the line before `last`."""
        return [event for event in self.events if first <= event.line < last]


def without_failure(logs: Sequence[EventLog], hints: Sequence[Hint]) -> Coded | None:
    """Describe logs that show neither a result nor a failure.

    Return None if the logs show nothing at all.

    `hints`: the hints of all logs.
    """
    marked = [f"{hint.value} (line {hint.line})" for hint in hints if hint.kind in _MARKED]
    events = [event for each in logs for event in each.events if event.role == Role.STATE or event.kind.advisory]
    states = [words(event) if event.role == Role.STATE else _warned(event) for event in events]
    _, survived = set_aside([event for each in logs for event in each.events])
    harmless = [line.text for line in survived_lines(survived)]
    shown = [*harmless, *dict.fromkeys(marked), *dict.fromkeys(states)]
    if not shown:
        return None
    sources = [each.log.source.name for each in logs if each.events or len(logs) == 1]
    sources = sources or [each.log.source.name for each in logs]
    course = max((each.course for each in logs), key=lambda course: (bool(course.success_line), course.last_step_line))
    return Coded.of(CrashCode.NO_FAILURE, sources=sources, shown=shown, **course.facts())


def _warned(event: Event) -> str:
    return f"{event.printed} (line {event.line})"


def file_events(path: Path | None, name: str) -> tuple[Event, ...]:
    """Return the events of a dump or another file that a reader parses as a whole.

    Return an empty tuple if the file is not such a document or cannot be read.
    """
    if path is None:
        return ()
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            if not may_be_document(head):
                return ()
            return document_events(head + file.read(LARGEST_DOCUMENT), name)
    except OSError:
        return ()


def run_crash(logs: Sequence[EventLog], log: EventLog, run: ForeignRun, begin: float, end: float) -> Crash | None:
    """Find what failed in one run, from line `begin` to the line before `end`.

    Return None if the run succeeded or if the files show no cause. If there is only one job, files without a run also
    belong to this job.
    """
    if run.status == OK:
        return None
    events = log.between(begin, end)
    is_whole_file = len(log.runs) == 1
    if _is_only_job(logs):
        events += [event for other in logs if not other.runs for event in other.events]
    return crash_of(events, failed=not (is_whole_file and run.status == TRUNCATED and _has_verdict(events)))


def _has_verdict(events: Sequence[Event]) -> bool:
    """Check whether nccl-tests reported correct results after the last message. Its log may still lack rows.

    Other programs' reports of success do not count, because such a program may have started later.
    """
    last = max((event for event in events if event.role in FAILS), key=lambda event: event.line, default=None)
    return last is not None and last.later.has_verdict


def other_crashes(logs: Sequence[EventLog]) -> list[Crash]:
    """Return one crash for each failed job whose files contain no run.

    For example, a job may have one log or one dump per rank.
    """
    if _is_only_job(logs):
        return []
    found = []
    for job in _jobs([log for log in logs if not log.runs and log.events]):
        crash = crash_of([event for log in job for event in log.events])
        found += [crash] if crash is not None else []
    return found


def _jobs(logs: Sequence[EventLog]) -> list[list[EventLog]]:
    """Divide files into jobs.

    The files that the user named are one job. In a folder, logs with names that differ only in numbers are one job. If
    a folder has logs of only one job, the dumps and kernel logs in this folder belong to the job too.
    """
    named = [log for log in logs if not log.log.source.found]
    jobs = [named] if named else []
    folders: dict[PurePath, list[EventLog]] = {}
    for log in logs:
        if log.log.source.found:
            folders.setdefault(PurePath(log.log.source.name).parent, []).append(log)
    for inside in folders.values():
        alike: dict[str, list[EventLog]] = {}
        for log in inside:
            alike.setdefault(re.sub(r"\d+", "#", PurePath(log.log.source.name).name), []).append(log)
        texts = [group for group in alike.values() if not all(map(_is_evidence_only, group))]
        jobs += [inside] if len(texts) <= 1 else list(alike.values())
    return jobs


def _is_evidence_only(log: EventLog) -> bool:
    """Check whether the file is a dump or a kernel log, which belongs to a job with other logs."""
    dumped = (flight_recorder.RECORDS, nccl_inspector.FINISHED)
    return all(event.kind in dumped or "xid" in event.facts for event in log.events)


def _is_only_job(logs: Sequence[EventLog]) -> bool:
    """Check whether all logs together contain exactly one run, which failed.

    If there is exactly one failed run, all other files belong to this run.
    """
    runs = [run for log in logs for run in log.runs]
    return len(runs) == 1 and runs[0].status != OK
