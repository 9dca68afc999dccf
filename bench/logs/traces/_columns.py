"""Store events in columns, because a trace has millions of events. A kernel takes 28 bytes.

As a tuple, one kernel would take about 180 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NO_CORRELATION = -1
_LARGEST = 1 << 62


def correlation_of(value: object) -> int:
    """Return the correlation number, which a kernel shares with the call that launched it.

    Return NO_CORRELATION if the file has no correlation number.
    """
    return value if type(value) is int and 0 <= value < _LARGEST else NO_CORRELATION


class Kernels:
    """The kernels of a trace.

    Each kernel has a start time, an end time, a correlation number and a type number. Times are in the file's unit.
    """

    def __init__(self) -> None:
        self._starts, self._ends = array("d"), array("d")
        self._correlations, self._kinds = array("q"), array("i")

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: float, end: float, correlation: int, kind: int) -> None:
        """Add a kernel."""
        self._starts.append(start)
        self._ends.append(end)
        self._correlations.append(correlation)
        self._kinds.append(kind)

    def first_start(self) -> float:
        """Return the start of the first kernel. The trace must have at least one kernel."""
        return min(self._starts)

    def in_order(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int32]]:
        """Return the starts and ends (shape (n, 2)), the correlation numbers and the types.

        All three arrays are sorted by the start and end of the kernels.
        """
        spans = np.column_stack((np.array(self._starts), np.array(self._ends)))
        order = np.lexsort((spans[:, 1], spans[:, 0]))
        return spans[order], np.array(self._correlations)[order], np.array(self._kinds, dtype=np.int32)[order]


class Launch(NamedTuple):
    """A runtime call that started work on the device."""

    start: float
    thread: Hashable


class Launches:
    """Runtime calls by correlation. If several calls have the same correlation number, only the first call is kept."""

    def __init__(self) -> None:
        self._starts, self._correlations, self._threads = array("d"), array("q"), array("i")
        self._numbers: dict[Hashable, int] = {}
        self._sorted: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def add(self, correlation: int, start: float, thread: Hashable) -> None:
        """Add a call."""
        self._correlations.append(correlation)
        self._starts.append(start)
        self._threads.append(self._numbers.setdefault(thread, len(self._numbers)))
        self._sorted = None

    def starts_of(self, correlations: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return, for each correlation number, the start time of the call with this number.

        Return NaN for a number without a call.
        """
        known, order = self._by_correlation()
        if not len(known):
            return np.full(len(correlations), np.nan)
        place = np.minimum(np.searchsorted(known, correlations), len(known) - 1)
        found: NDArray[np.float64] = np.where(
            known[place] == correlations, np.array(self._starts)[order[place]], np.nan
        )
        return found

    def of(self, correlation: int) -> Launch | None:
        """Return the call with this correlation number."""
        known, order = self._by_correlation()
        place = int(np.searchsorted(known, correlation))
        if place == len(known) or known[place] != correlation:
            return None
        number = int(order[place])
        return Launch(self._starts[number], [*self._numbers][self._threads[number]])

    def _by_correlation(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._sorted is None:
            correlations = np.array(self._correlations, dtype=np.int64)
            order = np.argsort(correlations, kind="stable")
            self._sorted = correlations[order], order
        return self._sorted
