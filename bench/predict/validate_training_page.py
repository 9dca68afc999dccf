"""Report the validation of training throughputs: errors by held-out class, and head-to-head ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.predict.messages import PageNote
from bench.predict.validate_training import (
    HeadToHead,
    HeldOutRun,
    head_to_heads,
    memory_facts,
    summarize_ratios,
    summarize_training,
)
from bench.results.table import NOTHING, Block, Column, Lines, Report, Table

SCHEMA = "bench.validate-training/1"
_NOTES = (
    PageNote.TRAINING_HELD_OUT,
    PageNote.TRAINING_RULES,
    PageNote.TRAINING_INTERVAL,
    PageNote.TRAINING_REFUSED,
)


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


_COLUMNS = (
    Column("held out", lambda each: each.held_out.replace("_", " "), right=False),
    Column("class", lambda each: each.name, right=False),
    Column("runs", lambda each: str(each.num_runs)),
    Column("sources", lambda each: str(each.num_sources)),
    Column("error", lambda each: _percent(each.error)),
    Column("half sheet", lambda each: _percent(each.half)),
    Column("by GPU", lambda each: _percent(each.by_architecture)),
    Column("covered", lambda each: _percent(each.covered)),
    Column("high/low", lambda each: f"{each.width:.2f}"),
    Column("refused", lambda each: str(each.num_refused)),
)
_RATIO_COLUMNS = (
    Column("job", lambda each: each.job, right=False),
    Column("source", lambda each: each.source, right=False),
    Column("GPUs", lambda each: " / ".join(each.gpus), right=False),
    Column("measured", lambda each: f"{each.measured:.2f}"),
    Column("predicted", lambda each: f"{each.predicted:.2f}"),
    Column("error", lambda each: _percent(abs(each.error))),
)
_PAIR_COLUMNS = (
    Column("architectures", lambda each: each.architectures, right=False),
    Column("source", lambda each: each.source, right=False),
    Column("ratios", lambda each: str(each.num_ratios)),
    Column("measured", lambda each: f"{each.measured:.2f}"),
    Column("predicted", lambda each: f"{each.predicted:.2f}"),
    Column("error", lambda each: _percent(each.error)),
    Column("near", lambda each: f"{each.num_near}/{each.num_ratios}"),
)


@dataclass(frozen=True)
class TrainingValidateReport(Report):
    """Held-out training runs with their errors."""

    rows: Sequence[HeldOutRun]

    def blocks(self) -> Iterable[Block]:
        """Yield three tables, and an explanation of their columns."""
        yield Table(_COLUMNS, summarize_training(self.rows), title="training throughput, one class held out at a time")
        ratios = self._ratios()
        yield Table(_RATIO_COLUMNS, ratios, title="the same job on two GPUs, its source held out")
        yield Table(_PAIR_COLUMNS, summarize_ratios(ratios), title="these ratios by pair of architectures")
        near = sum(each.near for each in ratios)
        notes = [code.template for code in _NOTES]
        notes.append(PageNote.TRAINING_MEMORY.words(memory_facts(self.rows)))
        yield Lines([*notes, PageNote.TRAINING_RATIOS.words({"num": near, "num_all": len(ratios)})])

    def data(self) -> Mapping[str, Any]:
        """Return the errors, the ratios and the rows."""
        return {
            "schema": SCHEMA,
            "errors": [asdict(each) for each in summarize_training(self.rows)],
            "memory": memory_facts(self.rows),
            "ratios": [asdict(each) for each in self._ratios()],
            "ratio_errors": [asdict(each) for each in summarize_ratios(self._ratios())],
            "rows": list(self.records()),
        }

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Yield the held-out runs. Rates are in samples per second of one GPU."""
        for row in self.rows:
            run = row.run
            yield {
                "held_out": row.held_out,
                "job": run.workload.name,
                "source": run.source,
                "gpu": run.gpu,
                "num_gpus": run.num_nodes * run.gpus_per_node,
                "measured": row.measured,
                "low": row.low,
                "predicted": row.predicted,
                "high": row.high,
                "half": row.half,
                "by_architecture": row.by_architecture,
                "covered": row.covered,
                "refused": row.refused,
                "memory_gib": row.memory_gib,
                "memory_measured_gib": run.memory_gib,
                "modelled": True,
            }

    def _ratios(self) -> tuple[HeadToHead, ...]:
        return head_to_heads(self.rows)
