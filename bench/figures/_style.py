"""Give all figures the same style: colours, panels, axes, the heading with the origin, the legend, and files.

Figures are drawn without pyplot, so there is no global state and no display is needed. A figure is 10 inches wide at
200 dots per inch, and its smallest text has 9 points. All text is therefore readable at a width of 1000 pixels.
"""

from __future__ import annotations

import html
import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from bench.core.printable import printable
from bench.core.units import format_duration, format_size
from bench.figures._origin import FigureOrigin
from bench.results import looks as colours
from bench.results.curves import CurveLabel, CurvePoint
from bench.results.model import Point

WIDTH_IN = 10.0
DPI = 200
TEXT = 10
SMALL_TEXT = 9
GREY = colours.GREY
USUAL_FORMATS = ("png", "svg")
_NUM_SIZE_LABELS = 8
_DOLLAR = re.compile(r"(?<!\\)\$")
# Inches: heights of the heading and of lines below the panels, and the space around them.
_HEADING, _LINE_IN, _ENTRY_IN, _MARGIN = 0.40, 0.155, 0.205, 0.08
_TITLE_IN, _TITLE_LETTERS = 0.2, 92
_PANEL_LETTERS = 56  # letters in a line of a panel's title
_PANEL_GAP = 0.08  # inches above and below a panel
_BAND_OF_ONE = 7  # points, width of the band of a curve that has one point
_LETTERS = 138  # letters in a line of small text
# Inches: width of the legend, and what a column needs beside its longest label.
_LEGEND_IN, _HANDLE_IN = 9.85, 0.82
_MOST_COLUMNS = 4
MOST_SERIES = 16  # in a figure; more series would be hard to distinguish
_MOST_ORIGIN_LINES = 2
Label = TypeVar("Label", str, CurveLabel)
_SPAN = 10.0  # a logarithmic axis shows at least this factor, so that noise looks as small as it is


@dataclass(frozen=True, slots=True)
class Look:
    """How one series is drawn: its colour, marker and dashes. A series is drawn in the same way in every panel."""

    label: str
    colour: str
    marker: str
    dashes: colours.Dashes = "-"

    def handle(self) -> Line2D:
        """Return the legend entry of the series."""
        return Line2D([], [], color=self.colour, marker=self.marker, linestyle=self.dashes, label=self.label)


def looks(series: Mapping[Label, str]) -> dict[Label, Look]:
    """Return how each series is drawn, by the label of the series.

    `series`: for each label, the transport of the series.

    A transport has its own colour and marker. If a transport has several series, they differ in tone, marker and
    dashes.
    """
    found: dict[Label, Look] = {}
    num_series: dict[tuple[str, str], int] = {}
    for label, transport in series.items():
        colour, marker = colours.of_transport(transport)
        number = num_series.get((colour, marker), 0)
        num_series[colour, marker] = number + 1
        dashes = colours.DASHES[number % len(colours.DASHES)]
        marker = marker if number == 0 else colours.MORE_MARKERS[(number - 1) % len(colours.MORE_MARKERS)]
        found[label] = Look(str(label), colours.tone(colour, number), marker, dashes)
    return found


def looks_of_machines(names: Iterable[str]) -> dict[str, Look]:
    """Return how each instance type of a figure is drawn, by the name of the type.

    Each instance type has its own marker.
    """
    return {name: Look(name, *look) for name, look in colours.of_machines(names).items()}


def looks_of_kinds(names: Iterable[str]) -> dict[str, Look]:
    """Return how to draw series that are neither transports nor machines, such as algorithms.

    After the eighth series, the colours repeat in other tones, with other markers and dashes.
    """
    found = {}
    for index, name in enumerate(dict.fromkeys(names)):
        turn, place = divmod(index, len(colours.COLOURS))
        more = colours.MORE_MARKERS
        marker = colours.MARKERS[place] if turn == 0 else more[(index - len(colours.COLOURS)) % len(more)]
        found[name] = Look(
            name, colours.tone(colours.COLOURS[place], 3 * turn), marker, colours.DASHES[turn % len(colours.DASHES)]
        )
    return found


