"""Count the steps of one kind in a file, and how far their numbers rise after a message."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import NamedTuple

_MOST_MARKS = 50  # steps of one kind that are kept in one part of a file; later ones of the part become one
_MOST = 1 << 62


class _Mark(NamedTuple):
    """A line that names a step.

    `step`: the number of the step.
    `total`: the last number of the bar, or 0 if the line is no bar.
    `num_lines`: the number of lines that this mark represents. Each state of a rewritten line counts, and so do the
        lines that were left out before this line.
    """

    line: int
    step: float
    total: int
    num_lines: int


class StepSeries:
    """The steps of one kind: lines with their numbers.

    Messages, restarts and reports of success divide a file into parts. Only the first steps of each part keep all their
    lines.

    `must_rise`: whether a step counts only if it also exceeds all steps before a message. A tool that runs after a
        failed simulation prints the same times again.
    """

    def __init__(self, must_rise: bool = False) -> None:
        """Begin without a step."""
        self._must_rise = must_rise
        self._tops: list[float] = []  # for each mark: the highest step up to it
        self._first_of: dict[int, int] = {}  # the total of a bar -> the first mark with this total
        self._marks: list[_Mark] = []
        self._left, self._part, self._highest = _MOST_MARKS, 0, -1.0
        self._after: list[tuple[int, float]] = []  # for each mark: the count of lines from it on, and their rise

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, line: int, step: float, total: int, num_states: int, part: int) -> None:
        """Add a step. `num_states`: how often the program rewrote the line since the last step."""
        self._after, self._tops, self._first_of = [], [], {}
        if part != self._part:
            self._left, self._part, self._highest = _MOST_MARKS, part, -1.0
        _, last, last_total, num_lines = self._marks[-1] if self._marks else _Mark(0, step, total, 0)
        weight = max(1, min(num_states, int(step - last))) if total == last_total else 1
        self._left -= 1
        if self._left >= 0 or not self._marks:
            self._marks.append(_Mark(line, step, total, weight))
        elif total == last_total and step > self._highest:
            self._marks[-1] = _Mark(line, step, total, num_lines + weight)
        self._highest = max(self._highest, step)

    def after(self, line: int) -> tuple[int, float]:
        """Return how many lines after `line` reach a new highest number, and how far the numbers rise."""
        begin = self._first_after(line)
        if begin == len(self._marks):
            return 0, 0
        self._after = self._after or self._counted()
        if self._must_rise and begin:
            self._tops = self._tops or list(accumulate((mark.step for mark in self._marks), max))
            begin = bisect_right(self._tops, self._tops[begin - 1], lo=begin)
            if begin == len(self._marks):
                return 0, 0
        return self._after[begin]

    def _counted(self) -> list[tuple[int, float]]:
        """Count backwards, from the last mark to the first. If the total of a bar changes, a new count begins."""
        found: list[tuple[int, float]] = [(0, 0)] * len(self._marks)
        counts, tops = [0] * len(self._marks), [0.0] * len(self._marks)
        higher: list[int] = []  # the places of the marks that exceed all marks before them
        best: tuple[int, float] = (0, 0)
        for at in reversed(range(len(self._marks))):
            _, step, total, weight = self._marks[at]
            if at + 1 < len(self._marks) and self._marks[at + 1].total != total:
                higher, best = [], found[at + 1]
            while higher and self._marks[higher[-1]].step <= step:
                higher.pop()
            counts[at] = weight + (counts[higher[-1]] if higher else 0)
            tops[at] = tops[higher[-1]] if higher else step
            higher.append(at)
            found[at] = max(best, (counts[at], tops[at] - step + 1))
        return found

    @property
    def span(self) -> tuple[float, float, int]:
        """The first and the highest step, and the line of the highest one."""
        highest = max(self._marks, key=lambda mark: (mark.step, mark.line))
        return self._marks[0].step, highest.step, highest.line

    def is_continued(self, line: int) -> bool:
        """Whether the first bar after a line has the same total as a bar before the line."""
        begin = self._first_after(line)
        if not self._first_of:
            for at, mark in enumerate(self._marks):
                self._first_of.setdefault(mark.total, at)
        return self._first_of[self._marks[begin].total] < begin

    def any_between(self, line: int, other: int) -> bool:
        """Check whether a step is known between two lines."""
        return self._first_after(line) < bisect_left(self._marks, (other, -1.0, 0, 0))

    def _first_after(self, line: int) -> int:
        return bisect_right(self._marks, (line, float(_MOST), _MOST, _MOST))
