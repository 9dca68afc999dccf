"""Write the lines of a page about figures without a known bound.

The page says what each figure measures, and why no bound is known.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.core.codes import Coded
from bench.core.log_traits import log_traits
from bench.core.units import format_bytes, format_duration, format_rate
from bench.explain.assessment import Assessment, not_judged
from bench.explain.messages import AssessmentCode, BoundCode, MissingCode, OthersCode, ResultCode, ResultVerdict
from bench.explain.sections import status_lines, tool_name
from bench.hardware.machine import LogMachine
from bench.logs.foreign import FAILED, OK, ForeignRow, ForeignRun, NamedFigure

_MOST_FIGURES = 12
_MOST_ROWS = 3


def has_no_bound(run: ForeignRun, machine: LogMachine) -> bool:
    """Return True if no bound on the run's figures is known.

    Rows of a known pattern have a bound if the user named the machine. Rows that were recorded from a running job never
    have a bound.
    """
    if run.matrices:
        return False
    if log_traits(run.tool).of_running_job:
        return True
    if run.rows and run.pattern is not None and machine.instance:
        return False
    return bool(run.figures and not run.rows) or log_traits(run.tool).without_bound is not None


def title(run: ForeignRun) -> str:
    """Return the title: `iperf3: all streams, received: 466 MB/s; no bound is known, because ...`."""
    if any(figure.status == FAILED for figure in run.figures):
        return f"{tool_name(run)}: {assess_figures(run).why.text.rstrip('.')}"
    missing = why(run)
    measured = measured_words(run)
    tool = f"{tool_name(run)}, {measured}" if measured else tool_name(run)
    return f"{tool}: {first(run)}; no bound is known, because {missing.text}"


def measured_words(run: ForeignRun) -> str:
    """Describe what was measured: `AllReduce, 8 ranks on 1 node`. Return "" if the log does not state the operation."""
    words = dict(run.settings).get("operation") or run.pattern or ""
    if words and run.num_ranks:
        words += f", {run.num_ranks} rank{'' if run.num_ranks == 1 else 's'}"
        if run.num_nodes:
            words += f" on {run.num_nodes} node{'' if run.num_nodes == 1 else 's'}"
    return words


def first(run: ForeignRun) -> str:
    """Return the figure for the title.

    If the run has rows, return the figure of the best row. If the run has no rows, return the verdicts or the first
    figure.
    """
    best = best_row(run)
    if best is not None:
        return _of_row(best)
    verdicts = [figure for figure in run.figures if not figure.unit]
    if verdicts:
        passed = sum(figure.status == OK for figure in verdicts)
        return f"{passed} of {len(verdicts)} results passed"
    return run.figures[0].words if run.figures else "no figure"


def best_row(run: ForeignRun) -> ForeignRow | None:
    """Return the row with the highest bandwidth or, without bandwidths, the first row with a time.

    Return None if no row has a bandwidth or a time.
    """
    rated = [row for row in run.rows if row.busbw_bytes_per_s]
    if rated:
        return max(rated, key=lambda row: row.busbw_bytes_per_s or 0.0)
    return next((row for row in run.rows if row.time_s), None)


def why(run: ForeignRun) -> Coded:
    """Return why no bound is known, as the tool's reader declares it."""
    return log_traits(run.tool).without_bound or Coded.of(MissingCode.FIGURES_ONLY)


def got(run: ForeignRun) -> Iterator[Coded]:
    """Yield how the run ended, its rows and figures, what was measured, and what the terms of the tool mean."""
    yield from status_lines(run)
    for row in _rows_to_show(run):
        yield Coded.of(ResultCode.FIGURE, figure=_of_row(row))
    failed = [figure for figure in run.figures if figure.status == FAILED]
    others = [figure for figure in run.figures if figure.status != FAILED]
    shown = (failed + others)[:_MOST_FIGURES]
    for figure in shown:
        yield Coded.of(ResultCode.FIGURE, figure=figure.words, unit=figure.unit, value=figure.value)
    more = len(run.figures) - len(shown)
    if more:
        yield Coded.of(ResultCode.MORE_FIGURES, num_more=more)
    if measured := measured_words(run):
        yield Coded.of(ResultCode.MEASURED, measured=measured)
    for translation in run.translations:
        yield Coded.of(ResultCode.MEANING, meaning=translation.text, meaning_code=translation.code)


def possible(run: ForeignRun) -> Iterator[Coded]:
    """Yield one line that says why no bound is known."""
    missing = why(run)
    yield Coded.of(BoundCode.NO_BOUND, why=missing.text, why_code=missing.code)


def others() -> Iterator[Coded]:
    """Yield one line that says that linkbench has no collection of published results of this tool."""
    yield Coded.of(OthersCode.NOT_COLLECTED)


def assess_figures(run: ForeignRun) -> Assessment:
    """Return the verdict "failed" if the tool's own tests failed; otherwise do not judge the run."""
    failed = [_named(figure) for figure in run.figures if figure.status == FAILED]
    if failed:
        reason = Coded.of(AssessmentCode.TOOL_TESTS_FAILED, num_tests=len(failed), tests=failed)
        return Assessment(ResultVerdict.FAILED, reason)
    missing = why(run)
    return not_judged(
        AssessmentCode.TOOL_WITHOUT_BOUND, figure=first(run), missing=missing.text, missing_code=missing.code
    )


def _named(figure: NamedFigure) -> str:
    return f"{figure.name} ({figure.where})" if figure.where else figure.name


def _rows_to_show(run: ForeignRun) -> list[ForeignRow]:
    """Return the best row, the first row and the last row, each once."""
    best = best_row(run)
    chosen = [row for row in (best, run.rows[0], run.rows[-1]) if row is not None] if run.rows else []
    distinct: list[ForeignRow] = []
    for row in chosen:
        if row not in distinct:
            distinct.append(row)
    return distinct[:_MOST_ROWS]


def _of_row(row: ForeignRow) -> str:
    """Describe the figures of a row: `23.6 GB/s in 2.85 ms at 64 MiB`."""
    words = []
    if row.busbw_bytes_per_s:
        words.append(format_rate(row.busbw_bytes_per_s))
    if row.time_s:
        words.append(format_duration(row.time_s))
    found = " in ".join(words) or "no figure"
    return found if row.payload_bytes is None else f"{found} at {format_bytes(row.payload_bytes)}"
