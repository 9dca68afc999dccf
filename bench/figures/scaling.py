"""Draw how the bandwidth or the time of each pattern changes with the number of ranks.

All points of a panel have the same message size. A dotted line shows ideal scaling. A second figure shows two
efficiencies of each world. The first efficiency compares the world's bandwidth with that of the smallest world. The
second efficiency compares the world's bandwidth with the world's own bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.core.record import known
from bench.figures import _origin, _style
from bench.results import curves
from bench.results.compared_rows import Scaling
from bench.results.curves import CurvePoint
from bench.results.document import Document, Summary

_Series = dict[str, list[CurvePoint]]  # label -> one point for each number of ranks, increasing

_MODELLED = " (modelled)"  # in the legend; panels with modelled curves have a watermark
_ABOVE_100 = 106  # top of an axis of efficiencies in percent, so that markers at 100 % are whole


def applies(document: Document) -> bool:
    """Check whether some size of a pattern was measured with several numbers of ranks."""
    return bool(_panels(document))


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return the figure `scaling`. If worlds have a reference, also return the figure `scaling-efficiency`.

    Each figure has a panel for each pattern. Return an empty list if the document has only one world.
    """
    panels = _panels(document)
    return [("scaling", _bandwidths(panels)), *_efficiencies(document)] if panels else []


def _bandwidths(panels: dict[str, _Series]) -> Figure:
    points = [point for series in panels.values() for of_label in series.values() for point in of_label]
    looks = _style.looks({_label(point.first): point.first.transport for point in points})
    figure, axes = _style.panels(len(panels))
    fewest: list[str] = []
    has_bounds = False
    for panel, (pattern, series) in zip(axes, panels.items(), strict=True):
        of_pattern = [point for of_label in series.values() for point in of_label]
        size = of_pattern[0].payload_bytes
        rated = all(point.first.busbw_bytes_per_s is not None for point in of_pattern)
        title = f"{pattern}, {curves.size_words(size)}" if size else pattern
        _style.panel_title(panel, title, _change(series, rated))
        panel.set_ylabel("busbw (GB/s)" if rated else "time (us)", fontsize=_style.TEXT)
        fewest.append("bandwidth" if rated else "time")
        for label, line in series.items():
            has_bounds |= _draw_line(panel, looks[label], line, rated)
        _ranks_axis(panel, {known(point.first.num_ranks): known(point.first.num_nodes) for point in of_pattern})
        panel.set_ylim(bottom=0)
        if any(point.first.modelled for point in of_pattern):
            _style.watermark(panel)
    rows = [point.first for point in points]
    handles = [look.handle() for look in looks.values()]
    words = f"in the curve's colour: {' or '.join(dict.fromkeys(fewest))} of the fewest ranks"
    handles.append(Line2D([], [], color=_style.GREY, linestyle=":", label=words))
    if has_bounds:
        words = "bound of each number of ranks"
        handles.append(Line2D([], [], color=_style.GREY, marker="_", markersize=14, linestyle="", label=words))
    remarks = curves.interval_remark(points) + curves.algorithm_remark(rows)
    title = "Scaling with the number of ranks"
    _style.finish(figure, title, _origin.kind_of(rows), handles, remarks, points)
    return figure


def _change(series: _Series, rated: bool) -> str:
    """Return how the value of a panel's first measured curve changes from its smallest to its largest world.

    For example: `0.378 to 0.131 GB/s from 2 to 4 ranks (mpi)`. If the panel has several curves, the text also has the
    name of this curve. If all curves are modelled, the text describes the first curve.
    """
    label = next((label for label, line in series.items() if not line[0].first.modelled), next(iter(series)))
    first, last = series[label][0], series[label][-1]
    (low, high), unit = ((_value(point, rated) for point in (first, last)), "GB/s" if rated else "us")
    words = f"{low:.3g} to {high:.3g} {unit} from {first.first.num_ranks} to {last.first.num_ranks} ranks"
    return f"{words} ({label.removesuffix(curves.IDEAL)})" if len(series) > 1 else words


def _value(point: CurvePoint, rated: bool) -> float:
    return point.busbw() if rated else point.seconds * 1e6


