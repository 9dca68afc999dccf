"""Convert rows and cells of another tool to linkbench records.

The records have the values that the tool printed. Bus factors and other factors follow linkbench's definitions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from bench.core.codes import Code, Coded
from bench.core.dtypes import DTYPES
from bench.core.log_traits import log_traits
from bench.core.pattern import MessagePattern, Pattern, Shape, Traffic, traffic_of
from bench.core.record import Failure, Flag, Header, Record, Skip
from bench.logs.check import is_by_definition
from bench.logs.foreign import FAILED, OK, ForeignRow, ForeignRun, Matrix, MatrixCell, NamedFigure
from bench.logs.messages import LogCode

_SUM = "_sum"  # suffix of the direction of a figure that adds both directions; busbw is that of one direction
_MOST_RANKS_OF_MESSAGES = 8192  # with more ranks, a pattern has too many messages to list them for each size
_MOST_BYTES = 1 << 60


def of_row(header: Header, row: ForeignRow, run: ForeignRun, pattern: Pattern | None) -> Record:
    """Convert a row to a record.

    If the row has neither a time nor a rate, or if the size is unknown, the record is marked as skipped or failed.
    """
    mode, size, line = _mode(run), row.payload_bytes, row.line
    if run.size_is_block:
        skip = Skip.of(LogCode.SIZE_IS_BLOCK, line=line, size=size)
        return _record(header, mode, 0, in_place=row.in_place, skipped=skip)
    if size is None or not 0 <= size <= _MOST_BYTES:
        return _record(header, mode, 0, failed=Failure.of(LogCode.SIZE_UNKNOWN, line=line))
    traffic = _traffic(header, row, pattern)
    if unreadable := _unreadable(row):
        failure = Failure.of(LogCode.UNREADABLE_FIGURE, line=line, figures=unreadable)
        return _record(header, mode, size, traffic, in_place=row.in_place, failed=failure)
    reported = _figures(row, traffic, run.tool)
    if not reported:
        return _record(header, mode, size, in_place=row.in_place, skipped=Skip.of(LogCode.NO_FIGURE, line=line))
    return _record(
        header,
        mode,
        size,
        traffic,
        in_place=row.in_place,
        reported=reported,
        num_wrong=row.num_wrong,
        verified=None if row.num_wrong is None else row.num_wrong == 0,
        flags=(Flag.CONTRADICTS,) if row.contradicts or not is_by_definition(row, run, pattern) else (),
    )


def _mode(run: ForeignRun) -> str:
    """Return "isolated" if the tool waits for each call, else "pipelined"."""
    return "isolated" if ("mode", "isolated") in run.settings else "pipelined"


def _traffic(header: Header, row: ForeignRow, pattern: Pattern | None) -> Traffic | None:
    """Return the bus factor, the bytes per rank, and the bytes per node.

    Return None if the pattern or the number of ranks is unknown.
    """
    num_ranks, size = header.num_ranks, row.payload_bytes
    if pattern is None or num_ranks is None or size is None:
        return None
    if isinstance(pattern, MessagePattern) and num_ranks > _MOST_RANKS_OF_MESSAGES:
        return None
    even = header.num_nodes if header.ranks_per_node is not None else None
    element = DTYPES[row.dtype].num_bytes if row.dtype in DTYPES else 1
    return _of_shape(pattern, num_ranks, size, element, row.root or 0, even)


@lru_cache(maxsize=4096)
def _of_shape(pattern: Pattern, num_ranks: int, size: int, element: int, root: int, num_nodes: int | None) -> Traffic:
    return traffic_of(pattern, Shape(num_ranks, size, element, root), num_nodes)


def _unreadable(row: ForeignRow) -> list[str]:
    """Return the names of the values that were printed as nan or inf.

    If a row has such a value, linkbench does not use the row as evidence.
    """
    figures = (
        ("time", row.time_s),
        ("algbw", row.algbw_bytes_per_s),
        ("busbw", row.busbw_bytes_per_s),
        ("least time", row.min_s),
        ("largest time", row.max_s),
    )
    found = []
    for name, value in figures:
        if name in row.unreadable or (value is not None and _finite(value) is None):
            found.append(name)
    return found


def _figures(row: ForeignRow, traffic: Traffic | None, tool: str) -> dict[str, float]:
    """Return the values that the tool printed.

    A missing algbw is computed as size / time. A missing busbw is computed as algbw times the bus factor.
    """
    seconds, algbw, busbw = map(_finite, (row.time_s, row.algbw_bytes_per_s, row.busbw_bytes_per_s))
    if algbw is None and seconds and row.payload_bytes:
        algbw = row.payload_bytes / seconds
    if busbw is None and algbw is not None and traffic is not None and traffic.bus_factor is not None:
        busbw = algbw * traffic.bus_factor
    if seconds is None and algbw is None and busbw is None:
        return {}
    least, largest = log_traits(tool).extremes
    figures = {
        "mean_s": seconds,
        least: _finite(row.min_s),
        largest: _finite(row.max_s),
        "num_samples": row.num_iterations,
        "algbw_bytes_per_s": algbw,
        "busbw_bytes_per_s": busbw,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def of_matrix(header: Header, matrix: Matrix) -> Iterator[Record]:
    """Yield a record for each cell. The record of a waived cell says why the cell was skipped."""
    mode = "isolated" if matrix.unit == "s" else "pipelined"
    factor = 0.5 if (matrix.direction or "").endswith(_SUM) else 1.0
    for cell in matrix.cells:
        value, place = _finite(cell.value), _place(cell)
        size = cell.payload_bytes or matrix.payload_bytes or 0
        if cell.status == "waived":
            skip = Skip.of(LogCode.PATH_WAIVED, src=cell.src, dst=cell.dst, tool=header.transport)
            yield _record(header, mode, size, **place, skipped=skip)
        elif cell.status != OK or value is None:
            failure = Failure.of(failure_code(cell), src=cell.src, dst=cell.dst)
            yield _record(header, mode, size, **place, failed=failure)
        elif matrix.unit == "s":
            yield _record(header, mode, size, **place, reported={"mean_s": value})
        else:
            rates = {"algbw_bytes_per_s": value, "busbw_bytes_per_s": value * factor}
            yield _record(header, mode, size, Traffic(factor, size * factor, None, 1), **place, reported=rates)


def of_figure(header: Header, figure: NamedFigure) -> Record | None:
    """Convert a rate or a time to a record, and a failed test to a failure.

    Return None for any other named figure, because only the header stores such figures.
    """
    group = ", ".join(filter(None, (figure.where, figure.name)))
    if figure.status == FAILED:
        return _record(header, "isolated", 0, group=group, failed=Failure.of(LogCode.TEST_FAILED, test=group))
    value = _finite(figure.value)
    if value is None or figure.unit not in ("bytes_per_s", "s"):
        return None
    if figure.unit == "s":
        return _record(header, "isolated", 0, group=group, reported={"mean_s": value})
    rates = {"algbw_bytes_per_s": value, "busbw_bytes_per_s": value}
    return _record(header, "pipelined", 0, group=group, reported=rates)


def failure_code(cell: MatrixCell) -> Code:
    """Return why a cell has no value. The caller handles cells of waived tests in another way."""
    return LogCode.CELL_UNREADABLE if cell.status == "unreadable" else LogCode.CELL_FAILED


def failure_of(header: Header, run: ForeignRun) -> Record:
    """Return a record that says why a run did not succeed."""
    reason = run.failure or Coded.of(LogCode.NO_REASON)
    failure = Failure(f"{run.status}: {reason.text}", code=reason.code, facts=reason.facts)
    return _record(header, _mode(run), 0, failed=failure)


def rank_of(end: str) -> int | None:
    """Return the rank of an endpoint, such as 3 for "gpu3".

    Return None if the endpoint is a host, or all GPUs together.
    """
    digits = re.fullmatch(r"gpu(\d{1,6})", end)
    return int(digits[1]) if digits else None


def _place(cell: MatrixCell) -> dict[str, Any]:
    """Return the name of the group to which a cell belongs, and the ranks of the cell's sender and receiver.

    A GPU is a rank, but a host is not a rank.
    """
    src, dst = rank_of(cell.src), rank_of(cell.dst)
    num_ranks = len({src, dst} - {None}) or 1
    return {"group": f"{cell.src}>{cell.dst}", "src": src, "dst": dst, "num_ranks": num_ranks}


def _record(header: Header, mode: str, size: int, traffic: Traffic | None = None, **held: Any) -> Record:
    given = {"num_ranks": header.num_ranks, "num_nodes": header.num_nodes, **held}
    if traffic is not None:
        given |= {
            "bus_factor": traffic.bus_factor,
            "rank_bytes": traffic.rank_bytes,
            "node_bytes": traffic.node_bytes,
            "min_steps": traffic.min_steps,
        }
    return Record(mode=mode, requested_bytes=(size,), payload_bytes=size, **given)
