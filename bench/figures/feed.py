"""Draw the rates of reading a data set: a row of points for each file format and reading method, the fastest first."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.figures import _style
from bench.results import feed_words
from bench.results.document import Document
from bench.results.training_rows import Fed

_ROW_IN, _PANEL_IN = 0.24, 0.45
_SERIES = "rate of reading"
_MARKERS = {  # the markers of a row's other rates; the HTML page uses the same shapes
    "disk_bytes_per_s": "|",
    "core_bytes_per_s": "x",
    "pcie_bytes_per_s": "^",
    "demand_bytes_per_s": "d",
}


def applies(document: Document) -> bool:
    """Check whether the document has passes over a data set."""
    return bool(document.feeds)


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return one figure, `feed`, with a panel for each state of the cache. All panels share one axis of rates."""
    if not document.feeds:
        return []
    fastest = feed_words.fastest_first(document)
    shown = fastest[: feed_words.MOST_ROWS]
    states = sorted({one.state for one in shown})
    heights = [_PANEL_IN + _ROW_IN * sum(one.state == state for one in shown) for state in states]
    figure = Figure(figsize=(_style.WIDTH_IN, sum(heights) + 0.4), dpi=_style.DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(states), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    look = _style.looks({_SERIES: feed_words.transport_of(document, shown[0])})[_SERIES]
    hollow = feed_words.not_converged(document)
    sizes = feed_words.several_sizes(shown)
    for panel, state in zip(axes, states, strict=True):
        rows = [one for one in shown if one.state == state]
        _draw_rows(panel, look, rows, [one.job in hollow for one in rows])
        panel.set_yticks(range(len(rows)), [feed_words.name(one, sizes) for one in rows], fontsize=_style.SMALL_TEXT)
        panel.set_ylim(len(rows) - 0.4, -0.6)
        panel.set_title(
            f"{state} cache{'' if sizes else f', {feed_words.size(rows[0])}'}", fontsize=_style.TEXT, loc="left"
        )
    limits = _style.log_limits(rate for one in shown for rate in _rates(one))
    _rate_axis(axes[-1], limits)
    remarks = ["rate of the slowest rank; bars: its 95 % interval; right: the rate in GB/s"]
    remarks += feed_words.limits_remark(shown)
    if len(shown) < len(fastest):
        remarks.append(f"not drawn: {len(fastest) - len(shown)} slower rows; linkbench report shows all")
    title = f"Reading training data, fastest: {feed_words.fastest(fastest)}"
    _style.finish(figure, title, "MEASURED", _handles(look, shown, hollow), remarks)
    return [("feed", figure)]


def _rates(one: Fed) -> list[float]:
    """Return all rates, in GB/s, that are drawn in the row of a result."""
    ends = [one.payload_bytes / end for end in (one.low_s, one.high_s) if end]
    others = [getattr(one, name) for name in _MARKERS]
    return [rate / 1e9 for rate in (one.bytes_per_s, *ends, *others) if rate]


def _draw_rows(panel: Axes, look: _style.Look, rows: Sequence[Fed], hollow: Sequence[bool]) -> None:
    colour, marker = look.colour, look.marker
    for at, one in enumerate(rows):
        if one.low_s and one.high_s:
            ends = [one.payload_bytes / one.high_s / 1e9, one.payload_bytes / one.low_s / 1e9]
            panel.plot(ends, [at, at], color=colour, linewidth=1.2)
        fill = "white" if hollow[at] else colour
        panel.plot([one.bytes_per_s / 1e9], [at], color=colour, marker=marker, markersize=6, markerfacecolor=fill)
        for name, mark in _MARKERS.items():
            if rate := getattr(one, name):
                panel.plot([rate / 1e9], [at], color=_style.GREY, marker=mark, markersize=9, linestyle="", zorder=1)
        place = panel.get_yaxis_transform()
        panel.text(1.01, at, feed_words.rate(one), transform=place, va="center", fontsize=_style.SMALL_TEXT)
    panel.grid(True, axis="x", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.tick_params(axis="x", which="both", labelsize=_style.SMALL_TEXT)


def _rate_axis(panel: Axes, limits: tuple[float, float]) -> None:
    panel.set_xscale("log")
    panel.set_xlim(limits)
    few = limits[1] / limits[0] < 300
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=20))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel("rate of reading (GB/s, logarithmic)", fontsize=_style.TEXT)


def _handles(look: _style.Look, shown: Sequence[Fed], hollow: set[str]) -> list[Line2D]:
    handles = []
    for is_hollow, words in ((False, look.label), (True, f"{look.label}, not converged")):
        if any((one.job in hollow) is is_hollow for one in shown):
            handle = _style.Look(words, look.colour, look.marker, "").handle()
            handle.set_markerfacecolor("white" if is_hollow else look.colour)
            handles.append(handle)
    marked = feed_words.marked(shown)
    return handles + [_style.Look(words, _style.GREY, _MARKERS[name], "").handle() for name, words in marked.items()]
