"""Bus bandwidth of pipelined operations by size, with the bounds of the links; one panel per pattern."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.figures import _bounds, _style
from bench.results import curves
from bench.results.document import Document, Summary


def applies(document: Document) -> bool:
    """Check whether there is any bandwidth to draw."""
    return bool(_chosen(document))


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return one figure, `bandwidth`, which shows the slowest group at each size.

    Return an empty list for a document without bandwidth.
    """
    rows = _chosen(document)
    if not rows:
        return []
    labels = curves.labels(document)
    looks = _style.looks(curves.label_of(labels, row) for row in rows)
    patterns = curves.by(rows, lambda row: row.pattern)
    figure, axes = _style.panels(len(patterns))
    for panel, (pattern, of_pattern) in zip(axes, patterns.items(), strict=True):
        panel.set_title(curves.panel_title(pattern, of_pattern), fontsize=_style.TEXT)
        drawn = {
            line: curves.slowest_groups(of_line)
            for line, of_line in curves.by(of_pattern, lambda row: (row.job, curves.label_of(labels, row))).items()
        }
        for (_, name), line in drawn.items():
            _draw_line(panel, looks[name], line)
        _bounds.draw(panel, (row for line in drawn.values() for row in line))
        _style.size_axis(panel, (row.payload_bytes for row in of_pattern))
        panel.set_ylabel("busbw (GB/s)", fontsize=_style.TEXT)
        if any(row.modelled for row in of_pattern):
            _style.watermark(panel)
    handles = [look.handle() for look in looks.values()]
    remarks = curves.interval_remark(rows) + curves.algorithm_remark(rows)
    remarks += curves.invalid_remark(document, "pipelined")
    _style.finish(figure, "Bus bandwidth, operations back to back", handles, rows, remarks)
    return [("bandwidth", figure)]


def _chosen(document: Document) -> list[Summary]:
    rows = curves.valid(document, "pipelined")
    return [row for row in rows if row.busbw_bytes_per_s is not None and row.payload_bytes > 0]


def _draw_line(panel: Axes, look: _style.Look, rows: list[Summary]) -> None:
    sizes = [float(row.payload_bytes) for row in rows]
    rates = [(row.busbw_bytes_per_s or 0.0) / 1e9 for row in rows]
    errors = [_error(row, rate) for row, rate in zip(rows, rates, strict=True)]
    _style.points(panel, look, rows, sizes, rates, errors)


def _error(row: Summary, rate: float) -> tuple[float, float]:
    """Return how far the interval of a rate reaches below and above the rate.

    Both are computed from the interval of the time.
    """
    if not row.median_s or not row.ci_low_s or not row.ci_high_s:
        return 0.0, 0.0
    return rate * (1 - row.median_s / row.ci_high_s), rate * (row.median_s / row.ci_low_s - 1)
