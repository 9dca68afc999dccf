"""Report measured training steps and their predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.predict.validate_step import ValidatedStep
from bench.results.table import NOTHING, Block, Column, Lines, Report, Table

SCHEMA = "bench.validate-step/1"
_TITLE = "training steps, measured and predicted from the exchanges of the run"


def _ms(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds * 1e3:.2f}"


def _interval(one: ValidatedStep) -> str:
    low, high = one.measured.low_s, one.measured.high_s
    return NOTHING if low is None or high is None else f"{_ms(low)}..{_ms(high)}"


_COLUMNS = (
    Column("step", lambda one: one.measured.job, right=False),
    Column("ranks", lambda one: str(one.measured.num_ranks)),
    Column("measured", lambda one: _ms(one.measured.step_s), unit="(ms)"),
    Column("ci95", _interval, unit="(ms)"),
    Column("predicted", lambda one: _ms(one.predicted and one.predicted.step_s), unit="(ms)"),
    Column("error", lambda one: NOTHING if one.error is None else f"{100 * one.error:+.1f}", unit="(%)"),
    Column("exposed", lambda one: _ms(one.measured.exposed_by_removal.seconds), unit="(ms)"),
    Column("predicted", lambda one: _ms(one.predicted and one.predicted.exposed_s), unit="(ms)"),
    Column("rows", lambda one: str(one.num_rows)),
)


@dataclass(frozen=True)
class StepValidateReport(Report):
    """Steps with their predictions and errors."""

    rows: Sequence[ValidatedStep]

    def blocks(self) -> Iterable[Block]:
        """Yield the table, and the reasons why steps have no prediction."""
        yield Table(_COLUMNS, self.rows, title=_TITLE)
        reasons = [f"{one.measured.job}: {one.reason.text}" for one in self.rows if one.reason]
        if reasons:
            yield Lines(reasons)

    def data(self) -> Mapping[str, Any]:
        """Return every step with its prediction."""
        return {"schema": SCHEMA, "rows": list(self.records())}

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Yield one record for each step, in seconds."""
        for one in self.rows:
            found = one.predicted
            yield {
                "job": one.measured.job,
                "transport": one.measured.transport,
                "num_ranks": one.measured.num_ranks,
                "step_s": one.measured.step_s,
                "low_s": one.measured.low_s,
                "high_s": one.measured.high_s,
                "predicted_step_s": found and found.step_s,
                "error": one.error,
                "exposed_s": one.measured.exposed_by_removal.seconds,
                "predicted_exposed_s": found and found.exposed_s,
                "num_rows": one.num_rows,
                "reason": one.reason and str(one.reason.code),
            }