def _efficiencies(document: Document) -> list[tuple[str, Figure]]:
    """Return a list with one figure, which shows the efficiency in percent at the largest size (pipelined).

    Worlds inside a node and worlds of several nodes have separate curves. If no world has a reference, the list is
    empty.
    """
    rated = [one for one in document.scalings if one.factor != "order" and one.mode == "pipelined" and one.efficiency]
    patterns: dict[str, list[Scaling]] = {}
    for one in rated:
        patterns.setdefault(one.pattern, []).append(one)
    if not patterns:
        return []
    looks = _style.looks({_curve(one): one.transport for one in rated})
    figure, axes = _style.panels(len(patterns))
    for panel, (pattern, of_pattern) in zip(axes, patterns.items(), strict=True):
        size = max(one.payload_bytes for one in of_pattern)
        shown = [one for one in of_pattern if one.payload_bytes == size]
        _style.panel_title(panel, f"{pattern}, {curves.size_words(size)}", _lasting(shown))
        panel.set_ylabel("efficiency (%)", fontsize=_style.TEXT)
        panel.axhline(100, color=_style.GREY, linestyle=":", linewidth=1.2, zorder=1)
        for label in dict.fromkeys(map(_curve, shown)):
            _draw_efficiency(panel, looks[label], [one for one in shown if _curve(one) == label])
        _ranks_axis(panel, {one.num_ranks: one.num_nodes for one in shown})
        panel.set_ylim(0, max(panel.get_ylim()[1], _ABOVE_100))
        if any(one.modelled for one in shown):
            _style.watermark(panel)
    handles = [look.handle() for look in looks.values()]
    if any(one.bound_fraction for one in rated):
        handles.append(
            Line2D(
                [],
                [],
                color=_style.GREY,
                marker="_",
                markersize=14,
                linestyle="",
                label="in the curve's colour: share of its bound",
            )
        )
    rows = [row for row in document.summaries if row.pattern in patterns and row.mode == "pipelined"]
    remark = []
    for factor in dict.fromkeys(one.factor for one in rated):
        what = "ranks" if factor == "ranks per node" else "nodes"
        where = "inside one node" if what == "ranks" else "between nodes"
        remark.append(f"100 %, {where}: the bus bandwidth of the fewest {what}")
    title = "Scaling efficiency: bus bandwidth kept with more ranks or nodes"
    _style.finish(figure, title, _origin.kind_of(rows), handles, remark)
    return [("scaling-efficiency", figure)]


def _lasting(shown: Sequence[Scaling]) -> str:
    """Return the efficiency of the largest world of a panel. If there are several curves, also name the curve.

    A modelled world is used only if no world was measured.
    """
    last = max(shown, key=lambda one: (not one.modelled, one.num_ranks))
    words = f"{100 * (last.efficiency or 0.0):.3g} % at {last.num_ranks} ranks"
    return f"{words} ({_curve(last).removesuffix(_MODELLED)})" if len({_curve(one) for one in shown}) > 1 else words


def _curve(one: Scaling) -> str:
    where = "inside one node" if one.factor == "ranks per node" else f"nodes of {one.ranks_per_node}"
    return f"{one.transport}, {where}{_MODELLED * one.modelled}"


def _draw_efficiency(panel: Axes, look: _style.Look, curve: list[Scaling]) -> None:
    ranks = [float(one.num_ranks) for one in curve]
    shares = [100 * (one.efficiency or 0.0) for one in curve]
    low = [100 * (one.efficiency_low or one.efficiency or 0.0) for one in curve]
    high = [100 * (one.efficiency_high or one.efficiency or 0.0) for one in curve]
    errors = [[a - b for a, b in zip(shares, low, strict=True)], [a - b for a, b in zip(high, shares, strict=True)]]
    _style.line_with_errors(panel, look, ranks, shares, errors)
    bounded = [(one.num_ranks, 100 * one.bound_fraction) for one in curve if one.bound_fraction]
    panel.plot(
        [num for num, _ in bounded],
        [share for _, share in bounded],
        color=look.colour,
        marker="_",
        markersize=14,
        linestyle="",
        zorder=1,
    )


