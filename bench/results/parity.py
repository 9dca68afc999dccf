"""Compare the times of linkbench and another tool at each size. Their launches alternate.

Both times are computed by the statistic that the other tool reports. For OSU and nccl-tests, this statistic is the mean
over ranks of each rank's mean time (`compat.osu_mean_s`, `compat.nccl_tests_s`). nvbandwidth reports a rate, from which
linkbench computes the median time. For isolated calls of nccl-tests, the statistic is linkbench's median. If two cases
differ only in how their ranks were started, they count as the same case. The interval of the ratio is Student's t
interval of the mean log ratio over pairs of launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from statistics import median
from typing import NamedTuple

from bench.core.case import Case, preset_fields
from bench.core.case_argv import from_argv, to_argv
from bench.core.errors import UsageError
from bench.core.log_traits import compared_statistic
from bench.core.record import Header
from bench.results import paired_ratio
from bench.results.compared_rows import Parity
from bench.results.document import Summary

# Fields for the start of a case and the duration of its measurement. They do not change what is measured.
_STARTING = ("sizes", "mode", "iterations", "warmup", "budget_s", "max_s", "like", "instance", "links")


class Statistic(StrEnum):
    """The statistic that linkbench computes from its samples for a comparison with the other tool's time."""

    MEDIAN = "median over samples"
    MEAN = "mean over ranks of means"


class _Place(NamedTuple):
    """The values that linkbench's row and the other tool's row must have in common.

    `case`: the options of the case, in the form that a user types.
    """

    pattern: str
    case: str
    group: str
    mode: str
    payload_bytes: int


_Times = dict[int, float]  # by launch


def parities(headers: Mapping[str, Header], summaries: Iterable[Summary]) -> tuple[Parity, ...]:
    """Return one result for each tool, case, group and size.

    The results of linkbench and of the tool must have launches in common.
    """
    ours: dict[tuple[str, _Place], _Times] = {}
    theirs: dict[tuple[str, _Place], _Times] = {}
    tools = {str(header.facts["tool"]) for header in headers.values() if header.facts.get("tool")}
    if not tools:
        return ()
    for row in summaries:
        header = headers[row.job]
        own = header.facts.get("tool")
        for tool in (own,) if own else tools:
            # A tool that reports a mean over ranks measures all ranks together, even for a pair.
            group = "world" if compared_statistic(tool).mean else row.group
            place = _Place(row.pattern, _case(header.case), group, row.mode, row.payload_bytes)
            seconds = None if row.verified is False else _seconds(tool, row)
            if seconds is not None:
                (theirs if own else ours).setdefault((tool, place), {})[header.launch] = seconds
    found = []
    for (tool, place), times in theirs.items():
        own_times = ours.get((tool, place), {})
        both = sorted(times.keys() & own_times.keys())
        if both:
            ours_s, theirs_s = [own_times[launch] for launch in both], [times[launch] for launch in both]
            found.append(_parity(tool, place, ours_s, theirs_s))
    return tuple(found)


def statistic(tool: str, mode: str) -> Statistic:
    """Return the statistic that a tool reports for calls of this mode (isolated or pipelined)."""
    compared = compared_statistic(tool)
    if compared.mean and (mode != "isolated" or compared.isolated_mean):
        return Statistic.MEAN
    return Statistic.MEDIAN


def _seconds(tool: str, row: Summary) -> float | None:
    """Return the time of a row, computed by the statistic of the other tool.

    The row may be linkbench's row or the tool's row. The result is None if the row lacks this statistic.
    """
    compared = compared_statistic(tool)
    if compared.mean and statistic(tool, row.mode) is Statistic.MEAN:
        return row.compat.get(compared.mean)
    if compared.rate_is_median and row.median_s is None and row.algbw_bytes_per_s:
        return row.payload_bytes / row.algbw_bytes_per_s
    return row.median_s


@lru_cache(maxsize=1024)
def _case(argv: tuple[str, ...]) -> str:
    """Return the options of a case, in the form that a user types.

    The options do not include the sizes, options that only divide the sizes among starts, and options that `--like`
    sets.
    """
    try:
        case = from_argv(argv)
    except UsageError:
        return " ".join(argv[1:])
    plain = Case(case.pattern)
    same = {name: getattr(plain, name) for name in _STARTING}
    same |= {name: getattr(plain, name) for name in preset_fields(case.like, case.pattern)}
    return " ".join(to_argv(replace(case, **same))[1:])


def _parity(tool: str, place: _Place, ours: list[float], theirs: list[float]) -> Parity:
    ratio = paired_ratio.of_launches(theirs, ours)
    return Parity(
        tool=tool,
        pattern=place.pattern,
        payload_bytes=place.payload_bytes,
        ours_s=median(ours),
        theirs_s=median(theirs),
        **ratio.named("ratio"),
        num_launches=ratio.num_pairs,
        mode=place.mode,
        group=place.group,
        case=place.case,
        statistic=statistic(tool, place.mode),
    )
