"""Report the comparison of two runs: a conclusion, one line for each row, and other differences between the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import median
from typing import Any

from bench.core.codes import Coded
from bench.core.units import format_size
from bench.results import inference, text
from bench.results.compare import Compared, Comparison, UnmatchedRow, num_launches
from bench.results.launches import between
from bench.results.table import NOTHING, Block, Column, Heading, Lines, Report, Table

SCHEMA = "bench.compare/1"
_MOST_VALUE = 200  # characters; a longer changed value is only in JSON

# A factor in which rows differ gets its own column. The heading above the rows shows the other factors.
_IN_COLUMNS = ("cache", "loop")
_VERDICTS = (
    inference.ComparisonVerdict.SLOWER,
    inference.ComparisonVerdict.FASTER,
    inference.ComparisonVerdict.EQUIVALENT,
    inference.ComparisonVerdict.INCONCLUSIVE,
)


@dataclass(frozen=True, slots=True)
class Sides:
    """The names of the two compared runs, and a command that measures enough launches of both runs."""

    base: str
    new: str
    command: str


@dataclass(frozen=True)
class CompareReport(Report):
    """The result of comparing the run NEW with the run BASE."""

    comparison: Comparison
    sides: Sides

    def blocks(self) -> Iterable[Block]:
        """Yield the conclusion, an explanation of the columns, the rows, and other differences between the runs."""
        comparison = self.comparison
        yield Heading(conclusion(comparison, self.sides))
        yield Lines([f"BASE  {self.sides.base}", f"NEW   {self.sides.new}", *reading(comparison)])
        yield Table(self._columns(), comparison.rows, section=self._heading)
        yield Lines([*remarks(comparison), *changed(comparison)])

    def data(self) -> Mapping[str, Any]:
        """Return every row with its launches, factors and statistics."""
        comparison = self.comparison
        return {
            "schema": SCHEMA,
            "base": self.sides.base,
            "new": self.sides.new,
            "delta": comparison.delta,
            "fdr": comparison.fdr,
            "least_launches": inference.LEAST_LAUNCHES,
            "test": "launch_permutation",
            "in_turn": comparison.in_turn,
            "correction": "benjamini_hochberg",
            "ci_method": "log_welch",
            "together": _plain_together(comparison),
            "counts": comparison.counts,
            "conclusion": conclusion(comparison, self.sides),
            "remarks": remarks(comparison),
            "rows": [_plain_row(row) for row in comparison.rows],
            "only_base": [_plain_unmatched(row) for row in comparison.only_base],
            "only_new": [_plain_unmatched(row) for row in comparison.only_new],
            "allowed": comparison.allowed,
            "changes": comparison.changes,
        }

    def records(self) -> Iterator[Mapping[str, Any]]:
        """Yield one line for each row. Each factor has a column.

        If a cell has the values of several launches or jobs, blanks separate the values.
        """
        for row in self.comparison.rows:
            line = _plain_row(row)
            for name in ("differs", "reason_code", "reason_facts"):
                del line[name]
            factors = dict(line.pop("factors"))
            factors |= {name: " -> ".join(map(str, both)) for name, both in row.differs.items()}
            for name, value in line.items():
                if isinstance(value, tuple):
                    line[name] = " ".join(map(str, value))
            yield line | factors

    @cached_property
    def _varied(self) -> list[str]:
        """The factors that differ between BASE and NEW, or between rows that are otherwise equal.

        Rows are otherwise equal if they have the same pattern, mode, size and transport.
        """
        # other rows show the reason why they cannot be compared
        compared = [row for row in self.comparison.rows if row.ratio is not None]
        values: dict[tuple[Any, ...], set[str]] = {}
        differing: set[str] = set()
        for row in compared:
            differing.update(row.differs)
            for name in row.factors:
                values.setdefault((name, row.place, _both(row, "transport")), set()).add(_both(row, name))
        several = {key[0] for key, found in values.items() if len(found) > 1}
        return [name for name in self.comparison.rows[0].factors if name in several | differing]

    def _heading(self, row: Compared) -> str:
        """Return the heading of a row's section, for example `allreduce over mpi, 2 ranks on 1 node`.

        The heading names the pattern, the transport, the ranks, and the factors by which this row differs from other
        rows.
        """
        return f"{row.place.pattern} over {self._settings(row, _IN_COLUMNS)}"

    def label(self, row: Compared) -> str:
        """Return the label of a row's curve in a figure, for example `mpi, 2 ranks on 1 node`."""
        return self._settings(row, ())

    def _settings(self, row: Compared, elsewhere: Sequence[str]) -> str:
        """Return the settings of a row without its pattern, mode, group, size and the settings in `elsewhere`."""
        ranks, nodes = _both(row, "num_ranks"), _both(row, "num_nodes")
        words = [_both(row, "transport"), f"{ranks} ranks on {nodes} node{'s' * (nodes != '1')}"]
        named = {"transport", "num_ranks", "num_nodes", *elsewhere}
        words += [f"{name} {_both(row, name)}" for name in self._varied if name not in named]
        return ", ".join(words)

    def _columns(self) -> list[Column]:
        groups = {row.place.group for row in self.comparison.rows}
        columns = [Column("mode", lambda row: row.place.mode, right=False)]
        if len(groups) > 1:
            columns.append(Column("group", lambda row: row.place.group, right=False))
        for name in _IN_COLUMNS:
            if name in self._varied:
                columns.append(Column(name, lambda row, name=name: _both(row, name), right=False))  # type: ignore[misc]
        return columns + _FIGURES


