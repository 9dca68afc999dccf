"""Compare each row with a reference row. The reference row has fewer ranks, fewer nodes, or the linear order of ranks.

Rows form a curve if they differ only in the number of ranks, or only in the number of nodes. A curve inside one node
compares numbers of ranks. A curve across nodes compares numbers of nodes. All nodes of a curve have the same number of
ranks. A world inside one node is never compared with a world of several nodes, because these worlds use different
links. The reference of a curve is the smallest world that has at least two ranks. A row with another order of ranks is
compared with the row in linear order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.core.record import Header, known
from bench.results.compared_rows import Scaling
from bench.results.document import Summary
from bench.results.launches import RowLaunches, launch_medians
from bench.results.paired_ratio import PairedRatio, interval_of, of_rows

# These factors depend on the number of ranks; all other factors must be the same.
_OF_THE_WORLD = ("num_ranks", "num_nodes", "ranks_per_node", "binding")
_SMALLEST = 2  # a single rank sends nothing over a link
# different numbers of ranks round a payload to different sizes; if these differ by more, times are not comparable
_SAME_SIZE = 0.01


@dataclass(frozen=True, slots=True)
class _Point:
    """One case at one size, with all its launches."""

    first: Summary
    order: str
    ranks_per_node: int
    oversubscribed: bool
    medians: tuple[float, ...]
    alike: tuple[Any, ...]  # the values that two points must share in any comparison

    @property
    def median_s(self) -> float:
        return median(self.medians)

    @property
    def useful_bytes(self) -> float | None:
        """The bytes that busbw counts for one operation. The value is payload x bus factor, and also busbw x time."""
        rate, seconds = self.first.busbw_bytes_per_s, self.first.median_s
        return None if rate is None or seconds is None else rate * seconds


def scalings(headers: Mapping[str, Header], measured: Iterable[RowLaunches]) -> tuple[Scaling, ...]:
    """Return the comparisons of rows with their references, in the order of the rows.

    The result also contains each reference, compared with itself.

    `measured`: the rows of the run, from `launches.cells`.
    """
    points = [point for cell in measured for point in _points(cell, headers)]
    found = []
    for curve in _curves(points):
        by_size = sorted(curve, key=lambda point: known(point.first.num_ranks))
        if by_size[-1].first.payload_bytes > by_size[0].first.payload_bytes * (1 + _SAME_SIZE):
            continue
        factor = "nodes" if known(by_size[0].first.num_nodes) > 1 else "ranks per node"
        found += [_compared(point, by_size[0], factor) for point in by_size]
    found += [_compared(point, linear, "order") for point, linear in _orders(points)]
    return tuple(found)


def _points(cell: RowLaunches, headers: Mapping[str, Header]) -> list[_Point]:
    """Return a list with the point of a row on its curve. If the row cannot be on a curve, the list is empty.

    A row can be on a curve if its data are correct, and if its group is the whole world with two or more ranks.
    """
    first = next((row for row in cell.rows.values() if row.median_s is not None and row.verified is not False), None)
    if first is None or first.src is not None or first.topology != "world" or (first.num_ranks or 0) < _SMALLEST:
        return []
    medians, header = launch_medians(cell), headers[first.job]
    if None in (first.num_nodes, header.ranks_per_node):  # another tool's log may not state these numbers
        return []
    factors = tuple((name, value) for name, value in cell.factors.items() if name not in (*_OF_THE_WORLD, "order"))
    alike = (first.pattern, first.mode, first.group, first.requested_bytes, *factors)
    cpus = [node["num_cpus"] for node in header.nodes.values() if node.get("num_cpus")]
    ranks_per_node = known(header.ranks_per_node)
    oversubscribed = any(ranks_per_node > num for num in cpus)
    return [_Point(first, cell.factors["order"] or "linear", ranks_per_node, oversubscribed, medians, alike)]


def _curves(points: Sequence[_Point]) -> list[list[_Point]]:
    """Return the curves on which at least two numbers of ranks were measured.

    The points of a curve differ either in the number of ranks inside one node, or in the number of nodes.
    """
    curves: dict[tuple[Any, ...], list[_Point]] = {}
    for point in points:
        inside = point.first.num_nodes == 1
        curves.setdefault((point.alike, point.order, None if inside else point.ranks_per_node), []).append(point)
    return [curve for curve in curves.values() if len({point.first.num_ranks for point in curve}) > 1]


def _orders(points: Sequence[_Point]) -> list[tuple[_Point, _Point]]:
    """Pair each point whose ranks are not in linear order with the point of the same world in linear order."""
    linear = {_world_of(point): point for point in points if point.order == "linear"}
    return [(p, linear[_world_of(p)]) for p in points if p.order != "linear" and _world_of(p) in linear]


def _world_of(point: _Point) -> tuple[Any, ...]:
    return point.alike, point.first.num_nodes, point.ranks_per_node


def _compared(point: _Point, reference: _Point, factor: str) -> Scaling:
    row = point.first
    ratio = _time_ratio(point, reference)
    share = None
    if point.useful_bytes is not None and reference.useful_bytes is not None:
        share = point.useful_bytes / reference.useful_bytes
    rate = None if point.useful_bytes is None else point.useful_bytes / point.median_s
    return Scaling(
        job=row.job,
        pattern=row.pattern,
        transport=row.transport,
        mode=row.mode,
        payload_bytes=row.payload_bytes,
        factor=factor,
        value=_value(point, factor),
        reference=_value(reference, factor),
        order=point.order,
        num_ranks=known(row.num_ranks),
        num_nodes=known(row.num_nodes),
        ranks_per_node=point.ranks_per_node,
        num_launches=len(point.medians),
        median_s=point.median_s,
        **ratio.named("time_ratio"),
        interval_over=ratio.over,
        busbw_bytes_per_s=rate,
        efficiency=None if share is None else share / ratio.value,
        efficiency_low=None if share is None or ratio.high is None else share / ratio.high,
        efficiency_high=None if share is None or ratio.low is None else share / ratio.low,
        bound_fraction=None if rate is None or not row.bound_bytes_per_s else rate / row.bound_bytes_per_s,
        floor_fraction=None if row.floor_s is None or row.mode != "isolated" else row.floor_s / point.median_s,
        bound_name=row.bound_name,
        oversubscribed=point.oversubscribed,
        modelled=row.modelled,
    )


def _value(point: _Point, factor: str) -> str:
    if factor == "order":
        return point.order
    return str(point.first.num_nodes if factor == "nodes" else point.ranks_per_node)


def _time_ratio(point: _Point, reference: _Point) -> PairedRatio:
    """Return the ratio: the point's time / the reference's time.

    If both points have two or more launches, the interval covers the variation between launches.
    """
    if point is reference:
        return PairedRatio(1.0)
    if point.first.modelled:
        return PairedRatio(point.median_s / reference.median_s)
    return of_rows(reference.medians, interval_of(reference.first), point.medians, interval_of(point.first))
