"""Draw the figure of `linkbench job explain`: one bar for each rank, divided into the parts of its step."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.core.step_trace import StepPart
from bench.figures import _origin, _style
from bench.job.page import COLOURS, TITLES, JobReport

_ROW_IN, _REST_IN = 0.34, 0.9
_LEAST_SHARE = 0.0005  # of the longest step; a shorter part is narrower than a pixel and is not in the legend


def draw(report: JobReport) -> Figure:
    """Draw a bar for each rank that the page shows, with the first rank at the top. Late ranks are marked."""
    shown = report.shown_ranks
    figure = Figure(figsize=(_style.WIDTH_IN, _REST_IN + _ROW_IN * len(shown)), dpi=_style.DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.add_subplot()
    accused = report.accused
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
    panel.set_xlim(0, 1.02 * max(left))
    panel.set_title("where the step goes", fontsize=_style.TEXT)
    least_s = _LEAST_SHARE * max(left) / 1e3
    taken = [part for part in StepPart if any(one.parts[part] > least_s for one in shown)]
    handles = [Patch(color=COLOURS[part], label=TITLES[part]) for part in taken]
    remarks = ["waits: for a rank that is late; host: the device has no work, because the host has launched none"]
    if len(shown) < len(report.ranks):
        remarks.append(f"the {len(shown)} ranks of {len(report.ranks)} that differ most")
    _style.finish(figure, report.answer(), "MEASURED", handles, remarks)
    _style.sign(figure, _origin_of(report))
    return figure


def _origin_of(report: JobReport) -> _origin.FigureOrigin:
    """Return what was traced, the folder of the traces, and the day on which they were recorded."""
    traces = report.explained.job.traces.values()
    folders = sorted({Path(trace.source).parent.name for trace in traces})
    days = [datetime.fromtimestamp(trace.epoch_s, UTC).isoformat() for trace in traces if trace.epoch_s]
    return _origin.FigureOrigin(report.what(), run=folders[0], date=_origin.dates(days))
