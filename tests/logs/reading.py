"""What tests of readers ask of a run: its codes, their lines and facts."""

from __future__ import annotations

from typing import Any

from bench.core.codes import Coded
from bench.logs.foreign import ForeignRun, Remark


def codes(run: ForeignRun) -> list[str]:
    """The codes of all remarks, in their order."""
    return [str(remark.code) for remark in run.remarks]


def located(run: ForeignRun) -> list[tuple[int | None, str]]:
    """(line, code) of all remarks, in their order."""
    return [(remark.line, str(remark.code)) for remark in run.remarks]


def translations(run: ForeignRun) -> list[str]:
    """The codes of all translations."""
    return [str(each.code) for each in run.translations]


def only_remark(run: ForeignRun, code: str) -> Remark:
    """The only remark of a code."""
    (found,) = [remark for remark in run.remarks if remark.code == code]
    return found


def failure(run: ForeignRun) -> Coded:
    """Why the run did not end well."""
    assert run.failure is not None
    return run.failure


def failure_code(run: ForeignRun) -> str | None:
    """Its code; None of a run that ended well."""
    return None if run.failure is None else str(run.failure.code)


def printed(run: ForeignRun) -> Any:
    """The words of other programs in a failure."""
    return failure(run).facts.get("printed", "")
