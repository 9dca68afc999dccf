"""The common look of figures: a palette for colour-blind readers, panels, size axes, the word `modelled`, saving.

Figures are drawn without pyplot: there is no global state and no display is needed. They are 10 inches wide at 100 dots
per inch, with no text below 9 points, so they are readable at 1000 pixels.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.core.printable import printable
from bench.core.record import Flag
from bench.core.units import format_size
from bench.results.curves import COLOURS as COLOURS
from bench.results.curves import MARKERS as MARKERS
from bench.results.document import Summary

WIDTH_IN = 10.0
DPI = 100
TEXT = 10
SMALL_TEXT = 9
GREY = "#444444"
_NUM_SIZE_LABELS = 8
_DOLLAR = re.compile(r"(?<!\\)\$")
_LINE, _HANDLE = 125, 10  # in letters: the width of the figure, and of the line before a label in the legend


@dataclass(frozen=True, slots=True)
class Look:
    """The colour, marker and dashes of one series, which are the same in every panel.

    Modelled series are dash-dotted.
    """

    label: str
    colour: str
    marker: str
    dashes: Literal["-", "--", "-."]

    def handle(self) -> Line2D:
        """Return the legend entry of the series."""
        return Line2D([], [], color=self.colour, marker=self.marker, linestyle=self.dashes, label=self.label)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return the looks of series, by label. After seven series the colours repeat with other dashes."""
    found: dict[str, Look] = {}
    for index, name in enumerate(dict.fromkeys(names)):
        again = index // len(COLOURS) % 2 == 1
        dashes: Literal["-", "--", "-."] = "-." if "(modelled)" in name else "--" if again else "-"
        found[name] = Look(name, COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], dashes)
    return found


def panels(num_panels: int, height_in: float = 3.6) -> tuple[Figure, list[Axes]]:
    """Return a figure with equal panels in two columns, and its axes. `height_in`: height of one row in inches."""
    columns = min(num_panels, 2)
    rows = -(-num_panels // columns)
    figure = Figure(figsize=(WIDTH_IN, height_in * rows + 0.9), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, index + 1) for index in range(num_panels)]
    for each in axes:
        each.tick_params(labelsize=SMALL_TEXT)
        each.grid(True, color="#dddddd", linewidth=0.6)
        each.set_axisbelow(True)
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
    return figure, axes


def finish(figure: Figure, title: str, handles: Sequence[Any], rows: Iterable[Summary], remarks: Sequence[str]) -> None:
    """Add the title above the panels, and the legend and the remarks below them.

    The title says whether rows are modelled or imported. `rows`: the rows that the figure shows.
    """
    drawn = list(rows)
    modelled = [row.modelled for row in drawn]
    if any(modelled):
        title += " - modelled, not measured" if all(modelled) else " - partly modelled"
    imported = [row.imported for row in drawn]
    if any(imported):
        title += " - imported from other tools' logs" if all(imported) else " - partly imported"
    figure.suptitle(title, fontsize=12, fontweight="bold")
    if any(Flag.NOT_CONVERGED in row.flags for row in drawn):
        hollow = Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="", label="not converged")
        handles = [*handles, hollow]
    remark = "\n".join(textwrap.fill(line, 130) for line in remarks)
    if handles:
        # The remarks are the legend's title, so the layout keeps both clear of the panels.
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, min(len(handles), 3, _LINE // (longest + _HANDLE)))
        legend = figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=columns,
            fontsize=TEXT,
            frameon=False,
            handlelength=3,
            title=remark,
            title_fontsize=SMALL_TEXT,
        )
        legend.get_title().set_color(GREY)
    else:
        figure.supxlabel(remark, fontsize=SMALL_TEXT, color=GREY)


def watermark(axes: Axes) -> None:
    """Write `MODELLED` across a panel, because a panel may be copied without the title."""
    axes.text(
        0.5,
        0.5,
        "MODELLED",
        transform=axes.transAxes,
        fontsize=30,
        color="#999999",
        alpha=0.25,
        rotation=20,
        ha="center",
        va="center",
        zorder=0,
    )


def points(
    axes: Axes,
    look: Look,
    rows: Sequence[Summary],
    x: Sequence[float],
    y: Sequence[float],
    errors: Sequence[tuple[float, float]] | None = None,
) -> None:
    """Draw a series as points and a line. The markers of rows that did not converge are hollow.

    The line joins neighbouring points only if they have the same algorithm. `errors`: how far the interval of each
    point reaches below and above the point.
    """
    if errors is not None:
        axes.errorbar(
            x, y, yerr=list(zip(*errors, strict=True)), fmt="none", ecolor=look.colour, elinewidth=1, capsize=2.5
        )
    for _, piece in groupby(range(len(rows)), key=lambda index: rows[index].algorithm):
        line = list(piece)
        axes.plot(
            [x[index] for index in line],
            [y[index] for index in line],
            color=look.colour,
            linestyle=look.dashes,
            linewidth=1.6,
        )
    for hollow in (False, True):
        chosen = [index for index, row in enumerate(rows) if (Flag.NOT_CONVERGED in row.flags) is hollow]
        axes.plot(
            [x[index] for index in chosen],
            [y[index] for index in chosen],
            linestyle="",
            color=look.colour,
            marker=look.marker,
            markersize=5.5,
            markerfacecolor="white" if hollow else look.colour,
        )


def size_axis(axes: Axes, sizes: Iterable[int]) -> None:
    """Set a binary logarithmic x axis (8, 1K, 1M, ...).

    As many sizes are labelled as fit, beginning with the largest.
    """
    present = sorted(set(sizes), reverse=True)
    axes.set_xscale("log", base=2)
    room = max(present[0] / present[-1], 2) ** (1 / (_NUM_SIZE_LABELS + 4))
    labelled = present[:1]
    for size in present[1:]:
        if labelled[-1] / size >= room:
            labelled.append(size)
    axes.xaxis.set_major_locator(FixedLocator(labelled[::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_size(round(value))))
    axes.set_xlabel("size (bytes, binary units)", fontsize=TEXT)


def shown(text: str) -> str:
    """Return a text as one line that matplotlib shows literally.

    Hidden characters are replaced by visible escapes. Two or more `$` are escaped, because matplotlib reads `$...$` as
    a formula.
    """
    text = printable(text)
    return _DOLLAR.sub(r"\\$", text) if len(_DOLLAR.findall(text)) > 1 else text


def _tick_labels(axis: Axis) -> list[Text]:
    """Return the labels of the ticks of an axis. Their formatters set their texts when the figure is drawn."""
    return [label for tick in (*axis.majorTicks, *axis.minorTicks) for label in (tick.label1, tick.label2)]


def save(figure: Figure, path: Path | str) -> tuple[Path, Path]:
    """Write `path`.png and `path`.svg, and create their folder. Returns both paths."""
    base = Path(path)
    base.parent.mkdir(parents=True, exist_ok=True)
    png, svg = base.with_name(base.name + ".png"), base.with_name(base.name + ".svg")
    write(figure, png)
    write(figure, svg)
    return png, svg


def write(figure: Figure, path: Path) -> None:
    """Write one file in the format of its suffix. Raises OSError."""
    labels = {id(label) for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in _tick_labels(axis)}
    for text in figure.findobj(Text):
        safe = "\n".join(map(shown, text.get_text().split("\n")))
        if id(text) not in labels and safe != text.get_text():
            text.set_text(safe)
    figure.savefig(path, dpi=DPI, facecolor="white")
