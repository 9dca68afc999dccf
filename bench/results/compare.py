"""Compare two runs. Find the rows that can be compared.

Give a verdict on each row for which both runs have enough launches. Two rows are compared if all their factors are
equal (results/launches.py: FACTORS). The user may allow some factors to differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.record import Flag
from bench.results import inference, pairing
from bench.results.changes import Change, changes
from bench.results.document import Document, Summary
from bench.results.inference import LEAST_LAUNCHES, ComparisonVerdict
from bench.results.joint_test import LEAST_PAIRS, JointTest, joint_test
from bench.results.launches import (
    Factors,
    RowKey,
    RowLaunches,
    cells,
    launch_medians,
    launch_numbers,
    launch_table,
    varied_variables,
)
from bench.results.messages import ReasonCode
from bench.results.pairing import listed, word

VERDICTS = tuple(ComparisonVerdict)
FDR = 0.05


@dataclass(frozen=True, slots=True)
class Compared:
    """One row that is in both runs, with the median time of each launch in seconds.

    `factors`: the factors of BASE.
    `differs`: the factors that differ, each with its value in BASE and its value in NEW.
    `estimate`, `p_corrected`: None if one of the runs has fewer than 5 launches of the row.
    `reason`: why the row cannot be compared (ReasonCode), or None if it can be compared.
    """

    place: RowKey
    factors: Factors
    differs: Mapping[str, tuple[str | None, str | None]]
    base_jobs: tuple[str, ...]
    new_jobs: tuple[str, ...]
    verdict: str
    reason: Coded | None = None
    base_launches_s: tuple[float, ...] = ()
    new_launches_s: tuple[float, ...] = ()
    base_launches: tuple[int, ...] = ()  # the launch numbers of `base_s` and `new_s`
    new_launches: tuple[int, ...] = ()
    estimate: inference.RatioEstimate | None = None
    p_corrected: float | None = None

    @property
    def base_s(self) -> float | None:
        """The median of the launch medians of BASE, in seconds."""
        return median(self.base_launches_s) if self.base_launches_s else None

    @property
    def new_s(self) -> float | None:
        """The median of the launch medians of NEW, in seconds."""
        return median(self.new_launches_s) if self.new_launches_s else None

    @property
    def ratio(self) -> float | None:
        """`new_s` / `base_s`. If the ratio is above 1, NEW is slower."""
        return self.new_s / self.base_s if self.new_s is not None and self.base_s is not None else None


@dataclass(frozen=True, slots=True)
class UnmatchedRow:
    """A row that only one run has.

    `reason`: why the other run lacks the row, or None if unknown. If the other run has a row of this size with other
        factors, the reason lists these factors. Otherwise, the reason says why the other run did not measure the row.
    """

    place: RowKey
    factors: Factors
    reason: Coded | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows of two runs.

    `delta`: the smallest change that matters (0.05 is 5 %).
    `fdr`: the false discovery rate over all rows.
    `together`: the joint test of all rows that have enough launches. If no row has enough launches, `together` is None.
    """

    rows: tuple[Compared, ...]
    together: JointTest | None
    only_base: tuple[UnmatchedRow, ...]
    only_new: tuple[UnmatchedRow, ...]
    allowed: tuple[str, ...]  # factors that may differ
    changes: tuple[Change, ...]
    delta: float
    fdr: float
    in_turn: bool = False  # the launches of both runs alternated

    @property
    def verdict_together(self) -> ComparisonVerdict | None:
        """The verdict on the change of all rows together. None if no row has enough launches."""
        test = self.together
        if test is None:
            return None
        return inference.verdict(test.ratio, (test.ratio_low, test.ratio_high), test.p, self.delta, self.fdr)

    @property
    def is_slower(self) -> bool:
        """Whether NEW is slower, for all rows together or for any single row."""
        return self.verdict_together == ComparisonVerdict.SLOWER or self.counts["slower"] > 0

    @property
    def is_decided(self) -> bool:
        """Whether the verdicts are final, so that no more launches are needed.

        The verdicts are final if all rows together changed, if any single row changed, or if all rows are equivalent.
        """
        decided = {ComparisonVerdict.SLOWER, ComparisonVerdict.FASTER}
        if self.counts["slower"] or self.counts["faster"]:
            return True
        return self.verdict_together in decided or (
            self.verdict_together == ComparisonVerdict.EQUIVALENT and not self.counts["inconclusive"]
        )

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows with each verdict in VERDICTS."""
        return {verdict: sum(row.verdict == verdict for row in self.rows) for verdict in VERDICTS}


def compare(
    base: Document,
    new: Document,
    *,
    delta: float = 0.05,
    fdr: float = FDR,
    allow_diff: Sequence[str] = (),
    in_turn: bool = False,
) -> Comparison:
    """Compare NEW with BASE, row by row.

    `in_turn`: whether the launches of both runs alternated. If at least LEAST_PAIRS launches alternated, the launches
    are tested in pairs.

    `allow_diff`: the factors that may differ between the runs.

    Raises UsageError if any other factor differs, if `allow_diff` has an unknown factor, or if no row can be compared.
    """
    variables = sorted({*varied_variables(base.headers), *varied_variables(new.headers)})
    allowed = pairing.allowed(allow_diff, variables)
    base_cells = cells(base.headers, base.summaries, variables)
    new_cells = cells(new.headers, new.summaries, variables)
    pairing.refuse_model_against_measurement(base_cells, new_cells)
    pairing.refuse_other_factors(base_cells, new_cells, allowed)
    pairs, left_base, left_new = pairing.paired(base_cells, new_cells, allowed)
    rows, together = _judged([_compared(*pair, base, new, allowed) for pair in pairs], delta, fdr, in_turn)
    if all(row.ratio is None for row in rows):
        raise UsageError(_nothing(rows, left_base, left_new))
    base_jobs = dict.fromkeys(job for row in rows for job in row.base_jobs)
    new_jobs = dict.fromkeys(job for row in rows for job in row.new_jobs)
    return Comparison(
        rows=tuple(rows),
        together=together,
        only_base=_unmatched(left_base, rows, new),
        only_new=_unmatched(left_new, rows, base),
        allowed=tuple(dict.fromkeys(allow_diff)),
        changes=changes((base.headers[job] for job in base_jobs), (new.headers[job] for job in new_jobs)),
        delta=delta,
        fdr=fdr,
        in_turn=in_turn,
    )


def _compared(
    base: RowLaunches, new: RowLaunches, base_run: Document, new_run: Document, allowed: frozenset[str]
) -> Compared:
    """Compare a row of BASE with the same row of NEW, without a verdict.

    The result has the launches of both runs. If the two rows have no ratio, the result has the reason.
    """
    differs = {
        name: (base.factors[name], new.factors[name])
        for name in base.factors
        if base.factors[name] != new.factors[name]
    }
    row = Compared(base.place, base.factors, differs, _jobs_of(base), _jobs_of(new), "exploratory")
    reason = _not_comparable(base, new, differs, allowed)
    if reason is not None:
        return replace(row, verdict="not comparable", reason=reason)
    if any(each.imported for cell in (base, new) for each in cell.rows.values()):
        return replace(row, verdict="imported", base_launches_s=_imported_s(base), new_launches_s=_imported_s(new))
    verdict = "modelled" if base.factors["modelled"] == "yes" else "exploratory"
    return replace(
        row,
        verdict=verdict,
        base_launches_s=launch_medians(base),
        new_launches_s=launch_medians(new),
        base_launches=launch_numbers(base, base_run.headers),
        new_launches=launch_numbers(new, new_run.headers),
    )


def _imported_s(cell: RowLaunches) -> tuple[float, ...]:
    """Return the launch times of a row in seconds, if BASE or NEW is an imported run.

    Imported rows are not tested.
    """
    return tuple(seconds for seconds in map(_seconds, cell.rows.values()) if seconds is not None)


def _seconds(row: Summary) -> float | None:
    """Return the time of a row in seconds. The row may be imported from another tool.

    The time is the median, or the mean if the row has no median. If a log prints only a rate, the time follows from the
    rate.
    """
    if row.median_s is not None or row.mean_s is not None or not row.imported:
        return row.mean_s if row.median_s is None else row.median_s
    return row.payload_bytes / row.algbw_bytes_per_s if row.payload_bytes and row.algbw_bytes_per_s else None


def _not_comparable(
    base: RowLaunches, new: RowLaunches, differs: Mapping[str, tuple[str | None, str | None]], allowed: frozenset[str]
) -> Coded | None:
    """Return why two paired rows get no ratio, or None if they get one."""
    if "modelled" in differs:
        modelled, measured = ("BASE", "NEW") if base.factors["modelled"] == "yes" else ("NEW", "BASE")
        return Coded.of(ReasonCode.MODELLED_AND_MEASURED, modelled=modelled, measured=measured)
    apart = {name: both for name, both in differs.items() if name not in allowed}
    if apart:
        words = [f"{name} is {word(old)} in BASE and {word(after)} in NEW" for name, (old, after) in apart.items()]
        return Coded.of(ReasonCode.FACTORS_DIFFER, differences=words, factors=list(apart))
    for side, cell in (("BASE", base), ("NEW", new)):
        for row in cell.rows.values():
            code = _unusable(row)
            if code is not None:
                return Coded.of(code, side=side, job=row.job, num=row.num_samples)
    return None


def _unusable(row: Summary) -> ReasonCode | None:
    """Return why the time of a row cannot be compared, or None if it can be compared."""
    if row.verified is False:
        return ReasonCode.WRONG_DATA
    if row.imported:
        return None if _seconds(row) else ReasonCode.NO_TIME_PRINTED
    if row.median_s is None:
        return ReasonCode.BAD_SAMPLES if Flag.BAD_SAMPLES in row.flags else ReasonCode.NO_MEDIAN
    if row.num_samples < 2 and not row.modelled and Flag.REPORTED not in row.flags:
        return ReasonCode.FEW_SAMPLES
    return None


def _judged(
    rows: Sequence[Compared], delta: float, fdr: float, in_turn: bool
) -> tuple[list[Compared], JointTest | None]:
    """Give each row a verdict if both runs have enough launches. All rows with enough launches are tested together.

    A row can get the verdict "slower" or "faster" only if the joint test finds a change. If the two runs do not differ,
    the verdict "slower" or "faster" therefore occurs with a probability of at most `fdr`.
    """
    enough = [row for row in rows if row.verdict == "exploratory" and num_launches(row) >= LEAST_LAUNCHES]
    if not enough:
        return list(rows), None
    base = launch_table([(row.base_launches, row.base_launches_s) for row in enough])
    new = launch_table([(row.new_launches, row.new_launches_s) for row in enough])
    paired = in_turn and len(base.numbers) >= LEAST_PAIRS and base.numbers == new.numbers
    together = joint_test(base.values, new.values, fdr, paired=paired)
    judged = {}
    for row, test in zip(enough, together.rows, strict=True):
        found = inference.estimate(row.base_launches_s, row.new_launches_s, delta, test)
        p = max(test.p_corrected, together.p)
        verdict = inference.verdict(found.ratio, (found.ratio_low, found.ratio_high), p, delta, fdr)
        judged[id(row)] = replace(row, verdict=verdict, estimate=found, p_corrected=p)
    return [judged.get(id(row), row) for row in rows], together


def num_launches(row: Compared) -> int:
    """Return the number of launches of BASE or NEW, whichever is smaller."""
    return min(len(row.base_launches_s), len(row.new_launches_s))


def _nothing(rows: Sequence[Compared], left_base: Sequence[RowLaunches], left_new: Sequence[RowLaunches]) -> str:
    """Return one sentence that says why no row has a ratio."""
    if rows:
        reason, number = Counter(row.reason.text for row in rows if row.reason is not None).most_common(1)[0]
        return f"nothing in BASE and NEW can be compared: {reason} ({number} of {len(rows)} rows)"
    if not left_base or not left_new:
        return f"nothing can be compared: {'NEW' if left_base else 'BASE'} contains no measured row"
    if {cell.place for cell in left_base} & {cell.place for cell in left_new}:
        return (
            "several rows of one run match a single row of the other run: allow fewer factors to differ, "
            "or compare single files"
        )
    base, new = (
        f"{listed({cell.place.pattern for cell in side})}, {listed({cell.place.mode for cell in side})}"
        for side in (left_base, left_new)
    )
    return f"BASE ({base}) and NEW ({new}) have no row of the same pattern, mode, group and size"


def _unmatched(left: Iterable[RowLaunches], rows: Iterable[Compared], other: Document) -> tuple[UnmatchedRow, ...]:
    """Return the rows that only one of the two runs has.

    Each returned row has the factors that differ in the other run, or the reason why the other run lacks the row.
    """
    lacking: dict[tuple[Any, ...], Coded] = {}
    for row in (*other.skipped, *other.failures):
        key = tuple(row.get(name) for name in ("pattern", "transport", "mode", "group", "payload_bytes"))
        if row.get("what"):
            lacking[key] = Coded.of(ReasonCode.FAILED_THERE, reason=row["what"], cause=row.get("code"))
        else:
            lacking[key] = Coded.of(ReasonCode.SKIPPED_THERE, reason=row.get("reason"), cause=row.get("code"))
    there = {(row.place, row.factors["transport"]): row.factors for row in rows}
    found = []
    for cell in left:
        place, transport = cell.place, cell.factors["transport"]
        reason = lacking.get((place.pattern, transport, place.mode, place.group, place.payload_bytes))
        shared = there.get((place, transport), cell.factors)
        apart = [f"{name} {word(value)}" for name, value in cell.factors.items() if shared[name] != value]
        if apart:
            reason = Coded.of(ReasonCode.OTHER_FACTORS, factors=apart)
        found.append(UnmatchedRow(place, cell.factors, reason))
    return tuple(found)


def _jobs_of(cell: RowLaunches) -> tuple[str, ...]:
    return tuple(row.job for row in cell.rows.values())
