"""Draw the bounds of a panel as lines with names. The axis of rates is logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from matplotlib.axes import Axes

from bench.figures import _style
from bench.results.bound_curves import BoundCurve, bound_curves
from bench.results.curves import CurveLabel, CurvePoint

_TEXT_SHARE = 0.068  # height of a line of text, as a share of a panel's height
_MARKER_SHARE = 0.025  # half the height of a marker, as a share of a panel's height
_NAME_GAP = 0.012  # between a line and its name, as a share of a panel's height

_MOST_NAMED = 6  # at most this many bounds in a panel, because more names would hide the data
_BEYOND = 1.3  # factor by which a level line reaches beyond its sizes
_LETTER_SHARE = 0.0155  # width of a letter, as a share of a panel's width


def draw(axes: Axes, lines: Mapping[CurveLabel, Sequence[CurvePoint]], others: Sequence[float] = ()) -> int:
    """Draw each bound of these curves as a named line. Returns the number of bounds that are not drawn.

    Hard bounds are drawn as solid lines. Reference bounds and traffic bounds are drawn as dashed lines. If a bound
    applies only to some sizes, its line covers only these sizes. This function sets the y axis (GB/s, logarithmic), so
    call it after the data are drawn.

    `lines`: the points of each curve, by the label of the curve.
    `others`: rates in the panel that do not belong to `lines`.
    """
    drawn = [point for points in lines.values() for point in points]
    rates = [(float(point.payload_bytes), point.busbw()) for point in drawn]
    bounds = bound_curves(lines)
    curves = bounds[:_MOST_NAMED]
    ends = [point.busbw(end) for point in drawn for end in (*(point.interval or ()), *(point.spread or ())) if end]
    low, high = _style.log_limits(
        [*(rate for _, rate in rates), *(rate for curve in curves for rate in curve.rates), *ends, *others]
    )
    for curve in curves:
        dashes: Literal["-", "--"] = "-" if curve.kind == "hard" else "--"
        if curve.flat and curve.whole:
            axes.axhline(max(curve.rates), color=_style.GREY, linewidth=1.3, linestyle=dashes, zorder=1)
            continue
        sizes: Sequence[float] = curve.sizes
        levels: Sequence[float] = curve.rates
        if curve.flat:  # a little longer than its sizes, so that the bound of a single size is visible
            sizes, levels = (sizes[0] / _BEYOND, sizes[-1] * _BEYOND), (max(levels),) * 2
        axes.plot(sizes, levels, color=_style.GREY, linewidth=1.3, linestyle=dashes, zorder=1)
    places, top = _places(curves, low, high, rates)
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
    return len(bounds) - len(curves)


def _places(
    curves: Sequence[BoundCurve], low: float, high: float, rates: Sequence[tuple[float, float]]
) -> tuple[list[float], float]:
    """Return the vertical position of each bound's name, and the height that the names need together.

    Both values are fractions of the height of the axis. Each name is written above the line of its bound. If two lines
    are close to each other, the upper name is moved up so that the names do not overlap. If the names still do not fit,
    all names are written above the lines and points, in the order of the lines. The names do not fit if a name covers a
    line, or if names cover points at both sides of the panel.

    `rates`: the message size and the rate of each point in the panel.
    """
    sizes = [size for size, _ in rates]
    lines = [math.log(_rate_below_name(curve, sizes) / low) / math.log(high / low) for curve in curves]
    places, top = _stacked(lines, 0.0)
    hides_line = any(place < line < place + _TEXT_SHARE for place in places for line in lines)
    if hides_line or (_hides_points(curves, places, low, high, rates) and max(lines) < 1.0):
        points = [math.log(rate / low) / math.log(high / low) + _MARKER_SHARE for _, rate in rates if rate > 0]
        places, top = _stacked(lines, max([*lines, *points]) + _NAME_GAP)
    return places, top


def _hides_points(
    curves: Sequence[BoundCurve], places: Sequence[float], low: float, high: float, rates: Sequence[tuple[float, float]]
) -> bool:
    """Check whether the names would cover points both at the left side and at the right side of the panel."""
    smallest, largest = min(size for size, _ in rates), max(size for size, _ in rates)
    hidden = {"left": False, "right": False}
    for size, rate in rates:
        across = math.log(size / smallest) / math.log(largest / smallest) if largest > smallest else 0.5
        up = math.log(rate / low) / math.log(high / low) if rate > 0 else 0.0
        for curve, place in zip(curves, places, strict=True):
            if place - 0.02 < up < place + _TEXT_SHARE:
                width = _LETTER_SHARE * len(str(curve))
                hidden["left"] |= across < width
                hidden["right"] |= across > 1 - width
    return all(hidden.values())


def _stacked(lines: Sequence[float], free: float) -> tuple[list[float], float]:
    """Return a free vertical position above each line for its name.

    Also return the first free position above all names.

    `free`: the lowest position that a name may have. All values are shares of the axis.
    """
    places = [0.0] * len(lines)
    for index in sorted(range(len(lines)), key=lambda index: lines[index]):
        places[index] = max(lines[index] + _NAME_GAP, free)
        free = places[index] + _TEXT_SHARE
    return places, free


def _rate_below_name(curve: BoundCurve, sizes: Sequence[float]) -> float:
    """Return the highest rate of a bound's line in the part below the bound's name.

    The name begins at the left edge of the panel.
    """
    smallest, largest = min((*sizes, curve.sizes[0])), max((*sizes, curve.sizes[-1]))
    end = smallest * (largest / smallest) ** min(_LETTER_SHARE * len(str(curve)), 1.0)
    num_below = sum(size < end for size in curve.sizes) + 1
    return max(curve.rates[:num_below])


def _is_in_the_way(rates: Sequence[tuple[float, float]], places: Sequence[float], low: float, high: float) -> bool:
    """Check whether names at the left would cover more points than names at the right."""
    if not rates or not places:
        return False
    middle = math.sqrt(min(size for size, _ in rates) * max(size for size, _ in rates))
    covered = {False: 0, True: 0}
    for size, rate in rates:
        share = math.log(rate / low) / math.log(high / low) if rate > 0 else 0.0
        covered[size > middle] += any(place - 0.02 < share < place + _TEXT_SHARE for place in places)
    return covered[False] > covered[True]
