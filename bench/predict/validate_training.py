"""Held-out validation of training throughputs: predict each published run without its source, its GPU's architecture or
its kind of model, and beside it what one-line rules say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from bench.hardware import catalogue
from bench.predict.candidate import LOST_TO_OVERLAP, predicted_exchanges
from bench.predict.compute import compute
from bench.predict.draws import Draws, range_of
from bench.predict.memory import memory_need, refused
from bench.predict.operations import REPEATED_PASSES
from bench.predict.step import step
from bench.predict.training import layout
from bench.predict.utilisation import TrainingRun, model_kind, predicted_share, runs

if TYPE_CHECKING:
    from bench.predict.predict import EfficiencyEvidence

CLASSES = ("source", "architecture", "model_family")  # what is held out, one value at a time
RULE_SHARE = 0.5  # the first rule: every GPU reaches half of its data sheet
_NUM_DRAWS = 400


@dataclass(frozen=True, slots=True)
class HeldOutRun:
    """One published run and its prediction without its class. Rates are samples per second of one GPU.

    `half`: by the rule "half the data sheet". `by_architecture`: by the median share of the runs of the same
    architecture in other sources; None if there are none. `refused`: whether `select` would refuse the run for want of
    memory. `memory_gib`: the estimated memory of one GPU in GiB. `bare`: by the predicted share alone, without the
    predicted communication and the optimizer's update, which the published shares contain already.
    """

    run: TrainingRun
    held_out: str
    low: float
    predicted: float
    high: float
    half: float
    by_architecture: float | None
    refused: bool
    memory_gib: float
    bare: float

    @property
    def measured(self) -> float:
        """The measured rate."""
        return self.run.samples_per_s_per_gpu

    @property
    def covered(self) -> bool:
        """Whether the measurement is inside the interval."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class TrainingErrors:
    """Errors of the runs of one held-out class: medians over its runs of |predicted / measured - 1|.

    `width`: the median of the interval's high / low. `by_architecture` is None if the rule predicts no run.
    """

    held_out: str
    name: str
    num_runs: int
    num_sources: int
    error: float
    half: float
    by_architecture: float | None
    covered: float
    width: float
    num_refused: int
    bare: float


@dataclass(frozen=True, slots=True)
class HeadToHead:
    """One job of one source on two GPUs: the ratio of their rates, measured, and predicted without that source."""

    job: str
    gpus: tuple[str, str]
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """The signed error of the predicted ratio."""
        return self.predicted / self.measured - 1


def held_out_runs(evidence: EfficiencyEvidence) -> tuple[HeldOutRun, ...]:
    """Predict every published run three times, each time without the runs of one class that it belongs to.

    The communication is predicted as `select` does it, from `evidence`.
    """
    return tuple(_held_out(run, name, evidence) for name in CLASSES for run in runs())


def summarize_training(rows: Iterable[HeldOutRun]) -> tuple[TrainingErrors, ...]:
    """Return the errors of each class, and for each kind of class a row `all`, in a fixed order."""
    found = []
    for held_out, of_kind in groupby(rows, key=lambda row: row.held_out):
        members = list(of_kind)
        found.append(_errors(held_out, "all", members))
        for name in sorted({getattr(row.run, held_out) for row in members}):
            found.append(_errors(held_out, name, [row for row in members if getattr(row.run, held_out) == name]))
    return tuple(found)


def head_to_heads(rows: Sequence[HeldOutRun]) -> tuple[HeadToHead, ...]:
    """Return the jobs that one source ran on two architectures with the same number of GPUs and the same settings."""
    by_source = [row for row in rows if row.held_out == "source"]
    found = []
    for below in by_source:
        for above in by_source:
            if _job(below) == _job(above) and below.run.gpu < above.run.gpu:
                gpus = above.run.gpu, below.run.gpu
                ratios = above.measured / below.measured, above.predicted / below.predicted
                found.append(HeadToHead(below.run.workload.name, gpus, *ratios))
    return tuple(found)


