"""Look up the traits of another tool: what the suite must know about the tool and its logs.

One module in `logs/readers/` reads the logs of a tool. No other module contains the name and the traits of this tool.

If a run was imported from a log, `log_traits` returns the traits of the tool that wrote the log. The name of this tool
is in `Header.transport` and `ForeignRun.tool`. If this suite ran a tool for comparison, `compared_statistic` returns
the statistic that is compared with the tool's time. The name of the tool is then the header's fact `tool`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from bench.core import plugins
from bench.core.codes import Coded


@dataclass(frozen=True, slots=True)
class LogTraits:
    """What the suite must know about the logs of a tool. The defaults apply to an unknown tool.

    `copies`: whether the tool prints matrices of copies between GPUs and hosts.
    `host_memory`: whether the tool's ranks move data in host memory. Such ranks need no GPU. If the header's fact
        `memory` is "device", the ranks use GPU memory and need a GPU.
    `nic_test`: whether two processes test one NIC. The NIC's rate then bounds the figures even if the machine is
        unknown.
    `gpu_collectives`: whether its collectives show how close a GPU library comes to the rates of the links.
    `of_running_job`: whether its times are those of a job's own operations. These times include the waiting time for
        late ranks. Therefore they are not compared with a bound.
    `rings`: whether its large collectives use rings. A log may report another algorithm.
    `without_bound`: the reason why this suite cannot compute a bound for the tool's figures. None if it can.
    `extremes`: the names of a row's shortest and longest time in `Record.reported`.
    `statistics`: maps names in `Record.reported` to names in `Summary.compat`. The mapping has only the statistics that
        follow the tool's own definition.
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
    """Which statistic of this suite's rows is compared with the time of a tool.

    The default is the median over samples.

    `mean`: the statistic in `Summary.compat` that is compared instead of the median.
    `isolated_mean`: whether this statistic also replaces the median in isolated mode.
    `rate_is_median`: whether the tool prints no time, but a rate that is computed from the median time.
    """

    mean: str = ""
    isolated_mean: bool = False
    rate_is_median: bool = False


_UNKNOWN = LogTraits()


@cache
def log_traits(tool: str) -> LogTraits:
    """Return the traits of the tool with this name. Return default traits if no reader declares the tool."""
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
    """Return the statistic that this tool's file in `logs/readers/` declares. For other names, return the default."""
    found = getattr(plugins.load("tool", tool), "TOOL", None) if tool in plugins.names("tool") else None
    return ComparedStatistic() if found is None else found.compared
