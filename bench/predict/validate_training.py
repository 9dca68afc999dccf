"""Validate predicted training throughputs against published runs.

Each run is predicted once for each of CLASSES. The evidence for a prediction excludes all runs of the same class, such
as all runs of the same source. For comparison, the module also evaluates simple rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from bench.hardware import catalogue
from bench.predict.candidate import LOST_TO_OVERLAP, Exchanges
from bench.predict.compute import compute
from bench.predict.draws import Draws, range_of
from bench.predict.effects import FittedEffects, fit
from bench.predict.kernels import RATES
from bench.predict.layout import layout
from bench.predict.memory import memory_need, refused
from bench.predict.operations import flops_per_sample
from bench.predict.step import step
from bench.predict.training_observations import exchanges_of, observation
from bench.predict.training_runs import TrainingRun, runs

if TYPE_CHECKING:
    from bench.predict.predict import EfficiencyEvidence

CLASSES = ("family", "source", "architecture", "model_family")  # what is held out, one value at a time
RULE_SHARE = 0.5  # the first rule: every GPU reaches half of its data sheet's rate
_NUM_DRAWS = 400
NEAR = 0.15  # a ratio with at most this error counts as near
MOST_APART = 4.0  # runs are compared only if their numbers of GPUs differ by at most this factor


@dataclass(frozen=True, slots=True)
class HeldOutRun:
    """One published run, and its prediction from evidence that excludes the run's class.

    Rates are samples per second of one GPU.

    `half`: the prediction of the rule "half the data sheet".
    `by_architecture`: the prediction of the rule "median share of other sources' runs on this architecture".
        Without such runs, it is None.
    `refused`: whether `select` would refuse the run for lack of memory.
    `memory_gib`: the estimated memory of one GPU in GiB.
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
    """Median errors of the runs of one held-out class. An error is |predicted / measured - 1|.

    `width`: the median of `high / low` over the intervals. `by_architecture`: the error of the rule `by_architecture`;
    None if this rule cannot predict any run of the class.
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


@dataclass(frozen=True, slots=True)
class HeadToHead:
    """The measured and the predicted ratio of two GPUs' rates in the same job.

    The prediction excludes the job's source.
    """

    job: str
    source: str
    gpus: tuple[str, str]
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """The signed error of the predicted ratio."""
        return self.predicted / self.measured - 1

    @property
    def near(self) -> bool:
        """Whether the predicted ratio is within NEAR of the measured ratio."""
        return abs(self.error) <= NEAR


@dataclass(frozen=True, slots=True)
class RatioErrors:
    """Rates of two architectures in one source: the medians of the measured ratio, the predicted ratio and |error|.

    `num_near`: the number of ratios within NEAR.
    """

    architectures: str
    source: str
    num_ratios: int
    num_near: int
    measured: float
    predicted: float
    error: float


def held_out_runs(evidence: EfficiencyEvidence) -> tuple[HeldOutRun, ...]:
    """Predict every published run once for each of CLASSES, each time without the other runs of the same class.

    The communication is predicted from `evidence`, as in `select`.
    """
    every = runs()
    exchanges = [exchanges_of(run, evidence) for run in every]
    observations = [observation(run, own) for run, own in zip(every, exchanges, strict=True)]
    draws, rows = Draws(_NUM_DRAWS), []
    for held_out in CLASSES:
        fits: dict[str, FittedEffects] = {}
        for run, own in zip(every, exchanges, strict=True):
            name = getattr(run, held_out)
            if name not in fits:
                kept = [
                    each for each, other in zip(observations, every, strict=True) if getattr(other, held_out) != name
                ]
                fits[name] = fit(kept)
            others = [other for other in every if getattr(other, held_out) != name]
            rows.append(_held_out(run, held_out, own, fits[name], others, draws))
    return tuple(rows)


def summarize_training(rows: Iterable[HeldOutRun]) -> tuple[TrainingErrors, ...]:
    """Return the errors of each held-out class. A row `all` precedes the classes of each type."""
    found = []
    for held_out, of_kind in groupby(rows, key=lambda row: row.held_out):
        members = list(of_kind)
        found.append(_errors(held_out, "all", members))
        for name in sorted({getattr(row.run, held_out) for row in members}):
            found.append(_errors(held_out, name, [row for row in members if getattr(row.run, held_out) == name]))
    return tuple(found)


def head_to_heads(rows: Sequence[HeldOutRun]) -> tuple[HeadToHead, ...]:
    """Return the ratios of GPU rates. For each ratio, one source ran the same job with the same settings on two GPUs.

    A ratio is the rate of the faster GPU divided by the rate of the slower GPU. Both runs have the same number of GPUs.
    If no two runs of a source have the same number of GPUs, the two runs with the most similar numbers of GPUs are
    used. The numbers differ by at most a factor of MOST_APART.
    """
    by_job: dict[tuple[object, ...], list[HeldOutRun]] = {}
    for row in rows:
        if row.held_out == "source":
            by_job.setdefault(_job(row), []).append(row)
    found = []
    for runs_of_job in by_job.values():
        for below in runs_of_job:
            nearest: dict[str, HeldOutRun] = {}
            for above in runs_of_job:
                if _full_rate(above.run) <= 1.01 * _full_rate(below.run) or _apart(above, below) > MOST_APART:
                    continue
                known = nearest.get(above.run.gpu)
                if known is None or _apart(above, below) < _apart(known, below):
                    nearest[above.run.gpu] = above
            for above in nearest.values():
                gpus, ratios = (
                    (above.run.gpu, below.run.gpu),
                    (above.measured / below.measured, above.predicted / below.predicted),
                )
                found.append(HeadToHead(below.run.workload.name, below.run.source, gpus, *ratios))
    return tuple(found)


def summarize_ratios(ratios: Iterable[HeadToHead]) -> tuple[RatioErrors, ...]:
    """Return the errors of the ratios, for each source and each pair of architectures in this source.

    Pairs of architectures with many ratios come first.
    """
    groups: dict[tuple[str, str], list[HeadToHead]] = {}
    for each in ratios:
        pair = " / ".join(catalogue.gpu(gpu).architecture for gpu in each.gpus)
        groups.setdefault((pair, each.source), []).append(each)
    return tuple(
        RatioErrors(
            architectures=pair,
            source=source,
            num_ratios=len(own),
            num_near=sum(each.near for each in own),
            measured=median(each.measured for each in own),
            predicted=median(each.predicted for each in own),
            error=median(abs(each.error) for each in own),
        )
        for (pair, source), own in sorted(groups.items(), key=lambda group: -len(group[1]))
    )


def memory_facts(rows: Iterable[HeldOutRun]) -> dict[str, int]:
    """Return how many memory sizes in the sources differ from the estimate by at most 10 %.

    Also return how many estimates exceed the GPU's memory.
    """
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
    settings = workload.compute, workload.recompute, workload.strategy, workload.mesh, workload.lora
    return run.source, run.release, workload.software, workload.model, *settings


def _apart(one: HeldOutRun, other: HeldOutRun) -> float:
    """Return the larger number of GPUs divided by the smaller number."""
    first, second = one.run.num_gpus, other.run.num_gpus
    return max(first, second) / min(first, second)


def _full_rate(run: TrainingRun) -> float:
    return catalogue.gpu(run.gpu).flops[RATES[run.workload.compute]]


def _held_out(
    run: TrainingRun,
    held_out: str,
    exchanges: Exchanges,
    effects: FittedEffects,
    others: Sequence[TrainingRun],
    draws: Draws,
) -> HeldOutRun:
    gpu = catalogue.gpu(run.gpu)
    found = layout(run.workload, run.num_nodes, run.gpus_per_node)
    computed = compute(found, gpu, draws, effects=effects)
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
    whole = _samples_per_s_at_full_rate(run)
    alike = [
        other.samples_per_s_per_gpu / _samples_per_s_at_full_rate(other)
        for other in others
        if (other.architecture, other.workload.compute) == (run.architecture, run.workload.compute)
        and other.source != run.source
    ]
    memory = memory_need(found)
    return HeldOutRun(
        run=run,
        held_out=held_out,
        low=rate.low,
        predicted=rate.middle,
        high=rate.high,
        half=whole * RULE_SHARE,
        by_architecture=whole * median(alike) if alike else None,
        refused=refused(memory, gpu.memory_bytes),
        memory_gib=memory.total / 2**30,
    )


def _samples_per_s_at_full_rate(run: TrainingRun) -> float:
    """Return the samples per second of one GPU that computes at the data sheet's rate for the job's element type."""
    return _full_rate(run) / flops_per_sample(run.workload.model, run.workload.lora)[0]


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
    )
