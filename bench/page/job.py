"""The HTML page of `linkbench job explain`: the answer, a bar for each rank's step, what would help, the data."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bench.job.model import StepPart
from bench.job.page import COLOURS, TITLES, JobReport, RankParts
from bench.page import blocks
from bench.page.markup import Markup, element, joined
from bench.page.page import PageSection, whole
from bench.results.table import plain

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 900, 110, 80, 30, 8


def html(report: JobReport, name: str) -> str:
    """Return the page of a job. name: what the user called its traces."""
    document = json.dumps(plain(report.data()), ensure_ascii=True).replace("<", "\\u003c")
    data = element("script", Markup(document), type="application/json", id="job")
    return whole(name, report.what(), _sections(report), data)


def _sections(report: JobReport) -> Iterator[PageSection]:
    yield PageSection("verdict", "Verdict", blocks.render(report.verdict()))
    if report.explained.step_s is not None:
        picture = element("figure", _picture(report), _legend())
        yield PageSection("parts", "Where the step goes", joined(picture, blocks.render(report.parts())))
        yield PageSection("what-if", "What would help", blocks.render(report.what_ifs()))
        yield PageSection("exchanges", "Exchanges and copies", blocks.render(report.exchanges()))
    yield PageSection("remarks", "Remarks", blocks.render(report.all_remarks()))


def _picture(report: JobReport) -> Markup:
    """Return one bar for each rank, divided into the parts of its step."""
    shown = report.shown_ranks
    longest = max(one.step_s for one in shown)
    late = report.accused
    parts = [
        element("title", "The parts of each rank's step", id="parts-svg-title"),
        element("desc", "The table below has every value", id="parts-svg-desc"),
    ]
    for index, one in enumerate(shown):
        parts += _bar(one, _TOP + _ROW * index, longest, one.rank in late)
    box = f"0 0 {_WIDTH} {_TOP * 2 + _ROW * len(shown)}"
    return element("svg", *parts, viewBox=box, role="img", aria_labelledby="parts-svg-title parts-svg-desc")


def _bar(one: RankParts, top: float, longest: float, is_late: bool) -> Iterator[Markup]:
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    name = f"rank {one.rank}{', late' if is_late else ''}"
    middle = top + _ROW / 2 + 4
    yield element("text", name, x=_LEFT - 8, y=middle, text_anchor="end", class_="strong" if is_late else None)
    x = float(_LEFT)
    for part, colour in COLOURS.items():
        width = one.parts[part] * scale
        if width > 0:
            words = element("title", f"{TITLES[part]} {one.parts[part] * 1e3:.3g} ms")
            place = {"x": round(x, 1), "y": top + 4, "width": round(width, 1), "height": _ROW - 8}
            yield element("rect", words, fill=colour, **place)
        x += width
    yield element("text", f"{one.step_s * 1e3:.4g} ms", x=round(_LEFT + one.step_s * scale + 6, 1), y=middle)


def _legend() -> Markup:
    items = []
    for part in StepPart:
        box = element("rect", x=0, y=0, width=14, height=10, fill=COLOURS[part])
        items.append(element("li", element("svg", box, width=14, height=10, aria_hidden="true"), TITLES[part]))
    return element("ul", *items, class_="legend")
