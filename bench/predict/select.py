"""Rank machines, and compare two machines by the ratio of their costs or times.

A machine may be certainly better than another machine although their intervals overlap, because the same assumption may
widen both intervals. The ratio of the machines' cost or time per sample is therefore computed for each draw. Shared
assumptions cancel in this ratio. If the interval of the ratio contains 1, the verdict is open. An open verdict names
the unknown that changes the ratio most, and the command that would measure this unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.hardware.catalogue import Instance
from bench.predict import cost
from bench.predict.candidate import Candidate, SelectionQuestion, Unknown, candidate
from bench.predict.draws import DrawnRange, Draws, range_of
from bench.predict.memory import OutOfMemoryError
from bench.predict.mesh_search import MeshSearch
from bench.predict.messages import PredictRemark, Refusal
from bench.predict.whole_run import LIKELY, RunLimits, WholeRun, whole_run

BY = ("cost", "time")


@dataclass(frozen=True, slots=True)
class Refused:
    """A machine that cannot run the workload, with the error that says why."""

    instance: str
    num_nodes: int
    error: UsageError

    @property
    def code(self) -> str:
        """The code that programs read: `no-memory` or `not-applicable`."""
        return "no-memory" if isinstance(self.error, OutOfMemoryError) else "not-applicable"


@dataclass(frozen=True, slots=True)
class Doubt:
    """The unknown quantity that changes a ratio most.

    `unknown`: the name of this quantity in the random draws.
    `share`: the share of this quantity in the variance of ln(ratio).

    `unknown` is empty if the values of both machines are equal in every draw.
    """

    unknown: str
    share: float
    description: str
    command: str


class ComparedMachine(Protocol):
    """What a comparison needs to know about a machine.

    A sample may be any unit of work. The time and the cost of a sample have one value for each draw.
    """

    @property
    def name(self) -> str:
        """The name of the machine, as used in sentences."""
        ...

    @property
    def sample_s(self) -> Any:
        """The time of a sample."""
        ...

    @property
    def sample_usd(self) -> Any:
        """The cost of a sample, or None if the price is unknown."""
        ...

    @property
    def unknowns(self) -> Mapping[str, Unknown]:
        """The assumptions on which the figures of this machine depend. The keys name the draws of these assumptions."""
        ...


@dataclass(frozen=True, slots=True)
class PairDecision:
    """A comparison of two machines.

    `ratio`: the cost or time of a sample on `first`, divided by the cost or time of a sample on `other`.

    `doubt` is set if the interval of the ratio contains 1.
    """

    by: str
    first: ComparedMachine
    other: ComparedMachine
    ratio: DrawnRange
    doubt: Doubt | None

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 1, so one machine is better for nearly all values of the unknown quantities."""
        return self.doubt is None