def panels(num_panels: int, height_in: float = 3.6, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of equal size in columns, and the axes of the panels.

    `height_in`: the height of one row of panels in inches.
    """
    columns = min(num_panels, columns)
    rows = -(-num_panels // columns)
    figure = Figure(figsize=(WIDTH_IN, height_in * rows), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, index + 1) for index in range(num_panels)]
    for each in axes:
        each.tick_params(which="both", labelsize=SMALL_TEXT)
        each.tick_params(axis="x", which="minor", pad=5)  # puts the labels of short and long ticks at the same height
        each.grid(True, color="#dddddd", linewidth=0.6)
        each.set_axisbelow(True)
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
    return figure, axes


def panel_title(panel: Axes, title: str, result: str) -> None:
    """Write the title of a panel, and the main result of the panel.

    If the text is too long for one line, it has two lines.
    """
    whole = f"{title}: {result}"
    panel.set_title(whole if len(whole) <= _PANEL_LETTERS else f"{title}:\n{result}", fontsize=TEXT)


# -- heading, legend and remarks


def finish(
    figure: Figure,
    title: str,
    kind: str,
    handles: Sequence[Any],
    remarks: Sequence[str],
    points: Iterable[CurvePoint | Point] = (),
) -> None:
    """Make room above the panels for the title and the origin, and below them for the legend and the remarks.

    `kind`: the words at the beginning of the line below the title, such as MEASURED. The function `sign` adds the rest
        of this line.
    `points`: the points that the figure shows. If a point did not converge, the legend explains hollow markers.
    """
    if not all(point.converged for point in points):
        hollow = Line2D(
            [], [], color=GREY, marker="o", markerfacecolor="white", linestyle="", label="hollow: not converged"
        )
        handles = [*handles, hollow]
    lines = [line for remark in remarks for line in textwrap.wrap(remark, _LETTERS, subsequent_indent="   ")]
    columns = _columns([_width_in(str(handle.get_label())) for handle in handles])
    legend_in = _ENTRY_IN * -(-len(handles) // columns) + 0.05 * bool(handles)
    remarks_in = _LINE_IN * len(lines)
    below = _MARGIN + remarks_in + legend_in + _MARGIN
    heading = [line.replace("\0", " ") for line in textwrap.wrap(title.replace(" x ", "\0x\0"), _TITLE_LETTERS)]
    heading_in = _HEADING + _TITLE_IN * (len(heading) - 1)
    above = heading_in + _LINE_IN * _MOST_ORIGIN_LINES
    height = figure.get_figheight() + above + below
    figure.set_figheight(height)
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(h_pad=_PANEL_GAP, rect=(0.006, below / height, 0.988, 1 - (above + below) / height))  # type: ignore[call-arg]
    figure.set_label(title)
    left = 0.01
    figure.text(left, 1 - 0.08 / height, "\n".join(heading), fontsize=12, fontweight="bold", va="top")
    figure.text(left, 1 - (heading_in - 0.08) / height, kind, fontsize=SMALL_TEXT, color=GREY, va="top", gid="origin")
    if lines:
        words = "\n".join(lines)
        figure.text(left, _MARGIN / height, words, fontsize=SMALL_TEXT, color=GREY, va="bottom", linespacing=1.15)
    if handles:
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(left, (_MARGIN + remarks_in) / height),
            ncols=columns,
            fontsize=TEXT,
            frameon=False,
            handlelength=3,
            labelspacing=0.3,
            borderpad=0.1,
            borderaxespad=0.1,
        )


def _columns(widths: Sequence[float]) -> int:
    """Return the largest number of columns in which the labels of a legend fit.

    `widths`: the widths of the labels in inches.

    In a legend, matplotlib fills one column after the other. If the columns cannot have equal lengths, the first
    columns have one more label.
    """
    for columns in range(min(len(widths), _MOST_COLUMNS), 1, -1):
        rows, longer = divmod(len(widths), columns)
        ends = [rows * (column + 1) + min(column + 1, longer) for column in range(columns)]
        needed = [max(widths[begin:end]) + _HANDLE_IN for begin, end in pairwise([0, *ends])]
        if sum(needed) <= _LEGEND_IN:
            return columns
    return 1


def _width_in(text: str) -> float:
    """Return the width in inches of a label of the legend."""
    font = FontProperties(size=TEXT)
    return float(TextPath((0, 0), shown(text), prop=font).get_extents().width) / 72


def sign(figure: Figure, origin: FigureOrigin) -> None:
    """Write the machine, cluster, run and date of a figure below its title.

    If the text is too long, the longest facts are left out. The text then ends with the number of facts that were left
    out.
    """
    for text in figure.texts:
        if text.get_gid() == "origin":
            parts = [text.get_text(), *origin.parts()]
            lines = _origin_lines(parts)
            while len(lines) > _MOST_ORIGIN_LINES and len(parts) > 1:
                parts.remove(max(parts[1:], key=len))
                left_out = len(origin.parts()) + 1 - len(parts)
                lines = _origin_lines([*parts, f"{left_out} left out here: see the run"])
            text.set_text("\n".join(lines))


def _origin_lines(parts: Sequence[str]) -> list[str]:
    """Return the lines of an origin, in which ` | ` separates the parts.

    A part is wrapped only if it is longer than a line. No line begins or ends with ` | `.
    """
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]} | {part}" if lines else part
        if lines and len(joined) <= _LETTERS:
            lines[-1] = joined
        else:
            lines += textwrap.wrap(part, _LETTERS, break_on_hyphens=False)
    return lines


def line_with_errors(
    panel: Axes, look: Look, xs: Sequence[float], ys: Sequence[float], errors: Sequence[Sequence[float]]
) -> None:
    """Draw a series.

    `errors`: the distances of each point from the lower and the upper end of its interval.
    """
    panel.errorbar(
        xs,
        ys,
        yerr=errors,
        color=look.colour,
        marker=look.marker,
        linestyle=look.dashes,
        markersize=5.5,
        linewidth=1.6,
        elinewidth=1,
        capsize=2.5,
    )


def watermark(axes: Axes, words: str = "MODELLED") -> None:
    """Write `MODELLED` across a panel, because a panel may be copied without the title."""
    axes.text(
        0.5,
        0.5,
        words,
        transform=axes.transAxes,
        fontsize=30,
        color="#999999",
        alpha=0.25,
        rotation=20,
        ha="center",
        va="center",
        zorder=0,
        gid="watermark",
    )


# -- series and axes


def curve(
    axes: Axes,
    look: Look,
    points: Sequence[CurvePoint],
    x: Sequence[float],
    values: Sequence[tuple[float, float, float]],
    bands: Sequence[tuple[float, float]] = (),
) -> None:
    """Draw a series as points with intervals, a line and a band.

    The markers of points that did not converge are hollow. The line joins neighbouring points only if they have the
    same algorithm.
    `values`: the lower end, the middle and the upper end of each point.
    `bands`: the lower and the upper end of the band at each point.
    """
    y = [middle for _, middle, _ in values]
    if bands:
        low, high = zip(*bands, strict=True)
        axes.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0)
        if len(points) == 1:
            axes.vlines(x, low, high, color=look.colour, alpha=0.18, linewidth=_BAND_OF_ONE)
    if any(low < middle or middle < high for low, middle, high in values):
        errors = [[middle - low for low, middle, _ in values], [high - middle for _, middle, high in values]]
        axes.errorbar(x, y, yerr=errors, fmt="none", ecolor=look.colour, elinewidth=1, capsize=2.5)
    for _, piece in groupby(range(len(points)), key=lambda index: points[index].first.algorithm):
        line = list(piece)
        axes.plot(
            [x[index] for index in line],
            [y[index] for index in line],
            color=look.colour,
            linestyle=look.dashes,
            linewidth=1.6,
        )
    for hollow in (False, True):
        chosen = [index for index, point in enumerate(points) if point.converged is not hollow]
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

    The largest and the smallest size have a label. The other sizes are labelled where there is room.
    """
    present = sorted(set(sizes), reverse=True)
    axes.set_xscale("log", base=2)
    room = max(present[0] / present[-1], 2) ** (1 / (_NUM_SIZE_LABELS + 1))
    labelled = present[:1]
    for size in present[1:]:
        if labelled[-1] / size >= room:
            labelled.append(size)
    if len(labelled) > 1:
        labelled[-1] = present[-1]
    axes.xaxis.set_major_locator(FixedLocator(labelled[::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_size(round(value))))
    axes.set_xlabel("size (bytes, binary units; logarithmic)", fontsize=TEXT)


def log_limits(values: Iterable[float]) -> tuple[float, float]:
    """Return the limits of a logarithmic axis that shows these values.

    The axis is a little wider than the values and spans at least a factor of 10.
    """
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive) / 1.4, max(positive) * 1.4
    missing = max(_SPAN / (high / low), 1.0) ** 0.5
    return low / missing, high * missing


def rate_axis(axes: Axes, limits: tuple[float, float], words: str = "busbw (GB/s, logarithmic)") -> None:
    """Set a logarithmic y axis of rates (0.1, 1, 10, ...).

    If the axis spans only a few powers of ten, values between the powers are labelled, too.
    """
    axes.set_yscale("log")
    axes.set_ylim(limits)
    axes.set_ylabel(words, fontsize=TEXT)
    few = limits[1] / limits[0] < 300
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:.12f}".rstrip("0").rstrip(".")))
    axes.yaxis.set_minor_formatter(NullFormatter())


