"""Compute how much slower each group is when all groups run at the same time.

The two compared times come from two jobs that differ only in their topology.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from bench.core.record import Header, known
from bench.core.topology import IN_TURN
from bench.results.compared_rows import Sharing
from bench.results.document import Summary
from bench.results.launches import RowLaunches, launch_medians
from bench.results.model import case_of
from bench.results.paired_ratio import interval_of, of_rows


def sharings(headers: Mapping[str, Header], measured: Iterable[RowLaunches]) -> tuple[Sharing, ...]:
    """Return one result for each group, mode and size that was measured both alone and with all other groups.

    The results are in the order of the job in which all groups ran at the same time.

    `measured`: the rows of the run, from `launches.cells`.
    """
    if not any(header.topology.endswith(IN_TURN) for header in headers.values()):
        return ()
    at_once, alone = [], {}
    for cell in measured:
        row = _usable(cell)
        if row is None or not cell.factors["topology"]:
            continue
        if cell.factors["topology"] == _at_once(cell):
            at_once.append((cell, row))
        else:
            alone[_group_key(cell)] = (cell, row)
    found = []
    for cell, row in at_once:
        if _group_key(cell) in alone:
            found.append(_compared(cell, row, *alone[_group_key(cell)], headers[row.job]))
    groups: dict[tuple[Any, ...], int] = {}
    for one in found:
        groups[_size_of(one)] = groups.get(_size_of(one), 0) + 1
    return tuple(replace(one, num_groups=groups[_size_of(one)]) for one in found)


def _usable(cell: RowLaunches) -> Summary | None:
    """Return the first row that has a time and correct data, or None if there is no such row."""
    return next((row for row in cell.rows.values() if row.median_s is not None and row.verified is not False), None)


def _at_once(cell: RowLaunches) -> str:
    return str(cell.factors["topology"]).removesuffix(IN_TURN)


def _group_key(cell: RowLaunches) -> tuple[Any, ...]:
    """Return a key that identifies a group, and that is the same whether other groups run or not.

    The key has all factors. The suffix of the topology's name is not part of the key.
    """
    return cell.place, tuple({**cell.factors, "topology": _at_once(cell)}.items())


def _size_of(one: Sharing) -> tuple[Any, ...]:
    return one.job, one.mode, one.payload_bytes


def _compared(cell: RowLaunches, row: Summary, cell_alone: RowLaunches, row_alone: Summary, header: Header) -> Sharing:
    at_once, alone = launch_medians(cell), launch_medians(cell_alone)
    ratio = of_rows(alone, interval_of(row_alone), at_once, interval_of(row))
    if row.modelled:
        ratio = ratio.without_interval()
    cpus = [node["num_cpus"] for node in header.nodes.values() if node.get("num_cpus")]
    return Sharing(
        job=case_of(row.job, header),
        pattern=row.pattern,
        transport=row.transport,
        mode=row.mode,
        topology=_at_once(cell),
        group=row.group,
        payload_bytes=row.payload_bytes,
        num_ranks=known(row.num_ranks),
        num_groups=0,
        alone_s=median(alone),
        at_once_s=median(at_once),
        **ratio.named("factor"),
        interval_over=ratio.over,
        num_launches=min(len(at_once), len(alone)),
        oversubscribed=any((header.ranks_per_node or 0) > num for num in cpus),
        modelled=row.modelled,
    )
