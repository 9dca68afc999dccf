"""Write notes about rows.

A note says what a reader should know before quoting a figure. Notes do not explain the bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from bench.core.codes import Coded
from bench.explain.copy_assessment import ONE_WAY
from bench.explain.copy_evidence import CopyEvidence
from bench.explain.evidence import LARGE_BYTES, RunEvidence, busbw
from bench.explain.messages import ExplainNote
from bench.explain.shortfall import between_nodes, fall
from bench.hardware.reference import CopyReference

_DIP = 0.4  # a size is part of a dip if it is below this share of the peak at smaller sizes
_RECOVERED = 0.85  # after a dip, a larger size reaches at least this share of this peak
_FEWEST_OF_DIP = 2  # a dip has at least this many sizes, because a change of the algorithm makes only one size slow


def run_notes(evidence: RunEvidence) -> tuple[Coded, ...]:
    """Return every note that applies to the rows of a run."""
    return tuple(note for rule in _NOTES if (note := rule(evidence)) is not None)


def copy_notes(evidence: CopyEvidence) -> tuple[Coded, ...]:
    """Return notes about copies.

    A note says that a published result has the same figures, or explains what two-way figures mean.
    """
    directions = {test.direction for test in evidence.tests}
    same = [each.where for each in evidence.references if _has_same_figures(evidence, each)]
    notes = [Coded.of(ExplainNote.SAME_AS_PUBLISHED, machine=same[0])] if same else []
    if "bidirectional" in directions:
        notes.append(Coded.of(ExplainNote.ONE_OF_TWO_WAYS))
    if "bidirectional_sum" in directions:
        notes.append(Coded.of(ExplainNote.SUM_OF_TWO_WAYS))
    return tuple(notes)


def _has_same_figures(evidence: CopyEvidence, reference: CopyReference) -> bool:
    """Check whether the slowest and the fastest rate of each direction equal the rates of a published result."""
    for direction, name in ONE_WAY.items():
        test = evidence.test(direction)
        if name not in reference.rates:
            continue
        if test is None:
            return False
        for own, published in zip((test.slowest, test.fastest), reference.rates[name], strict=True):
            if f"{own / 1e9:.2f}" != f"{published / 1e9:.2f}":
                return False
    return True


def _above_port(evidence: RunEvidence) -> Coded | None:
    """Return a note on a rate above the port's rate. Such a rate is possible if the switch reduces (adds the data)."""
    links, best = evidence.machine.links, evidence.best
    if links is None or best is None or not links.nvls or links.nvlink_bytes_per_s is None or evidence.crosses_nics:
        return None
    if evidence.run.pattern != "allreduce" or evidence.above or busbw(best) <= 0.88 * links.nvlink_bytes_per_s:
        return None
    return Coded.of(ExplainNote.ABOVE_PORT, rate=busbw(best), port_rate=links.nvlink_bytes_per_s)


def _placements_differ(evidence: RunEvidence) -> Coded | None:
    """Return a note if in-place and out-of-place operations have different rates at large sizes."""
    ratios = list(_placements(evidence))
    if len(ratios) < 2:
        return None
    ratio = median(ratios)
    if 1 / 1.1 <= ratio <= 1.1:
        return None
    faster, times = ("in place", ratio) if ratio > 1 else ("out of place", 1 / ratio)
    return Coded.of(ExplainNote.PLACEMENTS_DIFFER, faster=faster, excess=times - 1, num_sizes=len(ratios))


def _placements(evidence: RunEvidence) -> Iterator[float]:
    """Yield the ratio (in-place rate) / (out-of-place rate) for each large size that has both rates."""
    rates: dict[tuple[int, str | None], dict[bool, float]] = {}
    for row in evidence.rows:
        if (row.payload_bytes or 0) >= LARGE_BYTES and busbw(row):
            rates.setdefault((row.payload_bytes or 0, row.dtype), {})[row.in_place] = busbw(row)
    for both in rates.values():
        if len(both) == 2:
            yield both[True] / both[False]


def _bandwidth_falls(evidence: RunEvidence) -> Coded | None:
    """Return a note if the largest size is slower than a smaller size and no reason explains this."""
    best = evidence.best
    last = evidence.rate_by_size.get(evidence.largest_bytes, 0.0)
    if (
        best is None
        or not last
        or last > 0.85 * busbw(best)
        or (between_nodes(evidence) and fall(evidence) is not None)
    ):
        return None
    return Coded.of(
        ExplainNote.BANDWIDTH_FALLS,
        rate=busbw(best),
        size_bytes=best.payload_bytes or 0,
        last_rate=last,
        last_bytes=evidence.largest_bytes,
        between_nodes=between_nodes(evidence),
    )


def _bandwidth_dips(evidence: RunEvidence) -> Coded | None:
    """Return a note if sizes in the middle of the curve are far slower than smaller and larger sizes."""
    peak = (0.0, 0)
    dip: list[tuple[float, int]] = []
    for size, rate in sorted(evidence.rate_by_size.items()):
        if rate < _DIP * peak[0]:
            dip.append((rate, size))
        if rate < _RECOVERED * peak[0]:
            continue
        if len(dip) >= _FEWEST_OF_DIP:
            lowest = min(dip)
            return Coded.of(
                ExplainNote.BANDWIDTH_DIPS,
                rate=peak[0],
                size_bytes=peak[1],
                lowest_rate=lowest[0],
                lowest_bytes=lowest[1],
                again_rate=rate,
                again_bytes=size,
                between_nodes=between_nodes(evidence),
            )
        dip = []
        peak = max(peak, (rate, size))
    return None


def _first_row_warming(evidence: RunEvidence) -> Coded | None:
    """Return a note if the first row includes one-time work of the library."""
    if evidence.small_message_s is None:
        return None
    small = [row.time_s for row in evidence.rows if (row.payload_bytes or 0) <= 1024 and row.time_s]
    if len(small) < 6 or small[0] < 1.5 * evidence.small_message_s:
        return None
    return Coded.of(ExplainNote.FIRST_ROW_WARMING, time_s=small[0])


def _types_differ(evidence: RunEvidence) -> Coded | None:
    """Return a note if one element type is slower than another."""
    rates: dict[str, float] = {}
    for row in evidence.rows:
        if row.dtype and (row.payload_bytes or 0) >= LARGE_BYTES:
            rates[row.dtype] = max(rates.get(row.dtype, 0.0), busbw(row))
    if len(rates) < 2:
        return None
    slow, fast = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    if not rates[slow] or rates[fast] < 1.05 * rates[slow]:
        return None
    return Coded.of(
        ExplainNote.TYPES_DIFFER, slow_type=slow, slow_rate=rates[slow], fast_type=fast, fast_rate=rates[fast]
    )


_NOTES: tuple[Callable[[RunEvidence], Coded | None], ...] = (
    _above_port,
    _placements_differ,
    _bandwidth_falls,
    _bandwidth_dips,
    _first_row_warming,
    _types_differ,
)