def time_axis(axes: Axes, limits: tuple[float, float]) -> None:
    """Set a logarithmic y axis of times (10 us, 1 ms, ...).

    If the axis spans only a few powers of ten, the values 2 and 5 times a power of ten are labelled, too.
    """
    axes.set_yscale("log")
    axes.set_ylim(limits)
    axes.set_ylabel("time (logarithmic)", fontsize=TEXT)
    few = limits[1] / limits[0] < 300
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_duration(seconds)))
    axes.yaxis.set_minor_formatter(NullFormatter())


# -- files


def shown(text: str) -> str:
    """Return a text in one line, written so that matplotlib shows each character unchanged.

    Hidden characters are replaced by visible escapes. Two or more `$` are escaped, because matplotlib reads `$...$` as
    a formula.
    """
    text = printable(text)
    return _DOLLAR.sub(r"\\$", text) if len(_DOLLAR.findall(text)) > 1 else text


def _tick_labels(axis: Axis) -> list[Text]:
    """Return the labels of the ticks of an axis. The texts of the labels exist only when the figure is drawn."""
    return [label for tick in (*axis.majorTicks, *axis.minorTicks) for label in (tick.label1, tick.label2)]


def save(figure: Figure, path: Path | str, formats: Sequence[str] = USUAL_FORMATS) -> list[Path]:
    """Write `path`.png, `path`.svg or other formats, and return the paths of the files.

    The folder is created if it does not exist.
    """
    base = Path(path)
    base.parent.mkdir(parents=True, exist_ok=True)
    files = [base.with_name(f"{base.name}.{each}") for each in formats]
    _make_literal(figure)
    for file in files:
        _write(figure, file)
        figure.set_layout_engine("none")  # the first format has placed the panels, which takes longer than drawing
    return files


