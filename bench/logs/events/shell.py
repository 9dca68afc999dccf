"""Read which programs a shell did not find, if the job or one of its nodes ended for this reason.

Scripts also call helper programs that a node lacks, and continue without them. A missing program is a failure in two
cases: exit code 127 is reported afterwards, or the program starts the job and the log then ends.
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
    rf"{_LABEL}(?<![\w./-]){_SHELL}(?:: line \d{{1,9}}|: \d{{1,9}})?: (?:exec: )?{_PROGRAM}: "
    r"(?P<error>(?:command )?not found|No such file or directory)\s*$"
)
_BUILT_IN = (".", "cd", "source", "module", "export", "ulimit", "exec")
_EXIT = re.compile(r"(?<!non-zero exit )\b(?:code|status)['\"]?[ :=]{1,3}127\b")
_OF_LAUNCHER = re.compile(  # a script may also print the code of a helper
    r"srun: |exited with|terminated with|[Ee]xit code: |exits with|died unexpectedly with|returned exit"
)
_NO_LIBRARY = "error while loading shared libraries"  # the loader then ends with code 127, too
_EXIT_ON = re.compile(r"(?<![\w.@-])(?P<host>[A-Za-z][\w.-]{0,252}): (?:ssh exited|tasks? (?P<rank>\d{1,7}))")
_TASK = re.compile(r"^\s{0,10}(\d{1,7}): ")  # printed by `srun --label`, also if the first lines are not of rank 0
_MOST_OPEN = 1_000
_PYTHON = re.compile(r"(?:^|/)python[\d.]{0,6}$")  # scripts try several names
_RAY = re.compile(r"(?:^|/)ray$")
# Lines after a program that was not found, at the end of a log. A script may print more after its launcher failed.
_MOST_AFTER, _MOST_AFTER_LAUNCHER = 2, 30
_LAUNCHER = re.compile(
    r"(?:^|/)(?:torchrun|deepspeed|accelerate|horovodrun|composer|colossalai|mpirun|mpiexec|orterun|prterun|srun|jsrun|"
    r"aprun)$"
)


class MissingPrograms(EventFormat):
    """Yields one event for each node or script that lacks a program and ended for this reason."""

    hints = (
        "not found",
        "No such file or directory",
        "error while loading shared",
        "code 127",
        "code: 127",
        "code=127",
        "status 127",
        "status: 127",
    )

    def __init__(self) -> None:
        """Start in the state in which no program is missing."""
        # a host and a rank -> the last program that the shell did not find; None if not known
        self._missing: dict[tuple[str | None, int | None], Event] = {}
        self._last: Event | None = None  # a program that starts the job, not found shortly before
        self._left = 0  # lines that may follow `_last`

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the log may end after a program was not found."""
        return self._last is not None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Store the name of a program that was not found.

        When exit code 127 is reported, yield the event of this program.
        """
        found = _NOT_FOUND.match(line.raw)
        if found is not None and found["program"] not in _BUILT_IN:
            self._keep(event_of(_NO_PROGRAM, line, found, printed=line.text), line.label, line.raw)
            return
        if self._last is not None and line.text:
            self._left -= 1
            if self._left < 0:
                yield replace(self._last, kind=_MAY_GO_ON)
                self._last = None
        if self._missing and _NO_LIBRARY in line.text:
            self._missing = {}
        if self._missing and _EXIT.search(line.text) and _OF_LAUNCHER.search(line.text):
            named = _EXIT_ON.search(line.text)
            host, rank = (named["host"], named["rank"]) if named is not None else (None, None)
            yield from self._ended(host, int(rank) if rank is not None else None)

    def _keep(self, event: Event, label: int | None, raw: str) -> None:
        """Store the last program that the shell of a process did not find.

        `label`: the rank that a launcher printed at the beginning of the line.
        """
        place = (event.host, label if label is not None else _task(raw))
        if self._missing.pop(place, None) is not None or len(self._missing) < _MOST_OPEN:
            self._missing[place] = event
        left = _lines_after(event.facts["program"])
        if left is not None:
            self._last, self._left = event, left

    def _ended(self, host: str | None, rank: int | None) -> Iterator[Event]:
        """Yield the event of the program that a process lacked, if the process ended with exit code 127.

        A host or rank that is unknown is None.
        """
        places = [place for place in self._missing if None in (place[0], host) or _short(place[0]) == _short(host)]
        if host is None and len({of for of, _ in places}) > 1:
            return
        places = [place for place in places if None not in (place[1], rank) and place[1] == rank] or places
        for of in dict.fromkeys(of for of, _ in places):
            place = [place for place in places if place[0] == of][-1]
            event = self._missing[place]
            self._missing = {each: kept for each, kept in self._missing.items() if each[0] != of}
            yield event if event.host is not None else replace(event, host=host)
            if self._last is not None and self._last.line == event.line:
                self._last = None

    def finish(self) -> Iterator[Event]:
        """Yield the missing program that was to start the job, if the log ends soon after the shell reported it."""
        if self._last is not None:
            yield self._last


FORMAT = MissingPrograms


def _lines_after(program: str) -> int | None:
    """Return how many lines may follow the report if the missing program ended the job.

    If more lines follow, the job continued without the program. The result is None if the program does not start jobs.
    """
    if _PYTHON.search(program):
        return 0
    if _RAY.search(program):
        return _MOST_AFTER
    return _MOST_AFTER_LAUNCHER if _LAUNCHER.search(program) else None


def _task(raw: str) -> int | None:
    found = _TASK.match(raw)
    return int(found[1]) if found is not None else None


def _short(host: str | None) -> str:
    return (host or "").partition(".")[0]
