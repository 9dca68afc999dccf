"""Report the validation: errors and coverage by link class, system, size and collective, with the targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.core.codes import Coded
from bench.predict import validate
from bench.predict.messages import PageNote, TargetResult
from bench.predict.validate import ErrorSummary, HeldOutRow
from bench.results.table import NOTHING, Block, Column, Heading, Lines, Report, Table

SCHEMA = "bench.validate/1"
_MEANING = (
    PageNote.HELD_OUT,
    PageNote.MEDIAN_ERROR,
    PageNote.BASELINE,
    PageNote.BETTER,
    PageNote.COVERED,
    PageNote.POINTS,
)


@dataclass(frozen=True, slots=True)
class SummaryTable:
    """A table of summaries.

    `names`: the titles of the columns that say what each summary is about. `targets`: whether the summaries have
    targets.
    """

    heading: str
    names: tuple[str, ...]
    summaries: tuple[ErrorSummary, ...]
    targets: bool = False

    def block(self) -> Table:
        """Return the table, without empty columns."""
        columns = [
            Column(name, lambda summary, k=k: summary.words[k], right=False)  # type: ignore[misc]
            for k, name in enumerate(self.names)
        ]
        if self.targets:
            columns += [*_COLUMNS, Column("target", lambda summary: target_result(summary).text, right=False)]
        else:
            columns += _COLUMNS
        return Table(columns, self.summaries, title=self.heading)


def summary_tables(rows: Sequence[HeldOutRow]) -> list[SummaryTable]:
    """Return the tables of a validation. Tables with targets come first."""
    large_rows = [row for row in rows if row.payload_bytes >= validate.LARGE_BYTES]
    large_allreduce = validate.large_allreduce(rows)
    by_class = validate.summarize(large_allreduce, lambda row: (validate.link_level(row),))
    by_system = validate.summarize(
        sorted(large_allreduce, key=validate.link_level),
        lambda row: (row.link_class, row.system, f"{row.num_nodes} x {row.num_ranks // row.num_nodes}"),
    )
    order = [words for *_, words in validate.RANGES]
    by_size = validate.summarize(
        sorted(rows, key=lambda row: order.index(row.size_range)), lambda row: (row.size_range,)
    )
    by_collective = validate.summarize(large_rows, lambda row: (row.pattern,))
    everything = validate.summarize(rows, lambda _: ("all rows",))
    return [
        SummaryTable("allreduce of 64 MiB and above, by class", ("class",), by_class, targets=True),
        SummaryTable("allreduce of 64 MiB and above, by system", ("class", "system", "GPUs"), by_system),
        SummaryTable("by size", ("size",), by_size),
        SummaryTable("64 MiB and above, by collective", ("collective",), by_collective),
        SummaryTable("everything", ("",), everything),
    ]


def target_result(summary: ErrorSummary) -> Coded:
    """Check whether a class meets its target.

    For networks, the error must be smaller than the error of the baseline. For all other classes, the target is an
    upper limit of the error.
    """
    (name,) = summary.words
    if name == "network":
        return Coded.of(
            TargetResult.BASELINE_TARGET,
            met=summary.baseline_error is not None and summary.error < summary.baseline_error,
            num_better=summary.num_better,
            num_compared=summary.num_compared,
        )
    most = validate.TARGETS.get(name)
    if most is None:
        return Coded.of(TargetResult.NO_TARGET)
    if not summary.num_pointed:
        return Coded.of(TargetResult.NO_POINT, most=most)
    return Coded.of(TargetResult.ERROR_TARGET, most=most, met=summary.error <= most)


@dataclass(frozen=True)
class ValidateReport(Report):
    """Held-out rows and their summaries.

    `left_out`: notes on rows that were left out because they cannot serve as evidence.
    """

    rows: Sequence[HeldOutRow]
    left_out: Sequence[Coded]

    def blocks(self) -> Iterable[Block]:
        """Yield the error of the large allreduces, the tables, and an explanation of their columns."""
        if (answer := self._answer()) is not None:
            yield Heading(answer.text)
        for table in summary_tables(self.rows):
            yield table.block()
        notes = [code.template for code in _MEANING]
        notes += [PageNote.LEFT_OUT.words({"text": note.text}) for note in self.left_out]
        yield Lines(notes)

    def _answer(self) -> Coded | None:
        """Return the error of all large allreduces, and how many classes of links meet their targets.

        Return None if there are no large allreduces.
        """
        large = validate.summarize(validate.large_allreduce(self.rows), lambda row: (validate.link_level(row),))
        if not large:
            return None
        targets = [found for found in map(target_result, large) if found.code != TargetResult.NO_TARGET]
        facts = {"num_targets": len(targets), "num_met": sum(bool(each.facts.get("met")) for each in targets)}
        (everything,) = validate.summarize(validate.large_allreduce(self.rows), lambda _: ("",))
        errors = {"error": everything.error, "covered": everything.covered, "num_systems": everything.num_systems}
        return Coded.of(PageNote.VALIDATED, **errors, **facts)

    def data(self) -> Mapping[str, Any]:
        """Return the tables, the rows and the meaning of the columns."""
        tables = {table.heading: table.summaries for table in summary_tables(self.rows)}
        targets = {}
        for table in summary_tables(self.rows):
            if table.targets:
                targets = {summary.words[0]: target_result(summary) for summary in table.summaries}
        return {
            "schema": SCHEMA,
            "tables": tables,
            "targets": {name: {"code": result.code, "facts": result.facts} for name, result in targets.items()},
            "rows": list(self.records()),
            "notes": [code.template for code in _MEANING],
        }

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Yield the held-out rows with their errors."""
        for row in self.rows:
            errors = {"error": row.error, "baseline_error": row.baseline_error, "covered": row.covered}
            yield asdict(row) | errors | {"modelled": True}


def _percent(value: float | None) -> str:
    """Return a fraction in percent with one decimal, `12.3 %`."""
    if value is None:
        return NOTHING
    return f"{100 * value:.1f} %" if value < 10 else f"{100 * value:.0f} %"


def _covered(summary: ErrorSummary) -> str:
    return f"{_percent(summary.covered)} [{_percent(summary.covered_low)}, {_percent(summary.covered_high)}]"


_COLUMNS = (
    Column("systems", lambda summary: str(summary.num_systems), leave_out=3),
    Column("rows", lambda summary: str(summary.num_rows)),
    Column("points", lambda summary: str(summary.num_pointed), leave_out=4),
    Column("error", lambda summary: _percent(summary.error)),
    Column("worst", lambda summary: _percent(summary.worst_error), leave_out=5),
    Column("baseline", lambda summary: _percent(summary.baseline_error)),
    Column("better", lambda summary: f"{summary.num_better}/{summary.num_compared}", leave_out=2),
    Column("covered", _covered, leave_out=1),
)
