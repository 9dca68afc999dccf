"""Like sizes beside like sizes: our curve and that of each published result, at one size that both have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import log

from bench.explain.evidence import LARGE_SIZE_BYTES, RunEvidence, busbw
from bench.hardware import curves
from bench.hardware.reference import Reference


@dataclass(frozen=True, slots=True)
class LikeSize:
    """A published result at a payload of `size_bytes`, and ours there; both rates in bytes per second."""

    each: Reference
    size_bytes: int
    ours: float
    theirs: float
    measured: bool  # is theirs a point that was told, and not one between two?

    @property
    def ratio(self) -> float:
        """Our figure over the published one."""
        return self.ours / self.theirs


def all_beside(seen: RunEvidence) -> tuple[LikeSize, ...]:
    """Each result that was not held back, at a size where it can be compared: the fastest first. Sizes
    below those at which our curve is flat, or that are not large, count only where nothing else is known."""
    best = seen.best
    if best is None or not best.payload_bytes:
        return ()
    found = [pair for each in seen.references if each.limited is None and (pair := _beside(seen, each)) is not None]
    enough = min(best.payload_bytes, LARGE_SIZE_BYTES, seen.flat_from or LARGE_SIZE_BYTES)
    large = [pair for pair in found if pair.size_bytes >= enough]
    return tuple(sorted(large or found, key=lambda pair: -pair.theirs))


def _beside(seen: RunEvidence, each: Reference) -> LikeSize | None:
    """At our best size as far as their sizes go. A smaller size stands for ours only where our curve is flat, both are
    within a factor of two, or both are large; None where no size is alike."""
    best = seen.best
    assert best is not None and best.payload_bytes
    theirs, ours = curve_of(each), _own_curve(seen)
    asked = best.payload_bytes
    size = min(max(asked, min(theirs)), max(theirs))
    if min(ours) <= size <= max(ours):
        flat = seen.flat_from is not None and seen.flat_from <= size
        if size >= asked or flat or 2 * size >= asked or size >= LARGE_SIZE_BYTES:
            return LikeSize(each, size, at(ours, size), at(theirs, size), size in theirs)
    elif (seen.flat_from is not None and asked < size) or min(asked, size) >= LARGE_SIZE_BYTES:
        return LikeSize(each, size, busbw(best), at(theirs, size), True)
    return None


def _own_curve(seen: RunEvidence) -> dict[int, float]:
    found: dict[int, float] = {}
    for row in seen.rows:
        if row.payload_bytes and busbw(row):
            found[row.payload_bytes] = max(found.get(row.payload_bytes, 0.0), busbw(row))
    return found


def at(curve: Mapping[int, float], size: int) -> float:
    """The rate at a size within a curve, straight in the logarithm of the size between two points."""
    points = sorted(curve.items())
    for (left, low), (right, high) in pairwise(points):
        if left <= size <= right:
            return low + (high - low) * log(size / left) / log(right / left)
    return points[0][1] if size <= points[0][0] else points[-1][1]


def curve_of(each: Reference) -> Mapping[int, float]:
    """All that is known of a result: its curve where curves.yaml has one, else its own few points."""
    return _curves().get(_key(each), each.busbw)


@cache
def _curves() -> dict[tuple[object, ...], Mapping[int, float]]:
    return {_key(each.told): each.told.busbw for each in curves.published()}


def _key(each: Reference) -> tuple[object, ...]:
    return each.source, each.gpu, each.instance, each.num_nodes, each.num_ranks, each.pattern, each.best[1]
