"""The page of `linkbench job predict`: the predicted step, the evidence for it, and the error of the replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.core.codes import Coded
from bench.core.units import format_duration
from bench.job.elsewhere import ComputeFactor, Elsewhere
from bench.job.messages import ElsewhereCode
from bench.predict.select_page import LETTERS
from bench.results import text
from bench.results.table import Block, Column, Heading, Lines, Report, Table

SCHEMA = "bench.job_predict/1"
# One letter for each type of evidence. The compute has three types that predictions of collectives do not have.
JOB_LETTERS = LETTERS | {"given": "g", "recorded": "r", "same-gpu": "s"}
JOB_LETTER_WORDS = {"same-gpu": "same GPU", "recorded": "as recorded"}


@dataclass(frozen=True)
class ElsewherePage(Report):
    """The page about the predicted step of a job on another machine."""

    elsewhere: Elsewhere

    def blocks(self) -> Iterable[Block]:
        """Yield the predicted step and the evidence for it."""
        found = self.elsewhere
        recorded, step = found.recorded, found.range
        times = f"{format_duration(step.middle)} [{format_duration(step.low)} .. {format_duration(step.high)}]"
        where = f"{text.count(found.num_nodes, 'node')} of {found.network.name}"
        yield Heading(f"a step takes {times} on {where}, and {format_duration(recorded.recorded_s)} as recorded")
        num = f"{found.num_predicted} of {len(recorded.job.collectives)} predicted"
        low, middle, high = (format_duration(seconds) for seconds in found.exchange_s)
        rows = [
            ("compute", _factor(found.factor), found.factor.basis),
            ("exchanges", f"{num}, {middle} a step [{low} .. {high}]", ", ".join(found.bases)),
        ]
        columns = [
            Column("part", lambda row: str(row[0]), right=False),
            Column("there", lambda row: str(row[1]), right=False),
            Column("rests on", lambda row: str(row[2]), right=False),
        ]
        yield Table(columns, rows)
        closure = abs(recorded.replayed_s - recorded.recorded_s) / recorded.recorded_s
        yield Lines([Coded.of(ElsewhereCode.CLOSURE, closure=closure).text, *(one.text for one in remarks_of(found))])

    def data(self) -> Mapping[str, Any]:
        """Return the prediction as JSON, in seconds."""
        found = self.elsewhere
        factor = found.factor
        low, middle, high = found.exchange_s
        return {
            "schema": SCHEMA,
            "modelled": True,
            "instance": found.network.name,
            "num_nodes": found.num_nodes,
            "step_s": found.range.middle,
            "step_low_s": found.range.low,
            "step_high_s": found.range.high,
            "recorded_step_s": found.recorded.recorded_s,
            "replayed_step_s": found.recorded.replayed_s,
            "exchange_s": middle,
            "exchange_low_s": low,
            "exchange_high_s": high,
            "compute_factor": {"low": factor.low, "middle": factor.middle, "high": factor.high, "basis": factor.basis},
            "num_predicted": found.num_predicted,
            "num_collectives": len(found.recorded.job.collectives),
            "rests_on": {
                "exchange": [JOB_LETTERS[basis] for basis in found.bases],
                "compute": factor.basis,
            },
            "remarks": [one.to_plain() for one in remarks_of(found)],
        }

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Yield a single record."""
        step = self.elsewhere.range
        yield {
            "instance": self.elsewhere.network.name,
            "step_s": step.middle,
            "step_low_s": step.low,
            "step_high_s": step.high,
        }


def remarks_of(found: Elsewhere) -> Iterable[Coded]:
    """Yield remarks on the parts of the step whose recorded times the prediction uses unchanged."""
    if found.num_predicted < len(found.recorded.job.collectives):
        num_all = len(found.recorded.job.collectives)
        yield Coded.of(ElsewhereCode.NOT_PREDICTED, num=num_all - found.num_predicted, num_all=num_all)
    yield Coded.of(ElsewhereCode.KEPT_PARTS)
    if found.factor.basis == "recorded" and found.factor.gpu is not None:
        yield Coded.of(ElsewhereCode.COMPUTE_KEPT)


def _factor(factor: ComputeFactor) -> str:
    middle = f"x {factor.middle:.3g}"
    return middle if factor.low == factor.high else f"{middle} [{factor.low:.3g} .. {factor.high:.3g}]"