def reading(comparison: Comparison) -> list[str]:
    """Return how to read the columns."""
    lines = [
        "times: median of the launches' medians, BASE and NEW",
        "ratio: NEW / BASE; above 1, NEW takes longer",
    ]
    if not any(row.estimate for row in comparison.rows):
        return lines
    delta = f"{100 * comparison.delta:g} %"
    return [
        *lines,
        "ci95: 95 % interval of the ratio over launches (Welch, on logarithms); spread: between launches, BASE/NEW",
        "p: permutation test on the launches of all rows, corrected for the number of rows (Benjamini and Hochberg)",
        "least: smallest change of this row alone that so many launches find in 9 of 10 comparisons",
        f"slower, faster: p at most {comparison.fdr:g} and a ratio beyond {delta}; "
        f"equivalent: all of ci95 within {delta}; inconclusive: neither",
    ]


def remarks(comparison: Comparison) -> list[str]:
    """Return notes on rows without verdict or ratio, on rows of only one run, and on how many launches are needed."""
    lines = []
    reasons: dict[str, int] = {}
    for row in comparison.rows:
        if row.reason is not None:
            reasons[row.reason.text] = reasons.get(row.reason.text, 0) + 1
    for reason, number in reasons.items():
        lines.append(f"not comparable ({text.count(number, 'row')}): {reason}")
    if comparison.counts["modelled"]:
        lines.append("modelled: both figures are computed, so there is a ratio and no verdict")
    if comparison.counts["imported"]:
        lines.append("imported: the mean of another tool's log has no spread, so there is a ratio and no verdict")
    if comparison.allowed:
        lines.append(f"allowed to differ: {', '.join(comparison.allowed)}")
    lines += _unmatched("BASE", comparison.only_base) + _unmatched("NEW", comparison.only_new)
    return lines + _what_can_be_found(comparison)


def changed(comparison: Comparison) -> list[str]:
    """Return lines about what differs between the headers of the two runs, one line for each difference."""
    if not comparison.changes:
        return ["nothing else changed: same versions, variables, settings and hosts"]
    lines = []
    for each in comparison.changes:
        lines.append(f"changed: {each.what}: {_value(each.base)} -> {_value(each.new)}")
    return lines


