"""Draw the figure of `linkbench compare`.

Each pattern and mode has a panel, which shows the ratio of each row with its interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from bench.core.errors import UsageError
from bench.figures import _origin, _style
from bench.figures._origin import FigureOrigin
from bench.results.compare import Compared
from bench.results.compare_report import CompareReport, counted
from bench.results.document import Document
from bench.results.headline import NamedRun, machine_words
from bench.results.inference import ComparisonVerdict

_CHANGED = (ComparisonVerdict.SLOWER, ComparisonVerdict.FASTER)
_LEAST_SPAN = 1.25  # the axis reaches at least this ratio and its inverse, so that noise looks as small as it is
_MARGIN = 1.06
_LABELLED_RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)
_MOST_LABELLED_SPAN = 3.3  # if the axis reaches further, it is labelled at 1, 2 and 5 times powers of ten
_MOST_PANELS = 12
_PALE = "#eeeeee"
_SHIFT = 1.12  # the factor between the places of two curves at one size, so that their intervals stay apart


def draw(report: CompareReport, documents: Sequence[Document], runs: Sequence[NamedRun]) -> Figure:
    """Draw the compared rows of two runs. `runs`: the names of BASE and NEW.

    Raises UsageError if no row has a ratio.
    """
    rows = [row for row in report.comparison.rows if row.ratio is not None]
    if not rows:
        raise UsageError("--plot draws ratios, and no row has a ratio")
    panels: dict[tuple[str, str], list[Compared]] = {}
    for row in rows:
        panels.setdefault((row.place.pattern, row.place.mode), []).append(row)
    chosen = dict(list(panels.items())[:_MOST_PANELS])
    looks = _style.looks({report.label(row): row.factors["transport"] or "" for row in rows})
    figure, axes = _style.panels(len(chosen))
    span = _span(rows)
    for panel, ((pattern, mode), of_panel) in zip(axes, chosen.items(), strict=True):
        _draw_panel(panel, report, looks, of_panel)
        _style.size_axis(panel, (row.place.payload_bytes or 1 for row in of_panel))
        if not any(row.place.payload_bytes for row in of_panel):
            panel.set_xticks([1], ["no size"])
            panel.set_xlabel("")
        _ratio_axis(panel, span)
        panel.set_title(f"{pattern}, {mode}", fontsize=_style.TEXT)
    drawn = [row for document in documents for row in document.summaries]
    remarks = [*_remarks(report), *([f"not drawn: {num} more patterns"] if (num := len(panels) - len(chosen)) else [])]
    title = f"NEW compared with BASE, {counted(report.comparison)}"
    if report.comparison.counts.get(ComparisonVerdict.EXPLORATORY):
        title += " (too few launches for a verdict)"
    _style.finish(figure, title, _origin.kind_of(drawn), _handles(report, looks.values()), remarks)
    _style.sign(figure, _both_origins(documents, runs))
    return figure


def _draw_panel(panel: Axes, report: CompareReport, looks: dict[str, _style.Look], rows: Sequence[Compared]) -> None:
    delta = report.comparison.delta
    panel.axhspan(1 - delta, 1 + delta, color=_PALE, zorder=0)
    panel.axhline(1.0, color="black", linewidth=1.0, zorder=1)
    labels = list(dict.fromkeys(map(report.label, rows)))
    for number, label in enumerate(labels):
        look = looks[label]
        aside = _SHIFT ** (number - (len(labels) - 1) / 2)
        own = [row for row in rows if report.label(row) == label]
        for row in own:
            _draw_row(panel, look, row, aside)
        if len({row.place.payload_bytes for row in own}) == len(own):
            points = sorted(((row.place.payload_bytes or 1) * aside, row.ratio) for row in own)
            x, y = zip(*points, strict=True)
            panel.plot(x, y, color=look.colour, linestyle=look.dashes, linewidth=0.8, alpha=0.6)


def _draw_row(panel: Axes, look: _style.Look, row: Compared, aside: float) -> None:
    """Draw a ratio with its interval. The marker is filled if the row became slower or faster."""
    x = (row.place.payload_bytes or 1) * aside
    if row.estimate is not None:
        ends = [row.estimate.ratio_low, row.estimate.ratio_high]
        panel.plot([x, x], ends, color=look.colour, marker="_", markersize=5, linewidth=1.2)
    filled = row.verdict in _CHANGED
    fill = look.colour if filled else "white"
    panel.plot(
        [x], [row.ratio or 1.0], color=look.colour, marker=look.marker, markersize=6, markerfacecolor=fill, zorder=3
    )


def _span(rows: Sequence[Compared]) -> float:
    """Return the largest factor by which a drawn ratio differs from 1."""
    ends = [row.ratio or 1.0 for row in rows]
    for row in rows:
        if row.estimate is not None:
            ends += [row.estimate.ratio_low, row.estimate.ratio_high]
    return max(_LEAST_SPAN, *(max(end, 1 / end) * _MARGIN for end in ends if end > 0))


def _ratio_axis(panel: Axes, span: float) -> None:
    panel.set_yscale("log")
    panel.set_ylim(1 / span, span)
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if span < 30 else (1.0,), numticks=20))
    if span < _MOST_LABELLED_SPAN:
        panel.yaxis.set_major_locator(FixedLocator(_LABELLED_RATIOS))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:.3g}"))
    panel.set_ylabel("time NEW / BASE (logarithmic)", fontsize=_style.TEXT)


def _handles(report: CompareReport, looks: Iterable[_style.Look]) -> list[Line2D | Patch]:
    hollow = _style.Look("no change found, or no verdict", _style.GREY, "o", "").handle()
    hollow.set_markerfacecolor("white")
    return [
        *(look.handle() for look in looks),
        _style.Look("slower or faster", _style.GREY, "o", "").handle(),
        hollow,
        Patch(color=_PALE, label=f"within {100 * report.comparison.delta:g} %"),
    ]


def _remarks(report: CompareReport) -> list[str]:
    if any(row.estimate for row in report.comparison.rows):
        remarks = ["above 1, NEW takes longer; bars: 95 % interval of the ratio over launches"]
    else:
        remarks = ["above 1, NEW takes longer; too few launches for intervals"]
    return remarks


def _both_origins(documents: Sequence[Document], runs: Sequence[NamedRun]) -> FigureOrigin:
    headers = [header for document in documents for header in document.headers.values()]
    names = [Path(run.name).name for run in runs]
    return FigureOrigin(
        machine=machine_words(headers),
        cluster=" and ".join(dict.fromkeys(run.cluster or "not recorded" for run in runs)),
        run=f"BASE {names[0]}, NEW {names[1]}",
        date=_origin.dates(header.started for header in headers),
    )
