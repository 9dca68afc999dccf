"""Does what a log printed agree with our definitions? It is kept as printed; a remark and a flag say where not.

Whether a row agrees with itself is its reader's to say (logs/foreign.py, Row.contradicts): only that knows the digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from bench.core.pattern import MessagePattern, Pattern, Shape
from bench.logs.foreign import ForeignRow, ForeignRun, Remark

_DIGIT_BYTES_PER_S = 0.005e9  # half of the last digit of nccl-tests' rates, which have the fewest
_RELATIVE = 1e-4  # of rates so large that they are printed with fewer digits


def contradictions(run: ForeignRun, pattern: Pattern | None) -> Iterator[Remark]:
    """A remark where rows' busbw is not algbw x factor of so many ranks."""
    rows = [row for row in run.rows if not is_by_definition(row, run, pattern)]
    if rows:
        more = f", here and in {len(rows) - 1} more rows" if len(rows) > 1 else ""
        factor = _factor(pattern, run.num_ranks)
        what = f"busbw is not algbw x {factor:.6g}, the factor of {run.num_ranks} ranks"
        yield Remark(rows[0].line or None, what + more)


def is_by_definition(row: ForeignRow, run: ForeignRun, pattern: Pattern | None) -> bool:
    """Is busbw algbw x factor, as far as the digits go? True where one of them is unknown."""
    factor, algbw, busbw = _factor(pattern, run.num_ranks), row.algbw_bytes_per_s, row.busbw_bytes_per_s
    if factor is None or algbw is None or busbw is None or run.pattern == "alltoallv":  # of the busiest rank
        return True
    return abs(busbw - algbw * factor) <= _DIGIT_BYTES_PER_S * (1 + factor) * 1.001 + _RELATIVE * busbw


@lru_cache(maxsize=1024)
def _factor(pattern: Pattern | None, num_ranks: int | None) -> float | None:
    """busbw / algbw at any size."""
    if pattern is None or num_ranks is None or num_ranks < 2 or isinstance(pattern, MessagePattern):
        return None
    return pattern.bus_factor(Shape(num_ranks, 16 * num_ranks))
