"""Compute how many launches a comparison needs, from the launches of an earlier run.

The module simulates comparisons of two runs. Each simulated run consists of launches that are drawn from the measured
run. A launch is drawn with all its rows, so correlated rows stay correlated. One of the two simulated runs is made
slower by a known factor. If launches alternate, two successive launches of the measured run form a simulated pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.core.errors import UsageError
from bench.core.units import format_duration
from bench.results import inference, text
from bench.results.document import Document
from bench.results.inference import ComparisonVerdict
from bench.results.joint_test import LEAST_PAIRS, POWER, joint_test
from bench.results.launches import cells, launch_medians, launch_numbers, log_medians
from bench.results.table import NOTHING, Block, Column, Heading, Lines, Report, Table

SCHEMA = "bench.power/1"
NUMBERS = (5, 6, 8, 10, 13, 16, 20, 26, 33, 40)  # launches of each run
_NUM_COMPARISONS = 200
_NUM_QUICK = 100
_MOST_WAYS = 999  # assignments in each simulated comparison
_LEAST_MEASURED = 3
_SEED = 20_083

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Power:
    """The changes that a comparison finds if each run has `num_launches` launches.

    `all_rows`: the share of simulated comparisons that find a change of all rows.
    `one_row`: the share of simulated comparisons that find a change of a single row. Each of these comparisons changes
        another randomly drawn row.
    `least_all`: if all rows change, the smallest change that 9 of 10 comparisons find.
    `least_row`: if a single row changes, the smallest change that 9 of 10 comparisons find, as a median over the rows.
    `seconds`: the time of all launches of both runs, or None if unknown.
    """

    num_launches: int
    all_rows: float
    one_row: float
    least_all: float
    least_row: float
    seconds: float | None = None

    @property
    def is_enough(self) -> bool:
        """Whether 9 of 10 comparisons find each of the two changes."""
        return min(self.all_rows, self.one_row) >= POWER


@dataclass(frozen=True)
class PowerReport(Report):
    """A report on the number of launches that a comparison with this run needs."""

    run: str
    num_measured: int
    num_rows: int
    change_all: float
    change_row: float
    powers: tuple[Power, ...]
    in_turn: bool
    command: str

    @property
    def needed(self) -> int | None:
        """The smallest number of launches per run that lets 9 of 10 comparisons find both changes.

        The value is None if no simulated number of launches is enough.
        """
        return next((power.num_launches for power in self.powers if power.is_enough), None)

    def blocks(self) -> Iterable[Block]:
        """Yield the conclusion, the table of launches, and the assumptions of the simulation."""
        changes = f"{self.change_all:.0%} of all rows and {self.change_row:.0%} of one row"
        last = self.powers[-1]
        time = "" if last.seconds is None else f", about {format_duration(last.seconds)} of measuring"
        if self.needed is None:
            least = f"{text.percent(last.least_all)} % of all rows and {text.percent(last.least_row)} % of one row"
            answer = (
                f"more than {last.num_launches} launches of each run are needed to find changes of "
                f"{changes}; so many launches find {least}{time}"
            )
        else:
            answer = f"{self.needed} launches of each run find changes of {changes} in 9 of 10 comparisons{time}"
        yield Heading(answer)
        yield Table(_COLUMNS, self.powers)
        yield Lines(
            [
                f"simulated from {self.num_measured} launches and {self.num_rows} rows of {self.run}",
                "assumed: both runs vary like these launches, "
                + ("launch k of one is measured beside launch k of the other" if self.in_turn else _ONE_AFTER_OTHER),
                f"measure them with: {self.command}",
            ]
        )

    def data(self) -> Mapping[str, Any]:
        """Return the document with the results for each number of launches."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "num_measured": self.num_measured,
            "num_rows": self.num_rows,
            "change_all": self.change_all,
            "change_row": self.change_row,
            "power": POWER,
            "needed": self.needed,
            "in_turn": self.in_turn,
            "command": self.command,
            "launches": [asdict(power) for power in self.powers],
        }

    def records(self) -> Iterator[Mapping[str, Any]]:
        """Yield a line for each number of launches."""
        yield from (asdict(power) for power in self.powers)


_COLUMNS = [
    Column("launches", lambda power: str(power.num_launches)),
    Column("all rows", lambda power: f"{100 * power.all_rows:.0f}", unit="(%)"),
    Column("one row", lambda power: f"{100 * power.one_row:.0f}", unit="(%)"),
    Column("least, all", lambda power: text.percent(power.least_all), unit="(%)"),
    Column("least, one", lambda power: text.percent(power.least_row), unit="(%)"),
    Column("time", lambda power: NOTHING if power.seconds is None else format_duration(power.seconds), optional=True),
]
_ONE_AFTER_OTHER = "and nothing else on the machine changes between them"