def conclusion(comparison: Comparison, sides: Sides) -> str:
    """Return the conclusion of the comparison in one line.

    If no row has a verdict, the line names a command that measures enough launches for verdicts.
    """
    counts = comparison.counts
    line = counted(comparison)
    if counts["exploratory"] and not sum(counts[verdict] for verdict in _VERDICTS):
        return (
            f"cannot tell: a verdict needs {inference.LEAST_LAUNCHES} launches of each run; run: {sides.command}; "
            f"until then ratios only ({line})"
        )
    slower = [row for row in comparison.rows if row.verdict == "slower"]
    if slower:
        worst = max(slower, key=lambda row: row.ratio or 0)
        at = f"{worst.place.pattern}, {worst.place.mode}, {format_size(worst.place.payload_bytes)}"
        line += f"; slowest: {at}, {text.significant(worst.ratio or 0)} times as long"
    if counts["exploratory"]:
        line += (
            f"; fewer than {inference.LEAST_LAUNCHES} launches of each run give exploratory ratios without a verdict; "
            f"for verdicts run: {sides.command}"
        )
    return line


def counted(comparison: Comparison) -> str:
    """Return the number of rows with each verdict, and the verdict on all rows together."""
    words = [f"{number} {verdict}" for verdict, number in comparison.counts.items() if number]
    return f"{text.count(len(comparison.rows), 'row')}: {', '.join(words)}{_together(comparison)}"


def _together(comparison: Comparison) -> str:
    """Return the verdict on all rows together, with its ratio. Return nothing if only one row was compared."""
    test = comparison.together
    if test is None or len(test.rows) < 2:
        return ""
    return (
        f"; all together {comparison.verdict_together}: {test.ratio:.3f} times as long "
        f"[{test.ratio_low:.3f}..{test.ratio_high:.3f}], p {_p(test.p)}"
    )


def _both(row: Compared, name: str) -> str:
    """Return the value of a factor, or both values if BASE and NEW differ in this factor."""
    if name in row.differs:
        return " -> ".join(value or "unknown" for value in row.differs[name])
    return row.factors[name] or "none"


def _unmatched(side: str, rows: Iterable[UnmatchedRow]) -> list[str]:
    """Return lines that name the rows of BASE or NEW that the other run lacks.

    If the same sizes are missing in two modes, one line names both modes.
    """
    sizes: dict[tuple[str, str, str], dict[int, None]] = {}
    for row in rows:
        group = "" if row.place.group == "world" else f", group {row.place.group}"
        what = f"{row.place.pattern} over {row.factors['transport'] or 'unknown'}{group}"
        reason = f" ({row.reason.text})" if row.reason is not None else ""
        sizes.setdefault((what, reason, row.place.mode), {})[row.place.payload_bytes] = None
    modes: dict[tuple[str, str, str], list[str]] = {}
    for (what, reason, mode), at in sizes.items():
        modes.setdefault((what, ", ".join(map(format_size, at)), reason), []).append(mode)
    lines = []
    for (what, places, reason), found in modes.items():
        lines.append(f"only in {side}: {what}, {' and '.join(found)} at {places}{reason}")
    return lines


def _what_can_be_found(comparison: Comparison) -> list[str]:
    """Return the smallest detectable changes: of all rows together, and of a single row.

    Both detectable changes depend on the number of launches.
    """
    tested = [row for row in comparison.rows if row.estimate is not None]
    if comparison.together is None or len(tested) < 2:
        return []
    alone = median(row.estimate.min_detectable for row in tested if row.estimate is not None)
    fewest = min(map(num_launches, tested))
    together = text.percent(comparison.together.least)
    return [
        f"{fewest} launches that vary like these find a change of all rows of {together} % "
        f"and a change of one row of {text.percent(alone)} % (half of the rows) in 9 of 10 comparisons"
    ]


