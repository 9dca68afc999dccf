"""Draw the time of one isolated operation by size, with its spread and the latency floor.

Each pattern has a panel.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.core.links import FloorKind
from bench.core.units import format_duration
from bench.figures import _expected, _origin, _style
from bench.results import curves
from bench.results.curves import CurvePoint
from bench.results.document import Document, Summary


def applies(document: Document) -> bool:
    """Check whether a pattern with sizes has an isolated time."""
    return bool(_chosen(document))


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return one figure, `latency`. If a pattern has several groups, the figure shows the slowest group at each size.

    Return an empty list if the document has no isolated times.

    A pattern without sizes (barrier) has a remark instead of a panel.
    """
    rows = _chosen(document)
    if not rows:
        return []
    rows, not_drawn = curves.first_curves(document, rows, _style.MOST_SERIES)
    looks = _style.looks(curves.transports(document, rows))
    patterns = curves.by(rows, lambda row: row.pattern)
    figure, axes = _style.panels(len(patterns))
    drawn: list[CurvePoint] = []
    for panel, (pattern, of_pattern) in zip(axes, patterns.items(), strict=True):
        points: list[CurvePoint] = []
        expected: list[float] = []
        lines = curves.lines(document, of_pattern)
        _style.panel_title(panel, curves.panel_title(pattern, of_pattern), curves.best_time(lines))
        for label, line in lines.items():
            _draw_curve(panel, looks[label], line)
            expected += _expected.draw(panel, looks[label], line, curves.expected_seconds)
            points += line
        _style.size_axis(panel, (row.payload_bytes for row in of_pattern))
        ends = [end for point in points for end in (*_band(point), point.seconds, point.first.floor_s or point.seconds)]
        _style.time_axis(panel, _style.log_limits([*ends, *expected]))
        if any(row.modelled for row in of_pattern):
            _style.watermark(panel)
        drawn += points
    remarks = [*_remarks(drawn), *curves.algorithm_remark(rows), *_sizeless(document)]
    remarks += curves.invalid_remark(document, "isolated")
    remarks += not_drawn
    own = [look.handle() for look in looks.values()]
    handles = [*own, *_floor_handle(rows), *_expected.handle(drawn, curves.expected_seconds)]
    title = "Time of an isolated operation, by size"
    _style.finish(figure, title, _origin.kind_of(rows), handles, remarks, drawn)
    return [("latency", figure)]


def _chosen(document: Document) -> list[Summary]:
    return [row for row in curves.valid(document, "isolated") if row.payload_bytes > 0]


def _draw_curve(panel: Axes, look: _style.Look, line: list[CurvePoint]) -> None:
    sizes = [float(point.payload_bytes) for point in line]
    values = []
    for point in line:
        low, high = point.interval or (point.seconds, point.seconds)
        values.append((low, point.seconds, high))
    _style.curve(panel, look, line, sizes, values, [_band(point) for point in line])
    floors = [(point.payload_bytes, point.first.floor_s) for point in line if point.first.floor_s]
    if floors:
        x, y = zip(*floors, strict=True)
        panel.plot(x, y, color=look.colour, linestyle=":", linewidth=1.4, zorder=1)


def _band(point: CurvePoint) -> tuple[float, float]:
    """Return the lower and the upper end of the band that is drawn at a point, in seconds.

    If there are several launches, the band reaches from the fastest to the slowest launch. If there is only one launch,
    the band reaches from the fastest sample to the 95th percentile. If these times are unknown, the band is the
    interval of the median. If the interval is unknown, too, the band has no height.
    """
    if point.spread:
        return point.spread
    row = point.first
    if row.p95_s is not None and row.min_s is not None:
        return row.min_s, row.p95_s
    return point.interval or (point.seconds, point.seconds)


def _remarks(points: list[CurvePoint]) -> list[str]:
    remarks = curves.interval_remark(points)
    single = [point for point in points if not point.spread and point.first.p95_s is not None]
    if single and not any(point.first.modelled for point in single):
        remarks.append("times of the slowest rank; band of a single launch: fastest sample to p95")
    return remarks


def _floor_handle(rows: list[Summary]) -> list[Line2D]:
    """Return the legend entry for the latency floors. Return an empty list if the rows have no floors."""
    kinds = {row.floor_kind for row in rows if row.floor_s}
    if not kinds:
        return []
    label = (
        "in the curve's colour: ping-pong time x fewest steps (reference, not a limit)"
        if FloorKind.REFERENCE in kinds
        else "in the curve's colour: floor of the links' latencies"
    )
    return [Line2D([], [], color=_style.GREY, linestyle=":", label=label)]


def _sizeless(document: Document) -> list[str]:
    rows = [row for row in curves.valid(document, "isolated") if row.payload_bytes == 0 and row.group == "world"]
    texts = []
    for pattern, of_pattern in curves.by(rows, lambda row: row.pattern).items():
        for label, [point] in curves.lines(document, of_pattern).items():
            texts.append(f"{pattern} over {label}: {format_duration(point.seconds)}")
    return ["; ".join(texts)] if texts else []
