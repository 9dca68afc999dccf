"""Draw training steps: one bar for each rank, divided into the parts of its step."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.core.step_trace import StepPart
from bench.figures import _step_bars, _style
from bench.results.document import Document
from bench.results.training_rows import TrainedStep

_MOST_STEPS = 12
_MOST_RANKS = 8  # ranks of a step in a panel; a larger step shows the ranks that wait most and least
_ROW_IN, _STEP_IN = 0.24, 0.42
_LONGER = 1.02  # if a bar is longer than its step by more than this factor, a remark says why


def applies(document: Document) -> bool:
    """Check whether the document has training steps."""
    return bool(document.steps)


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return one figure, `step`, with a panel for each step. All panels have the same time axis."""
    shown = document.steps[:_MOST_STEPS]
    if not shown:
        return []
    heights = [_STEP_IN + _ROW_IN * len(shown_ranks(one)) for one in shown]
    figure = Figure(figsize=(_style.WIDTH_IN, sum(heights) + 0.4), dpi=_style.DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    whole = [_parts(one, rank) for one in shown for rank in shown_ranks(one)]
    bars = _step_bars.visible(whole)
    first = 0
    for panel, one in zip(axes, shown, strict=True):
        num = len(shown_ranks(one))
        _draw_step(panel, one, bars[first : first + num])
        first += num
    axes[-1].set_xlabel("ms of a step (mean of the middle half of the steps)", fontsize=_style.TEXT)
    axes[-1].set_xlim(left=0)
    remarks = ["waits: time waiting for a late rank; exchange: time after the last rank was ready"]
    if any(sum(_parts(one, rank).values()) > _LONGER * one.step_s for one in shown for rank in shown_ranks(one)):
        remarks.append("bars: steps with clocks inside; titles: the median of steps without clocks, which are shorter")
    if len(shown) < len(document.steps):
        remarks.append(f"{len(document.steps) - len(shown)} more steps are in the table only")
    if any(one.num_ranks > _MOST_RANKS for one in shown):
        remarks.append(f"of steps with more than {_MOST_RANKS} ranks: the ranks that wait least and most")
    remarks += _step_bars.remarks(whole, bars)
    handles = _step_bars.handles(bars)
    _style.finish(figure, "Where a training step goes", "MEASURED", handles, remarks)
    return [("step", figure)]


def shown_ranks(one: TrainedStep) -> list[int]:
    """Return the ranks that a picture of a step shows.

    If a step has too many ranks, the picture shows the ranks that wait least and those that wait most.
    """
    waits = one.parts_s[StepPart.IMBALANCE]
    if len(waits) <= _MOST_RANKS:
        return list(range(len(waits)))
    order = sorted(range(len(waits)), key=lambda rank: waits[rank])
    return sorted(order[: _MOST_RANKS // 2] + order[-_MOST_RANKS // 2 :])


def _parts(one: TrainedStep, rank: int) -> dict[StepPart, float]:
    return {part: one.parts_s[part][rank] for part in StepPart}


def _draw_step(panel: Axes, one: TrainedStep, bars: Sequence[_step_bars.Parts]) -> None:
    _step_bars.draw(panel, bars)
    names = [f"rank {rank}{', late' if rank == one.late_rank else ''}" for rank in shown_ranks(one)]
    panel.set_yticks(range(len(bars)), names, fontsize=_style.SMALL_TEXT)
    panel.tick_params(axis="x", labelsize=_style.SMALL_TEXT)
    title = f"{one.job}: step of {one.step_s * 1e3:.4g} ms, {_step_bars.largest(bars)}"
    panel.set_title(title, fontsize=_style.TEXT, loc="left")