def power_report(
    run: Document,
    name: str,
    change_all: float,
    change_row: float,
    delta: float,
    fdr: float,
    *,
    in_turn: bool = False,
    launch_s: float | None = None,
    command: str = "",
) -> PowerReport:
    """Simulate comparisons with more and more launches, until 9 of 10 comparisons find both changes.

    `in_turn`: whether the launches of both runs alternate.
    `launch_s`: the time of one launch of all jobs.

    Raises UsageError if the run has fewer than three launches.
    """
    errors = _errors_of(run, name)
    powers = []
    for number in NUMBERS:
        found = _power(errors, number, change_all, change_row, delta, fdr, in_turn)
        powers.append(replace(found, seconds=None if launch_s is None else 2 * number * launch_s))
        if powers[-1].is_enough:
            break
    num_rows = errors.shape[1]
    return PowerReport(name, len(errors), num_rows, change_all, change_row, tuple(powers), in_turn, command)


def power_of(run: Document, num_launches: int, change_all: float, change_row: float, delta: float, fdr: float) -> Power:
    """Simulate comparisons of runs with this number of launches.

    Return the changes that the simulated comparisons find. It is assumed that the two runs are measured one after the
    other.

    Raises UsageError if the run has fewer than three launches.
    """
    errors = _errors_of(run, "the run")
    return _power(errors, num_launches, change_all, change_row, delta, fdr, False, _NUM_QUICK)


def _errors_of(run: Document, name: str) -> Values:
    errors = _launch_errors(run)
    if len(errors) < _LEAST_MEASURED:
        raise UsageError(
            f"{name} has {len(errors)} launches, and an estimate of their spread needs {_LEAST_MEASURED} "
            f"(make bench LAUNCHES=5)"
        )
    return errors


def _launch_errors(run: Document) -> Values:
    """Return the log medians of launches relative to the mean of their row, as an array of shape (launches, rows).

    Modelled rows and imported rows are left out. Rows that are missing in a launch are also left out. A few launches
    are closer to their own mean than to the true mean. A factor corrects this bias.
    """
    rows = []
    for cell in cells(run.headers, run.summaries):
        if not any(row.modelled or row.imported for row in cell.rows.values()):
            rows.append((launch_numbers(cell, run.headers), launch_medians(cell)))
    most = max((len(medians) for _, medians in rows), default=0)
    table = log_medians([row for row in rows if len(row[1]) == most])
    table = table[~np.isnan(table).any(axis=1)]
    if len(table) < _LEAST_MEASURED:
        return table
    errors: Values = (table - table.mean(axis=0)) * math.sqrt(len(table) / (len(table) - 1))
    return errors


def _power(
    errors: Values,
    number: int,
    change_all: float,
    change_row: float,
    delta: float,
    fdr: float,
    in_turn: bool,
    num_comparisons: int = _NUM_COMPARISONS,
) -> Power:
    """Return which share of the simulated comparisons finds each change."""
    rng = np.random.default_rng(_SEED)
    found_all = found_row = 0
    least_all, least_row = [], []
    paired = in_turn and number >= LEAST_PAIRS
    for _ in range(num_comparisons):
        base, new = _drawn(errors, number, rng, in_turn)
        test = joint_test(base, new + math.log1p(change_all), fdr, _MOST_WAYS, paired)
        interval = test.ratio_low, test.ratio_high
        found_all += inference.verdict(test.ratio, interval, test.p, delta, fdr) == ComparisonVerdict.SLOWER
        least_all.append(test.least)
        row = int(rng.integers(errors.shape[1]))
        new[:, row] += math.log1p(change_row)
        test = joint_test(base, new, fdr, _MOST_WAYS, paired)
        ratio = math.exp(float(np.median(new[:, row]) - np.median(base[:, row])))
        p = max(test.p, test.rows[row].p_corrected)
        found_row += inference.verdict(ratio, (0.0, math.inf), p, delta, fdr) == ComparisonVerdict.SLOWER
        least_row.append(float(np.median([each.least_log for each in test.rows])))
    return Power(
        number,
        found_all / num_comparisons,
        found_row / num_comparisons,
        float(np.median(least_all)),
        math.expm1(float(np.median(least_row))),
    )


def _drawn(errors: Values, number: int, rng: np.random.Generator, in_turn: bool) -> tuple[Values, Values]:
    """Draw random launches for the two simulated runs.

    If `in_turn`, a pair consists of two successive launches of the measured run, in random order.
    """
    if not in_turn:
        base, new = (errors[rng.integers(len(errors), size=number)] for _ in range(2))
        return base, new
    first = rng.integers(len(errors) - 1, size=number)
    swapped = rng.integers(0, 2, number)
    return errors[first + swapped], errors[first + 1 - swapped]
