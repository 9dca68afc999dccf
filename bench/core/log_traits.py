"""The traits of other tools and their logs. Only modules in `logs/readers/` name a tool.

An imported run carries its tool's name (`Header.transport`, `ForeignRun.tool`), and `log_traits` finds the traits that
the tool's reader in `logs/readers/` declares. If this suite runs a tool for comparison, the header's fact `tool` holds
the tool's name, and `compared_statistic` finds the statistic that the tool's file declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from bench.core import plugins
from bench.core.codes import Coded


@dataclass(frozen=True, slots=True)
class LogTraits:
    """The traits of one tool's logs. The defaults describe an unknown tool.

    `copies`: whether the tool prints matrices of copies between GPUs and hosts.
    `host_memory`: its ranks move host memory and need no GPU, unless the header's fact `memory` is "device".
    `nic_test`: two processes test one NIC, so the NIC's rate bounds the figures even if the machine is unknown.
    `gpu_collectives`: its collectives show how close a GPU library comes to the rates of the links.
    `of_running_job`: its times are those of a job's own operations; they include waiting for late ranks, so no bound
        judges them.
    `rings`: its large collectives use rings, unless its log reports another algorithm.
    `without_bound`: why this suite has no bound on the tool's figures; None if it has a bound.
    `extremes`: the names of a row's shortest and longest time in `Record.reported`.
    `statistics`: name in `Record.reported` -> name in `Summary.compat`, for statistics that follow the tool's own
        definition.
    """

    copies: bool = False
    host_memory: bool = False
    nic_test: bool = False
    gpu_collectives: bool = False
    of_running_job: bool = False
    rings: bool = False
    without_bound: Coded | None = None
    extremes: tuple[str, str] = ("min_s", "max_s")
    statistics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ComparedStatistic:
    """The statistic of this suite's rows that is compared with a tool's time, by default the median over samples.

    `mean`: the statistic of `Summary.compat` that is compared instead of the median.
    `isolated_mean`: whether this also holds in isolated mode.
    `rate_is_median`: the tool prints no time, and its rate is the rate of the median time.
    """

    mean: str = ""
    isolated_mean: bool = False
    rate_is_median: bool = False


_UNKNOWN = LogTraits()


@cache
def log_traits(tool: str) -> LogTraits:
    """Return the traits of the tool whose runs have this name, or default traits if no reader declares it."""
    if tool in plugins.names("transport"):
        return _UNKNOWN
    for name in plugins.names("tool"):
        reader = getattr(plugins.load("tool", name), "READER", None)
        declared: Mapping[str, LogTraits] = {} if reader is None else {reader.tool: reader.traits, **reader.other_tools}
        if tool in declared:
            return declared[tool]
    return _UNKNOWN


@cache
def compared_statistic(tool: str) -> ComparedStatistic:
    """Return the statistic that this tool's file in `logs/readers/` declares, or the default for other names."""
    found = getattr(plugins.load("tool", tool), "TOOL", None) if tool in plugins.names("tool") else None
    return ComparedStatistic() if found is None else found.compared
