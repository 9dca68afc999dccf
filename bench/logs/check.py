"""Check whether the values in a tool's log agree with linkbench's definitions.

Figures are never changed. If a value conflicts with a definition, the run gets a remark and the row gets a flag. The
tool's reader also compares the values within a row (`ForeignRow.contradicts`), because only the reader knows how many
digits the tool prints.
"""

from __future__ import annotations

from functools import lru_cache

from bench.core.pattern import MessagePattern, Pattern, Shape
from bench.logs.foreign import ForeignRow, ForeignRun, Remark
from bench.logs.messages import LogCode

_DIGIT_BYTES_PER_S = 0.005e9  # half of the last digit of nccl-tests' rates, which have the fewest digits
_RELATIVE = 1e-4  # relative tolerance for rates that are so large that they are printed with fewer digits


def contradictions(run: ForeignRun, pattern: Pattern | None) -> tuple[Remark, ...]:
    """Return a remark on the first row whose busbw differs from algbw times the bus factor.

    Later rows give no further remark.
    """
    rows = [row for row in run.rows if not is_by_definition(row, run, pattern)]
    if not rows:
        return ()
    factor = _factor(pattern, run.num_ranks)
    code, line = LogCode.NOT_BY_FACTOR, rows[0].line or None
    return (Remark.of(line, code, factor=factor, num_ranks=run.num_ranks, num_rows=len(rows)),)


def is_by_definition(row: ForeignRow, run: ForeignRun, pattern: Pattern | None) -> bool:
    """Check whether busbw equals algbw times the factor, within the printed digits.

    If busbw, algbw or the factor is unknown, return True.
    """
    factor, algbw, busbw = _factor(pattern, run.num_ranks), row.algbw_bytes_per_s, row.busbw_bytes_per_s
    # other tools print the busbw of the busiest rank
    if factor is None or algbw is None or busbw is None or run.pattern == "alltoallv":
        return True
    return abs(busbw - algbw * factor) <= _DIGIT_BYTES_PER_S * (1 + factor) * 1.001 + _RELATIVE * busbw


@lru_cache(maxsize=1024)
def _factor(pattern: Pattern | None, num_ranks: int | None) -> float | None:
    """Return the bus factor, the ratio busbw / algbw. The bus factor is the same for all sizes.

    Return None if the factor is unknown.
    """
    if pattern is None or num_ranks is None or num_ranks < 2 or isinstance(pattern, MessagePattern):
        return None
    return pattern.bus_factor(Shape(num_ranks, 16 * num_ranks))
