"""Evaluate the whole run on one machine: its time and cost, its limits, and the largest uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.predict.candidate import Candidate, Unknown
from bench.predict.draws import DrawnRange, Draws, range_of, ranges_of

_GROUPS = 40
LIKELY = 0.05  # a machine that meets the limits in a smaller share of draws is ranked after the others


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The length of the whole run in samples (None if unknown), its maximum cost and its maximum time.

    `tokens`: the length in tokens, if the user gave the length in tokens. Reports then count tokens instead of samples.
    """

    samples: float | None = None
    budget_usd: float | None = None
    deadline_s: float | None = None
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The unknown quantity that contributes most to the width of an interval of one machine.

    `share`: the share of this quantity in the variance of the figure's logarithm.
    `factor`: the high end of the interval divided by its low end.
    `factor_after`: the approximate factor after a measurement of this quantity. `unknown` is empty if the figure is
        exact.
    """

    unknown: str
    share: float
    factor: float
    factor_after: float
    description: str
    command: str


@dataclass(frozen=True, slots=True)
class WholeRun:
    """The whole run on one machine.

    `within`: the share of the random draws in which the run meets its limits; None without limits.
    """

    seconds: DrawnRange | None
    usd: DrawnRange | None
    within: float | None
    narrowing: Narrowing


def whole_run(each: Candidate, limits: RunLimits, by: str, draws: Draws) -> WholeRun:
    """Evaluate the whole run on one machine."""
    seconds = usd = None
    if limits.samples is not None:
        seconds = range_of(each.sample_s * limits.samples)
        usd = each.usd(limits.samples)
    figure = each.sample_s if by == "time" or each.sample_usd is None else each.sample_usd
    return WholeRun(seconds, usd, _within(each, limits), narrowing(figure, each.unknowns, draws))


def _within(each: Candidate, limits: RunLimits) -> float | None:
    """Return the share of the draws in which the run meets its limits.

    If there is a budget and the cost is unknown, the share is 0.
    """
    import numpy as np

    if limits.samples is None or (limits.budget_usd is None and limits.deadline_s is None):
        return None
    met = np.ones(np.shape(each.sample_s), dtype=bool)
    if limits.deadline_s is not None:
        met &= np.asarray(each.sample_s * limits.samples <= limits.deadline_s)
    if limits.budget_usd is not None:
        if each.sample_usd is None:
            return 0.0
        met &= np.asarray(each.sample_usd * limits.samples <= limits.budget_usd)
    return float(met.mean())


def narrowing(figure: Any, unknowns: Mapping[str, Unknown], draws: Draws) -> Narrowing:
    """Return the unknown quantity that widens the interval of a figure most.

    The draws of this quantity have the largest squared correlation with the logarithm of the figure.

    If this quantity were known, a narrower interval would remain. To compute this interval, the draws are divided into
    groups in which this quantity is nearly constant, and the median over these groups is used.
    """
    import numpy as np

    logs = np.log(np.asarray(figure))
    interval = range_of(figure)
    factor = interval.high / interval.low
    if float(logs.std()) < 1e-9:  # equal draws, apart from rounding
        return Narrowing("", 0.0, 1.0, 1.0, "", "")
    shares = draws.shares(unknowns, logs)
    if not shares:
        return Narrowing("", 0.0, factor, factor, "", "")
    name = max(shares, key=lambda one: shares[one])
    size = len(logs) // _GROUPS  # in each group, the unknown is nearly the same
    rests = ranges_of(logs[np.argsort(draws.used[name])][: size * _GROUPS].reshape(_GROUPS, size))
    after = float(np.exp(np.median([rest.high - rest.low for rest in rests])))
    return Narrowing(name, shares[name], factor, after, unknowns[name].description, unknowns[name].command)
