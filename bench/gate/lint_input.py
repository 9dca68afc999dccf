"""What the twelve rules look at: a report's document beside the very records and the plan that it was made from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.core.record import Header, Record
from bench.results.document import Document, Summary

# "Exact" for a figure that is computed again: what is left is the rounding of a few operations.
EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class RuleOffence:
    """What breaks a rule, as a sentence, and the row that does; None where it is the whole job or the whole run."""

    what: str
    job: str | None = None
    mode: str | None = None
    payload_bytes: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class LintRow:
    """One row of the report, the record that it shows, and the header that the record stands under."""

    job: str
    header: Header
    record: Record
    summary: Summary

    def fault(self, what: str) -> RuleOffence:
        """This row breaks the rule."""
        return RuleOffence(what, self.job, self.record.mode, self.record.payload_bytes, self.record.group)

    @property
    def timed(self) -> bool:
        """Was it measured here: raw samples of something that really ran, with a median to show for it?"""
        return self.record.samples is not None and not self.record.modelled and self.summary.median_s is not None


@dataclass(frozen=True, slots=True)
class LintInput:
    """A run: its report, its records by job (`job#2` for a later attempt), its plan and outcomes where there are any.

    `mismatches`: records without their row in the report, or rows that show another record.
    """

    document: Document
    told: tuple[tuple[str, Header, Sequence[Record]], ...]
    rows: tuple[LintRow, ...]
    mismatches: tuple[RuleOffence, ...]
    plan: Mapping[str, Any] | None
    outcomes: Mapping[str, Mapping[str, Any]]

    @property
    def timed(self) -> Iterator[LintRow]:
        """The rows of raw samples."""
        return (row for row in self.rows if row.timed)

    @property
    def measured(self) -> Iterator[tuple[str, Header]]:
        """The headers, with their jobs, of what really ran here and took samples (another tool's report did not)."""
        return (
            (job, header)
            for job, header, records in self.told
            if not header.modelled and any(record.reported is None for record in records)
        )

    def texts(self) -> Iterator[tuple[str, str | None, LintRow | None]]:
        """Every sentence that the report prints beside its figures, with the job and the row that it is about."""
        yield from ((note.text, None, None) for note in self.document.notes)
        # The notes of an imported log are its own words.
        ours = ((job, header) for job, header, _ in self.told if not header.imported)
        yield from ((note, job, None) for job, header in ours for note in header.notes)
        yield from ((flag, row.job, row) for row in self.rows for flag in row.summary.flags)

    def without_imported(self) -> LintInput:
        """The same without the jobs that other tools' logs gave, and their part of the plan."""
        imported = {job for job, header, _ in self.told if header.imported}
        if not imported:
            return self
        plan = self.plan
        if plan is not None:
            jobs = [job for job in plan.get("jobs", ()) if job["name"] not in imported]
            plan = {**plan, "jobs": jobs} if jobs else None
        document = replace(
            self.document,
            summaries=tuple(row for row in self.document.summaries if row.job not in imported),
            skipped=tuple(row for row in self.document.skipped if row.get("job") not in imported),
            failures=tuple(row for row in self.document.failures if row.get("job") not in imported),
        )
        told = tuple(one for one in self.told if one[0] not in imported)
        rows = tuple(row for row in self.rows if row.job not in imported)
        mismatches = tuple(fault for fault in self.mismatches if fault.job not in imported)
        return replace(self, document=document, told=told, rows=rows, mismatches=mismatches, plan=plan)

    def reported(self) -> Iterator[tuple[LintRow, str, float]]:
        """Every statistic that was taken over from another tool: its row, its name, its value."""
        for row in self.rows:
            yield from ((row, name, value) for name, value in (row.record.reported or {}).items())


def material(
    document: Document,
    told: Iterable[tuple[str, Header, Sequence[Record]]],
    plan: Mapping[str, Any] | None,
    outcomes: Mapping[str, Mapping[str, Any]],
) -> LintInput:
    """Each record beside the row that shows it: a document has them in the order in which they were told."""
    told = tuple((job, header, tuple(records)) for job, header, records in told)
    shown: dict[str, list[Summary]] = {}
    for summary in document.summaries:
        shown.setdefault(summary.job, []).append(summary)
    rows: list[LintRow] = []
    mismatches: list[RuleOffence] = []
    for job, header, records in told:
        kept = [record for record in records if record.skipped is None and record.failed is None]
        of_job = shown.pop(job, [])
        if len(of_job) != len(kept):
            mismatches.append(RuleOffence(f"the report shows {len(of_job)} rows of {len(kept)} records", job))
        for record, summary in zip(kept, of_job, strict=False):
            rows.append(LintRow(job, header, record, summary))
            if _place(record) != _place(summary):
                mismatches.append(rows[-1].fault("the report shows another record in this place"))
    mismatches += [
        RuleOffence(f"the report shows {len(rest)} rows of a job that has no records", job)
        for job, rest in shown.items()
    ]
    return LintInput(document, told, tuple(rows), tuple(mismatches), plan, outcomes)


def same(one: float | None, other: float | None) -> bool:
    """Are two figures the same but for rounding; or both unknown?"""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=EXACT)


def launch_of(job: str) -> str:
    """The planned job that an attempt belongs to: `job#2` completes `job`."""
    return job.partition("#")[0]


def _place(row: Record | Summary) -> tuple[Any, ...]:
    return row.mode, row.payload_bytes, row.group, row.src, row.dst
