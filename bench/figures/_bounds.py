"""Draw the bounds of a panel as named lines on a logarithmic axis of rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from matplotlib.axes import Axes

from bench.figures import _style
from bench.results.curves import BoundCurve, CurvePoint, bound_curves

_TEXT_SHARE = 0.068  # height of a line of text, as a share of a panel's height
_NAME_GAP = 0.012  # between a line and its name, as a share of a panel's height

_MOST_NAMED = 6  # bounds in a panel; more names, of very different worlds, would hide the data
_LETTER_SHARE = 0.0155  # width of a letter, as a share of a panel's width


def draw(axes: Axes, points: Iterable[CurvePoint], others: Sequence[float] = ()) -> None:
    """Draw each bound of these points as a named line.

    Lines of hard bounds are solid, and lines of reference and traffic bounds are dashed. Call this function after the
    data are drawn, because it sets the y axis (GB/s, logarithmic).

    `others`: rates in the panel that do not belong to `points`.
    """
    drawn = list(points)
    rates = [(float(point.payload_bytes), point.busbw()) for point in drawn]
    curves = list({str(curve): curve for curve in bound_curves(point.first for point in drawn)}.values())[:_MOST_NAMED]
    low, high = _style.log_limits(
        [*(rate for _, rate in rates), *(rate for curve in curves for rate in curve.rates), *others]
    )
    for curve in curves:
        dashes: Literal["-", "--"] = "-" if curve.kind == "hard" else "--"
        sizes: Sequence[float] = curve.sizes
        if curve.flat:
            axes.axhline(max(curve.rates), color=_style.GREY, linewidth=1.3, linestyle=dashes, zorder=1)
        else:
            axes.plot(sizes, curve.rates, color=_style.GREY, linewidth=1.3, linestyle=dashes, zorder=1)
    places, top = _places(curves, low, high, [size for size, _ in rates])
    span = math.log(high / low)
    high = low * math.exp(span * max(top, 1.0))
    _style.rate_axis(axes, (low, high))
    right = _is_in_the_way(rates, [place / max(top, 1.0) for place in places], low, high)
    for curve, place in zip(curves, places, strict=True):
        axes.text(
            0.99 if right else 0.012,
            place / max(top, 1.0),
            str(curve),
            transform=axes.transAxes,
            fontsize=_style.SMALL_TEXT,
            color=_style.GREY,
            ha="right" if right else "left",
            va="bottom",
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.8},
            zorder=4,
        )


def _places(curves: Sequence[BoundCurve], low: float, high: float, sizes: Sequence[float]) -> tuple[list[float], float]:
    """Return the position of each name above its line, and the height that all names need.

    Both values are shares of the axis. If two lines are close, the upper name is moved up, so that the names do not
    overlap. If a name would still cover a line, all names are written above the lines, in the order of the lines.
    `sizes`: the message sizes in the panel.
    """
    lines = [math.log(_rate_below_name(curve, sizes) / low) / math.log(high / low) for curve in curves]
    places, top = _stacked(lines, 0.0)
    if any(place < line < place + _TEXT_SHARE for place in places for line in lines):
        places, top = _stacked(lines, max(lines) + _NAME_GAP)
    return places, top


def _stacked(lines: Sequence[float], free: float) -> tuple[list[float], float]:
    """Return a place above each line that no other name has, and the end of the uppermost name.

    `free`: the least place. All values are shares of the axis.
    """
    places = [0.0] * len(lines)
    for index in sorted(range(len(lines)), key=lambda index: lines[index]):
        places[index] = max(lines[index] + _NAME_GAP, free)
        free = places[index] + _TEXT_SHARE
    return places, free


def _rate_below_name(curve: BoundCurve, sizes: Sequence[float]) -> float:
    """Return the highest rate of a bound at the sizes where its name is written, from the left edge of the panel."""
    smallest, largest = min((*sizes, curve.sizes[0])), max((*sizes, curve.sizes[-1]))
    end = smallest * (largest / smallest) ** min(_LETTER_SHARE * len(str(curve)), 1.0)
    num_below = sum(size < end for size in curve.sizes) + 1
    return max(curve.rates[:num_below])


def _is_in_the_way(rates: Sequence[tuple[float, float]], places: Sequence[float], low: float, high: float) -> bool:
    """Check whether the left half of the panel has more points at the height of the names than the right half."""
    if not rates or not places:
        return False
    middle = math.sqrt(min(size for size, _ in rates) * max(size for size, _ in rates))
    covered = {False: 0, True: 0}
    for size, rate in rates:
        share = math.log(rate / low) / math.log(high / low) if rate > 0 else 0.0
        covered[size > middle] += any(place - 0.02 < share < place + _TEXT_SHARE for place in places)
    return covered[False] > covered[True]
