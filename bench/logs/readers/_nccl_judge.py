"""Compare the rows of one run of nccl-tests with each other, and with the sizes in the run's banner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

from bench.core.codes import Code
from bench.core.dtypes import DTYPES
from bench.logs.foreign import ForeignRow
from bench.logs.messages import LogCode
from bench.logs.readers._nccl_messages import NcclCode
from bench.logs.readers._nccl_rows import rate_agrees

_MOST_ASKED = 1024  # a banner may announce at most this many sizes
_ALIGNMENT = 16  # bytes to which the part of each rank is rounded down


def doubts(
    rows: Sequence[ForeignRow], share: float, timed: bool, half_digit_s: float = 0.0
) -> Iterator[tuple[int, Code]]:
    """Yield the index of each row that cannot be correct, and the reason.

    If `timed` is true, the algbw of a row must equal `share * size / time`. The ratio of bytes to elements is the same
    in all rows of a program. Either all rows of a program state the operation, or no row does. The same is true of the
    root. If a few rows differ from all other rows in one of these properties, the few rows are wrong.

    `half_digit_s`: the rounding error of printed times in seconds, if this error is larger than usual.
    """
    kinds = [_kind(row) for row in rows]
    usual = Counter(kind for kind in kinds if kind is not None).most_common(1)
    for index, row in enumerate(rows):
        if timed and not _is_size_by_time(row, share, half_digit_s):
            yield index, LogCode.NOT_SIZE_BY_TIME
        elif usual and kinds[index] not in (None, usual[0][0]):
            yield index, NcclCode.OTHER_KIND


def _kind(row: ForeignRow) -> Hashable | None:
    """Return the values of a row that are equal in all rows of a program.

    The first value is a quotient: the row's size / the bytes of all elements of the row. If this quotient is not a
    whole number, the first value is None. The second value says whether the operation is missing, and the third value
    says whether the root is missing. If the quotient is unknown, return None.
    """
    if not row.payload_bytes or not row.num_elements or row.dtype not in DTYPES:
        return None
    times, left = divmod(row.payload_bytes, row.num_elements * DTYPES[row.dtype].num_bytes)
    return None if left else times, row.reduce_op is None, row.root is None


def _is_size_by_time(row: ForeignRow, share: float, half_digit_s: float) -> bool:
    if not row.payload_bytes or not row.time_s or row.time_s < 0 or row.algbw_bytes_per_s is None:
        return True
    return rate_agrees(row.payload_bytes, row.time_s, row.algbw_bytes_per_s, share, half_digit_s)


def asked_of(settings: Mapping[str, str], rows: Sequence[ForeignRow], ranks: int | None) -> tuple[int, ...]:
    """Return the sizes that a banner announces.

    The result is empty if most rows have other sizes, or if the banner announces too many sizes.
    """
    least, most, step = (_whole(settings.get(name, "")) for name in ("min_bytes", "max_bytes", "step"))
    if least is None or most is None or step is None or any((row.payload_bytes or 0) > most for row in rows):
        return ()
    by_factor = settings.get("step_kind") == "factor"
    found: list[int] = []
    while least <= most and len(found) <= _MOST_ASKED:
        found.append(least)
        following = least * step if by_factor else least + step
        if following <= least:
            break
        least = following
    there = {row.payload_bytes for row in rows if row.payload_bytes is not None}
    exact = there & set(found)
    known = len(exact) + sum(any(_may_be(size, asked, ranks) for asked in found) for size in there - exact)
    return tuple(found) if len(found) <= _MOST_ASKED and (2 * known > len(there) or not there) else ()


def _may_be(size: int, asked: int, ranks: int | None) -> bool:
    """Check whether the printed size `size` can result from rounding the requested size `asked`.

    The part of each rank is rounded down, possibly to zero.
    """
    return size == asked or asked - _ALIGNMENT * (ranks or 1) < size < asked


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) < 20 else None


def absent(asked: Sequence[int], rows: Sequence[ForeignRow], ranks: int | None, ended: bool) -> list[int]:
    """Return the requested sizes without a row.

    If `ended` is false, only sizes up to the size of the largest row are checked. If `ranks` is unknown, the result is
    empty, because the rounding of sizes depends on the number of ranks.
    """
    there = {row.payload_bytes for row in rows if row.payload_bytes is not None}
    if ranks is None or not there:
        return []
    end = asked[-1] if ended and asked else max(there)
    found = []
    for size in asked:
        if size <= end and size not in there and not any(_may_be(printed, size, ranks) for printed in there):
            found.append(size)
    return found
