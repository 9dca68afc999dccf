"""Draw the bounds of a panel as named lines. If a bound is far above the data, only its name is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from matplotlib.axes import Axes

from bench.figures._style import GREY, SMALL_TEXT
from bench.results.curves import BoundCurve, bound_curves
from bench.results.document import Summary

# A bound that exceeds the data by more than this factor would flatten the curves, so it is named but not drawn.
_IN_VIEW = 2.5


def draw(axes: Axes, rows: Iterable[Summary]) -> None:
    """Draw each bound of these rows as a named line: hard bounds solid, references dashed.

    Call this after the data are drawn, because it fixes the y axis (GB/s, linear, from zero).
    """
    drawn = list(rows)
    highest = max((row.busbw_bytes_per_s or 0.0 for row in drawn), default=0.0) / 1e9
    curves = list({str(curve): curve for curve in bound_curves(drawn)}.values())
    inside = [curve for curve in curves if min(curve.rates) <= _IN_VIEW * highest]
    levels = [min(max(curve.rates), _IN_VIEW * highest) for curve in inside]
    top = max([highest, *levels]) or 1.0
    axes.set_ylim(0, 1.16 * top)
    corner = [f"{curve}, above this axis" for curve in curves if curve not in inside]
    for curve in inside:
        dashes: Literal["-", "--"] = "-" if curve.kind == "hard" else "--"
        if curve.flat:
            axes.axhline(max(curve.rates), color=GREY, linewidth=1.3, linestyle=dashes, zorder=1)
        else:
            axes.plot(curve.sizes, curve.rates, color=GREY, linewidth=1.3, linestyle=dashes, zorder=1)
            corner.append(f"{'- -' if dashes == '--' else '---'} {curve}")
    corner += _name_levels(axes, [curve for curve in inside if curve.flat], 0.09 * top)
    axes.text(
        0.01,
        0.99,
        "\n".join(corner),
        transform=axes.transAxes,
        fontsize=SMALL_TEXT,
        color=GREY,
        va="top",
        bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5},
        zorder=4,
    )


def _name_levels(axes: Axes, curves: Sequence[BoundCurve], text_height: float) -> list[str]:
    """Write the names of flat bounds next to their lines.

    If two lines are close, the lower bound has its name below its line.

    Returns the names for which there is no room between the line and the x axis.
    """
    rates = sorted(max(curve.rates) for curve in curves)
    unplaced = []
    for curve in curves:
        rate = max(curve.rates)
        below = any(0 < other - rate < text_height for other in rates)
        if below and rate < text_height:
            unplaced.append(f"--- {curve}")
            continue
        axes.annotate(
            str(curve),
            (0.01, rate),
            xycoords=("axes fraction", "data"),
            xytext=(0, -3 if below else 3),
            textcoords="offset points",
            fontsize=SMALL_TEXT,
            color=GREY,
            va="top" if below else "bottom",
        )
    return unplaced
