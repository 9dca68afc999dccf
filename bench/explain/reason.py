"""Define reasons, which explain a result. Each reason is a function with `@reason` in a file of `reasons/`.

The function checks whether the reason applies to the evidence about one run. If the reason applies, the function
returns a weight, facts and a command; otherwise it returns None. The decorator contains the reason's code and texts.
The reasons are not listed anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, Generic, TypeVar

from bench.core import plugins
from bench.core.codes import fill_present
from bench.core.errors import UsageError
from bench.explain.copy_evidence import CopyEvidence
from bench.explain.evidence import RunEvidence
from bench.logs.foreign import ForeignRun

E = TypeVar("E")
_LIKELY = 0.7  # if a reason with at least this weight applies, no fallback reason is shown


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that may have failed. Reasons for failures check this evidence.

    `num_wrong_rows`: the number of rows with wrong elements.
    """

    run: ForeignRun
    num_wrong_rows: int = 0
    num_rows: int = 0


@dataclass(frozen=True, slots=True)
class Reason:
    """One likely reason: its code, its facts, and its texts about the reason, the evidence and the next step."""

    code: str
    facts: Mapping[str, Any]
    what: str
    evidence: str
    weight: float
    step: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a reason's function returns if the reason applies.

    `weight`: a number from 0 to 1; reasons are sorted by weight. The weight is near 1 if the log itself states the
    reason. The weight is 0.6 if the figures fit and nothing contradicts the reason. The weight is lower if several
    reasons are possible.
    `command`: what the user may run next.
    """

    weight: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True)
class ReasonRule(Generic[E]):
    """A reason that this suite knows.

    To evaluate the rule, call it with evidence. The result is a Reason, or None if the reason does not apply.
    """

    code: str
    looks_at: type[E]
    condition: Callable[[E], Found | None]
    what: str
    evidence: str
    step: str
    host_memory: bool
    always: bool
    fallback: bool = False

    def __call__(self, evidence: E) -> Reason | None:
        """Return the reason if its condition is true, else None."""
        found = self.condition(evidence)
        if found is None:
            return None
        facts = {name: value for name, value in found.facts.items() if value is not None}
        what, text, step = (fill_present(words, facts, self.code) for words in (self.what, self.evidence, self.step))
        return Reason(self.code, facts, what, text, found.weight, step, found.command)


def reason(
    looks_at: type[E],
    code: str,
    what: str,
    evidence: str,
    step: str = "",
    host_memory: bool = False,
    always: bool = False,
    fallback: bool = False,
) -> Callable[[Callable[[E], Found | None]], ReasonRule[E]]:
    """Return a decorator for a function that checks whether a reason applies.

    `looks_at`: the type of the evidence, which is RunEvidence (rows), CopyEvidence (matrices) or FailedRun.
    `what`, `evidence`, `step`: templates that the facts fill (core/codes.py: fill_present).
    `host_memory`: whether the reason also applies to libraries that send from host memory.
    `always`: whether the reason is shown with any verdict.
    `fallback`: whether the reason only names what to do next. Such a reason is shown only if no other reason is likely.
        For a FailedRun, it is shown only if no other reason applies.
    """

    def rule(condition: Callable[[E], Found | None]) -> ReasonRule[E]:
        return ReasonRule(code, looks_at, condition, what, evidence, step, host_memory, always, fallback)

    return rule


@cache
def rules() -> tuple[ReasonRule[Any], ...]:
    """Return every reason of every file in `reasons/`, sorted by file and, inside a file, by line.

    Raises UsageError if a file or one of its functions would have no effect, or if two reasons have the same code.
    """
    found: dict[str, ReasonRule[Any]] = {}
    for topic in plugins.names("reason"):
        module = plugins.load("reason", topic)
        own = [value for value in vars(module).values() if isinstance(value, ReasonRule)]
        if (mistake := _mistake(module, own, found)) is not None:
            raise UsageError(f"{module.__name__.replace('.', '/')}.py {mistake} (docs/extending.md)")
        found |= {rule.code: rule for rule in own}
    return tuple(found.values())


def _mistake(module: ModuleType, own: Sequence[ReasonRule[Any]], others: Mapping[str, ReasonRule[Any]]) -> str | None:
    """Return what is wrong with a file of reasons, or None.

    The text begins with a verb and completes a sentence about the file.
    """
    if not own:
        return "must define a function with @reason"
    for name, value in vars(module).items():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not name.startswith("_"):
            return f"must have @reason above {name}(); if the function is no reason, begin its name with `_`"
    seen = dict(others)
    for rule in own:
        if seen.setdefault(rule.code, rule) is not rule:
            return f"must choose another code than {rule.code!r}, which another reason has"
    return None


def run_reasons(evidence: RunEvidence, only_always: bool = False) -> tuple[Reason, ...]:
    """Return every reason that applies to a run with rows, the likeliest first.

    `only_always`: whether to return only the reasons that are shown whatever the verdict is.
    """
    wanted = []
    for rule in rules():
        explains = rule.host_memory or not evidence.by_message_passing
        if rule.looks_at is RunEvidence and explains and (rule.always or not only_always):
            wanted.append(rule)
    found = _likeliest_first([rule for rule in wanted if not rule.fallback], evidence)
    if found and found[0].weight >= _LIKELY:
        return found
    return found + _likeliest_first([rule for rule in wanted if rule.fallback], evidence)


def copy_reasons(evidence: CopyEvidence) -> tuple[Reason, ...]:
    """Return every reason that applies to copies, the likeliest first."""
    return _likeliest_first([rule for rule in rules() if rule.looks_at is CopyEvidence], evidence)


def failure_reasons(failed: FailedRun) -> tuple[Reason, ...]:
    """Return the likeliest reason for a failure, or an empty tuple if the run did not fail."""
    wanted = [rule for rule in rules() if rule.looks_at is FailedRun]
    found = _likeliest_first([rule for rule in wanted if not rule.fallback], failed)
    return (found or _likeliest_first([rule for rule in wanted if rule.fallback], failed))[:1]


def _likeliest_first(rules_: list[ReasonRule[Any]], evidence: Any) -> tuple[Reason, ...]:
    found = [applies for rule in rules_ if (applies := rule(evidence)) is not None]
    return tuple(sorted(found, key=lambda applies: -applies.weight))
