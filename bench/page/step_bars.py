"""Draw the bars of a training step: one bar for each rank, divided into the parts of its step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.core.step_trace import StepPart
from bench.job.page import COLOURS, TITLES
from bench.page.markup import Markup, element, joined
from bench.results.document import Document
from bench.results.training_rows import TrainedStep

_BAR_WIDTH = 1000  # units of a bar; the page stretches the bar, but not the text beside it
_LEAST_SHARE = 0.001  # as a share of the longest bar; the legend omits a part that is narrower in all bars


@dataclass(frozen=True, slots=True)
class StepBar:
    """The bar of one rank: the time of its step, the time of each part, and whether other ranks wait for this rank."""

    rank: int
    step_s: float
    parts_s: Mapping[StepPart, float]
    is_late: bool


def draw(bars: Sequence[StepBar]) -> Markup:
    """Return the bars of one step and the legend. The rank is to the left of a bar, and the time is to the right."""
    return element("figure", _bars(bars, max(one.step_s for one in bars)), _legend(bars))


def of_document(document: Document) -> Markup:
    """Return the bars of all training steps of a run. All bars share one time axis and one legend.

    The result is empty for a run without training steps.
    """
    bars = [_of_step(one) for one in document.steps]
    longest = max((bar.step_s for of_step in bars for bar in of_step), default=0.0)
    steps = [
        element("figure", element("h3", _title(one)), _bars(of_step, longest))
        for one, of_step in zip(document.steps, bars, strict=True)
    ]
    return joined(*steps, _legend([bar for of_step in bars for bar in of_step])) if steps else Markup("")


def _title(one: TrainedStep) -> str:
    return f"{one.job}: step of {one.step_s * 1e3:.4g} ms"


def _of_step(one: TrainedStep) -> list[StepBar]:
    by_rank = [{part: one.parts_s[part][rank] for part in StepPart} for rank in range(one.num_ranks)]
    return [StepBar(rank, sum(own.values()), own, rank == one.late_rank) for rank, own in enumerate(by_rank)]


def _bars(bars: Sequence[StepBar], longest: float) -> Markup:
    """Return the bars of one step. `longest`: the time of a bar of full width, in seconds."""
    return element("div", *(each for one in bars for each in _bar(one, longest)), class_="bars")


def _bar(one: StepBar, longest: float) -> Iterator[Markup]:
    name = f"rank {one.rank}{', late' if one.is_late else ''}"
    yield element("span", name, class_="strong" if one.is_late else None)
    x, rectangles, spoken = 0.0, [], []
    for part, colour in COLOURS.items():
        width = one.parts_s[part] * _BAR_WIDTH / longest
        if width > 0:
            words = f"{TITLES[part]} {one.parts_s[part] * 1e3:.3g} ms"
            place = {"x": round(x, 1), "y": 0, "width": round(width, 1), "height": 20}
            rectangles.append(element("rect", element("title", words), fill=colour, **place))
            spoken.append(words)
        x += width
    label = f"{name}: {', '.join(spoken)}"
    box = f"0 0 {_BAR_WIDTH} 20"
    yield element("svg", *rectangles, viewBox=box, preserveAspectRatio="none", role="img", aria_label=label)
    yield element("span", f"{one.step_s * 1e3:.4g} ms")


def _legend(bars: Sequence[StepBar]) -> Markup:
    """Return the legend of the parts that are large enough to be seen. A tooltip names the parts that are too small."""
    items = []
    least_s = _LEAST_SHARE * max(one.step_s for one in bars)
    for part in StepPart:
        if all(one.parts_s[part] <= least_s for one in bars):
            continue
        box = element("rect", x=0, y=0, width=14, height=10, fill=COLOURS[part])
        items.append(element("li", element("svg", box, width=14, height=10, aria_hidden="true"), TITLES[part]))
    return element("ul", *items, class_="legend")
