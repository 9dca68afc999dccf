"""Compare the runs of similar jobs on many hosts. Find the usual rate of each group, slow runs, and lost runs.

In this module, one table of a log is called a run. A run uses one host, a pair of hosts, or more hosts. A group
consists of the runs with the same tool, operation, number of nodes and ranks per node. The figure of a run is its best
bus bandwidth. The best bus bandwidth of a run is compared only with that of other runs in the group.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist, median

from bench.core.codes import Code, Coded
from bench.logs.foreign import FAILED, OK, ForeignRun

LEAST_RUNS = 6  # a page needs at least this many similar jobs; fewer runs are better read one by one
LEAST_HOST_SETS = 3
SLOW_SHARE = 0.9  # a run with at least this share of the group's usual rate is never slow
_FALSE_SLOW = 0.001  # expected number of healthy runs in a whole folder that are wrongly marked as slow
_LEAST_NOISE = 0.01  # no measurement of bandwidth is better than 1 %
_SMALL_SAMPLE = 3.0  # the noise estimated from n figures is multiplied by 1 + this / n
_MOST_SLOW = 0.25  # more slow runs than this share, without a mostly slow host, cannot come from single links
_MOSTLY = 0.75  # a host is mostly slow if this share of its runs is slow
# A run is doubtful if its distance from the usual rate exceeds this share of the smallest distance of a slow run. Many
# doubtful runs show that the network has a slower tier.
_DOUBTFUL = 0.6
_NEAR = 0.05  # the usual rate is the median of runs whose log rate differs by less than this from a first estimate
# Runs whose largest size is below this share of the median largest size of the group are not compared.
_LEAST_OF_SIZE = 0.25
_COMPLETE = 0.95  # if this share of all pairs was measured, a missing pair is evidence
_TOKEN = re.compile(r"[A-Za-z0-9]")


class RunState(Code):
    """The state of a run compared with the other runs of its group: well, slow, failed, without figures, or missing."""

    WELL = "well", "well"
    SLOW = "slow", "slow"
    FAILED = "failed", "failed"
    NO_FIGURES = "no-figures", "without figures"
    MISSING = "missing", "missing"


LOST = (RunState.FAILED, RunState.NO_FIGURES, RunState.MISSING)


@dataclass(frozen=True, slots=True, order=True)
class JobKind:
    """The properties that two jobs must share before their runs are compared.

    Only the operations of the two jobs may differ.
    """

    tool: str
    num_nodes: int
    ranks_per_node: int
    gpu: str = ""  # the GPU's name as the driver prints it; "" if no log names a GPU
    cluster: str = ""  # the alphabetically first host of the cluster; "" if all hosts are in one cluster


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """The properties that two runs must share before they are compared: the kind of job and the operation."""

    kind: JobKind
    pattern: str


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One run.

    `rate`: the best busbw of the run, in bytes per second.
    `share`: `rate` divided by the usual rate of the group.
    `why`: the reason why the run failed, or None if no reason is known.
    """

    group: GroupKey
    hosts: tuple[str, ...]
    source: str
    rate: float | None = None
    state: RunState = RunState.WELL
    share: float | None = None
    why: Coded | None = None
    line: int = 1
    largest_bytes: int = 0  # the largest size in bytes that has a figure


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The runs with the same operation and the same kind of job, and the usual rate of these runs.

    Rates are in bytes per second.

    `noise`: the standard deviation of the logarithm of a run's rate.
    `spread`: the middle 68 % of the runs' rates span a range. The spread is half the width of this range, divided by
        the median rate. The spread is larger than the noise if there are slow runs or two network tiers.
    `compared`: whether slow runs are evidence. The value is False if so many runs are slow that single hosts and links
        cannot be the cause. Possible causes are then two network tiers or contention. If `compared` is false, only lost
        runs are evidence.
    `slow_below`: a run with a rate below this value is slow.
    `middle_run`: the run with the median rate.
    """

    key: GroupKey
    num_runs: int
    num_sets: int
    usual_rate: float | None
    low_rate: float | None
    high_rate: float | None
    noise: float
    spread: float
    compared: bool
    counts: Mapping[RunState, int]
    slow_below: float | None = None
    middle_run: FleetRun | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """All runs of a folder of logs, including missing runs, and the groups of these runs. Each run has a state."""

    hosts: tuple[str, ...]
    groups: tuple[RunGroup, ...]
    runs: tuple[FleetRun, ...]
    num_unplaced: int  # number of runs whose hosts are unknown or whose group has too few sets of hosts

    @property
    def is_one(self) -> bool:
        """Whether one page can show all runs, because enough similar jobs ran on different hosts.

        The value is False if less than half of all runs belong to a group.
        """
        found = [run for run in self.runs if run.state != RunState.MISSING]
        sets = {run.hosts for run in found}
        return len(found) >= LEAST_RUNS and len(sets) >= LEAST_HOST_SETS and len(found) >= self.num_unplaced

    @property
    def is_well(self) -> bool:
        """Whether all runs have figures and no run is slow, failed or missing."""
        return all(run.state == RunState.WELL for run in self.runs)


def fleet_of(found: Iterable[tuple[str, ForeignRun]]) -> Fleet:
    """Divide runs into groups, and find the state of each run.

    `found`: for each run, the name of its log file and the run itself.
    """
    named = list(found)
    hosts_of = _HostNames(named)
    gpu_of = _gpus_of_hosts(named, hosts_of)
    placed = [run for source, foreign in named if (run := _placed(source, foreign, hosts_of, gpu_of)) is not None]
    num_unplaced = len(named) - len(placed)
    by_group: dict[GroupKey, list[FleetRun]] = {}
    for run in _by_cluster(placed):
        by_group.setdefault(run.group, []).append(run)
    for key in [key for key, runs in by_group.items() if len({run.hosts for run in runs}) < LEAST_HOST_SETS]:
        num_unplaced += len(by_group.pop(key))
    num_runs = sum(map(len, by_group.values()))
    distance = NormalDist().inv_cdf(1 - _FALSE_SLOW / max(num_runs, 1))
    groups, runs = [], []
    for key in sorted(by_group):
        group, judged = _judged(key, _with_missing(key, by_group), distance)
        groups.append(group)
        runs += judged
    hosts = sorted({host for run in runs for host in run.hosts})
    return Fleet(tuple(hosts), tuple(groups), tuple(runs), num_unplaced)


def _by_cluster(runs: list[FleetRun]) -> list[FleetRun]:
    """If the hosts form several separate clusters, add a cluster name to each run.

    Runs of different clusters are not compared. Hosts that ran jobs together form a cluster if these jobs have enough
    different sets of hosts. All hosts outside these clusters form one cluster without a name. For example, this cluster
    contains the hosts that were tested only in separate pairs.
    """
    joined: dict[str, set[str]] = {}
    for run in runs:
        if not joined.get(run.hosts[0], set()).issuperset(run.hosts):
            hosts = set(run.hosts).union(*(joined.get(host, ()) for host in run.hosts))
            joined |= dict.fromkeys(hosts, hosts)
    num_sets = Counter(min(joined[hosts[0]]) for hosts in {run.hosts for run in runs if len(run.hosts) > 1})
    clusters = {name for name, sets in num_sets.items() if sets >= LEAST_HOST_SETS}
    if len(clusters) < 2:
        return runs
    found = []
    for run in runs:
        name = min(joined[run.hosts[0]])
        kind = replace(run.group.kind, cluster=name if name in clusters else "")
        found.append(replace(run, group=replace(run.group, kind=kind)))
    return found


def _gpus_of_hosts(runs: Sequence[tuple[str, ForeignRun]], hosts_of: _HostNames) -> dict[str, str]:
    """Map each host to the names of its GPUs, taken from a run that lists them."""
    found: dict[str, str] = {}
    for source, run in runs:
        for host in hosts_of.of(source, run) if run.gpus else ():
            found.setdefault(host, ", ".join(sorted(set(run.gpus))))
    return found


def _placed(source: str, run: ForeignRun, hosts_of: _HostNames, gpu_of: Mapping[str, str]) -> FleetRun | None:
    """Convert a run in a log to a FleetRun. The result is None if the run's hosts or group are unknown."""
    hosts = hosts_of.of(source, run)
    nodes = run.num_nodes or len(hosts)
    if not hosts or len(hosts) != nodes or run.pattern is None or not run.num_ranks or run.num_ranks % nodes:
        return None
    rates = []
    largest = 0
    for row in run.rows:
        rate = row.busbw_bytes_per_s or row.algbw_bytes_per_s
        if rate and math.isfinite(rate) and row.contradicts is None and not row.num_wrong:
            rates.append(rate)
            largest = max(largest, row.payload_bytes or 0)
    wrong = any(row.num_wrong for row in run.rows)
    state, why = RunState.WELL, None
    if wrong or run.status == FAILED or (rates and run.status != OK):
        state, why = RunState.FAILED, run.failure
    elif not rates:
        state, why = RunState.NO_FIGURES, run.failure
    gpus = sorted({gpu_of[host] for host in hosts if host in gpu_of})
    key = GroupKey(JobKind(run.tool, nodes, run.num_ranks // nodes, " and ".join(gpus)), run.pattern)
    best = max(rates, default=None)
    return FleetRun(key, hosts, source, best, state, why=why, line=run.line, largest_bytes=largest)


class _HostNames:
    """Finds the hosts of a run, either in its log or in the name of its log file.

    File names are used only if a log lists no hosts, and if file names are reliable. File names are reliable if nearly
    all logs that list their hosts have exactly these hosts in the file name.
    """

    def __init__(self, runs: Sequence[tuple[str, ForeignRun]]) -> None:
        self._bare = _bare_names({host for _, run in runs for host in run.hosts})
        listed = [(source, self._listed(run)) for source, run in runs if run.hosts]
        known = sorted({host for _, hosts in listed for host in hosts}, key=lambda host: (-len(host), host))
        self._known = [host for host in known if _TOKEN.search(host)]
        agree = sum(self._in_name(source) == hosts for source, hosts in listed)
        self._names_count = bool(listed) and agree >= 0.9 * len(listed)

    def of(self, source: str, run: ForeignRun) -> tuple[str, ...]:
        """Return the sorted hosts of a run, or an empty tuple if the hosts are unknown."""
        if run.hosts:
            return self._listed(run)
        return self._in_name(source) if self._names_count else ()

    def _listed(self, run: ForeignRun) -> tuple[str, ...]:
        return tuple(sorted({self._bare.get(host, host) for host in run.hosts}))

    def _in_name(self, source: str) -> tuple[str, ...]:
        """Return the known hosts whose names appear as whole words in the file name.

        Longer names are searched first.
        """
        name = re.split(r"[/\\]", source)[-1]
        found = []
        for host in self._known:
            pattern = rf"(?<![A-Za-z0-9]){re.escape(host)}(?![A-Za-z0-9]|-\d)"
            name, times = re.subn(pattern, "\0", name)
            if times:
                found.append(host)
        return tuple(sorted(found))


def _bare_names(hosts: set[str]) -> dict[str, str]:
    """Map host names with a domain to names without this domain.

    A domain is removed from a name only if some logs omit the domain, and if no other domain has a host with the same
    name.
    """
    domain_of = {host: host.partition(".")[2] for host in hosts}
    dropped = {domain for host, domain in domain_of.items() if domain and host.partition(".")[0] in hosts}
    bare = {host: host.partition(".")[0] for host, domain in domain_of.items() if domain in dropped}
    times = Counter(host.partition(".")[0] for host, domain in domain_of.items() if domain)
    return {host: name for host, name in bare.items() if times[name] == 1}


def _with_missing(key: GroupKey, by_group: Mapping[GroupKey, Sequence[FleetRun]]) -> list[FleetRun]:
    """Return the runs of a group. Add a run with the state MISSING for each run that was expected but not found.

    A run is missing in two cases:

    - A job ended too early. The hosts of this job have runs of other operations, but no run of this operation. Nearly
      all other sets of hosts have a run of this operation.
    - A pair of hosts has no log. Nearly all other pairs of hosts have a run.
    """
    runs = list(by_group[key])
    there = {run.hosts for run in runs}
    siblings = [other for other in by_group if other.kind == key.kind and other != key]
    started = {run.hosts: run for other in siblings for run in by_group[other]}
    expected = {hosts: started[hosts].source for hosts in started if hosts not in there}
    if len(there) < _COMPLETE * len(there | set(started)):
        expected = {}
    if key.kind.num_nodes == 2:
        hosts = sorted({host for pair in there | set(started) for host in pair})
        pairs = set(combinations(hosts, 2))
        if len(there | set(expected)) >= _COMPLETE * len(pairs):
            expected |= {pair: "" for pair in pairs - there - set(started)}
    return runs + [FleetRun(key, hosts, source, state=RunState.MISSING) for hosts, source in sorted(expected.items())]


def _judged(key: GroupKey, runs: list[FleetRun], distance: float) -> tuple[RunGroup, list[FleetRun]]:
    """Return the group, and its runs with the shares and states that were found.

    `distance`: a number of standard deviations. A run can be slow only if its rate is further than this below the usual
        rate.
    """
    runs = _without_small_sizes(_with_usual_ends(runs))
    rated = [run for run in runs if run.rate is not None and run.state == RunState.WELL]
    level = _level(rated, distance)
    if level is not None:
        judged = []
        for run in runs:
            share = run.rate / level.usual if run.rate else None
            slow = id(run) in level.slow and level.compared
            judged.append(replace(run, share=share, state=RunState.SLOW if slow else run.state))
        runs = judged
    rates = sorted(run.rate for run in rated if run.rate)
    group = RunGroup(
        key=key,
        num_runs=sum(run.state != RunState.MISSING for run in runs),
        num_sets=len({run.hosts for run in runs}),
        usual_rate=median(rates) if rates else None,
        low_rate=min(rates, default=None),
        high_rate=max(rates, default=None),
        noise=level.noise if level else 0.0,
        spread=_spread(rates),
        compared=level is not None and level.compared,
        counts=Counter(run.state for run in runs),
        slow_below=level.slow_below if level else None,
        middle_run=sorted(rated, key=lambda run: run.rate or 0.0)[len(rated) // 2] if rated else None,
    )
    return group, runs


def _without_small_sizes(runs: list[FleetRun]) -> list[FleetRun]:
    """Return the runs. If the rate of a run is not comparable with the other rates, remove this rate.

    A rate is not comparable if the largest size of its run is far below the usual largest size.
    """
    sizes = [run.largest_bytes for run in runs if run.rate is not None]
    least = _LEAST_OF_SIZE * median(sizes) if sizes else 0.0
    return [replace(run, rate=None) if run.largest_bytes < least else run for run in runs]


def _with_usual_ends(runs: list[FleetRun]) -> list[FleetRun]:
    """Return the runs of a group. Failures that are usual for the group do not count as failures.

    If most runs with a rate failed, the most frequent reason of failure counts as usual for the group. If a run failed
    for this reason but has a rate, it gets the state WELL.
    """
    rated = [run for run in runs if run.rate is not None]
    cut = [run for run in rated if run.state == RunState.FAILED]
    if 2 * len(cut) <= len(rated):
        return runs
    ends = Counter(run.why.code for run in cut if run.why)
    usual = ends.most_common(1)[0][0] if ends else ""
    return [
        replace(run, state=RunState.WELL, why=None)
        if run.rate is not None and run.why is not None and run.why.code == usual
        else run
        for run in runs
    ]


@dataclass(frozen=True, slots=True)
class _Level:
    """The usual rate of a group, and the noise of a single run's rate.

    `slow`: the ids of the slow runs.
    `doubtful`: the ids of all runs that may be slow, including the slow runs.
    """

    usual: float
    noise: float
    slow_below: float
    slow: frozenset[int]
    doubtful: frozenset[int]
    compared: bool


def _level(rated: Sequence[FleetRun], distance: float) -> _Level | None:
    """Return a _Level for the runs, or None if there are too few runs.

    If so many runs are slow that a few slow hosts cannot be the reason, these runs probably used a slower tier of the
    network. The rate of this tier then becomes the usual rate, with which all runs are compared.
    """
    if len(rated) < LEAST_HOST_SETS:
        return None
    level = _at(_usual_rate(rated), rated, distance)
    if level.compared:
        return level
    mostly = _slow_with_all(rated, level.doubtful)
    tier = [run.rate for run in rated if run.rate and id(run) in level.doubtful and not mostly.intersection(run.hosts)]
    return _at(median(tier), rated, distance) if tier else level


def _at(usual: float, rated: Sequence[FleetRun], distance: float) -> _Level:
    """Compute the noise and the slow runs for a given usual rate.

    A run counts as slow if its rate is too far below `usual`.
    """
    logs = [math.log((run.rate or usual) / usual) for run in rated]
    noise = _noise(logs)
    limit = min(math.log(SLOW_SHARE), -distance * noise)
    slow = frozenset(id(run) for run, log in zip(rated, logs, strict=True) if log < limit)
    doubtful = frozenset(id(run) for run, log in zip(rated, logs, strict=True) if log < _DOUBTFUL * limit)
    return _Level(usual, noise, usual * math.exp(limit), slow, doubtful, _single_faults(rated, doubtful))


def _usual_rate(runs: Sequence[FleetRun]) -> float:
    """Return the usual rate. A single slow host does not change the result, even if there are only three hosts.

    First, compute the median rate of each host's runs, and the median of these values over all hosts. The usual rate is
    the median of all rates that are close to this second median.
    """
    by_host: dict[str, list[float]] = {}
    for run in runs:
        for host in run.hosts:
            by_host.setdefault(host, []).append(run.rate or 0.0)
    middles = sorted(sorted(rates)[len(rates) // 2] for rates in by_host.values())
    start = middles[len(middles) // 2]
    return median([run.rate for run in runs if run.rate and abs(math.log(run.rate / start)) < _NEAR])


def _noise(logs: Sequence[float]) -> float:
    """Estimate the standard deviation of a single run's rate. `logs`: the logarithms of (rate / usual rate).

    The rates below the usual rate give one estimate, and the rates above the usual rate give another. The result is the
    smaller of the two estimates, because slow runs or a faster tier increase only one of them. If one side has less
    than a quarter of the rates, this side gives no estimate. If a side gives no estimate, the rates close to the usual
    rate give another estimate.
    """
    sides = [[-log for log in logs if log < 0], [log for log in logs if log > 0]]
    if any(4 * len(side) < len(logs) for side in sides):
        sides.append([abs(log) for log in logs if abs(log) < -math.log(SLOW_SHARE)])
    sizes = [1.4826 * (1 + _SMALL_SAMPLE / len(side)) * median(side) for side in sides if 4 * len(side) >= len(logs)]
    return max(_LEAST_NOISE, min(sizes, default=0.0))


def _spread(rates: Sequence[float]) -> float:
    """Return the relative spread of sorted rates: half the width of their middle 68 %, divided by their median."""
    if not rates:
        return 0.0
    low, high = (rates[round(quantile * (len(rates) - 1))] for quantile in (0.16, 0.84))
    return (high - low) / 2 / median(rates)


def _single_faults(runs: Sequence[FleetRun], slow: frozenset[int]) -> bool:
    """Check whether a few slow hosts and links can explain the slow runs.

    Single hosts cannot be the reason if half or more of all hosts are slow with all partners. Single hosts also cannot
    be the reason if too many runs of other hosts are slow.
    """
    mostly = _slow_with_all(runs, slow)
    others = [id(run) in slow for run in runs if not mostly.intersection(run.hosts)]
    most = max(1.0, _MOST_SLOW * len(others))
    return 2 * len(mostly) < len({host for run in runs for host in run.hosts}) and sum(others) <= most


def _slow_with_all(runs: Sequence[FleetRun], slow: frozenset[int]) -> set[str]:
    """Find the hosts that are slow in most of their runs. Most runs between two of these hosts are also slow.

    A host is judged only if it has at least two runs. If hosts are slow with other hosts but fast with each other, they
    are in another part of the network. Such hosts are not returned.
    """
    found = {host for run in runs for host in run.hosts}
    for among in (False, True):
        flags: dict[str, list[bool]] = {host: [] for host in found}
        for run in runs:
            for host in found.intersection(run.hosts):
                if not among or (len(run.hosts) > 1 and found.issuperset(run.hosts)):
                    flags[host].append(id(run) in slow)
        least = 0 if among else 2
        found = {host for host, own in flags.items() if len(own) >= least and sum(own) >= _MOSTLY * len(own)}
    return found
