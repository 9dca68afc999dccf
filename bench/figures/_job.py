"""Draw the figure of `linkbench job explain`: one bar for each rank, divided into the parts of its step."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.core.step_trace import StepPart
from bench.figures import _origin, _step_bars, _style
from bench.job.page import JobReport

_ROW_IN, _REST_IN = 0.34, 0.9
_UNEQUAL = 1.05  # factor between the longest and the shortest bar; above it, a remark says that the bars differ


def draw(report: JobReport) -> Figure:
    """Draw a bar for each rank that the page shows, with the first rank at the top. Late ranks are marked."""
    shown = report.shown_ranks
    figure = Figure(figsize=(_style.WIDTH_IN, _REST_IN + _ROW_IN * len(shown)), dpi=_style.DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.add_subplot()
    accused = report.accused
    whole = [one.parts for one in shown]
    bars = _step_bars.visible(whole)
    longest_ms = _step_bars.draw(panel, bars)
    names = [f"rank {one.rank}{', late' if one.rank in accused else ''}" for one in shown]
    panel.set_yticks(range(len(shown)), names, fontsize=_style.TEXT)
    panel.set_xlabel("ms of a step, medians over steps", fontsize=_style.TEXT)
    panel.tick_params(axis="x", labelsize=_style.SMALL_TEXT)
    panel.set_xlim(0, 1.02 * longest_ms)
    panel.set_title(f"where the step goes: {_step_bars.largest(bars)}", fontsize=_style.TEXT)
    remarks = ["waits: for a rank that is late"]
    if StepPart.HOST_BOUND in bars[0]:
        remarks[0] += "; host: the device has no work, because the host has launched none"
    lengths = [sum(bar.values()) for bar in bars]
    if max(lengths) > _UNEQUAL * min(lengths):
        remarks.append("a bar is as long as the recorded steps of its rank; these differ between the ranks")
    remarks += _step_bars.remarks(whole, bars)
    if len(shown) < len(report.ranks):
        remarks.append(f"the {len(shown)} ranks of {len(report.ranks)} that differ most")
    _style.finish(figure, report.answer(), "MEASURED", _step_bars.handles(bars), remarks)
    _style.sign(figure, _origin_of(report))
    return figure


def _origin_of(report: JobReport) -> _origin.FigureOrigin:
    """Return what the traces recorded, their folder, and the day of the recording."""
    traces = report.explained.job.traces.values()
    folders = sorted({Path(trace.source).parent.name for trace in traces})
    days = [datetime.fromtimestamp(trace.epoch_s, UTC).isoformat() for trace in traces if trace.epoch_s]
    return _origin.FigureOrigin(report.what(), run=folders[0], date=_origin.dates(days))
