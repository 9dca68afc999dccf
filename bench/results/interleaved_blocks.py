"""What rows have in common whose kinds of blocks of samples took turns: their place, their factors, their launches.

The factor of two neighbouring blocks does not hold what drifts slowly: the machine was the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, TypeVar

from bench.core.record import Header, Record, known
from bench.results.document import Interference, Overlapped
from bench.results.model import case_of

T = TypeVar("T", Interference, Overlapped)


def place_of(job: str, header: Header, record: Record) -> dict[str, Any]:
    """Which row of which case it is, by the names of the fields."""
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


def block_factors(without: Sequence[float], with_it: Sequence[float], per_block: int) -> list[float]:
    """Median of each block with something beside it / median of the block without it that stands beside that one."""
    starts = range(0, min(len(without), len(with_it)), per_block)
    return [median(with_it[k : k + per_block]) / median(without[k : k + per_block]) for k in starts]


def factor(name: str, factors: Sequence[float], around: tuple[float, float] | None) -> dict[str, Any]:
    """The median of some factors with its interval, by the names of the fields."""
    low, high = around or (None, None)
    return {name: median(factors), f"{name}_low": low, f"{name}_high": high}


def over_launches(of_launches: Iterable[T], merged: Callable[[Sequence[T]], T]) -> tuple[T, ...]:
    """One for each row of each case: what was derived of its one launch, or what `merged` makes of several."""
    found: dict[tuple[object, ...], list[T]] = {}
    for one in of_launches:
        found.setdefault((one.job, one.mode, one.group, one.payload_bytes), []).append(one)
    return tuple(of_row[0] if len(of_row) == 1 else merged(of_row) for of_row in found.values())


def medians(of_row: Sequence[object], *names: str) -> dict[str, Any]:
    """The median over launches of each of these fields."""
    return {name: median(getattr(one, name) for one in of_row) for name in names}


def sums(of_row: Sequence[object], *names: str) -> dict[str, Any]:
    """The sum over launches of each of these fields."""
    return {name: sum(getattr(one, name) for one in of_row) for name in names}
