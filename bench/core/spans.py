"""Compute with arrays of time spans.

An array of spans has the type float64 and the shape (n, 2). Each row of the array has the start and the end of one
span. A *union* is an array of sorted spans that do not overlap and are not empty. `union` makes a union, and the other
functions take and return unions.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Spans = NDArray[np.float64]
NONE: Spans = np.empty((0, 2))


def of(pairs: Iterable[tuple[float, float]]) -> Spans:
    """Return an array of these (start, end) pairs in the same order."""
    return np.array([*pairs], dtype=np.float64).reshape(-1, 2)


def union(spans: Spans) -> Spans:
    """Return the times that at least one span covers."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return NONE
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    ends = np.maximum.accumulate(spans[:, 1])
    begins = np.flatnonzero(np.r_[True, spans[1:, 0] > ends[:-1]])
    last = np.r_[begins[1:] - 1, len(spans) - 1]
    return np.column_stack((spans[begins, 0], ends[last]))


def joined(*unions: Spans) -> Spans:
    """Return the times that at least one of the unions covers."""
    return union(np.concatenate(unions)) if unions else NONE


def both(one: Spans, other: Spans) -> Spans:
    """Return the times that both unions cover."""
    if not len(one) or not len(other):
        return NONE
    first = np.searchsorted(other[:, 1], one[:, 0], side="right")
    behind = np.searchsorted(other[:, 0], one[:, 1], side="left")
    counts = np.maximum(behind - first, 0)
    mine = np.repeat(np.arange(len(one)), counts)
    begins = np.cumsum(counts) - counts
    theirs = np.arange(counts.sum()) - np.repeat(begins, counts) + np.repeat(first, counts)
    start = np.maximum(one[mine, 0], other[theirs, 0])
    end = np.minimum(one[mine, 1], other[theirs, 1])
    found: Spans = np.column_stack((start, end))[end > start]
    return found


def minus(one: Spans, other: Spans) -> Spans:
    """Return the times that the first union covers and the second union does not."""
    if not len(one) or not len(other):
        return one
    outside = np.column_stack((np.r_[-np.inf, other[:, 1]], np.r_[other[:, 0], np.inf]))
    return both(one, outside)


def clip(spans: Spans, start: float, end: float) -> Spans:
    """Return the part of a union that lies between two times."""
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    behind = int(np.searchsorted(spans[:, 0], end, side="left"))
    return np.clip(spans[first:behind], start, end)


def total(spans: Spans) -> float:
    """Return the length of a union."""
    return float((spans[:, 1] - spans[:, 0]).sum())


def covered_before(union: Spans, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each time, the total seconds before this time that lie inside a span of the union."""
    if not len(union):
        return np.zeros(len(times))
    before = np.r_[0.0, np.cumsum(union[:, 1] - union[:, 0])]
    place = np.searchsorted(union[:, 0], times, side="right")
    last = np.maximum(place - 1, 0)  # the last span that begins before the time, if any
    inside = np.where(place > 0, np.minimum(times, union[last, 1]) - union[last, 0], 0.0)
    found: NDArray[np.float64] = before[last] + np.maximum(inside, 0.0)
    return found
