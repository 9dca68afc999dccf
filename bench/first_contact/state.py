"""Store the state of each step in `state.json`.

Each write replaces the whole file, so the file stays readable if a call is killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.first_contact.messages import StepState

NAME = "state.json"
MOST_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The record of one step.

    `facts`: details of the state.
    `attempts`: how often the step was started.
    `wall_s`: the seconds of the last attempt.
    `skip`: the code of the reason why the step was skipped.
    """

    name: str
    state: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    attempts: int = 0
    command: tuple[str, ...] = ()
    exit_code: int | None = None
    wall_s: float | None = None
    skip: str | None = None
    job_id: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the step is finished, so that later calls do not run it again.

        A skipped step does not count as finished.
        """
        return self.state not in (StepState.RUNNING, StepState.INTERRUPTED, StepState.SKIPPED)


class ContactState:
    """The records of all steps that any call has started or skipped, in the order in which the steps ended."""

    def __init__(self, folder: Path, variant: str, digest: str) -> None:
        self._path = folder / NAME
        self.variant, self.digest = variant, digest
        self.records: dict[str, StepRecord] = {}
        self.calls: list[dict[str, Any]] = []

    @classmethod
    def load(cls, folder: Path) -> ContactState | None:
        """Read a folder's state. Return None if the folder has no state."""
        try:
            held = json.loads((folder / NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        state = cls(folder, held["variant"], held["digest"])
        state.calls = held["calls"]
        for each in held["steps"]:
            state.records[each["name"]] = StepRecord(**each | {"command": tuple(each["command"])})
        return state

    def put(self, record: StepRecord) -> None:
        """Store a record at the end, in place of an earlier record of the same step."""
        self.records.pop(record.name, None)
        self.records[record.name] = record
        self.save()

    def interrupt_running(self) -> list[StepRecord]:
        """Mark steps that an earlier call left running, and return them."""
        found = [each for each in self.records.values() if each.state == StepState.RUNNING]
        for each in found:
            self.put(replace(each, state=str(StepState.INTERRUPTED)))
        return found

    def save(self) -> None:
        """Replace `state.json`."""
        held = {
            "variant": self.variant,
            "digest": self.digest,
            "calls": self.calls,
            "steps": [asdict(each) for each in self.records.values()],
        }
        beside = self._path.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(held, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
