"""Errors of predictions by class: a point for each row that was predicted without its own system."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.figures import _style
from bench.predict.validate import LARGE_BYTES, Tried, level_class

_RATIOS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0)


def errors(rows: Sequence[Tried]) -> Figure:
    """Predicted / measured time: left against size, right large sizes by class."""
    classes = list(dict.fromkeys(sorted(level_class(row) for row in rows)))
    looks = {name: _look(index, name) for index, name in enumerate(classes)}
    figure, (left, right) = _style.panels(2, height_in=4.2)
    for name in classes:
        own = [row for row in rows if level_class(row) == name]
        for panel, chosen, x in (
            (left, own, [float(row.payload_bytes) for row in own]),
            (
                right,
                big := [row for row in own if row.payload_bytes >= LARGE_BYTES],
                _places(classes.index(name), len(big)),
            ),
        ):
            ratios = [min(max(row.error + 1, _RATIOS[0]), _RATIOS[-1]) for row in chosen]
            for covered in (True, False):
                told = [k for k, row in enumerate(chosen) if row.covered is covered]
                panel.plot(
                    [x[k] for k in told],
                    [ratios[k] for k in told],
                    linestyle="",
                    marker=looks[name].marker,
                    color=looks[name].colour,
                    markersize=4.5,
                    markerfacecolor=looks[name].colour if covered else "white",
                )
    for panel in (left, right):
        panel.set_yscale("log")
        panel.set_ylim(_RATIOS[0], _RATIOS[-1])
        panel.yaxis.set_major_locator(FixedLocator(_RATIOS))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_ylabel("predicted / measured time", fontsize=_style.TEXT)
    _style.size_axis(left, [row.payload_bytes for row in rows if row.payload_bytes])
    left.set_title("all sizes", fontsize=_style.TEXT)
    right.set_title("64 MiB and above", fontsize=_style.TEXT)
    right.xaxis.set_major_locator(FixedLocator(range(len(classes))))
    right.set_xticklabels(classes, rotation=30, ha="right", fontsize=_style.SMALL_TEXT)
    right.set_xlim(-0.6, len(classes) - 0.4)
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle="", label=name) for name, look in looks.items()
    ]
    handles.append(
        Line2D(
            [],
            [],
            color=_style.GREY,
            marker="o",
            markerfacecolor="white",
            linestyle="",
            label="measured outside the interval",
        )
    )
    _style.finish(
        figure,
        "Published rows, each predicted without its own system",
        handles,
        (),
        ["predictions without a middle: the geometric middle of the interval; beyond 10: at the edge"],
    )
    return figure


def _look(index: int, name: str) -> _style.Look:
    """The look of a class; after all colours are used, markers change."""
    marker = _style.MARKERS[(index + index // len(_style.COLOURS)) % len(_style.MARKERS)]
    return _style.Look(name, _style.COLOURS[index % len(_style.COLOURS)], marker, "-")


def _places(index: int, num: int) -> list[float]:
    """Positions next to each other around the position of a class."""
    return [index + 0.6 * ((k + 0.5) / num - 0.5) for k in range(num)]
