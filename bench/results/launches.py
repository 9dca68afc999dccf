"""Group rows that differ only in their launch, and compute the spread between launches.

Two launches of a program differ in the placement of ranks, in their memory pages, and in the other programs that run
meanwhile. The spread within one launch does not include these differences. Launches are therefore the units of an
experiment. Source: Hunold and Carpen-Amarie, "Reproducible MPI benchmarking is still not as easy as you think", 2016.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.core import plugins
from bench.core.case import FACTORS, applies
from bench.core.case_argv import own_case
from bench.core.factors import REPORTED_FACTS, Factor, ReportedFact
from bench.core.record import Flag, Header
from bench.results.document import Spread, Summary
from bench.results.model import case_of
from bench.results.stats import CONFIDENCE

LEAST_FOR_INTERVAL = 3

# Launchers set these variables to a different value at every start.
OF_ONE_START = frozenset(
    (
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "OMPI_ARGV",
        "OMPI_COMMAND",
        "OMPI_FILE_LOCATION",
        "OMPI_MCA_initial_wdir",
    )
)

Factors = Mapping[str, str | None]


def _compared() -> Iterator[ReportedFact]:
    """Yield the facts in which two rows must agree before they are compared.

    The function yields all factors that are not declared comparable, and all facts that ranks report.
    """
    for each in FACTORS:
        if not each.comparable:
            yield ReportedFact(each.reported_as, each.reported or _of_case(each), each.follows)
    yield from REPORTED_FACTS


def _of_case(varied: Factor) -> Callable[[Header], str | None]:
    """Return a function that takes a header and returns the factor's value in the header's case."""

    @lru_cache(maxsize=1024)  # a comparison reads the factors of each launch many times
    def shown(argv: tuple[str, ...], transport: str) -> str | None:
        case = own_case(argv)
        value = None if case is None else getattr(case, varied.name)
        if case is None or not value:
            return None
        if isinstance(value, bool):
            return "yes"
        if varied.depends_on and not getattr(case, varied.depends_on):
            return None
        pattern = plugins.load("pattern", case.pattern).PATTERN
        return varied.show(value) if applies(varied, pattern, transport) else None

    return lambda header: shown(tuple(header.case), header.transport)


COMPARED = tuple(_compared())


# not frozen, as document.Summary
@dataclass(slots=True, unsafe_hash=True)
class RowKey:
    """The key of a row: its pattern, mode, group and size."""

    pattern: str
    mode: str
    group: str
    src: int | None
    dst: int | None
    payload_bytes: int


@dataclass(slots=True)  # not frozen, as document.Summary
class RowLaunches:
    """Rows that differ only in their launch.

    `rows`: the row of each job. A later attempt of a job replaces an earlier attempt.
    `factors`: the value of each factor. The value is None if the file does not state the factor, or if the factor does
        not apply.
    """

    place: RowKey
    factors: Factors
    rows: Mapping[str, Summary]


@dataclass(frozen=True, slots=True)
class LaunchTable:
    """The launch medians of several rows, as logarithms in an array of shape (launches, rows).

    If a row lacks a launch, the value is NaN.

    `numbers`: the launch number of each row of this array.
    """

    numbers: tuple[int, ...]
    values: npt.NDArray[np.float64]


def cells(
    headers: Mapping[str, Header], summaries: Iterable[Summary], variables: Sequence[str] | None = None
) -> tuple[RowLaunches, ...]:
    """Return the rows of a run. One row of a run, with all its launches.

    `headers`: the headers of the jobs. The key of the second attempt of a job is `job#2`.
    `variables`: the environment variables that count as factors. By default, these are the variables of
        `varied_variables`.
    """
    names = varied_variables(headers) if variables is None else tuple(variables)
    of_job = {job: _header_factors(header) | _variables(header, names) for job, header in headers.items()}
    starts = {job: _start(job) for job in headers}
    # Thousands of rows share a few combinations of factors. The number of a combination is a faster key.
    numbers: dict[tuple[tuple[str, str | None], ...], int] = {}
    number_of: dict[tuple[Any, ...], int] = {}
    found: dict[tuple[Any, ...], dict[str, Summary]] = {}
    staged = Flag.THROUGH_HOST
    for row in summaries:
        varying = (row.job, row.in_place, row.cache, row.loop, staged in row.flags)
        number = number_of.get(varying)
        if number is None:
            factors = of_job[row.job] | _row_factors(row, of_job[row.job]["cache"])
            number = number_of[varying] = numbers.setdefault(tuple(factors.items()), len(numbers))
        key = (number, row.pattern, row.mode, row.group, row.src, row.dst, row.payload_bytes)
        found.setdefault(key, {})[starts[row.job]] = row
    combinations = [dict(factors) for factors in numbers]
    return tuple(RowLaunches(RowKey(*place), combinations[number], rows) for (number, *place), rows in found.items())


def varied_variables(headers: Mapping[str, Header]) -> tuple[str, ...]:
    """Return the environment variables for which a scenario has several values (`env`).

    Jobs of the same case and launch differ in the value of such a variable.
    """
    alike: dict[tuple[Any, ...], list[Mapping[str, str]]] = {}
    for job, header in headers.items():
        if job == _start(job):  # a job that is resumed later may run in another environment
            key = (header.launch, header.pattern, *_header_factors(header).values())
            alike.setdefault(key, []).append(header.environment)
    varied = {
        name
        for environments in alike.values()
        for name in set().union(*environments) - OF_ONE_START
        if len({environment.get(name) for environment in environments}) > 1
    }
    return tuple(sorted(varied))


def launch_medians(cell: RowLaunches) -> tuple[float, ...]:
    """Return the median of each launch in seconds, in launch order.

    Launches without data or with wrong data are left out.
    """
    return tuple(row.median_s for row in _usable(cell) if row.median_s is not None)


def launch_numbers(cell: RowLaunches, headers: Mapping[str, Header]) -> tuple[int, ...]:
    """Return the launch numbers of the values that `launch_medians` returns."""
    return tuple(headers[row.job].launch for row in _usable(cell))


def log_medians(rows: Sequence[tuple[Sequence[int], Sequence[float]]]) -> npt.NDArray[np.float64]:
    """Return the values of `launch_table`."""
    return launch_table(rows).values


def launch_table(rows: Sequence[tuple[Sequence[int], Sequence[float]]]) -> LaunchTable:
    """Return the launches of rows as a table. The table is sorted by launch number. A launch takes one line.

    All values of a line are from the same launch. If a row has two launches with the same number, the second launch is
    on an additional line.

    `rows`: for each row, its launch numbers and its medians in seconds.
    """
    lines: dict[tuple[int, int], dict[int, float]] = {}
    for column, (numbers, medians) in enumerate(rows):
        seen: Counter[int] = Counter()
        for number, seconds in zip(numbers, medians, strict=True):
            lines.setdefault((number, seen[number]), {})[column] = math.log(seconds)
            seen[number] += 1
    table = np.full((len(lines), len(rows)), np.nan)
    ordered = sorted(lines)
    for values, key in zip(table, ordered, strict=True):
        for column, value in lines[key].items():
            values[column] = value
    return LaunchTable(tuple(number for number, _ in ordered), table)


def spreads(headers: Mapping[str, Header], measured: Iterable[RowLaunches]) -> tuple[Spread, ...]:
    """Return the spread over launches of every row that was measured in at least two launches.

    `measured`: the rows of the run, from `cells`.
    """
    found = []
    for cell in measured:
        rows = _usable(cell) if len(cell.rows) > 1 else []
        if len(rows) > 1:
            found.append(_spread(cell, rows, headers[rows[0].job]))
    return tuple(found)


def interval(medians: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median of the launches, in seconds, or None for fewer than 3 launches.

    The interval is exp(mean +- t s / sqrt(k)). Here, k is the number of launches, and mean and s are the mean and the
    standard deviation of the logarithms. The quantile t has k - 1 degrees of freedom. If the distribution of the
    launches is skewed, the interval is widened until it contains the median.
    """
    if len(medians) < LEAST_FOR_INTERVAL:
        return None
    logs = [math.log(value) for value in medians]
    half = t_quantile(0.5 + float(CONFIDENCE) / 2, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    middle = median(medians)
    return min(math.exp(fmean(logs) - half), middle), max(math.exp(fmean(logs) + half), middle)


def interval_of_differences(medians: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of values that may be zero or negative.

    The interval is mean +- t s / sqrt(k).
    """
    if len(medians) < LEAST_FOR_INTERVAL:
        return None
    half = t_quantile(0.5 + float(CONFIDENCE) / 2, len(medians) - 1) * stdev(medians) / math.sqrt(len(medians))
    middle = median(medians)
    return min(fmean(medians) - half, middle), max(fmean(medians) + half, middle)


def between(medians: Sequence[float]) -> float | None:
    """Return the standard deviation of the launches' log medians (0.02 is 2 %), or None for a single launch."""
    return stdev(map(math.log, medians)) if len(medians) > 1 else None


def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t distribution at this probability."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def _start(job: str) -> str:
    """Return the job's name without its attempt.

    All attempts of a job count as one launch, because a later attempt completes an earlier attempt.
    """
    return job.partition("#")[0]


def _usable(cell: RowLaunches) -> list[Summary]:
    return [row for row in cell.rows.values() if row.median_s is not None and row.verified is not False]


def _spread(cell: RowLaunches, rows: Sequence[Summary], first: Header) -> Spread:
    medians = [row.median_s for row in rows if row.median_s is not None]
    around = interval(medians)
    halves = [
        (row.ci_high_s - row.ci_low_s) / 2 / row.median_s
        for row in rows
        if row.ci_low_s is not None and row.ci_high_s is not None and row.median_s is not None
    ]
    return Spread(
        job=case_of(rows[0].job, first),
        jobs=tuple(row.job for row in rows),
        pattern=cell.place.pattern,
        transport=rows[0].transport,
        mode=cell.place.mode,
        group=cell.place.group,
        src=cell.place.src,
        dst=cell.place.dst,
        payload_bytes=cell.place.payload_bytes,
        num_launches=len(rows),
        median_s=median(medians),
        ci_low_s=around[0] if around else None,
        ci_high_s=around[1] if around else None,
        min_s=min(medians),
        max_s=max(medians),
        within=median(halves) if halves else None,
        between=between(medians),
    )


def _header_factors(header: Header) -> dict[str, str | None]:
    """Return the values of all factors in COMPARED, as a header states them.

    The value is None if the header does not state the factor.
    """
    found = {fact.name: fact.read(header) for fact in COMPARED}
    return {name: None if value is None else str(value) for name, value in found.items()}


def _variables(header: Header, names: Sequence[str]) -> dict[str, str | None]:
    return {name: header.environment.get(name) for name in names}


def _row_factors(row: Summary, asked_cache: str | None) -> dict[str, str | None]:
    """Return the factors that may differ between the rows of one job.

    `asked_cache`: the requested cache state. The state of a row may differ, because small buffers may stay in the
        cache.
    """
    cache = row.cache
    if asked_cache is not None and cache != asked_cache:
        cache = f"{cache or 'unknown'} where {asked_cache} was asked for"
    staged = "yes" if Flag.THROUGH_HOST in row.flags else None
    return {"in_place": "yes" if row.in_place else "no", "cache": cache, "loop": row.loop, "through_host": staged}
