"""Write the HTML page of `linkbench job explain`: the answer, a bar for each rank, helpful changes, and the data."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bench.job.page import JobReport
from bench.page import blocks, step_bars
from bench.page.markup import Markup, element, joined
from bench.page.page import PageSection, whole
from bench.results.table import Lines, plain


def html(report: JobReport, name: str) -> str:
    """Return the HTML page of a job.

    `name`: the name that the user gave for the traces of the job.
    """
    document = json.dumps(plain(report.data()), ensure_ascii=True).replace("<", "\\u003c")
    data = element("script", Markup(document), type="application/json", id="job")
    return whole(name, f"{report.origin()}; {report.what()}", _sections(report), data)


def _sections(report: JobReport) -> Iterator[PageSection]:
    yield PageSection("verdict", "Verdict", blocks.render([Lines([report.answer()]), *report.causes()]))
    if report.explained.step_s is not None:
        parts = joined(_bars(report), blocks.render(report.parts(is_terminal=False)))
        yield PageSection("parts", "Where the step goes", parts)
        yield PageSection("what-if", "What would help (modelled)", blocks.render(report.what_ifs()))
        yield PageSection("exchanges", "Exchanges and copies", blocks.render(report.exchanges()))
    yield PageSection("remarks", "Remarks", blocks.render(report.all_remarks()))
    yield PageSection("files", "Files", blocks.render(report.files()))


def _bars(report: JobReport) -> Markup:
    """Return one bar for each rank that the page shows."""
    late = report.accused
    shown = report.shown_ranks
    return step_bars.draw([step_bars.StepBar(one.rank, one.step_s, one.parts, one.rank in late) for one in shown])