def memory_facts(rows: Iterable[HeldOutRun]) -> dict[str, int]:
    """Return how many printed memory sizes are within 10 % of the estimate, and how many runs do not fit by it."""
    once = [row for row in rows if row.held_out == CLASSES[0]]
    printed = [(row.memory_gib, row.run.memory_gib) for row in once if row.run.memory_gib is not None]
    tight = [row for row in once if row.memory_gib * 2**30 > (catalogue.gpu(row.run.gpu).memory_bytes or float("inf"))]
    return {
        "num": sum(abs(estimate / measured - 1) <= 0.1 for estimate, measured in printed),
        "num_all": len(printed),
        "num_tight": len(tight),
        "num_runs": len(once),
    }


def _job(row: HeldOutRun) -> tuple[object, ...]:
    run, workload = row.run, row.run.workload
    return run.source, workload.model, workload.recompute, workload.strategy, run.num_nodes * run.gpus_per_node


def _held_out(run: TrainingRun, held_out: str, evidence: EfficiencyEvidence) -> HeldOutRun:
    gpu, own = catalogue.gpu(run.gpu), getattr(run, held_out)
    share = predicted_share(
        gpu,
        run.workload.recompute,
        model_kind(run.workload.model),
        lambda other: bool(getattr(other, held_out) == own),
    )
    found = layout(run.workload, run.num_nodes, run.gpus_per_node)
    draws = Draws(_NUM_DRAWS)
    computed = compute(found, gpu, draws, share=share)
    exchanges = predicted_exchanges(found, catalogue.instance(run.instance).links, evidence)
    seconds = {id(call): draws.predicted("exchange", prediction) for call, prediction in exchanges}
    times = step(
        found,
        computed.passes_s,
        computed.update_s,
        lambda call: seconds[id(call)],
        [call for call, _ in exchanges],
        draws.linear("overlap", *LOST_TO_OVERLAP),
        0.0 * draws.ones,
        shares_link=False,
    )
    rate = range_of(found.samples / found.num_gpus / times.total_s)
    useful = gpu.flops["bf16"] * REPEATED_PASSES[run.workload.recompute] * run.samples_per_s_per_gpu
    per_share = useful / (run.share * gpu.flops["bf16"])  # samples per second at a useful share of 1
    others = [
        _useful(other) for other in runs() if other.architecture == run.architecture and other.source != run.source
    ]
    memory = memory_need(found)
    return HeldOutRun(
        run=run,
        held_out=held_out,
        low=rate.low,
        predicted=rate.middle,
        high=rate.high,
        half=per_share * RULE_SHARE,
        by_architecture=per_share * median(others) if others else None,
        refused=refused(memory, gpu.memory_bytes),
        memory_gib=memory.total / 2**30,
        bare=range_of(found.samples / found.num_gpus / computed.passes_s).middle,
    )


def _useful(run: TrainingRun) -> float:
    """Return the share without repeated operations."""
    return run.share / REPEATED_PASSES[run.workload.recompute]


def _errors(held_out: str, name: str, rows: Sequence[HeldOutRun]) -> TrainingErrors:
    ruled = [abs(row.by_architecture / row.measured - 1) for row in rows if row.by_architecture is not None]
    return TrainingErrors(
        held_out=held_out,
        name=name,
        num_runs=len(rows),
        num_sources=len({row.run.source for row in rows}),
        error=median(abs(row.predicted / row.measured - 1) for row in rows),
        half=median(abs(row.half / row.measured - 1) for row in rows),
        by_architecture=median(ruled) if ruled else None,
        covered=sum(row.covered for row in rows) / len(rows),
        width=median(row.high / row.low for row in rows),
        num_refused=sum(row.refused for row in rows),
        bare=median(abs(row.bare / row.measured - 1) for row in rows),
    )