def _value(value: str | None) -> str:
    if not value:
        return "none"
    return value if len(value) <= _MOST_VALUE else f"a text of {len(value)} characters (--format json)"


def _p(p: float | None) -> str:
    if p is None:
        return NOTHING
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def _launches(row: Compared) -> str:
    return f"{len(row.base_launches_s)}/{len(row.new_launches_s)}" if row.ratio else NOTHING


def _spread(row: Compared) -> str:
    spreads = [between(side) for side in (row.base_launches_s, row.new_launches_s)]
    return NOTHING if spreads == [None, None] else "/".join(map(text.percent, spreads))


def _interval(row: Compared) -> str:
    return f"{row.estimate.ratio_low:.3f}..{row.estimate.ratio_high:.3f}" if row.estimate else NOTHING


def _least(row: Compared) -> str:
    return text.percent(row.estimate.min_detectable) if row.estimate else NOTHING


_FIGURES = [
    Column("size", lambda row: str(row.place.payload_bytes), unit="(B)"),
    Column("launches", _launches, optional=True, leave_out=2),
    Column("BASE", lambda row: text.microseconds(row.base_s), unit="(us)", optional=True),
    Column("NEW", lambda row: text.microseconds(row.new_s), unit="(us)", optional=True),
    Column("spread", _spread, unit="(%)", optional=True, leave_out=1),
    Column("ratio", lambda row: f"{row.ratio:.3f}" if row.ratio else NOTHING, optional=True),
    Column("ci95", _interval, optional=True),
    Column("p", lambda row: _p(row.p_corrected), optional=True),
    Column("least", _least, unit="(%)", optional=True, leave_out=3),
    Column("verdict", lambda row: row.verdict, right=False),
]


def _plain_row(row: Compared) -> dict[str, Any]:
    found = row.estimate
    return asdict(row.place) | {
        "transport": row.factors["transport"],
        "num_base_launches": len(row.base_launches_s),
        "num_new_launches": len(row.new_launches_s),
        "base_s": row.base_s,
        "new_s": row.new_s,
        "ratio": row.ratio,
        "ratio_low": found.ratio_low if found else None,
        "ratio_high": found.ratio_high if found else None,
        "p": found.p if found else None,
        "p_corrected": row.p_corrected,
        "cliffs_delta": found.cliffs_delta if found else None,
        "min_detectable": found.min_detectable if found else None,
        "base_between": between(row.base_launches_s),
        "new_between": between(row.new_launches_s),
        "verdict": row.verdict,
        **_plain_reason("reason", row.reason),
        "base_jobs": row.base_jobs,
        "new_jobs": row.new_jobs,
        "base_launches_s": row.base_launches_s,
        "new_launches_s": row.new_launches_s,
        "factors": row.factors,
        "differs": {name: {"base": before, "new": after} for name, (before, after) in row.differs.items()},
    }


def _plain_together(comparison: Comparison) -> dict[str, Any] | None:
    test = comparison.together
    if test is None:
        return None
    return {
        "verdict": comparison.verdict_together,
        "ratio": test.ratio,
        "ratio_low": test.ratio_low,
        "ratio_high": test.ratio_high,
        "p": test.p,
        "least_p": test.least_p,
        "min_detectable": test.least,
        "num_rows": len(test.rows),
    }


def _plain_unmatched(row: UnmatchedRow) -> dict[str, Any]:
    place = asdict(row.place) | {"transport": row.factors["transport"], "factors": row.factors}
    return place | _plain_reason("why", row.reason)


def _plain_reason(name: str, reason: Coded | None) -> dict[str, Any]:
    """Return the text, the code and the facts of a reason under three keys. The key `name` has its text.

    The keys `<name>_code` and `<name>_facts` have the code and the facts of the reason.
    """
    if reason is None:
        return {name: None, f"{name}_code": None, f"{name}_facts": None}
    return {name: reason.text, f"{name}_code": reason.code, f"{name}_facts": reason.facts}
