"""Another tool beside ours: the ratio of the same statistic at each size, from launches that took turns.

The statistic is the tool's own: OSU's and nccl-tests' mean over ranks of each rank's mean (`compat.osu_mean_s`,
`compat.nccl_tests_s`), nvbandwidth's median, which its rate stands for; of nccl-tests' isolated samples our median.
Rows are of the same case but for how it was started. A launch of ours and the launch of theirs beside it are
neighbours in time, so their ratio does not hold what drifts slowly; the interval is the t interval of the mean of its
logarithms over launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from statistics import fmean, median, stdev
from typing import NamedTuple

from bench.core.case import Case, from_argv, preset_fields, to_argv
from bench.core.errors import UsageError
from bench.core.log_traits import compared_statistic
from bench.core.record import Header
from bench.results.document import Parity, Summary
from bench.results.launches import t_quantile

# How a case is started and how long, not what it is.
_STARTING = ("transport", "sizes", "mode", "iterations", "warmup", "budget_s", "max_s", "like", "instance", "links")
_MEDIAN, _MEAN = "median over samples", "mean over ranks of means"


class _Place(NamedTuple):
    """What a row of ours and one of theirs have in common. `case`: what else was asked for, in words."""

    pattern: str
    case: str
    group: str
    mode: str
    payload_bytes: int


_Times = dict[int, float]  # by launch


def parities(headers: Mapping[str, Header], summaries: Iterable[Summary]) -> tuple[Parity, ...]:
    """One for each tool, case, group and size that both have measured in the same launches."""
    ours: dict[tuple[str, _Place], _Times] = {}
    theirs: dict[tuple[str, _Place], _Times] = {}
    tools = {str(header.facts["tool"]) for header in headers.values() if header.facts.get("tool")}
    if not tools:
        return ()
    for row in summaries:
        header = headers[row.job]
        own = header.facts.get("tool")
        for tool in (own,) if own else tools:
            group = (
                "world" if compared_statistic(tool).mean else row.group
            )  # these measure everybody together, a pair as well
            place = _Place(row.pattern, _case(header.case), group, row.mode, row.payload_bytes)
            seconds = None if row.verified is False else _seconds(tool, row)
            if seconds is not None:
                (theirs if own else ours).setdefault((tool, place), {})[header.launch] = seconds
    found = []
    for (tool, place), times in theirs.items():
        beside = ours.get((tool, place), {})
        both = sorted(times.keys() & beside.keys())
        if both:
            found.append(_parity(tool, place, [beside[one] for one in both], [times[one] for one in both]))
    return tuple(found)


def statistic(tool: str, mode: str) -> str:
    """What is compared, in words."""
    compared = compared_statistic(tool)
    return _MEAN if compared.mean and (mode != "isolated" or compared.isolated_mean) else _MEDIAN


def _seconds(tool: str, row: Summary) -> float | None:
    """The time of a row by a tool's statistic, ours and its own alike; None where it has none."""
    if statistic(tool, row.mode) == _MEAN:
        return row.compat.get(compared_statistic(tool).mean)
    if (
        compared_statistic(tool).rate_is_median and row.median_s is None and row.algbw_bytes_per_s
    ):  # the median of its rates
        return row.payload_bytes / row.algbw_bytes_per_s
    return row.median_s


@lru_cache(maxsize=1024)
def _case(argv: tuple[str, ...]) -> str:
    """What was asked for but for the sizes, how a start divides them and what `--like` fixes: options as typed."""
    try:
        case = from_argv(argv)
    except UsageError:
        return " ".join(argv[1:])
    plain = Case(case.pattern)
    same = {name: getattr(plain, name) for name in _STARTING}
    same |= {name: getattr(plain, name) for name in preset_fields(case.like, case.pattern)}
    return " ".join(to_argv(replace(case, **same))[1:])


def _parity(tool: str, place: _Place, ours: list[float], theirs: list[float]) -> Parity:
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    middle, half = fmean(logs), None
    if len(logs) > 2:
        half = t_quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Parity(
        tool=tool,
        pattern=place.pattern,
        payload_bytes=place.payload_bytes,
        ours_s=median(ours),
        theirs_s=median(theirs),
        ratio=math.exp(middle),
        ratio_low=None if half is None else math.exp(middle - half),
        ratio_high=None if half is None else math.exp(middle + half),
        num_launches=len(logs),
        mode=place.mode,
        group=place.group,
        case=place.case,
        statistic=statistic(tool, place.mode),
    )
