"""What rows show beside their bandwidth: nothing that explains it, but worth knowing before a figure is quoted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from bench.core.units import format_bytes, format_rate
from bench.explain.evidence import LARGE_BYTES, RunEvidence, busbw


def remarks(seen: RunEvidence) -> tuple[str, ...]:
    """Every remark that a rule makes."""
    return tuple(remark for rule in REMARKS if (remark := rule(seen)) is not None)


def placements_differ(seen: RunEvidence) -> str | None:
    """In place and out of place differ at large sizes."""
    ratios = list(_placements(seen))
    if len(ratios) < 2 or not (median(ratios) > 1.1 or median(ratios) < 1 / 1.1):
        return None
    faster, by = ("in place", median(ratios)) if median(ratios) > 1 else ("out of place", 1 / median(ratios))
    return (
        f"{faster} is {by - 1:.0%} faster at the {len(ratios)} largest sizes: the other placement moves more data in "
        "memory, or uses buffers that are not registered"
    )


def _placements(seen: RunEvidence) -> Iterator[float]:
    """In place / out of place, for each large size that has both."""
    rates: dict[tuple[int, str | None], dict[bool, float]] = {}
    for row in seen.rows:
        if (row.payload_bytes or 0) >= LARGE_BYTES and busbw(row):
            rates.setdefault((row.payload_bytes or 0, row.dtype), {})[row.in_place] = busbw(row)
    for both in rates.values():
        if len(both) == 2:
            yield both[True] / both[False]


def falls(seen: RunEvidence) -> str | None:
    """The largest size is slower than a smaller one."""
    best = seen.best
    last = max((busbw(row) for row in seen.rows if row.payload_bytes == seen.largest_bytes), default=0.0)
    if best is None or not last or last > 0.85 * busbw(best):
        return None
    return (
        f"the bandwidth falls from {format_rate(busbw(best))} at {format_bytes(best.payload_bytes or 0)} to "
        f"{format_rate(last)} at {format_bytes(seen.largest_bytes)}: another algorithm, or buffers that are no longer "
        "registered or cached"
    )


def first_row(seen: RunEvidence) -> str | None:
    """The first row holds what the library does once."""
    small = [row for row in seen.rows if (row.payload_bytes or 0) <= 1024 and row.time_s]
    if len(small) < 6 or seen.small_s is None or (small[0].time_s or 0.0) < 1.5 * seen.small_s:
        return None
    return (
        f"the first row ({(small[0].time_s or 0.0) * 1e6:.3g} us) still holds warm-up: the small-message time is the "
        "median of the sizes up to 1 KiB"
    )


def types_differ(seen: RunEvidence) -> str | None:
    """One element type is slower than another."""
    by_type: dict[str, float] = {}
    for row in seen.rows:
        if row.dtype and (row.payload_bytes or 0) >= LARGE_BYTES:
            by_type[row.dtype] = max(by_type.get(row.dtype, 0.0), busbw(row))
    if len(by_type) < 2 or not min(by_type.values()) or max(by_type.values()) < 1.05 * min(by_type.values()):
        return None
    slow, fast = min(by_type, key=by_type.__getitem__), max(by_type, key=by_type.__getitem__)
    return f"{slow} reaches {format_rate(by_type[slow])}, {fast} {format_rate(by_type[fast])}: compare equal types only"


def above_the_port(seen: RunEvidence) -> str | None:
    """More than a port carries is right where the switch adds."""
    links, best = seen.machine.links, seen.best
    if links is None or best is None or not links.nvls or links.nvlink_bytes_per_s is None or seen.over_nics:
        return None
    if seen.run.pattern != "allreduce" or busbw(best) <= 0.88 * links.nvlink_bytes_per_s or seen.above:
        return None
    return (
        f"{format_rate(busbw(best))} of a port of {format_rate(links.nvlink_bytes_per_s)} is more than rings reach, "
        "and may exceed it: with NVLS the switch adds, while busbw still counts 2(n-1)/n of the payload"
    )


REMARKS: tuple[Callable[[RunEvidence], str | None], ...] = (
    above_the_port,
    placements_differ,
    falls,
    first_row,
    types_differ,
)