def write(figure: Figure, path: Path) -> None:
    """Write one file in the format of its suffix. An SVG has real text, a title and a description. Raises OSError."""
    _make_literal(figure)
    _write(figure, path)


def _make_literal(figure: Figure) -> None:
    """Replace each text of a figure by its literal form, except the labels of ticks."""
    labels = {id(label) for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in _tick_labels(axis)}
    for text in figure.findobj(Text):
        safe = "\n".join(map(shown, text.get_text().split("\n")))
        if id(text) not in labels and safe != text.get_text():
            text.set_text(safe)


def _write(figure: Figure, path: Path) -> None:
    if path.suffix != ".svg":
        figure.savefig(path, dpi=DPI, facecolor="white")
        return
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "linkbench"}), io.StringIO() as drawn:
        figure.savefig(drawn, format="svg", facecolor="white", metadata={"Date": None})
        path.write_text(_described(drawn.getvalue(), figure), encoding="utf-8")


def _described(svg: str, figure: Figure) -> str:
    """Return an SVG with a title and a description, which screen readers read."""
    title, description = (html.escape(words) for words in (str(figure.get_label()), describe(figure)))
    root, end, rest = svg.partition("<metadata>")
    root = root.replace("<svg ", '<svg role="img" aria-labelledby="title desc" ', 1)
    return f'{root}<title id="title">{title}</title>\n <desc id="desc">{description}</desc>\n {end}{rest}'


def describe(figure: Figure) -> str:
    """Return a description of a figure in words.

    The description names the origin, the panels and the series of the figure. The description ends with the remarks
    below the panels.
    """
    texts = [text.get_text().replace("\n", " ") for text in figure.texts[1:]]
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    series = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    parts = [*texts[:1], f"Panels: {'; '.join(titles)}" * bool(titles), f"Series: {'; '.join(series)}" * bool(series)]
    return ". ".join(filter(None, (*parts, *texts[1:])))
