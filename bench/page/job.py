"""The HTML page of `linkbench job explain`: the answer, a bar for each rank's step, what would help, the data."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bench.core.step_trace import StepPart
from bench.job.page import COLOURS, TITLES, JobReport, RankParts
from bench.page import blocks
from bench.page.markup import Markup, element, joined
from bench.page.page import PageSection, whole
from bench.results.table import plain

_BAR_WIDTH = 1000  # units of a bar; the page stretches it, and only the text beside it keeps its size


def html(report: JobReport, name: str) -> str:
    """Return the page of a job. name: what the user called its traces."""
    document = json.dumps(plain(report.data()), ensure_ascii=True).replace("<", "\\u003c")
    data = element("script", Markup(document), type="application/json", id="job")
    return whole(name, f"{report.origin()}; {report.what()}", _sections(report), data)


def _sections(report: JobReport) -> Iterator[PageSection]:
    yield PageSection("verdict", "Verdict", blocks.render(report.verdict()))
    if report.explained.step_s is not None:
        parts = joined(_bars(report), blocks.render(report.parts(is_terminal=False)))
        yield PageSection("parts", "Where the step goes", parts)
        yield PageSection("what-if", "What would help (modelled)", blocks.render(report.what_ifs()))
        yield PageSection("exchanges", "Exchanges and copies", blocks.render(report.exchanges()))
    yield PageSection("remarks", "Remarks", blocks.render(report.all_remarks()))
    yield PageSection("files", "Files", blocks.render(report.files()))


def _bars(report: JobReport) -> Markup:
    """Return one bar for each rank, divided into the parts of its step, between its name and its time."""
    shown = report.shown_ranks
    longest = max(one.step_s for one in shown)
    late = report.accused
    rows = [each for one in shown for each in _bar(one, longest, one.rank in late)]
    return element("figure", element("div", *rows, class_="bars"), _legend())


def _bar(one: RankParts, longest: float, is_late: bool) -> Iterator[Markup]:
    name = f"rank {one.rank}{', late' if is_late else ''}"
    yield element("span", name, class_="strong" if is_late else None)
    x, rectangles, spoken = 0.0, [], []
    for part, colour in COLOURS.items():
        width = one.parts[part] * _BAR_WIDTH / longest
        if width > 0:
            words = f"{TITLES[part]} {one.parts[part] * 1e3:.3g} ms"
            place = {"x": round(x, 1), "y": 0, "width": round(width, 1), "height": 20}
            rectangles.append(element("rect", element("title", words), fill=colour, **place))
            spoken.append(words)
        x += width
    label = f"{name}: {', '.join(spoken)}"
    box = f"0 0 {_BAR_WIDTH} 20"
    yield element("svg", *rectangles, viewBox=box, preserveAspectRatio="none", role="img", aria_label=label)
    yield element("span", f"{one.step_s * 1e3:.4g} ms")


def _legend() -> Markup:
    items = []
    for part in StepPart:
        box = element("rect", x=0, y=0, width=14, height=10, fill=COLOURS[part])
        items.append(element("li", element("svg", box, width=14, height=10, aria_hidden="true"), TITLES[part]))
    return element("ul", *items, class_="legend")
