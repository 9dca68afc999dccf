"""What a figure shows: its texts, the texts that overlap or leave the figure, and the series of its legend."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

_OVERLAP = 1.5  # pixels of both directions; boxes of neighbouring texts may touch


def all_texts(figure: Figure) -> list[str]:
    """Every piece of text in a figure."""
    return [found.get_text() for found in figure.findobj(Text) if isinstance(found, Text) and found.get_text()]


def series(figure: Figure) -> dict[str, tuple[str, str, str]]:
    """The colour, the marker and the dashes of each curve in the legend below the panels."""
    found = {}
    for legend in figure.legends:
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            if isinstance(handle, Line2D):
                look = str(handle.get_color()), str(handle.get_marker()), str(handle.get_linestyle())
                found[text.get_text()] = look
    return found


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other. The figure was drawn before."""
    boxes = list(_boxes(figure))
    return [
        (one, other)
        for (one, box), (other, other_box) in combinations(boxes, 2)
        if min(box.x1, other_box.x1) - max(box.x0, other_box.x0) > _OVERLAP
        and min(box.y1, other_box.y1) - max(box.y0, other_box.y0) > _OVERLAP
    ]


def clipped(figure: Figure) -> list[str]:
    """Texts that reach beyond the edge of the figure. The figure was drawn before."""
    whole = figure.bbox
    return [
        text
        for text, box in _boxes(figure)
        if box.x0 < whole.x0 or box.y0 < whole.y0 or box.x1 > whole.x1 or box.y1 > whole.y1
    ]


def _boxes(figure: Figure) -> Iterator[tuple[str, Bbox]]:
    shown: list[Text] = list(figure.texts)
    for legend in figure.legends:
        shown += legend.get_texts()
    for axes in figure.axes:
        shown += [axes.title, axes.xaxis.label, axes.yaxis.label]
        shown += [text for text in axes.texts if text.get_gid() != "watermark"]
        if own := axes.get_legend():
            shown += own.get_texts()
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for ticks, labels in (
                (axis.get_majorticklocs(), axis.get_majorticklabels()),
                (axis.get_minorticklocs(), axis.get_minorticklabels()),
            ):
                shown += [label for at, label in zip(ticks, labels, strict=False) if low <= at <= high]
    for text in shown:
        if text.get_text() and text.get_visible():
            yield text.get_text(), text.get_window_extent()
