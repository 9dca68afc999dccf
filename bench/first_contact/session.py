"""Run the steps of a first contact within a time budget, and write the results into one folder.

The next call with the same folder runs only the steps that are not finished. If a call was killed, the step that was
running may have been the cause. The next call therefore runs this step after all other steps, and only once more.
"""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.core.codes import Coded
from bench.core.errors import EXIT_DONE, EXIT_MEASUREMENT, EXIT_VERDICT, RefusedError
from bench.first_contact import presence, process, readers
from bench.first_contact.contact_site import ContactSite
from bench.first_contact.judge import judge
from bench.first_contact.messages import ContactError, StepSkip, StepState
from bench.first_contact.page import ContactPage
from bench.first_contact.plan_file import ContactPlan, ContactStep, Expectation
from bench.first_contact.state import MOST_ATTEMPTS, ContactState, StepRecord
from bench.probes import processes
from bench.store import run_lock

_PRESENCE_S = 90.0
_PAGE_S = 5.0  # time to keep free at the end for the page


@dataclass
class ContactSession:
    """One call of a first contact. `budget_s`: the seconds that the call may take. `tell`: shows a line to the user."""

    plan: ContactPlan
    expectations: tuple[Expectation, ...]
    place: ContactSite
    budget_s: float
    tell: Callable[[str], None]

    def run(self, variant: str | None = None) -> tuple[ContactPage, int]:
        """Run the remaining steps.

        Returns the page and the exit code. If `variant` is None, the number of GPUs decides. Exit code 0: every step
        that ran has passed, and every expectation is met. Exit code 1: an expectation was missed. Exit code 4: a step
        failed.

        Raises RefusedError if there is no GPU, if another process uses the folder, or if the folder belongs to another
        plan.
        """
        folder = self.place.folder
        folder.mkdir(parents=True, exist_ok=True)
        with run_lock.held(folder):
            return self._run(variant)

    def _run(self, variant: str | None) -> tuple[ContactPage, int]:
        began, folder = time.monotonic(), self.place.folder
        state = ContactState.load(folder)
        for record in state.interrupt_running() if state is not None else ():
            processes.end_job(record.job_id)
        here = self._presence()
        variant = variant or ("several" if (self.place.num_gpus or 0) > 1 else "one")
        steps, digest = self.plan.of(variant), self.plan.digest(variant)
        if state is not None and (state.variant, state.digest) != (variant, digest):
            theirs, ours = f"{state.variant} {state.digest}", f"{variant} {digest}"
            raise RefusedError.of(ContactError.OTHER_PLAN, folder=str(folder), theirs=theirs, ours=ours)
        state = state or ContactState(folder, variant, digest)
        call: dict[str, Any] = {"began": time.time(), "budget_s": self.budget_s, "spent_s": None}
        state.calls.append(call)
        try:
            if variant != "nodes" and not self.place.num_gpus:
                raise RefusedError.of(ContactError.NO_GPU, reason=_reasons(here), folder=str(folder))
            self._steps(steps, state, began)
        finally:
            call["spent_s"] = time.monotonic() - began
            state.save()
            page = self._page(variant, steps, state, here)
            page.write()
        return page, EXIT_MEASUREMENT if page.failed else EXIT_VERDICT if page.missed else EXIT_DONE

    def _presence(self) -> dict[str, Any]:
        """Count the GPUs in another process.

        The number is None if that process fails, for example because the driver hangs.
        """
        own = self.place.folder / "presence"
        own.mkdir(exist_ok=True)
        file = own / presence.NAME
        words = [*self.place.command(_PRESENCE, _PRESENCE_S), str(file)]
        file.unlink(missing_ok=True)
        ended = process.run(words, own, self.place.root, _PRESENCE_S, _new_job(), {})
        try:
            here: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            here = {"num_gpus": None, "gpu": "", "ways": {"presence": "; ".join(process.tail(own / process.STDERR, 3))}}
            here["ways"]["exit_code"] = str(ended.exit_code)
        self.place = replace(self.place, num_gpus=here["num_gpus"], gpu=here["gpu"])
        return here

    def _steps(self, steps: Sequence[ContactStep], state: ContactState, began: float) -> None:
        for step in _in_order(steps, state):
            left_s = self.budget_s - (time.monotonic() - began) - _PAGE_S
            record = state.records.get(step.name)
            if record is not None and record.is_final:
                continue
            attempts = record.attempts if record is not None else 0
            skip = self._skip(step, attempts, left_s)
            if skip is not None:
                new = StepRecord(step.name, str(StepState.SKIPPED), {"text": skip.text}, attempts, skip=skip.code)
            else:
                new = self._attempt(step, state, attempts + 1, min(float(step.limit_s), left_s))
            state.put(new)
            self.tell(f"{step.name}: {StepState(new.state).words(new.facts)}{_took(new)}")

    def _skip(self, step: ContactStep, attempts: int, left_s: float) -> Coded | None:
        if attempts >= MOST_ATTEMPTS:
            return Coded.of(StepSkip.TWICE)
        missing = self.place.missing(step)
        if missing is not None:
            return missing
        if left_s < step.least_s:
            return Coded.of(StepSkip.NO_TIME, least_s=step.least_s, left_s=max(0.0, left_s))
        return None

    def _attempt(self, step: ContactStep, state: ContactState, attempts: int, limit_s: float) -> StepRecord:
        own = self.place.folder / step.name
        own.mkdir(exist_ok=True)
        words, job_id = self.place.command(step, limit_s), _new_job()
        record = StepRecord(step.name, str(StepState.RUNNING), {}, attempts, tuple(words), job_id=job_id)
        state.put(record)
        self.tell(f"{step.name}: {step.why} (at most {limit_s:.0f} s)")
        ended = process.run(words, own, self.place.root, limit_s, job_id, step.env)
        now, facts = _state_of(ended, step, limit_s)
        return replace(record, state=str(now), facts=facts, exit_code=ended.exit_code, wall_s=ended.wall_s)

    def _page(
        self, variant: str, steps: Sequence[ContactStep], state: ContactState, here: dict[str, Any]
    ) -> ContactPage:
        figures = [
            figure
            for step in steps
            if (record := state.records.get(step.name)) is not None and record.is_final
            for figure in readers.figures(step, record, self.place.folder)
        ]
        judged = judge(figures, self.place.gpu, self.expectations)
        return ContactPage(variant, self.place.folder, here, steps, state.records, judged, state.calls)


