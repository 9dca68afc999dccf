"""Draw the speed-up of training steps by number of ranks.

Each panel shows the measured, the predicted and the ideal speed-up, and the largest speed-up that the links allow.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.figures import _style
from bench.predict import validate_step
from bench.results import text
from bench.results.document import Document
from bench.results.training_rows import StepScaling


def applies(document: Document) -> bool:
    """Check whether a training step was measured on several numbers of ranks."""
    return bool(document.step_scalings)


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return the figure `step-scaling`, with a panel for each job and type of scaling.

    Return an empty list if every step was measured on only one number of ranks.
    """
    if not document.step_scalings:
        return []
    expected = {
        one.measured.job: one.predicted.step_s
        for one in validate_step.validated(document, document)
        if one.predicted is not None
    }
    figure, axes = _style.panels(len(document.step_scalings))
    looks = _style.looks({one.transport: one.transport for one in document.step_scalings})
    for panel, one in zip(axes, document.step_scalings, strict=True):
        last = one.points[-1]
        _style.panel_title(panel, f"{one.kind} scaling of {one.job}", f"{last.speedup:.3g} on {last.num_ranks} ranks")
        panel.set_ylabel(f"speed-up over {text.count(one.points[0].num_ranks, 'rank')}", fontsize=_style.TEXT)
        _draw(panel, one, looks[one.transport], expected)
    handles = [look.handle() for look in looks.values()]
    handles.append(Line2D([], [], color=_style.GREY, linestyle=":", label="ideal"))
    if any(_predicted(one, expected) for one in document.step_scalings):
        words = "predicted from the run's allreduces"
        handles.append(Line2D([], [], color=_style.GREY, marker="x", linestyle="", label=words))
    if any(one.stops_at is not None for one in document.step_scalings):
        words = "beyond this number, ranks gain less than 10 %"
        handles.append(
            Line2D([], [], color=_style.GREY, marker="|", markersize=14, linewidth=0.8, linestyle="", label=words)
        )
    if any(map(_bounds, document.step_scalings)):
        handles.append(Line2D([], [], color=_style.GREY, linestyle="--", label="bound of the links"))
    remarks = [
        f"{one.kind} scaling: beyond {one.stops_at} ranks, the gain is below 10 %; {one.reason.text}"
        if one.reason is not None
        else f"{one.kind} scaling: each increase of the number of ranks gains 10 % or more"
        for one in document.step_scalings
    ]
    if any(point.low for one in document.step_scalings for point in one.points):
        remarks.append("bars: 95 % interval of a speed-up")
    _style.finish(figure, "Speed-up of training steps", "MEASURED", handles, remarks)
    return [("step-scaling", figure)]


def _bounds(one: StepScaling) -> list[tuple[float, float]]:
    """Return (number of ranks, bound) for each point that has a bound.

    Return an empty list if fewer than two points have a bound.
    """
    found = [(float(point.num_ranks), point.bound) for point in one.points if point.bound is not None]
    return found if len(found) > 1 else []


def _predicted(one: StepScaling, expected: Mapping[str, float]) -> list[tuple[float, float]]:
    """Return (number of ranks, predicted speed-up) for each point whose step was predicted.

    Measured speed-ups are relative to the first measured step. Predicted speed-ups are relative to the first predicted
    step. The result is empty if the step of the first point was not predicted.
    """
    first = one.points[0]
    if first.job not in expected:
        return []
    base = first.speedup * first.step_s / expected[first.job]
    return [
        (float(point.num_ranks), point.speedup * point.step_s / expected[point.job] / base)
        for point in one.points
        if point.job in expected
    ]


def _draw(panel: Axes, one: StepScaling, look: _style.Look, expected: dict[str, float]) -> None:
    ranks = [float(point.num_ranks) for point in one.points]
    speedups = [point.speedup for point in one.points]
    errors = [
        [point.speedup - (point.low or point.speedup) for point in one.points],
        [(point.high or point.speedup) - point.speedup for point in one.points],
    ]
    panel.plot(ranks, [point.ideal for point in one.points], color=_style.GREY, linestyle=":", linewidth=1.2)
    bounds = _bounds(one)
    panel.plot([x for x, _ in bounds], [y for _, y in bounds], color=_style.GREY, linestyle="--", linewidth=1.2)
    _style.line_with_errors(panel, look, ranks, speedups, errors)
    predicted = _predicted(one, expected)
    panel.plot(
        [x for x, _ in predicted], [y for _, y in predicted], color=_style.GREY, marker="x", markersize=8, linestyle=""
    )
    if one.stops_at is not None:
        panel.axvline(one.stops_at, color=_style.GREY, linewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(ranks))
    panel.xaxis.set_minor_locator(NullLocator())
    nodes = {point.num_ranks: point.num_nodes for point in one.points}
    panel.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x:g}" + (f"\n{nodes[round(x)]} nodes" if nodes.get(round(x), 1) > 1 else ""))
    )
    panel.set_xlabel("number of ranks (logarithmic)", fontsize=_style.TEXT)
    panel.set_ylim(bottom=0)
