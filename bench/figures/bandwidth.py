"""Draw the bus bandwidth of pipelined operations by size, with the bounds of the links.

Each pattern has a panel.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.figures import _bounds, _expected, _origin, _style
from bench.results import curves
from bench.results.curves import CurvePoint
from bench.results.document import Document, Summary


def applies(document: Document) -> bool:
    """Check whether there is any bandwidth to draw."""
    return bool(_chosen(document))


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return one figure, `bandwidth`. If a pattern has several groups, the figure shows the slowest group at each size.

    Return an empty list if the document has no bandwidth.
    """
    rows = _chosen(document)
    if not rows:
        return []
    rows, not_drawn = curves.first_curves(document, rows, _style.MOST_SERIES)
    looks = _style.looks(curves.transports(document, rows))
    patterns = curves.by(rows, lambda row: row.pattern)
    figure, axes = _style.panels(len(patterns))
    drawn: list[CurvePoint] = []
    num_left = 0
    for panel, (pattern, of_pattern) in zip(axes, patterns.items(), strict=True):
        lines = curves.lines(document, of_pattern)
        _style.panel_title(panel, curves.panel_title(pattern, of_pattern), curves.best_rate(lines))
        expected: list[float] = []
        for label, line in lines.items():
            draw_curve(panel, looks[label], line)
            expected += _expected.draw(panel, looks[label], line, curves.expected_busbw)
        num_left += _bounds.draw(panel, lines, expected)
        _style.size_axis(panel, (row.payload_bytes for row in of_pattern))
        if any(row.modelled for row in of_pattern):
            _style.watermark(panel)
        drawn += [point for line in lines.values() for point in line]
    remarks = curves.interval_remark(drawn) + _bound_remark(drawn) + curves.algorithm_remark(rows)
    remarks += curves.invalid_remark(document, "pipelined")
    remarks += not_drawn
    remarks += [f"not drawn: {num_left} more bounds; linkbench report shows all"] if num_left else []
    handles = [*(look.handle() for look in looks.values()), *_expected.handle(drawn, curves.expected_busbw)]
    title = "Bus bandwidth by size, operations back to back"
    _style.finish(figure, title, _origin.kind_of(rows), handles, remarks, drawn)
    return [("bandwidth", figure)]


def _chosen(document: Document) -> list[Summary]:
    rows = curves.valid(document, "pipelined")
    return [row for row in rows if row.busbw_bytes_per_s and row.payload_bytes > 0]


def draw_curve(panel: Axes, look: _style.Look, line: list[CurvePoint]) -> None:
    """Draw the rates of a curve, with their intervals and the band of the launches."""
    sizes = [float(point.payload_bytes) for point in line]
    ends = [point.interval or (point.seconds, point.seconds) for point in line]
    values = [
        (point.busbw(high), point.busbw(), point.busbw(low)) for point, (low, high) in zip(line, ends, strict=True)
    ]
    bands = []
    if any(point.spread for point in line):
        for point in line:
            fastest, slowest = point.spread or (point.seconds, point.seconds)
            bands.append((point.busbw(slowest), point.busbw(fastest)))
    _style.curve(panel, look, line, sizes, values, bands)


def _bound_remark(points: list[CurvePoint]) -> list[str]:
    kinds = {point.first.bound_kind for point in points if point.first.bound_name}
    words = []
    if "hard" in kinds:
        words.append("solid grey: hard bound of the links")
    if "traffic" in kinds:
        words.append("dashed grey, traffic: the rate that the links allow with the algorithm's messages")
    if "reference" in kinds:
        words.append("dashed grey, reference: a measured rate to compare with, not a limit")
    return ["; ".join(words)] if words else []
