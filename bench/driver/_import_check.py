"""Does what a log printed agree with itself, and with our definitions? It is kept as printed; a remark says where not.

A figure that was printed is known to half of its last digit only, so that two of them agree within that.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.core.foreign import Remark, Row, Run
from bench.core.pattern import MessagePattern, Pattern, Shape

# nccl-tests prints rates to 0.01 GB/s, and times to four digits or more.
_RATE_DIGIT_BYTES_PER_S = 0.01e9
_RELATIVE = 0.01


def contradictions(run: Run, pattern: Pattern | None) -> Iterator[Remark]:
    """A remark where rows' busbw is not algbw x factor of so many ranks, and one where algbw is not size / time."""
    factor = _factor(pattern, run.num_ranks)
    if factor is not None:
        what = f"busbw is not algbw x {factor:.6g}, the factor of {run.num_ranks} ranks"
        yield from _said(what, [row for row in run.rows if not _agrees(row.busbw_bytes_per_s, row, factor)])
    yield from _said("algbw is not size / time", [row for row in run.rows if not _is_size_by_time(row)])


def _factor(pattern: Pattern | None, num_ranks: int | None) -> float | None:
    """busbw / algbw at any size."""
    if pattern is None or num_ranks is None or num_ranks < 2 or isinstance(pattern, MessagePattern):
        return None
    return pattern.bus_factor(Shape(num_ranks, 16 * num_ranks))


def _agrees(busbw: float | None, row: Row, factor: float) -> bool:
    algbw = row.algbw_bytes_per_s
    if busbw is None or algbw is None:
        return True
    return abs(busbw - algbw * factor) <= _RATE_DIGIT_BYTES_PER_S * (1 + factor) + _RELATIVE * busbw


def _is_size_by_time(row: Row) -> bool:
    algbw, seconds, size = row.algbw_bytes_per_s, row.time_s, row.payload_bytes
    if algbw is None or not seconds or not size or size > 1 << 60:
        return True
    return abs(algbw - size / seconds) <= _RATE_DIGIT_BYTES_PER_S + 2 * _RELATIVE * algbw


def _said(what: str, rows: list[Row]) -> Iterator[Remark]:
    if rows:
        more = f", here and in {len(rows) - 1} more rows" if len(rows) > 1 else ""
        yield Remark(rows[0].line or None, what + more)
