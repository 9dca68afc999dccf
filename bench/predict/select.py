"""Which machine: candidates ranked, and decided by the interval of the ratio of two of them.

Two intervals that overlap say nothing of which machine is better: both may hang on the same assumption. Per sample, the
ratio of two machines is taken draw by draw, so that what they share cancels. Where its interval holds 1 nothing is
decided, and the unknown that moves the ratio most is named with the command that would measure it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.errors import UsageError
from bench.hardware.catalogue import Instance
from bench.predict import cost
from bench.predict.candidate import Candidate, SelectionQuestion, candidate
from bench.predict.draws import DrawnRange, Draws, range_of
from bench.predict.memory import DoesNotFitError

BY = ("cost", "time")


@dataclass(frozen=True, slots=True)
class Refused:
    """A machine that cannot run the workload, and why. `too_large`: set if it lacks memory."""

    instance: str
    num_nodes: int
    reason: str
    too_large: DoesNotFitError | None = None

    @property
    def code(self) -> str:
        """`no-memory` or `not-applicable`, for programs."""
        return "not-applicable" if self.too_large is None else "no-memory"


@dataclass(frozen=True, slots=True)
class Doubt:
    """What moves a ratio most: its share of the ratio's variance, what it is, the command that would measure it."""

    what: str
    share: float
    command: str


@dataclass(frozen=True, slots=True)
class PairDecision:
    """The first machine against another: `ratio` = what a sample takes (`by` time) or costs on the first / the other.

    `decided`: 1 is outside the interval. `doubt` where it is inside.
    """

    by: str
    first: Candidate
    other: Candidate
    ratio: DrawnRange
    doubt: Doubt | None

    @property
    def decided(self) -> bool:
        """Is one of them better whatever the unknowns are?"""
        return self.doubt is None


@dataclass(frozen=True, slots=True)
class Selection:
    """The answer: best first; machines without a price come last when the cost decides.

    `remarks`: what a reader must know of machines; `reversals`: where an earlier price says something else.
    """

    question: SelectionQuestion
    by: str
    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...]
    verdicts: tuple[PairDecision, ...]
    remarks: tuple[str, ...]
    reversals: tuple[str, ...]


def select(machines: Sequence[tuple[Instance, int]], question: SelectionQuestion, by: str = "cost") -> Selection:
    """Rank (instance, number of nodes). Raises UsageError when none can do it, or none has a cost to rank by."""
    draws = Draws()
    found: list[Candidate] = []
    refused: list[Refused] = []
    for instance, num_nodes in machines:
        try:
            found.append(candidate(instance, num_nodes, question, draws))
        except UsageError as error:
            too_large = error if isinstance(error, DoesNotFitError) else None
            refused.append(Refused(instance.name, num_nodes, str(error), too_large))
    if not found:
        raise UsageError("; ".join(f"{each.num_nodes} x {each.instance}: {each.reason}" for each in refused))
    if by == "cost" and all(each.sample_usd is None for each in found):
        names = ", ".join(dict.fromkeys(each.instance.name for each in found))
        why = "; ".join(dict.fromkeys(remark for each in found for remark in each.priced.remarks))
        raise UsageError(f"nothing to rank by cost: {names}: {why}; or rank by time (--by time)")
    ranked = sorted(found, key=lambda each: _key(each, by))
    verdicts = [
        verdict(metric, ranked[0], other, draws) for other in ranked[1:] for metric in _judged(by, ranked[0], other)
    ]
    return Selection(
        question=question,
        by=by,
        candidates=tuple(ranked),
        refused=tuple(refused),
        verdicts=tuple(verdicts),
        remarks=tuple(_together(ranked)),
        reversals=tuple(_reversals(ranked)),
    )


def _key(each: Candidate, by: str) -> tuple[bool, float]:
    if by == "time":
        return False, range_of(each.sample_s).middle
    usd = each.usd(1)
    return usd is None, usd.middle if usd else range_of(each.sample_s).middle


def _judged(by: str, first: Candidate, other: Candidate) -> tuple[str, ...]:
    """What two machines are compared in: what was asked for first; the cost where both have a price."""
    priced = first.sample_usd is not None and other.sample_usd is not None
    if not priced:
        return ("time",)
    return tuple(sorted(BY, key=lambda metric: metric != by))


def verdict(by: str, first: Candidate, other: Candidate, draws: Draws) -> PairDecision:
    """Compare two machines draw by draw."""
    ratio = first.sample_usd / other.sample_usd if by == "cost" else first.sample_s / other.sample_s
    interval = range_of(ratio)
    straddles = interval.low <= 1 <= interval.high
    return PairDecision(by, first, other, interval, _doubt(ratio, first, other, draws) if straddles else None)


def _doubt(ratio: Any, first: Candidate, other: Candidate, draws: Draws) -> Doubt:
    """The unknown whose draws the ratio follows most: the largest squared correlation of logarithms."""
    import numpy as np

    wanted = {**first.unknowns, **other.unknowns}
    logs = np.log(np.asarray(ratio))
    if float(logs.std()) == 0.0:
        return Doubt("nothing: both take the same", 0.0, "")
    shares = {name: float(np.corrcoef(draws.used[name], logs)[0, 1]) ** 2 for name in wanted if name in draws.used}
    largest = max(shares, key=lambda name: shares[name])
    what, command = wanted[largest]
    return Doubt(what, shares[largest], command)


def _together(ranked: Sequence[Candidate]) -> list[str]:
    """Each remark once, behind the names of all machines that it is about."""
    about: dict[str, dict[str, None]] = {}
    for each in ranked:
        for remark in each.remarks:
            about.setdefault(remark, {})[each.instance.name] = None
    return [f"{', '.join(names)}: {remark}" for remark, names in about.items()]


def _reversals(ranked: Sequence[Candidate]) -> list[str]:
    """Where the price that a type had before turns the order by the hour, or what is decided of a sample's cost."""
    said = []
    best = ranked[0]
    ranked = list({each.instance.name: each for each in reversed(ranked)}.values())[::-1]  # each type at its best
    for first, other in [pair for each in ranked[1:] for pair in ((best, each), (each, best))]:
        price, theirs = first.priced.price, other.usd_per_hour
        before = cost.earlier(first.instance, price) if price else None
        if before is None or price is None or theirs is None:
            continue
        nodes = first.layout.num_nodes
        then, now = before.usd_per_hour * nodes, price.usd_per_hour * nodes
        ratio = range_of(first.sample_usd / other.sample_usd)
        old = DrawnRange(*(each * then / now for each in (ratio.low, ratio.middle, ratio.high)))
        by_hour = (then > theirs) != (now > theirs)
        if by_hour or _found(old) != _found(ratio):
            turned = " (the old price turns their order by the hour)" if by_hour else ""
            said.append(
                f"{first.name} was {then:.2f} $/h on {before.date} and is {now:.2f} $/h on {price.date}, {other.name} "
                f"is {theirs:.2f}{turned}: a sample costs on {first.name} {ratio} of what it costs on {other.name} now "
                f"({_found(ratio)}), {old} with the old price ({_found(old)})"
            )
    return said


def _found(ratio: DrawnRange) -> str:
    return "cheaper" if ratio.high < 1 else "dearer" if ratio.low > 1 else "undecided"