def _panels(document: Document) -> dict[str, _Series]:
    """For each pattern, return the series that have more than one world.

    All rows have the same message size: the largest size that was requested for every world. If any world has a bus
    bandwidth, worlds with a single rank are left out, because one rank has no bus bandwidth.
    """
    panels = {}
    for pattern, rows in curves.by(document.summaries, lambda row: row.pattern).items():
        chosen = [row for row in curves.valid(document, _mode(rows)) if row.pattern == pattern and _has_world(row)]
        if any(row.busbw_bytes_per_s is not None for row in chosen):  # one rank has no bus bandwidth
            chosen = [row for row in chosen if row.busbw_bytes_per_s is not None]
        worlds = {
            label: of_label
            for label, of_label in curves.by(chosen, _label).items()
            if len({row.num_ranks for row in of_label}) > 1
        }
        size = _largest_common(worlds)
        if size is not None:
            panels[pattern] = {label: _slowest(document, of_label, size) for label, of_label in worlds.items()}
    return panels


def _has_world(row: Summary) -> bool:
    """Check whether this suite measured the row on a whole world of known size.

    Return False for rows of groups, because groups of one job share links. Return False for rows of imported logs, too.
    """
    known = row.num_ranks is not None and row.num_nodes is not None
    return known and row.topology == "world" and not row.imported


def _mode(rows: list[Summary]) -> str:
    """Return the mode to draw. Return "pipelined" if any pipelined row has a bandwidth, else "isolated"."""
    rated = any(row.mode == "pipelined" and row.busbw_bytes_per_s is not None for row in rows)
    return "pipelined" if rated else "isolated"


def _label(row: Summary) -> str:
    return f"{row.transport}{curves.IDEAL}" if row.modelled else row.transport


def _largest_common(worlds: dict[str, list[Summary]]) -> int | None:
    """Return the largest message size that all series requested for all numbers of ranks."""
    sizes = [
        {row.requested_bytes for row in of_world}
        for of_label in worlds.values()
        for of_world in curves.by(of_label, lambda row: row.num_ranks).values()
    ]
    common = set.intersection(*sizes) if sizes else set()
    return max(common, default=None)


def _slowest(document: Document, rows: list[Summary], size: int) -> list[CurvePoint]:
    """For each number of ranks, return the point of the slowest case at the given message size."""
    worlds = curves.by((row for row in rows if row.requested_bytes == size), lambda row: row.num_ranks)
    return [
        max(curves.points_of_cases(document, worlds[num]), key=lambda point: point.seconds) for num in sorted(worlds)
    ]


def _draw_line(panel: Axes, look: _style.Look, line: list[CurvePoint], rated: bool) -> bool:
    """Draw a series with its intervals and bounds. Draw a dotted line at the value of the series' smallest world.

    Return whether the series has bounds.
    """
    ranks = [float(known(point.first.num_ranks)) for point in line]
    values = [_values(point, point.interval, rated) for point in line]
    bands = []
    if any(point.spread for point in line):
        bands = [(low, high) for low, _, high in (_values(point, point.spread, rated) for point in line)]
    panel.axhline(values[0][1], color=look.colour, linestyle=":", linewidth=1.2, zorder=1)
    _style.curve(panel, look, line, ranks, values, bands)
    # a reference (memory copy) may be far above all rates, and would hide them on a linear axis
    limits = [
        (num, point.first) for num, point in zip(ranks, line, strict=True) if point.first.bound_kind != "reference"
    ]
    drawn = [(num, row.bound_bytes_per_s / 1e9) for num, row in limits if row.bound_bytes_per_s and rated]
    if drawn:
        x, y = zip(*drawn, strict=True)
        panel.plot(x, y, color=_style.GREY, marker="_", markersize=14, linestyle="", zorder=1)
    return bool(drawn)


def _values(point: CurvePoint, ends: tuple[float, float] | None, rated: bool) -> tuple[float, float, float]:
    """Return the lower end, the middle and the upper end of a point.

    `ends`: the shorter and the longer time of the interval in seconds, or None if only the median is known.
    `rated`: if True, the values are busbw in GB/s. If `rated` is False, the values are times in microseconds.
    """
    low, high = ends or (point.seconds, point.seconds)
    if rated:
        return point.busbw(high), _value(point, rated), point.busbw(low)
    return low * 1e6, _value(point, rated), high * 1e6


def _ranks_axis(panel: Axes, nodes: dict[int, int]) -> None:
    """Label the axis of ranks.

    `nodes`: the number of nodes for each number of ranks.
    """
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(sorted(nodes)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _world(round(value), nodes.get(round(value), 1))))
    panel.set_xlabel("number of ranks (logarithmic)", fontsize=_style.TEXT)


def _world(num_ranks: int, num_nodes: int) -> str:
    return str(num_ranks) if num_nodes == 1 else f"{num_ranks}\n{num_nodes} nodes"
