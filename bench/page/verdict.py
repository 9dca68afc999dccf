"""Write the first section of a page: the summary of the run, and the verdict on whether its results are normal."""

from __future__ import annotations

from collections.abc import Sequence

from bench.core.codes import Coded
from bench.explain.messages import ResultVerdict
from bench.page import blocks
from bench.page.content import JobVerdict
from bench.page.markup import Markup, element, joined
from bench.page.messages import PageCode
from bench.results.table import Column, Lines, Table


def draw(summary: Sequence[str], verdicts: Sequence[JobVerdict]) -> Markup:
    """Return the run's summary, the verdicts on its jobs, and what is missing for jobs that cannot be judged."""
    unjudged = [one for one in verdicts if one.verdict == ResultVerdict.CANNOT_BE_JUDGED]
    judged = [one for one in verdicts if one.verdict != ResultVerdict.CANNOT_BE_JUDGED]
    parts = [blocks.render([Lines(summary)])]
    if judged:
        columns = (
            Column("job", lambda one: one.job, right=False),
            Column("verdict", lambda one: one.words, right=False),
            Column("why", lambda one: one.why, right=False),
            Column("likeliest reason", lambda one: one.reasons[0] if one.reasons else "", right=False, optional=True),
            Column("next", lambda one: one.steps[0] if one.steps else "", right=False, optional=True),
        )
        parts.append(
            blocks.table(
                Table(columns, judged), "is it normal? each job compared with bounds and with published results"
            )
        )
    if unjudged:
        needs = list(dict.fromkeys(one.decides for one in unjudged if one.decides))
        said = Coded.of(PageCode.UNJUDGED, num=len(unjudged), of=len(verdicts), needs=" ".join(needs), any=bool(needs))
        whys = [element("li", f"{one.job}: {one.why}") for one in unjudged]
        parts += [element("p", said.text), blocks.details("Why not", element("ul", *whys))]
    return joined(*parts)
