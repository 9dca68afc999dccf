"""Read printed tables in which each cell is the result of one pair, such as two GPUs.

The first line of a table has the column numbers. Each following line begins with a row number. All values have two
decimals, so a value with fewer decimals was truncated.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any, NamedTuple

from bench.core.codes import Code
from bench.logs.foreign import OK, MatrixCell
from bench.logs.messages import LogCode

_VALUE = re.compile(r"-?[0-9]{1,15}\.[0-9]{2}|N/A|[-+]?(?:nan|inf)", re.IGNORECASE)
# the remaining part of a value that was cut
_PIECE = re.compile(r"-?[0-9]{0,15}\.?[0-9]{0,2}|N/?|na?|in?", re.IGNORECASE)
_FLAG = re.compile(r"[01]")
_MOST_COLUMNS = 4096

WAIVED, UNREADABLE, FAILED = "waived", "unreadable", "failed"


class Loss(NamedTuple):
    """A part of a table that is missing in the log, and the line number of this part.

    The facts do not contain the name of the table.
    """

    line: int
    code: Code
    facts: dict[str, Any]


class Grid:
    """The rows of one table. A lost value is None."""

    def __init__(self, columns: int, line: int, flags: bool = False) -> None:
        """Begin a table.

        `columns`: the number of columns in the table.
        `line`: the line number of the table's title.
        `flags`: whether each value of the table must be 0 or 1.
        """
        self.columns, self.line = columns, line
        self.rows: list[list[str | None]] = []
        self.lost: list[Loss] = []
        self._value = _FLAG if flags else _VALUE
        self._short: list[str] = []  # the values of an incomplete row
        self._short_line = 0

    def take(self, words: list[str], line: int) -> bool:
        """Add the line to the table if it is a row or the end of an interrupted row.

        Return whether the line was added.
        """
        if self._short and self._goes_on(words):
            return True
        if not words or not re.fullmatch(r"[0-9]{1,4}", words[0]):
            return False
        index, values = int(words[0]), words[1:]
        whole = [bool(self._value.fullmatch(word)) for word in values]
        cut_last = values and all(whole[:-1]) and (whole[-1] or _PIECE.fullmatch(values[-1]))
        if not cut_last or index < len(self.rows) + bool(self._short) or len(values) > self.columns:
            return False
        self._close_short()
        if index > len(self.rows):
            if len(values) != self.columns or index >= self.columns:
                return False
            self._lose_rows(index, line)
        if len(values) == self.columns and all(whole):
            self.rows.append(list(values))
        else:
            self._short, self._short_line = values, line
        return True

    def finish(self, rows: int, line: int) -> None:
        """End the table at this line.

        `rows`: the number of rows that the table should have.
        """
        self._close_short()
        if self.rows and len(self.rows) < rows:
            self._lose_rows(rows, line)
        elif not self.rows:
            self.lost.append(Loss(line, LogCode.TABLE_UNREADABLE, {}))

    def _goes_on(self, words: list[str]) -> bool:
        """Append values to a row that the output of another process interrupted.

        Return whether the values can belong to this row.
        """
        values = self._short + words
        if len(values) > self.columns or not words or not all(map(self._value.fullmatch, values)):
            return False
        self._short = values
        if len(values) == self.columns:
            self.rows.append(list(values))
            self._short = []
        return True

    def _close_short(self) -> None:
        if not self._short:
            return
        # The last value may have been cut.
        kept: list[str | None] = [word if self._value.fullmatch(word) else None for word in self._short]
        kept[-1] = None
        self.rows.append(kept + [None] * (self.columns - len(kept)))
        facts = {"row": len(self.rows) - 1, "lost": self.columns - len(kept) + 1, "columns": self.columns}
        self.lost.append(Loss(self._short_line, LogCode.ROW_CUT, facts))
        self._short = []

    def _lose_rows(self, upto: int, line: int) -> None:
        first = len(self.rows)
        self.lost.append(Loss(line, LogCode.ROWS_MISSING, {"first": first, "last": upto - 1}))
        # The lost rows of one node become unreadable cells. More lost rows would turn a short file into a large one.
        if upto <= 16:
            self.rows.extend([None] * self.columns for _ in range(upto - first))


def begin(words: list[str], line: int, flags: bool = False) -> Grid | None:
    """Begin a table if the words are column numbers, such as `0 1 2 3`. Return None for any other line."""
    if not words or len(words) > _MOST_COLUMNS or words != [str(number) for number in range(len(words))]:
        return None
    return Grid(len(words), line, flags)


@cache
def gpu(number: int) -> str:
    """Return the name of a GPU, such as `gpu3`. To save memory, all cells with the same GPU share one string object."""
    return f"gpu{number}"


def cell(src: str, dst: str, token: object, factor: float) -> MatrixCell:
    """Return one cell with its value in SI units.

    `factor`: the printed unit in SI units. The text `N/A` means that the path was rejected. Any other text that is not
    a number is unreadable. A number that is not positive and finite is a failure.
    """
    if token == "N/A":
        return MatrixCell(src, dst, None, WAIVED)
    if token is None or isinstance(token, bool):
        return MatrixCell(src, dst, None, UNREADABLE)
    try:
        value = float(token) * factor  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return MatrixCell(src, dst, None, UNREADABLE)
    if not math.isfinite(value) or value <= 0:
        return MatrixCell(src, dst, None, FAILED)
    return MatrixCell(src, dst, value, OK)
