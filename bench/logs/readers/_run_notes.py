"""Collect the remarks, failures and lost parts of a run while it is read.

The number of remarks, failures and lost parts is limited, because every line may be damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from bench.core.codes import Code, Coded
from bench.logs.foreign import FAILED, OK, TRUNCATED, Remark
from bench.logs.messages import LogCode

_MOST_LETTERS = 300
_LAST = 1 << 62  # a line number that sorts remarks without a line to the end


class RunNotes:
    """The remarks, failures and lost parts of a run, without the run's results."""

    most_remarks: ClassVar[int] = 1000
    most_reasons: ClassVar[int] = 10

    def __init__(self) -> None:
        self.remarks: list[Remark] = []
        self.failures: list[Coded] = []
        self.cuts: list[Coded] = []
        self._num_dropped = 0

    def remark(self, line: int | None, code: Code, **facts: Any) -> None:
        """Add a remark for people who read the results."""
        if len(self.remarks) < self.most_remarks:
            self.remarks.append(Remark.of(line, code, **facts))
        else:
            self._num_dropped += 1

    def fail(self, line: int | None, code: Code, **facts: Any) -> None:
        """Add a failure of the run, both to the remarks and to the reasons for the run's status."""
        self.remark(line, code, **facts)
        self.add_failure(line, code, **facts)

    def lose(self, line: int | None, code: Code, **facts: Any) -> None:
        """Record that a part of the log is lost, as a remark and as a reason for the run's status."""
        self.remark(line, code, **facts)
        self.add_cut(line, code, **facts)

    def add_failure(self, line: int | None, code: Code, **facts: Any) -> None:
        """Add a failure of the run to the reasons for the run's status, but not to the remarks."""
        if len(self.failures) < self.most_reasons:
            self.failures.append(_reason(line, code, facts))

    def add_cut(self, line: int | None, code: Code, **facts: Any) -> None:
        """Record a lost part of the log as a reason for the run's status, but not as a remark."""
        if len(self.cuts) < self.most_reasons:
            self.cuts.append(_reason(line, code, facts))

    def status(self) -> str:
        """Return how the run ended: ok, failed or truncated."""
        if self.failures:
            return FAILED
        return TRUNCATED if self.cuts else OK

    def failure(self) -> Coded | None:
        """Return one text with the reasons why the status is not ok, or None if the status is ok."""
        return _joined(self.failures or self.cuts)

    def all_remarks(self) -> tuple[Remark, ...]:
        """Return the remarks in the order of their lines. If remarks were omitted, the last remark says how many."""
        ordered = sorted(self.remarks, key=lambda remark: remark.line or _LAST)
        if self._num_dropped:
            ordered.append(Remark.of(None, LogCode.MORE_REMARKS, num=self._num_dropped))
        return tuple(ordered)


def shown(text: str, most: int = _MOST_LETTERS) -> str:
    """Shorten a printed line so that it can be stored as a fact. `most`: the number of characters."""
    return text.strip()[:most]


def _reason(line: int | None, code: Code, facts: dict[str, Any]) -> Coded:
    text = code.words(facts)
    if line is None:
        return Coded(code, facts, text)
    return Coded(code, {**facts, "line": line}, f"{text} (line {line})")


def _joined(reasons: Sequence[Coded]) -> Coded | None:
    """Join reasons: return the code and facts of the first reason, and the texts of all reasons."""
    if not reasons:
        return None
    first = reasons[0]
    printed = [str(reason.facts["printed"]) for reason in reasons if "printed" in reason.facts]
    facts = dict(first.facts)
    if printed:
        facts["printed"] = "; ".join(dict.fromkeys(printed))
    return Coded(first.code, facts, "; ".join(dict.fromkeys(reason.text for reason in reasons)))
