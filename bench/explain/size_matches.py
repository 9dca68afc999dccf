"""Compare a run's bandwidth with published results at the same message size."""

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
class SizeMatch:
    """A published result and this run's result at the same payload, `size_bytes`. Rates are in bytes per second."""

    reference: Reference
    size_bytes: int
    ours: float
    theirs: float
    measured: bool  # True if `theirs` is a published point, False if it is interpolated between two points

    @property
    def ratio(self) -> float:
        """This run's rate divided by the published rate."""
        return self.ours / self.theirs


def size_matches(evidence: RunEvidence) -> tuple[SizeMatch, ...]:
    """Return the published results with a comparable size, the fastest result first.

    Results with a known limitation are left out.

    Small sizes, and sizes at which this run's curve still rises, are used only if no other size is comparable.
    """
    best = evidence.best
    if best is None or not best.payload_bytes:
        return ()
    found = []
    for reference in evidence.references:
        if reference.limited is None:
            match = _match(evidence, reference)
            if match is not None:
                found.append(match)
    enough = min(best.payload_bytes, LARGE_SIZE_BYTES, evidence.flat_from_bytes or LARGE_SIZE_BYTES)
    large = [match for match in found if match.size_bytes >= enough]
    return tuple(sorted(large or found, key=lambda match: -match.theirs))


def _match(evidence: RunEvidence, reference: Reference) -> SizeMatch | None:
    """Return the run's rate and the published rate at one size; None if no size is comparable.

    The size is this run's best size, or the closest published size.

    A published size below this run's best size is comparable in three cases: this run's curve is flat at the published
    size, the two sizes are within a factor of two, or both sizes are large.
    """
    best, flat_from = evidence.best, evidence.flat_from_bytes
    assert best is not None and best.payload_bytes
    theirs = curve_of(reference)
    ours = {size: rate for size, rate in evidence.rate_by_size.items() if size and rate}
    wanted = best.payload_bytes
    size = min(max(wanted, min(theirs)), max(theirs))
    if min(ours) <= size <= max(ours):
        flat = flat_from is not None and flat_from <= size
        if 2 * size >= wanted or flat or size >= LARGE_SIZE_BYTES:
            return SizeMatch(reference, size, rate_at(ours, size), rate_at(theirs, size), size in theirs)
    elif (flat_from is not None and wanted < size) or min(wanted, size) >= LARGE_SIZE_BYTES:
        return SizeMatch(reference, size, busbw(best), rate_at(theirs, size), True)
    return None


def rate_at(curve: Mapping[int, float], size: int) -> float:
    """Return the rate of a curve at a size. Between two points, the rate is linear in the logarithm of the size."""
    points = sorted(curve.items())
    for (left, low), (right, high) in pairwise(points):
        if left <= size <= right:
            return low + (high - low) * log(size / left) / log(right / left)
    return points[0][1] if size <= points[0][0] else points[-1][1]


def curve_of(reference: Reference) -> Mapping[int, float]:
    """Return the known points of a published result (size -> rate).

    If curves.yaml has no curve for the result, return the few points that the result itself states.
    """
    return _curves().get(_key(reference), reference.busbw)


@cache
def _curves() -> dict[tuple[object, ...], Mapping[int, float]]:
    return {_key(curve.told): curve.told.busbw for curve in curves.published()}


def _key(reference: Reference) -> tuple[object, ...]:
    return (
        reference.source,
        reference.gpu,
        reference.instance,
        reference.num_nodes,
        reference.num_ranks,
        reference.pattern,
        reference.best[1],
    )
