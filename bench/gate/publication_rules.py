"""Define the publication rules: for each rule, its name in rules files, its title, and the statement that it checks."""

from __future__ import annotations

from enum import unique
from typing import Self

from bench.core.codes import Code


@unique
class PublicationRule(Code):
    """The twelve rules of Hoefler and Belli (SC15) have the numbers 1 to 12.

    The suite's own rules have numbers from 13 on.

    `value`: the name of the rule in a rules file.
    `template`: the title of the rule.
    `held`: the sentence about the run that the page prints if the run follows the rule.
    `not_judged`: the reason why the rule cannot judge rows from another tool's log. The text is empty if the rule can
    judge such rows.
    """

    held: str
    not_judged: str

    def __new__(cls, value: str, title: str, held: str, not_judged: str = "") -> Self:
        """Create a member of the enum, with the attributes `template`, `held` and `not_judged`.

        `held`: the sentence about the run that the page prints if the run follows the rule.
        `not_judged`: the reason why the rule cannot judge imported rows.
        """
        member = str.__new__(cls, value)
        member._value_ = value
        member.template, member.held, member.not_judged = title, held, not_judged
        return member

    @property
    def number(self) -> int:
        """The number of the rule. Rules 1 to 12 are those of the paper."""
        return list(type(self)).index(self) + 1

    RATIOS = (
        "ratios",
        "every ratio comes with its numerator and denominator",
        "no ratio is given without its numerator and denominator",
    )
    COMPLETENESS = (
        "completeness",
        "nothing is left out",
        "every requested size, mode and group is present or has a reason; the CPUs and GPUs of each host are recorded",
        "the log does not state the tool's options (the run's remarks list lost lines)",
    )
    RATES = (
        "rates",
        "times are medians, rates are the total bytes divided by the total time",
        "linkbench computes the rates of other tools from the bytes and times that they print",
        "the log has only a mean with few digits (the run's remarks list rates that contradict the mean)",
    )
    AVERAGES = (
        "averages",
        "ratios are not averaged",
        "linkbench averages no rate, fraction or speedup, except to compare with another tool (`compat`)",
    )
    INTERVALS = (
        "intervals",
        "every measured figure has its interval",
        "each figure has an interval (with level, method, n and n_eff), or a flag that says why it has none",
        "a mean without its samples has no interval",
    )
    NO_NORMALITY = (
        "no-normality",
        "no normal distribution is assumed",
        "the limits of an interval are order statistics of the samples; no standard deviation replaces an interval",
        "there are no samples",
    )
    VERDICTS = (
        "verdicts",
        "each verdict states the number of launches, the test and the interval",
        "a single run gives no verdict; `linkbench compare` gives a verdict from 5 launches of each run",
    )
    TAILS = (
        "tails",
        "percentiles are shown only if n is large enough",
        "percentiles have enough samples; isolated times have their worst case",
        "there are no samples",
    )
    ENVIRONMENT = (
        "environment",
        "the environment is recorded",
        "hardware, versions, variables, CPU masks, hosts, scenario, commit, seed, start and end are recorded",
        "a log records only part of the tool's environment, so the header has only this part",
    )
    TIMING = (
        "timing",
        "how times were taken is recorded",
        "mode, clock, synchronisation and skew, reductions, calls per sample, warm-up and cache are recorded",
        "the log does not say how the tool timed its operations",
    )
    BOUNDS = (
        "bounds",
        "each bandwidth comes with its bound",
        "each bandwidth has a bound with its link and source, or a reason why no bound is known",
    )
    PLOTS = (
        "plots",
        "plots have all the data that they need",
        "each point has raw samples and the reason why sampling stopped",
        "an imported point has no samples",
    )
    CONVERGENCE = (
        "convergence",
        "most figures have converged",
        "the intervals of at least half of the measured figures are as narrow as requested",
        "a mean without its samples has no interval",
    )
    CONSISTENCY = (
        "consistency",
        "no two rows contradict each other",
        "no row is so slow that it contradicts a faster row of the run",
        "rows of other tools are not compared",
    )
    QUIET = (
        "quiet",
        "nothing else used the machine",
        "almost all figures were measured while no other program or virtual machine took CPU time, and no CPU limit "
        "stopped the ranks",
        "the log does not say what else ran",
    )
