"""Infer the collective and the number of ranks from a table of nccl-tests, if no line of the log states them.

The tables of the programs differ in five properties:

- whether the table names a reduction
- whether the table has a root
- count / size: 1 or 1/n
- busbw / algbw: 1, (n-1)/n or 2(n-1)/n
- whether in-place results are checked

If only one program prints tables with the observed properties, the reader uses that program's pattern. The run then
gets a remark. If several programs print such tables, or if no program does, the pattern is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bench.core.dtypes import DTYPES
from bench.logs.foreign import ForeignRow
from bench.logs.readers._nccl_rows import rate_agrees, rate_between

PROGRAMS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "alltoall": "alltoall",
    "alltoallv": "alltoallv",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "sendrecv",
    "gather": "gather",
    "scatter": "scatter",
    "hypercube": "hypercube",
}
_NAMES = "|".join(sorted(PROGRAMS, key=len, reverse=True))
PROGRAM = re.compile(rf"(?<![A-Za-z0-9_])({_NAMES})_perf")
COMMAND = re.compile(PROGRAM.pattern + r"(?:_mpi)?\s+-")
SOURCE = re.compile(rf"(?<![A-Za-z0-9_])({_NAMES})\.cu:\d")
# Patterns by their busbw / algbw for n ranks
_TWICE = ("allreduce",)
_WHOLE = ("broadcast", "reduce", "sendrecv", "hypercube")
_COUNT_IS_A_PART = ("allgather", "reducescatter", "alltoall", "gather", "scatter", "hypercube")
# Before 2020-06-19, the algbw of these programs (and so their busbw) counted only the data of the other ranks
# (nccl-tests ec1b5e2).
_ONCE_OF_OTHERS = ("allgather", "reducescatter")
_MOST_RANKS = 1 << 20


@dataclass(slots=True)
class NamedPattern:
    """A pattern, the text that named the pattern, and the line number of this text."""

    pattern: str | None
    word: str
    line: int | None


@dataclass(frozen=True, slots=True)
class PatternEvidence:
    """Properties of the rows.

    `part`: the value of `size / (count * element size)`, if this value is the same in all rows.
    `low`, `high`: the smallest and the largest possible value of busbw / algbw.
    """

    combines: bool
    rooted: bool
    part: int | None
    low: float
    high: float
    checked_out: bool
    checked_in: bool
    full_rate: bool  # algbw is size / time
    others_rate: bool  # in most rows algbw is (n-1)/n of size / time, with n from `part`

    @property
    def ratio_known(self) -> bool:
        """Whether the rates have enough digits to determine a factor."""
        return self.high - self.low < 0.2

    def may_be(self, factor: float) -> bool:
        """Check whether the rows allow this value of busbw / algbw."""
        return self.low <= factor <= self.high


def factor(pattern: str, ranks: int) -> float:
    """Return the ratio busbw / algbw according to the definitions of nccl-tests."""
    if pattern in _WHOLE:
        return 1.0
    return (2.0 if pattern in _TWICE else 1.0) * (ranks - 1) / ranks


def evidence(
    rows: Sequence[ForeignRow], checked_out: bool, checked_in: bool, half_digit_s: float = 0.0
) -> PatternEvidence | None:
    """Return the common properties of all rows, or None if no row moves data.

    `half_digit_s`: the rounding error of printed times in seconds, if this error is larger than usual.
    """
    parts: set[int | None] = set()
    ratios: list[tuple[float, float]] = []
    full_rate = True
    for row in rows:
        if not row.payload_bytes or not row.num_elements:
            continue
        if row.dtype in DTYPES:
            times, left = divmod(row.payload_bytes, row.num_elements * DTYPES[row.dtype].num_bytes)
            parts.add(None if left else times)
        if row.algbw_bytes_per_s and row.busbw_bytes_per_s is not None:
            alg, bus = rate_between(row.algbw_bytes_per_s), rate_between(row.busbw_bytes_per_s)
            ratios.append((bus[0] / alg[1], bus[1] / max(alg[0], 1.0)))
            if row.time_s:
                full_rate &= rate_agrees(
                    row.payload_bytes, row.time_s, row.algbw_bytes_per_s, half_digit_s=half_digit_s
                )
    if not parts:
        return None
    low, high = _agreed(ratios)
    part = parts.pop() if len(parts) == 1 else None
    first = rows[0]
    combines, rooted = first.reduce_op is not None, first.root is not None
    others_rate = _is_of_others(rows, part, half_digit_s)
    return PatternEvidence(combines, rooted, part, low, high, checked_out, checked_in, full_rate, others_rate)


def _agreed(ranges: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the intersection of all ranges.

    An empty intersection shows that a few rows may be damaged. The result is then the intersection of as many ranges as
    possible.
    """
    low, high = max((low for low, _ in ranges), default=0.0), min((high for _, high in ranges), default=math.inf)
    if low <= high:
        return low, high
    # The beginning of a range sorts before the end of another range with the same value, so ranges that touch overlap.
    ends = sorted([(low, 0, low) for low, _ in ranges] + [(high, 1, high) for _, high in ranges])
    most = num_open = 0
    begin = 0.0
    for place, is_end, _ in ends:
        num_open += -1 if is_end else 1
        if num_open > most:
            most, begin = num_open, place
    if 2 * most <= len(ranges):
        return low, high
    return begin, min(high for low, high in ranges if low <= begin <= high)


