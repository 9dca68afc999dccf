"""Draw what a real machine is expected to reach, as 90 % intervals beside a modelled curve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from bench.figures import _style
from bench.results.curves import CurvePoint, Ends
from bench.results.document import Summary

_HATCH = "////"


def draw(panel: Axes, look: _style.Look, line: Sequence[CurvePoint], ends: Callable[[Summary], Ends]) -> list[float]:
    """Draw the intervals of a curve as a hatched band.

    Return the ends of the intervals, so that the caller can include them in the axis.
    """
    known = [(point.payload_bytes, found) for point in line if (found := ends(point.first)) is not None]
    if not known:
        return []
    sizes, intervals = zip(*known, strict=True)
    low, high = zip(*intervals, strict=True)
    panel.fill_between(sizes, low, high, facecolor="none", edgecolor=look.colour, hatch=_HATCH, alpha=0.35, linewidth=0)
    return [*low, *high]


def handle(points: Iterable[CurvePoint], ends: Callable[[Summary], Ends]) -> list[Patch]:
    """Return the legend entry of the bands, if there are any."""
    if all(ends(point.first) is None for point in points):
        return []
    label = "expected of a real machine, 90 % interval"
    return [Patch(facecolor="none", edgecolor=_style.GREY, hatch=_HATCH, linewidth=0, label=label)]
