"""Write the page at the end of a first contact, as text and as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.core import printable
from bench.core.wrapping import PIPED_WIDTH, wrapped
from bench.first_contact import process
from bench.first_contact.judge import Judged
from bench.first_contact.messages import ContactVerdict, StepState
from bench.first_contact.plan_file import ContactStep
from bench.first_contact.state import StepRecord

SCHEMA = "bench.first-contact/1"
TEXT, DOCUMENT = "page.txt", "page.json"
_FAILED = (StepState.FAILED, StepState.CRASHED, StepState.TIMED_OUT, StepState.STUCK)
_STDERR_LINES = 12
_STEP_INDENT = " " * 35  # blanks below the name and the time of a step


@dataclass(frozen=True, slots=True)
class ContactPage:
    """The results after a call. `left`: the steps that did not run, and the reason for each."""

    variant: str
    folder: Path
    presence: Mapping[str, Any]
    steps: Sequence[ContactStep]
    records: Mapping[str, StepRecord]
    judged: Sequence[Judged]
    calls: Sequence[Mapping[str, Any]]

    @property
    def failed(self) -> list[StepRecord]:
        """The steps that failed, in the order of the plan."""
        return [record for record in self._ordered() if record.state in _FAILED]

    @property
    def missed(self) -> list[Judged]:
        """The figures that are outside their expected range."""
        return [each for each in self.judged if each.verdict == ContactVerdict.MISSED]

    @property
    def is_complete(self) -> bool:
        """Whether each step has run, except steps that cannot run on this machine."""
        done = {name for name, record in self.records.items() if record.is_final or record.skip != "no-time"}
        return all(step.name in done for step in self.steps)

    def _ordered(self) -> list[StepRecord]:
        return [self.records[step.name] for step in self.steps if step.name in self.records]

    def document(self) -> dict[str, Any]:
        """Return the page as plain data."""
        return {
            "schema": SCHEMA,
            "variant": self.variant,
            "complete": self.is_complete,
            "gpu": self.presence.get("gpu", ""),
            "num_gpus": self.presence.get("num_gpus"),
            "ways": self.presence.get("ways", {}),
            "versions": self.presence.get("versions", {}),
            "environment": self.presence.get("environment", {}),
            "node": self.presence.get("node", {}),
            "calls": list(self.calls),
            "steps": [asdict(record) | {"stderr": self._stderr(record)} for record in self._ordered()],
            "not_reached": [step.name for step in self.steps if step.name not in self.records],
            "figures": [asdict(each) for each in self.judged],
        }

    def _stderr(self, record: StepRecord) -> list[str]:
        if record.state not in _FAILED:
            return []
        return process.tail(self.folder / record.name / process.STDERR)

    def text(self) -> str:
        """Return the page for people: the result, what failed, figures outside their range, all steps, all figures."""
        lines = [
            *wrapped(self._headline(), PIPED_WIDTH, "  "),
            *self._machine(),
            "",
            *self._failures(),
            *self._misses(),
        ]
        lines += ["steps", *self._steps(), "", "figures beside their expectations", *self._figures()]
        return printable.joined(lines) + "\n"

    def _headline(self) -> str:
        records = self._ordered()
        passed = sum(record.state == StepState.PASSED for record in records)
        judged = [each for each in self.judged if each.verdict != ContactVerdict.UNJUDGED]
        rest = sum(not record.is_final for record in records) + len(self.steps) - len(records)
        return (
            f"first contact ({self.variant}): {passed} of {len(self.steps)} steps passed, {len(self.failed)} failed, "
            f"{rest} did not run; {len(judged) - len(self.missed)} of {len(judged)} expectations met"
        )

    def _machine(self) -> list[str]:
        versions = self.presence.get("versions", {})
        shown = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "libc")
        num = self.presence.get("num_gpus")
        spent = sum(float(call.get("spent_s") or 0.0) for call in self.calls)
        return [
            f"GPUs: {num if num is not None else 'unknown'} {self.presence.get('gpu', '')}".rstrip(),
            *wrapped(f"versions: {shown}", PIPED_WIDTH, "  "),
            f"calls: {len(self.calls)}, {spent:.0f} s together; page of {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
        ]

    def _failures(self) -> list[str]:
        lines: list[str] = []
        for record in self.failed:
            lines += wrapped(f"FAILED {record.name}: {_words(record)}", PIPED_WIDTH, "  ")
            lines.append(f"  {' '.join(record.command)}")
            lines += [f"  | {line}" for line in self._stderr(record)[-_STDERR_LINES:]]
        return [*lines, ""] if lines else []

    def _misses(self) -> list[str]:
        if not self.missed:
            return []
        return ["outside their range", *(line for each in self.missed for line in _figure(each)), ""]

    def _steps(self) -> list[str]:
        lines = []
        for step in self.steps:
            record = self.records.get(step.name)
            state = "not reached" if record is None else _words(record)
            took = "" if record is None or record.wall_s is None else f"{record.wall_s:.0f} s"
            lines += wrapped(state, PIPED_WIDTH, _STEP_INDENT, f"  {step.name:24} {took:>6}  ")
            lines += wrapped(step.why, PIPED_WIDTH, _STEP_INDENT, _STEP_INDENT)
        return lines

    def _figures(self) -> list[str]:
        return [line for each in self.judged for line in _figure(each)]

    def write(self) -> None:
        """Write the text page and the JSON document into the folder."""
        from bench.results.table import as_json

        (self.folder / TEXT).write_text(self.text(), encoding="utf-8")
        (self.folder / DOCUMENT).write_text(as_json(self.document()), encoding="utf-8")


def _words(record: StepRecord) -> str:
    words = StepState(record.state).words(record.facts)
    return f"{words} (attempt {record.attempts})" if record.attempts > 1 else words


def _figure(each: Judged) -> list[str]:
    """Return two lines: a figure, and its expected range with the source of the range."""
    name = each.figure if each.over is None else f"{each.figure} / {each.over}"
    value = f"{each.value:.4g} {each.unit}".rstrip()
    if each.verdict == ContactVerdict.UNJUDGED:
        return [f"  {name:64} {value:>14}"]
    ends = ["-" if end is None else f"{end:.4g}" for end in (each.low, each.high)]
    verdict = ContactVerdict(each.verdict).words({})
    expected = wrapped(f"expected {' .. '.join(ends)}  [{each.source}]", PIPED_WIDTH, " " * 10, " " * 6)
    return [f"  {name:64} {value:>14}  {verdict}", *expected]
