"""Build the page that says whether a run's result is normal.

The page has the result, what is possible, what others measured, the verdict, and reasons. Every line follows from the
run's own rows and log, from bounds on its links, or from a published result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.core.codes import Coded
from bench.core.links import Bound
from bench.core.log_traits import log_traits
from bench.core.pattern import Pattern
from bench.explain import copy_sections, figures_page, sections
from bench.explain.assessment import Assessment, assess, tightest
from bench.explain.copy_assessment import assess_copies
from bench.explain.copy_evidence import CopyEvidence, copy_evidence
from bench.explain.crash import Crash
from bench.explain.decides import deciding_option
from bench.explain.evidence import RunEvidence, busbw
from bench.explain.gather import gathered
from bench.explain.log_hints import Hint
from bench.explain.messages import ResultVerdict
from bench.explain.notes import copy_notes, run_notes
from bench.explain.reason import FailedRun, Reason, copy_reasons, failure_reasons, run_reasons
from bench.hardware.machine import LogMachine
from bench.logs.foreign import ForeignRow, ForeignRun

_ENOUGH_OF_BOUND = 0.5  # a normal result below this share of its bound is still shown with its reasons


@dataclass(frozen=True, slots=True)
class Page:
    """The contents of a page, in the order in which they are printed.

    Rates are in bytes per second.
    `share`: best rate / `bound`.
    """

    title: str
    line: int  # the line of the log at which the run begins
    got: tuple[Coded, ...]
    possible: tuple[Coded, ...]
    others: tuple[Coded, ...]
    assessment: Assessment
    reasons: tuple[Reason, ...]
    notes: tuple[Coded, ...]
    machine: str
    num_ranks: int | None = None
    num_nodes: int | None = None
    best: ForeignRow | None = None
    bound: Bound | None = None
    share: float | None = None
    source: str = ""  # the file that the run was read from
    crash: Crash | None = None  # what failed, if the run failed and its log shows the cause
    decides: Coded | None = None  # the option that would decide the verdict


def page(
    run: ForeignRun,
    machine: LogMachine,
    pattern: Pattern | None,
    hints: Sequence[Hint] = (),
    num_nodes: int | None = None,
) -> Page:
    """Return the page about one run of another tool.

    `pattern`: the pattern that the run names; None if it names no pattern.
    """
    if figures_page.has_no_bound(run, machine):
        return _figures_page(run, machine)
    if (run.matrices or log_traits(run.tool).copies) and not run.rows:
        return _copy_page(copy_evidence(run, machine, hints))
    return run_page(gathered(run, machine, pattern, hints, num_nodes))


def run_page(evidence: RunEvidence) -> Page:
    """Return the page about a run with rows."""
    assessment, bound, best = assess(evidence), tightest(evidence), evidence.best
    measured = not evidence.num_wrong and not evidence.modelled
    share = None
    if best is not None and bound is not None and measured:
        share = busbw(best) / bound.bytes_per_s
    notes: tuple[Coded, ...] = ()
    if measured and not evidence.misfit:
        notes = run_notes(evidence)
    return Page(
        title=sections.title(evidence),
        line=evidence.run.line,
        got=tuple(sections.got(evidence)),
        possible=tuple(sections.possible(evidence)),
        others=tuple(sections.others(evidence)),
        assessment=assessment,
        reasons=_reasons(evidence, assessment, share),
        notes=notes,
        machine=evidence.machine.how,
        num_ranks=evidence.num_ranks,
        num_nodes=evidence.num_nodes,
        best=None if evidence.num_wrong else best,
        bound=bound,
        share=share,
        decides=deciding_option(assessment, evidence.machine),
    )


def _reasons(evidence: RunEvidence, assessment: Assessment, share: float | None) -> tuple[Reason, ...]:
    """Return the reasons why the run failed.

    If the verdict needs an explanation, also return the reasons why the run is slow.
    """
    num_rows = len(evidence.rows) + len(evidence.doubtful)
    failures = failure_reasons(FailedRun(evidence.run, evidence.num_wrong, num_rows))
    if evidence.num_wrong or evidence.modelled:
        return failures
    good = assessment.verdict == ResultVerdict.NORMAL_IF
    good |= assessment.verdict == ResultVerdict.NORMAL and (share is None or share >= _ENOUGH_OF_BOUND)
    unfit = bool(evidence.other_gpus) or evidence.misfit is not None
    return failures + run_reasons(evidence, only_always=good or unfit)


def _figures_page(run: ForeignRun, machine: LogMachine) -> Page:
    """Return the page about figures without a bound. The title of the page contains the whole answer."""
    return Page(
        title=figures_page.title(run),
        line=run.line,
        got=tuple(figures_page.got(run)),
        possible=tuple(figures_page.possible(run)),
        others=tuple(figures_page.others()),
        assessment=figures_page.assess_figures(run),
        reasons=(),  # the known reasons for failures are about NCCL and its launchers
        notes=(),
        machine=machine.how,
        num_ranks=run.num_ranks,
        num_nodes=run.num_nodes,
        best=figures_page.best_row(run),
    )


def _copy_page(evidence: CopyEvidence) -> Page:
    assessment = assess_copies(evidence)
    return Page(
        title=copy_sections.title(evidence),
        line=evidence.run.line,
        got=tuple(copy_sections.got(evidence)),
        possible=tuple(copy_sections.possible(evidence)),
        others=tuple(copy_sections.others(evidence)),
        assessment=assessment,
        reasons=failure_reasons(FailedRun(evidence.run)) + copy_reasons(evidence),
        notes=copy_notes(evidence),
        machine=evidence.machine.how,
        decides=deciding_option(assessment, evidence.machine),
    )
