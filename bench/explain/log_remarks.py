"""Which remarks of a log reader say what: the one place that reads their words."""

from __future__ import annotations

from bench.logs.foreign import ForeignRun, Remark


def waived_tests(run: ForeignRun) -> list[Remark]:
    """Remarks about tests that the tool did not run."""
    return [remark for remark in run.remarks if "waived" in remark.text]


def unfinished_tests(run: ForeignRun) -> list[Remark]:
    """Remarks about tests that never finished."""
    return [remark for remark in run.remarks if "never finished" in remark.text]


def prints_several_runs(run: ForeignRun) -> bool:
    """Did several processes print into one log at once?"""
    return "several runs print into one log at once" in (run.failure or "")


def text_of(remark: Remark) -> str:
    """A remark's words without the line number that some readers repeat."""
    return remark.text.removeprefix(f"line {remark.line}: ")
