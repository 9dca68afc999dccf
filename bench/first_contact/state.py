"""Store what is known of each step in `state.json`. The file stays readable if a call is killed, because each write
replaces the whole file.
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
    """One step: its state, the facts of the state, how often it was started, and its command.

    `wall_s`: seconds of the last attempt. `skip`: the code of the reason if it was skipped.
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
        """Whether a later call does not run this step again. Skipped steps are tried again."""
        return self.state not in (StepState.RUNNING, StepState.INTERRUPTED, StepState.SKIPPED)


class ContactState:
    """The records of all steps that were reached, in the order in which they ended."""

    def __init__(self, folder: Path, variant: str, digest: str) -> None:
        self._path = folder / NAME
        self.variant, self.digest = variant, digest
        self.records: dict[str, StepRecord] = {}
        self.calls: list[dict[str, Any]] = []

    @classmethod
    def load(cls, folder: Path) -> ContactState | None:
        """Read a folder's state; None if there is none."""
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
        """Store a record as the newest one."""
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
        """Replace the file."""
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