def fits(pattern: str, seen: PatternEvidence, ranks: int | None) -> bool:
    """Check whether a program of this pattern can have printed these rows."""
    if pattern == "alltoallv":  # the rates of alltoallv are those of the busiest rank
        return not seen.combines and not seen.rooted
    if ranks is None and seen.part is not None and seen.part > 1 and pattern in _COUNT_IS_A_PART:
        ranks = seen.part
    if seen.part is not None and ranks is not None and seen.part != (ranks if pattern in _COUNT_IS_A_PART else 1):
        return False
    if seen.combines and pattern not in ("allreduce", "reducescatter", "reduce", "sendrecv"):
        return False
    if seen.rooted != (pattern in ("broadcast", "reduce", "gather", "scatter")):
        return False
    if pattern in _ONCE_OF_OTHERS and of_others_alone(seen):
        return True
    return ranks is None or not seen.ratio_known or seen.may_be(factor(pattern, ranks))


def of_others_alone(seen: PatternEvidence) -> bool:
    """Check whether both algbw and busbw omit each rank's own data."""
    return seen.others_rate and seen.ratio_known and seen.may_be(1.0)


def _is_of_others(rows: Sequence[ForeignRow], part: int | None, half_digit_s: float) -> bool:
    if not part or part < 2:
        return False
    timed = [(row.payload_bytes, row.time_s, row.algbw_bytes_per_s) for row in rows]
    known = [(size, time, rate) for size, time, rate in timed if size and time and rate is not None]
    whole, others = (
        sum(rate_agrees(*each, share, half_digit_s) for each in known) for share in (1.0, (part - 1) / part)
    )
    return others > whole


def guess(seen: PatternEvidence, ranks: int | None, title: Sequence[str]) -> str | None:
    """Return the pattern that fits the rows, or None if no pattern or several patterns fit.

    `title`: the words of the table's header.
    """
    ranks = ranks or (seen.part if seen.part and seen.part > 1 else None)
    if ranks == 1:
        return None  # no data move, and several programs print this table
    if seen.combines:
        return _combining(seen, ranks)
    if seen.rooted:
        # gather and scatter print the same table
        return "broadcast" if seen.part == 1 and fits("broadcast", seen, ranks) else None
    if seen.part == 1:
        return "sendrecv" if fits("sendrecv", seen, ranks) else None
    return _copying(seen, ranks, title) if seen.part else None


def _combining(seen: PatternEvidence, ranks: int | None) -> str | None:
    if seen.rooted:
        return "reduce" if seen.part == 1 and fits("reduce", seen, ranks) else None
    if seen.part != 1:
        return "reducescatter" if seen.part and fits("reducescatter", seen, ranks) else None
    if seen.checked_in or (seen.ratio_known and not seen.may_be(1.0)):
        return "allreduce" if fits("allreduce", seen, ranks) else None
    # sendrecv is printed with an operation, too, and has the same factor at two ranks. Its in-place results are not
    # checked.
    if (seen.checked_out or (ranks or 2) > 2) and seen.ratio_known and seen.may_be(1.0):
        return "sendrecv"
    return None


def _copying(seen: PatternEvidence, ranks: int | None, title: Sequence[str]) -> str | None:
    """Return the pattern of a table that has no root and whose column `count` states only a part of the size.

    The pattern can be allgather, alltoall, alltoallv or hypercube.
    """
    if not seen.full_rate:
        if "#wrong" not in title:
            return None  # like hypercube, old versions of allgather counted only the data of the other ranks
        return "hypercube" if fits("hypercube", seen, ranks) and seen.checked_out == seen.checked_in else None
    if not fits("allgather", seen, ranks):
        return None
    if seen.checked_in:
        return "allgather"
    old = "error" in title
    if old and "root" not in title:  # only the header of alltoall names an operation that no row has
        return "alltoall" if "redop" in title else "allgather" if not seen.checked_out else None
    return "alltoall" if seen.checked_out else None


def ranks_of(pattern: str, seen: PatternEvidence) -> int | None:
    """Return the number of ranks if the rows allow only one number. Otherwise return None.

    If the bus bandwidth is always zero, the number of ranks is 1.
    """
    if pattern in _COUNT_IS_A_PART:
        return seen.part if seen.part and seen.part > 1 else None
    if pattern not in _TWICE or not seen.ratio_known or seen.high >= 2:
        return None
    fewest = math.ceil(2 / (2 - seen.low) - 1e-9)
    most = math.floor(2 / (2 - seen.high) + 1e-9)
    return fewest if fewest == most and 1 <= fewest < _MOST_RANKS else None


def more_ranks(pattern: str, seen: PatternEvidence, ranks: int) -> bool:
    """Check whether the rows exclude every number of ranks up to `ranks`, but allow a larger number."""
    if pattern in _COUNT_IS_A_PART:
        return seen.part is not None and seen.part > ranks
    return pattern in _TWICE and seen.ratio_known and factor(pattern, ranks) < seen.low < 2
