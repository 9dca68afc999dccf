"""Does a run's report keep the twelve rules of scientific benchmarking? Each rule is checked on the run itself.

The rules: T. Hoefler and R. Belli, "Scientific Benchmarking of Parallel Computing Systems", SC15. Figures are computed
again from the raw samples, what must be recorded is looked for, and each offence names its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.record import Header, Record
from bench.gate import lint_numbers, lint_records
from bench.gate.lint_input import LintInput, RuleOffence, material
from bench.results.document import Document

PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"


@dataclass(frozen=True, slots=True)
class LintRule:
    """One rule: what it asks, what was looked at when it holds, and the check, which tells every offence."""

    number: int
    title: str
    held: str
    check: Callable[[LintInput], Iterator[RuleOffence]]
    about: str = "run"  # what must be there for the rule to mean anything: a run, rows, or timed rows
    unjudged: str = ""  # why it can not be judged of rows that another tool's log gave; '' where it can


RULES = (
    LintRule(
        1,
        "every ratio stands beside its two values",
        "fractions of bounds, rotations and ratios to other tools follow from the values beside them",
        lint_numbers.ratios_have_bases,
        "rows",
    ),
    LintRule(
        2,
        "nothing is left out",
        "every asked size, mode and group is there or says why not; CPUs and GPUs used and available are told",
        lint_records.nothing_is_left_out,
        unjudged="what was asked of the tool is not in its log (what was lost of it is: see the remarks)",
    ),
    LintRule(
        3,
        "times are medians, rates all bytes by all time",
        "medians and rates computed again from the raw samples are those shown",
        lint_numbers.rates_are_bytes_by_time,
        "rows",
        unjudged="a mean is all that was printed, in few digits (where its rates disagree a remark says so)",
    ),
    LintRule(
        4,
        "ratios are not averaged",
        "no rate, fraction or speedup is averaged outside compat",
        lint_numbers.ratios_are_not_averaged,
        "rows",
    ),
    LintRule(
        5,
        "every measured figure has its interval",
        "each has interval, level, method, n and n_eff, or says why not; what is modelled is marked",
        lint_numbers.figures_have_intervals,
        "rows",
        unjudged="a mean without its samples has no interval",
    ),
    LintRule(
        6,
        "no normal distribution is assumed",
        "intervals are order statistics; no standard deviation stands for one",
        lint_numbers.no_normal_distribution,
        "timed rows",
        unjudged="there are no samples",
    ),
    LintRule(
        7,
        "a verdict has launches, test and interval",
        "none is given here: faster and slower are for bench compare, from 5 launches a side",
        lint_numbers.verdicts_are_earned,
        "rows",
    ),
    LintRule(
        8,
        "tails are shown where n knows them",
        "percentiles only from their least n on, the worst case beside every isolated time",
        lint_numbers.tails_are_known,
        "timed rows",
        unjudged="there are no samples",
    ),
    LintRule(
        9,
        "the environment is recorded",
        "hardware, versions, variables, CPU masks, hosts, scenario, commit, seed, beginning and end are there",
        lint_records.environment_is_told,
        unjudged="a log tells of its environment what it tells: that stands in the header",
    ),
    LintRule(
        10,
        "how time was taken is recorded",
        "mode, clock, synchronisation and skew, reductions, calls per sample, warm-up and cache are there",
        lint_records.timing_is_told,
        "timed rows",
        unjudged="a log does not tell how the tool took its times",
    ),
    LintRule(
        11,
        "each bandwidth stands beside its bound",
        "each names the bound, its link and how it was computed",
        lint_records.bounds_are_told,
        "rows",
    ),
    LintRule(
        12,
        "plots can show what is known",
        "each point has raw samples, says why sampling ended, and is marked where it did not converge",
        lint_numbers.points_can_be_drawn,
        "rows",
        unjudged="there are no samples behind a point",
    ),
)


@dataclass(frozen=True, slots=True)
class LintFinding:
    """What one rule says of a run. `sentences`: each offence once; `rows`: {"job", "mode", "payload_bytes", "group",
    "what"} of every offending row, null where it is the whole job or run."""

    rule: int
    title: str
    status: str
    sentences: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...] = ()


def lint(
    document: Document,
    told: Iterable[tuple[str, Header, Sequence[Record]]],
    plan: Mapping[str, Any] | None = None,
    outcomes: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[LintFinding, ...]:
    """One finding for each of the twelve rules, in their order.

    `told` are the (job, header, records) from which `document` was derived, in the same order; `plan` and `outcomes`
    are those of the run's folder, None for a results file by itself. Not applicable is a rule about rows where there
    are none, or about how time was taken where nothing was timed (a modelled run).
    """
    run = material(document, told, plan, outcomes or {})
    ours = run.without_imported()
    return tuple(_finding(rule, ours if rule.unjudged else run, len(ours.told) < len(run.told)) for rule in RULES)


def _finding(rule: LintRule, run: LintInput, imported: bool) -> LintFinding:
    """What a rule says of `run`, which is without its imported rows where the rule can not be judged of them."""
    unjudged = (f"imported rows are not judged: {rule.unjudged}",) if imported and rule.unjudged else ()
    if unjudged and not run.told:
        return LintFinding(rule.number, rule.title, NOT_APPLICABLE, unjudged)
    faults = tuple(dict.fromkeys(rule.check(run)))
    if faults:
        return LintFinding(
            rule.number,
            rule.title,
            FAILED,
            tuple(dict.fromkeys(fault.what for fault in faults)),
            tuple(map(_plain, faults)),
        )
    there = {"run": bool(run.told), "rows": bool(run.rows), "timed rows": any(run.timed)}
    if not there[rule.about]:
        return LintFinding(
            rule.number, rule.title, NOT_APPLICABLE, (f"there are no {rule.about} to look at", *unjudged)
        )
    return LintFinding(rule.number, rule.title, PASSED, (rule.held, *unjudged))


def _plain(fault: RuleOffence) -> dict[str, Any]:
    return {
        "job": fault.job,
        "mode": fault.mode,
        "payload_bytes": fault.payload_bytes,
        "group": fault.group,
        "what": fault.what,
    }
