"""Another tool beside ours: the ratio of the same statistic at each size, from launches that took turns.

The statistic is the tool's own: for OSU the mean over ranks of each rank's mean (`compat.osu_mean_s`). A launch of ours
and the launch of theirs beside it are neighbours in time, so their ratio does not hold what drifts slowly; the interval
is the t interval of the mean of its logarithms over launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean, median, stdev

from bench.analysis.launches import t_quantile
from bench.core.record import Header, Parity, Summary

_STATISTIC = "osu_mean_s"
_Place = tuple[str, int]  # pattern, payload bytes
_Times = dict[int, float]  # by launch


def parities(headers: Mapping[str, Header], summaries: Iterable[Summary]) -> tuple[Parity, ...]:
    """One for each tool, pattern and size that both have measured in the same launches."""
    ours: dict[_Place, _Times] = {}
    theirs: dict[tuple[str, _Place], _Times] = {}
    for row in summaries:
        header = headers[row.job]
        seconds = row.compat.get(_STATISTIC)
        if seconds is None or row.verified is False:
            continue
        place, tool = (row.pattern, row.payload_bytes), header.facts.get("tool")
        if tool:
            theirs.setdefault((tool, place), {})[header.launch] = seconds
        elif row.mode == "isolated" and "--like" in header.case:
            ours.setdefault(place, {})[header.launch] = seconds
    found = []
    for (tool, place), times in theirs.items():
        both = sorted(times.keys() & ours.get(place, {}).keys())
        if both:
            found.append(_parity(tool, place, [ours[place][one] for one in both], [times[one] for one in both]))
    return tuple(found)


def _parity(tool: str, place: _Place, ours: list[float], theirs: list[float]) -> Parity:
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    middle, half = fmean(logs), None
    if len(logs) > 2:
        half = t_quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Parity(
        tool=tool, pattern=place[0], payload_bytes=place[1], ours_s=median(ours), theirs_s=median(theirs),
        ratio=math.exp(middle), ratio_low=None if half is None else math.exp(middle - half),
        ratio_high=None if half is None else math.exp(middle + half), num_launches=len(logs),
    )  # fmt: skip
