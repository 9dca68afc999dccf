"""Read the programs that a shell did not find, if the job or one of its nodes ended for this reason.

Scripts also call helpers that a node lacks, and go on. Such a line is a failure only if exit code 127 is reported
afterwards, or if the program starts the job and the log ends there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bench.logs.events import launchers
from bench.logs.failure_events import Event, EventFormat, EventLine, event_of

_NO_PROGRAM = replace(
    launchers.NOT_STARTED,
    what="a shell did not find a program, {program}: {error}",
    weight=0.9,
    step="check that this node has the program at this path: its environment, its PATH and its file systems may differ "
    "from those of the other nodes",
    command="ssh NODE 'which PROGRAM; echo $PATH; df -h'",
)
_MAY_GO_ON = replace(_NO_PROGRAM, advisory=True)
_LABEL = (
    r"^\s*(?:\[(?P<host>[A-Za-z][\w.-]{0,252})(?::\d{1,4})?\]:?\s|(?P<host_2>[A-Za-z][\w.-]{0,252}): (?=\S*sh: ))?"
    r".{0,60}?"
)
_SHELL = r"(?:[\w./-]{0,200}?(?:\b(?:ba|da|z|k)?sh|slurm_script|\.(?:sbatch|slurm|job))|(?:/usr/bin/)?env)"
_PROGRAM = r"['\"\u2018]?(?P<program>[\w./+-]{1,300})['\"\u2019]?"
_NOT_FOUND = re.compile(
    rf"{_LABEL}(?<![\w./-]){_SHELL}(?:: line \d{{1,9}}|: \d{{1,9}})?: {_PROGRAM}: "
    r"(?P<error>(?:command )?not found|No such file or directory)\s*$"
)
_BUILT_IN = (".", "cd", "source", "module", "export", "ulimit", "exec")
_EXIT = re.compile(r"\b(?:code|status)['\"]?[ :=]{1,3}127\b")
_EXIT_ON = re.compile(r"(?<![\w.@-])(?P<host>[A-Za-z][\w.-]{0,252}): (?:ssh exited|tasks? \d)")
_STARTS_JOB = re.compile(
    r"(?:^|/)(?:torchrun|deepspeed|accelerate|horovodrun|composer|colossalai|mpirun|mpiexec|orterun|prterun|srun|jsrun|"
    r"aprun|ray|python[\d.]{0,6})$"
)
_MOST_OPEN = 1_000
_PYTHON = re.compile(r"(?:^|/)python[\d.]{0,6}$")  # scripts try several names
_MOST_AFTER = 2  # lines after another program that was not found, at the end of a log


class MissingPrograms(EventFormat):
    """Yields one event for each node or script that lacks a program and ended for this reason."""

    hints = (
        "not found",
        "No such file or directory",
        "code 127",
        "code: 127",
        "code=127",
        "status 127",
        "status: 127",
    )

    def __init__(self) -> None:
        """Start without a missing program."""
        self._missing: dict[str | None, Event] = {}  # a host -> the last program that its shell did not find
        self._last: Event | None = None  # a program that starts the job, not found shortly before
        self._num_after = 0

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the log may end with a program that was not found."""
        return self._last is not None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Keep a program that was not found. Yield its event at a report of exit code 127."""
        found = _NOT_FOUND.match(line.raw)
        if found is not None and found["program"] not in _BUILT_IN:
            self._keep(event_of(_NO_PROGRAM, line, found, printed=line.text))
            return
        if self._last is not None and line.text:
            self._num_after += 1
            if self._num_after > _MOST_AFTER:
                yield replace(self._last, kind=_MAY_GO_ON)
                self._last = None
        if self._missing and _EXIT.search(line.text):
            named = _EXIT_ON.search(line.text)
            yield from self._ended(named["host"] if named is not None else None)

    def _keep(self, event: Event) -> None:
        """Keep the last program that a host lacks. A shell says `not found` only of programs, and not of files."""
        before = self._missing.get(event.host)
        is_file = event.facts["error"].startswith("No such")
        if before is not None and is_file and not before.facts["error"].startswith("No such"):
            return
        if event.host in self._missing or len(self._missing) < _MOST_OPEN:
            self._missing[event.host] = event
        if _STARTS_JOB.search(event.facts["program"]):
            self._last, self._num_after = event, _MOST_AFTER if _PYTHON.search(event.facts["program"]) else 0

    def _ended(self, host: str | None) -> Iterator[Event]:
        """Yield the program that a host lacks whose command ended with code 127. None is a host that is not known."""
        names = [name for name in self._missing if None in (name, host) or _short(name) == _short(host)]
        if host is None and len(names) > 1:
            return
        for name in names:
            event = self._missing.pop(name)
            yield event if event.host is not None else replace(event, host=host)
            if self._last is not None and self._last.line == event.line:
                self._last = None

    def finish(self) -> Iterator[Event]:
        """Yield the program that starts the job, if the log ends after the shell did not find it."""
        if self._last is not None:
            yield self._last


FORMAT = MissingPrograms


def _short(host: str | None) -> str:
    return (host or "").partition(".")[0]
