"""The figure of `linkbench job explain`: one bar for each rank, divided into the parts of its step."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.figures import _style
from bench.job.model import StepPart
from bench.job.page import COLOURS, TITLES, JobReport

_ROW_IN, _REST_IN = 0.34, 1.7


def draw(report: JobReport) -> Figure:
    """Draw the bars of the ranks that the page shows, the first rank at the top. A late rank is named so."""
    shown = report.shown_ranks
    figure = Figure(figsize=(_style.WIDTH_IN, _REST_IN + _ROW_IN * len(shown)), dpi=_style.DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.add_subplot()
    accused = {rank for cause in report.explained.causes for rank in cause.ranks}
    left = [0.0] * len(shown)
    for part, colour in COLOURS.items():
        widths = [one.parts[part] * 1e3 for one in shown]
        panel.barh(range(len(shown)), widths, left=left, color=colour, height=0.7)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    names = [f"rank {one.rank}{', late' if one.rank in accused else ''}" for one in shown]
    panel.set_yticks(range(len(shown)), names, fontsize=_style.TEXT)
    panel.invert_yaxis()
    panel.set_xlabel("ms of a step, medians over steps", fontsize=_style.TEXT)
    panel.tick_params(axis="x", labelsize=_style.SMALL_TEXT)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    figure.suptitle(f"measured: {report.what()}", fontsize=_style.TEXT)
    handles = [Patch(color=COLOURS[part], label=TITLES[part]) for part in StepPart]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=_style.TEXT, frameon=False)
    return figure
