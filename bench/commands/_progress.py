"""Show the progress of a run on a terminal: each measured row, and a bar with the remaining time.

Without a terminal, only plain lines are printed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.commands._say import say
from bench.controller.progress import Follow, Progress, ignore
from bench.controller.run import Say
from bench.core import printable
from bench.core.record import Flag
from bench.core.units import format_bytes, format_duration
from bench.results import text
from bench.results.colours import styled
from bench.store.row_events import RowEvent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_MOST_ROWS = 500  # of all jobs together; a run with more rows shows only the bar


@dataclass(frozen=True, slots=True)
class Screen:
    """Three functions that print how a run progresses.

    `say` prints a line that stays. `tick` replaces the text that describes the current state. `follow` shows the
    progress.
    """

    say: Say
    tick: Say
    follow: Follow


@contextlib.contextmanager
def shown() -> Iterator[Screen]:
    """Yield the functions that print a run's progress.

    If stderr is a terminal, rows and a progress bar are shown. Otherwise, plain lines are printed.
    """
    if not sys.stderr.isatty():
        yield Screen(say, _nothing, ignore)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, highlight=False, markup=False, force_terminal=True, no_color=_no_colour())
    columns = (TextColumn("{task.fields[state]}", markup=False), BarColumn(20), TextColumn("{task.fields[left]}"))
    # No thread redraws the bar, because it would use CPU time while the ranks measure.
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        screen = _Terminal(console, bar, bar.add_task("", total=1, state="", left=""))
        yield Screen(screen.say, screen.tick, screen.follow)


def _nothing(state: str) -> None:
    pass


def _no_colour() -> bool | None:
    return bool(os.environ.get("NO_COLOR")) or None


class _Terminal:
    def __init__(self, console: Console, bar: Bar, task: TaskID) -> None:
        self._console, self._bar, self._task = console, bar, task
        self._state = ""
        self._reasons: set[tuple[str, str]] = set()

    def say(self, sentence: str) -> None:
        # Soft wrap: a command that users copy then contains no line break.
        self._console.print(styled(printable.line(sentence)), soft_wrap=True)

    def tick(self, state: str) -> None:
        if state != self._state:  # `tick` is called more often than the state changes
            self._state = state
            self._bar.update(self._task, state=printable.line(state))
            self._bar.refresh()

    def follow(self, progress: Progress) -> None:
        for row in progress.rows if progress.num_rows <= _MOST_ROWS else ():
            reason = (progress.job, row.reason)
            if (
                not row.reason or reason not in self._reasons
            ):  # all rows that the time budget skips have the same reason
                self._console.print(styled(row_line(row)), soft_wrap=True)
            self._reasons.add(reason)
        rows = f"{progress.num_done:,} of {progress.num_rows:,} rows"
        left = f"{rows}, about {format_duration(progress.left_s)} left"
        self._bar.update(self._task, completed=progress.num_done, total=max(1, progress.num_rows), left=left)


def row_line(row: RowEvent) -> str:
    """Return the line that shows one row.

    The line shows the pattern, size and mode. For a measured row, the line also shows the time, the rate and the share
    of the bound. For a skipped or failed row, the line shows the reason.
    """
    name = f"{row.pattern:<13} {format_bytes(row.payload_bytes):>9}  {row.mode:<9}"
    if row.reason:
        return printable.line(f"  {name} {'FAILED' if row.failed else 'skipped'}: {row.reason}")
    if Flag.INVALID in row.flags:
        return f"  {name} INVALID: wrong data"
    if row.median_s is None:
        return f"  {name} no figure"
    groups = f"  slowest of {row.num_groups} groups" if row.num_groups > 1 else ""
    rate = "" if row.busbw_bytes_per_s is None else f"{text.gigabytes(row.busbw_bytes_per_s):>7} GB/s"
    ideal = "ideal: " if Flag.MODELLED in row.flags else ""
    share = "" if row.bound_fraction is None or ideal else f"{text.percent(row.bound_fraction):>6} % of bound"
    marks = text.marks(row.flags)
    return f"  {name} {ideal}{text.microseconds(row.median_s):>8} us {rate}{share} {marks[:2]}{groups}".rstrip()
