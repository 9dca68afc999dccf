"""Compute the ratio of two times that were measured in pairs, with its 95 % interval over the pairs.

The results for interference and overlap compare two neighbouring blocks of one launch. A parity result compares two
neighbouring launches. The results for scaling and sharing compare two rows. If the machine drifts slowly, both times of
a pair change equally, so their ratio does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import Any, TypeVar

from bench.core.record import Header, Record, known
from bench.results import launches, stats
from bench.results.compared_rows import Interference, Overlapped
from bench.results.document import Summary
from bench.results.inference import ratio_interval, time_ratio
from bench.results.model import case_of

LEAST_LAUNCHES = 3  # for an interval over pairs of launches
T = TypeVar("T", Interference, Overlapped)


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The ratio of two times that were measured as a pair: the second time / the first time.

    `value`: the ratio, or the median or mean of the ratios of several pairs.
    `num_pairs`: the number of pairs.
    `over`: which variation the interval covers: "blocks", "launches" or "samples". None if there is no interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    over: str | None = None
    num_pairs: int = 1

    def named(self, name: str) -> dict[str, Any]:
        """Return the ratio and its interval as fields with the prefix `name`: `factor`, `factor_low`, `factor_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def without_interval(self) -> PairedRatio:
        """Return a ratio without an interval. Modelled times do not vary, so they have no interval."""
        return replace(self, low=None, high=None, over=None)


def block_ratios(alone: Sequence[float], together: Sequence[float], per_block: int) -> list[float]:
    """Return a ratio for each pair of neighbouring blocks: the median of `together` / the median of `alone`."""
    ratios = []
    for first in range(0, min(len(alone), len(together)), per_block):
        block = slice(first, first + per_block)
        ratios.append(median(together[block]) / median(alone[block]))
    return ratios


def of_blocks(alone: Sequence[float], together: Sequence[float], per_block: int) -> PairedRatio | None:
    """Return the median of `block_ratios`, with an interval that covers the variation between blocks.

    The result is None if any time is invalid, or if a ratio is not finite.
    """
    if not (stats.usable(alone) and stats.usable(together)):
        return None
    ratios = block_ratios(alone, together, per_block)
    if not stats.usable(ratios):
        return None
    return _middle(ratios, stats.interval(ratios), "blocks")


def over_launches(of_launches: Iterable[float]) -> PairedRatio:
    """Return the median of the ratios of several launches.

    The result has an interval if there are three or more launches.
    """
    ratios = list(of_launches)
    return _middle(ratios, launches.interval(ratios), "launches")


def of_launches(first: Sequence[float], second: Sequence[float]) -> PairedRatio:
    """Return the geometric mean of the ratios (second / first) of pairs of launches.

    If there are three or more pairs, the result has an interval from Student's t distribution.
    """
    logs = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    middle = fmean(logs)
    if len(logs) < LEAST_LAUNCHES:
        return PairedRatio(math.exp(middle), num_pairs=len(logs))
    half = launches.t_quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return PairedRatio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), "launches", len(logs))


def of_rows(
    base: Sequence[float],
    base_interval: tuple[float, float] | None,
    new: Sequence[float],
    new_interval: tuple[float, float] | None,
) -> PairedRatio:
    """Return the ratio `new` / `base` of the times of two rows.

    `new` and `base`: the launch medians of the two rows in seconds. If both rows have two or more launches, the
    interval covers the variation between launches. If both rows have one launch with an interval, the interval covers
    the variation of the samples. If neither condition is true, the result has no interval.
    """
    if len(new) > 1 and len(base) > 1:
        return PairedRatio(*time_ratio(base, new), "launches", min(len(base), len(new)))
    ratio = median(new) / median(base)
    if len(new) > 1 or len(base) > 1 or base_interval is None or new_interval is None:
        return PairedRatio(ratio)
    return PairedRatio(ratio, *ratio_interval(new[0], new_interval, base[0], base_interval), "samples")


def _middle(ratios: Sequence[float], interval: tuple[float, float] | None, over: str) -> PairedRatio:
    low, high = interval or (None, None)
    return PairedRatio(median(ratios), low, high, over if interval else None, len(ratios))


# -- rows that have such a ratio


def interval_of(row: Summary) -> tuple[float, float] | None:
    """Return the interval of a row's median within its launch."""
    return None if row.ci_low_s is None or row.ci_high_s is None else (row.ci_low_s, row.ci_high_s)


def row_fields(job: str, header: Header, record: Record) -> dict[str, Any]:
    """Return the fields that identify a row and its case."""
    return {
        "job": case_of(job, header),
        "pattern": header.pattern,
        "transport": header.transport,
        "mode": record.mode,
        "group": record.group,
        "payload_bytes": record.payload_bytes,
        "num_ranks": known(record.num_ranks),
        "num_nodes": known(record.num_nodes),
    }


def merge_launches(rows: Iterable[T], merged: Callable[[Sequence[T]], T]) -> tuple[T, ...]:
    """Merge the results of a row's launches into one result per row and case.

    A result of a single launch stays unchanged. If there are several launches, `merged` combines their results.
    """
    found: dict[tuple[object, ...], list[T]] = {}
    for row in rows:
        found.setdefault((row.job, row.mode, row.group, row.payload_bytes), []).append(row)
    return tuple(of_row[0] if len(of_row) == 1 else merged(of_row) for of_row in found.values())


def medians(of_row: Sequence[object], *names: str) -> dict[str, Any]:
    """For each field in `names`, return its median over the launches."""
    return {name: median(getattr(row, name) for row in of_row) for name in names}


def sums(of_row: Sequence[object], *names: str) -> dict[str, Any]:
    """For each field in `names`, return the sum of its values over the launches."""
    return {name: sum(getattr(row, name) for row in of_row) for name in names}