_PRESENCE = ContactStep("presence", ("{python}", "-m", presence.__name__), "counts the GPUs")


def _in_order(steps: Sequence[ContactStep], state: ContactState) -> list[ContactStep]:
    """Return the steps in the plan's order, except steps that an earlier call left running. Those steps come last."""

    def interrupted(step: ContactStep) -> bool:
        record = state.records.get(step.name)
        return record is not None and record.state == StepState.INTERRUPTED

    return sorted(steps, key=interrupted)


def _state_of(ended: process.ProcessEnd, step: ContactStep, limit_s: float) -> tuple[StepState, dict[str, Any]]:
    if ended.exit_code is None:
        return StepState.STUCK, {"limit_s": limit_s}
    if ended.timed_out:
        return StepState.TIMED_OUT, {"limit_s": limit_s}
    if ended.exit_code < 0:
        return StepState.CRASHED, {"signal": signal.Signals(-ended.exit_code).name}
    if ended.exit_code in step.accept:
        return StepState.PASSED, {}
    return StepState.FAILED, {"exit_code": ended.exit_code}


def _took(record: StepRecord) -> str:
    return "" if record.wall_s is None else f" ({record.wall_s:.0f} s)"


def _reasons(here: dict[str, Any]) -> str:
    return "; ".join(f"{way}: {told}" for way, told in here["ways"].items() if isinstance(told, str)) or "none reported"


def _new_job() -> str:
    return f"first-contact-{uuid.uuid4().hex[:12]}"


def default_folder() -> Path:
    """Return the default folder of a first contact."""
    return Path("first-contact")
