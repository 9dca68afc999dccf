"""Compute the overhead of a framework: the ratio of the time with the framework to the time without it.

Both times were measured in the same run.

The field `bare` of a transport's traits is the name of the transport that calls the library without the framework.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from bench.core.codes import Coded
from bench.core.traits import traits
from bench.core.units import format_size
from bench.results.document import Summary
from bench.results.launches import RowLaunches, launch_medians
from bench.results.messages import NoteCode
from bench.results.paired_ratio import interval_of, of_rows


def prices(measured: Iterable[RowLaunches]) -> list[Coded]:
    """Return a note on each pattern and mode that was measured with a framework and also without it.

    For each size, the note states the ratio with its interval, and the difference of the two times in seconds.

    `measured`: the rows of the run, from `launches.cells`.
    """
    whole: list[tuple[RowLaunches, Summary]] = []
    bare: dict[tuple[Any, ...], tuple[RowLaunches, Summary]] = {}
    for cell in measured:
        row = _usable(cell)
        if row is None:
            continue
        if traits(row.transport).bare:
            whole.append((cell, row))
            continue
        # Rows that work in place are used only if there are no others: a framework may lack one of the two forms.
        key = (row.transport, *_key(row))
        if key not in bare or not row.in_place:
            bare[key] = (cell, row)
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell, row in whole:
        without = bare.get((traits(row.transport).bare, *_key(row)))
        if without is not None:
            found.setdefault(_series(row), []).append(_compared(cell, row, *without))
    return [_note(series, sorted(rows, key=lambda one: int(one["payload_bytes"]))) for series, rows in found.items()]


def _usable(cell: RowLaunches) -> Summary | None:
    rows = (row for row in cell.rows.values() if row.median_s and row.verified is not False and not row.modelled)
    return next(rows, None)


def _key(row: Summary) -> tuple[Any, ...]:
    return (*_series(row)[1:], row.group, row.payload_bytes)


def _series(row: Summary) -> tuple[Any, ...]:
    return row.transport, row.pattern, row.mode, row.dtype, row.reduce_op, row.root, row.topology, row.num_ranks


def _compared(cell: RowLaunches, row: Summary, bare_cell: RowLaunches, bare_row: Summary) -> dict[str, Any]:
    own, bare = launch_medians(cell), launch_medians(bare_cell)
    ratio = of_rows(bare, interval_of(bare_row), own, interval_of(row))
    more_s = median(own) - median(bare)
    return {"payload_bytes": row.payload_bytes, "more_s": more_s, **ratio.named("ratio"), "over": ratio.over}


def _note(series: tuple[Any, ...], rows: list[dict[str, Any]]) -> Coded:
    transport, pattern, mode = series[:3]
    ends = [rows[0], rows[-1]] if len(rows) > 1 else rows
    shown = [
        f"{one['ratio']:.2f} at {format_size(one['payload_bytes'])} ({1e6 * one['more_s']:+.1f} us)" for one in ends
    ]
    return Coded.of(
        NoteCode.FRAMEWORK,
        pattern=pattern,
        mode=mode,
        transport=transport,
        bare=traits(transport).bare,
        shown=shown,
        rows=rows,
    )