@dataclass(frozen=True, slots=True)
class MachineRemark:
    """A remark with the instance types that it applies to."""

    instances: tuple[str, ...]
    remark: Coded

    @property
    def text(self) -> str:
        """The instance types and the remark, as text."""
        return f"{', '.join(self.instances)}: {self.remark.text}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The answer of a selection, with the best machine first.

    If machines are ranked by cost, machines without a price come last.

    `price_changes`: remarks on pairs of machines. At an earlier price, such a pair has a different order or verdict.
    `limits`: the length of the whole run, and its limits.
    `runs`: the whole run on each of `candidates`.
    `without_runs`: for each machine, the range of the step time without the user's measurements. Without measurements,
        it is empty.
    """

    question: SelectionQuestion
    by: str
    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...]
    verdicts: tuple[PairDecision, ...]
    remarks: tuple[MachineRemark, ...]
    price_changes: tuple[Coded, ...]
    limits: RunLimits
    runs: tuple[WholeRun, ...]
    without_runs: Mapping[str, DrawnRange] = field(default_factory=dict)


def select(
    machines: Sequence[tuple[Instance, int]],
    question: SelectionQuestion,
    by: str = "cost",
    limits: RunLimits | None = None,
) -> Selection:
    """Rank machines. A machine is a pair of an instance type and a number of nodes.

    Machines that certainly exceed a limit come after all other machines. If `limits` is None, the length of the run is
    the workload's epoch.

    Raises UsageError if no machine can run the workload. Raises UsageError if `by` is the cost and no machine has a
    price.
    """
    draws = Draws()
    found: list[Candidate] = []
    refused: list[Refused] = []
    search = MeshSearch(question)
    for instance, num_nodes in machines:
        try:
            asked = question
            if question.search_mesh:
                asked = replace(question, workload=search.best(instance, num_nodes))
            found.append(candidate(instance, num_nodes, asked, draws))
        except UsageError as error:
            refused.append(Refused(instance.name, num_nodes, error))
    if not found:
        raise _none_found(refused)
    if by == "cost" and all(each.sample_usd is None for each in found):
        instances = list(dict.fromkeys(each.instance.name for each in found))
        reasons = list(dict.fromkeys(remark.text for each in found for remark in each.priced.remarks))
        raise UsageError.of(Refusal.NO_COST, instances=instances, reasons=reasons)
    limits = limits or RunLimits(question.workload.epoch_samples)
    runs = {id(each): whole_run(each, limits, by, draws) for each in found}
    ranked = sorted(found, key=lambda each: (_exceeds(runs[id(each)]), *_key(each, by)))
    verdicts = []
    for other in ranked[1:]:
        for metric in metrics(by, ranked[0], other):
            verdicts.append(verdict(metric, ranked[0], other, draws))
    return Selection(
        question=question,
        by=by,
        candidates=tuple(ranked),
        refused=tuple(refused),
        verdicts=tuple(verdicts),
        remarks=tuple(_merged_remarks(ranked)),
        price_changes=tuple(_price_changes(ranked)),
        limits=limits,
        runs=tuple(runs[id(each)] for each in ranked),
    )


def narrowed(selection: Selection, before: Selection) -> Selection:
    """Add the step times of `before` to a selection.

    `before`: the answer to the same question without the user's runs.
    """
    return replace(selection, without_runs={each.name: each.range("total_s") for each in before.candidates})


def _exceeds(run: WholeRun) -> bool:
    return run.within is not None and run.within < LIKELY


def _none_found(refused: Sequence[Refused]) -> UsageError:
    """Return the error if no machine can run the workload.

    If only one machine was considered, the error has the code of this machine's error.
    """
    reasons = [f"{each.num_nodes} x {each.instance}: {each.error}" for each in refused]
    error = UsageError.of(Refusal.NO_MACHINE, reasons="; ".join(reasons))
    if len(refused) == 1:
        error.code, error.facts = refused[0].error.code, refused[0].error.facts
    return error


def _key(each: Candidate, by: str) -> tuple[bool, float]:
    if by == "time":
        return False, range_of(each.sample_s).middle
    usd = each.usd(1)
    return usd is None, usd.middle if usd else range_of(each.sample_s).middle


def metrics(by: str, first: ComparedMachine, other: ComparedMachine) -> tuple[str, ...]:
    """Return the metrics (cost, time) by which two machines are compared.

    The requested metric comes first. Cost is included only if both machines have a price.
    """
    priced = first.sample_usd is not None and other.sample_usd is not None
    if not priced:
        return ("time",)
    return tuple(sorted(BY, key=lambda metric: metric != by))


def verdict(by: str, first: ComparedMachine, other: ComparedMachine, draws: Draws) -> PairDecision:
    """Compare two machines draw by draw."""
    ratio = first.sample_usd / other.sample_usd if by == "cost" else first.sample_s / other.sample_s
    interval = range_of(ratio)
    is_open = interval.low <= 1 <= interval.high
    return PairDecision(by, first, other, interval, _doubt(ratio, first, other, draws) if is_open else None)


def _doubt(ratio: Any, first: ComparedMachine, other: ComparedMachine, draws: Draws) -> Doubt:
    """Return the unknown quantity whose draws have the largest squared correlation with ln(ratio)."""
    import numpy as np

    unknowns = {**first.unknowns, **other.unknowns}
    logs = np.log(np.asarray(ratio))
    if float(logs.std()) == 0.0:
        return Doubt("", 0.0, "none: both are equal", "")
    shares = draws.shares(unknowns, logs)
    largest = max(shares, key=lambda name: shares[name])
    return Doubt(largest, shares[largest], unknowns[largest].description, unknowns[largest].command)


def _merged_remarks(ranked: Sequence[Candidate]) -> list[MachineRemark]:
    """Return each remark once, with all instance types that it applies to."""
    merged: list[MachineRemark] = []
    for each in ranked:
        for remark in each.remarks:
            names = (each.instance.name,)
            for index, known in enumerate(merged):
                if (known.remark.code, known.remark.facts) == (remark.code, remark.facts):
                    merged[index] = replace(known, instances=tuple(dict.fromkeys(known.instances + names)))
                    break
            else:
                merged.append(MachineRemark(names, remark))
    return merged


def _price_changes(ranked: Sequence[Candidate]) -> list[Coded]:
    """Compare the best machine with all other machines at earlier prices.

    Return a remark on each pair if an earlier price changes the order of the two prices, or the verdict on cost.
    """
    changes = []
    best = ranked[0]
    # the best candidate of each instance type
    ranked = list({each.instance.name: each for each in reversed(ranked)}.values())[::-1]
    for first, other in [pair for each in ranked[1:] for pair in ((best, each), (each, best))]:
        price, theirs = first.priced.price, other.usd_per_hour
        before = cost.earlier(first.instance, price) if price else None
        if before is None or price is None or theirs is None:
            continue
        nodes = first.layout.num_nodes
        then, now = before.usd_per_hour * nodes, price.usd_per_hour * nodes
        ratio = range_of(first.sample_usd / other.sample_usd)
        old = DrawnRange(*(each * then / now for each in (ratio.low, ratio.middle, ratio.high)))
        hourly_order_changed = (then > theirs) != (now > theirs)
        if hourly_order_changed or _result(old) != _result(ratio):
            change = Coded.of(
                PredictRemark.PRICE_CHANGE,
                first=first.name,
                other=other.name,
                then=then,
                then_date=before.date,
                now=now,
                now_date=price.date,
                others=theirs,
                hourly_order_changed=hourly_order_changed,
                ratio_now=ratio.text(),
                ratio_then=old.text(),
                result_now=_result(ratio),
                result_then=_result(old),
            )
            changes.append(change)
    return changes


def _result(ratio: DrawnRange) -> str:
    if ratio.high < 1:
        return "cheaper"
    return "dearer" if ratio.low > 1 else "undecided"
