"""A scenario on a cluster becomes a plan: the jobs to launch, what is skipped and why, and how long it will take.

Pure: the same input gives the same plan, and nothing is started. The time budget is that of one launch of all jobs,
which share it equally; a job that has more rows than its share can hold (MIN_ROW_S each) measures fewer sizes, evenly
thinned, and the plan says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from bench.config.clusters import Cluster
from bench.config.scenario import Measurement, Scenario
from bench.controller.jobs import NO_TOOLS, Job, LocalMachine, Plan, PlanSkip, count_rounds, job_of
from bench.core import hostlist
from bench.core.case import FACTOR, FACTORS, LADDER_ALONE, Case, applies, ignored_option, preset_fields
from bench.core.contention import parts, rounds, shape_of_aggressors
from bench.core.errors import UsageError
from bench.core.factors import Factor
from bench.core.launcher import Launcher
from bench.core.pattern import Pattern
from bench.core.sweep import thin
from bench.core.topology import IN_TURN
from bench.core.traits import auto_choices, names_with, traits
from bench.core.units import format_duration
from bench.core.world import World
from bench.hardware import catalogue
from bench.hardware.bounds import COPIES_OF_ONE_GPU
from bench.logs.tool import Installed

# The model knows messages over links, not copies, products, or what products take from messages.
NOT_MODELLED = COPIES_OF_ONE_GPU | {"peer_copy", "gpu_baseline", "overlap"}
MIN_ROW_S = 0.12  # warm-up, thirty samples and three checks of a small message
_MOST_AUTO_RANKS = 8
_ELSEWHERE = ("slurm", "kubernetes")  # this machine's own packages and GPUs say nothing of theirs
_DEFAULT = Case(pattern="")
# Job names list factors in this order, and nested loops vary the last one fastest.
_RANKED = sorted((each for each in FACTORS if each.name_rank is not None), key=lambda each: each.name_rank or 0)
_UNRANKED = [each for each in FACTORS if each.name_rank is None and each.keys]


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination of a scenario's lists, before it is known whether it can run."""

    case: Case
    world: World
    env: tuple[tuple[str, str], ...]
    max_s: float
    tool: str = ""


def expand(
    scenario: Scenario,
    cluster: Cluster,
    machine: LocalMachine,
    patterns: Mapping[str, Pattern],
    launchers: Mapping[str, Launcher],
    modelled: bool,
    tools: Mapping[str, Installed] = NO_TOOLS,
) -> Plan:
    """The plan of a scenario. `tools`: those that it names, as they were found here.

    Raises UsageError when a modelled cluster names no instance type.
    """
    if cluster.differs:
        raise UsageError(f"cluster {cluster.name}: {cluster.differs}")
    if modelled and cluster.instance is None:
        raise UsageError(
            f"cluster {cluster.name!r} can not be modelled: bench.yaml gives it no instance type whose links are known"
        )
    wishes, skipped, notes = [], [], _spare_hosts(cluster)
    for measurement in scenario.measurements:
        for wish in _wishes(measurement, scenario, cluster, machine, patterns, modelled, tools):
            reason = _why_not(wish, cluster, machine, patterns) or _why_no_tool(wish, tools)
            reason = reason or _why_too_few(wish, measurement)
            if reason is None:
                wishes.append(wish)
            else:
                skipped.append((wish, reason))
    wishes = list(dict.fromkeys(wishes))  # lists of a scenario may name the same thing twice
    jobs = []
    share_s = scenario.budget_s / len(wishes) if scenario.budget_s and wishes else None
    names: set[str] = set()
    for launch in range(1, scenario.launches + 1):
        # Launch by launch, there and back: a machine that drifts hits all alike.
        for wish in wishes if launch % 2 else reversed(wishes):
            case, note = _fitted(wish, share_s, patterns)
            notes += [note] if note else []
            name = _name(wish, launch, names)
            names.add(name)
            job = job_of(
                name, case, wish.world, dict(wish.env), cluster, machine, patterns, launchers, launch, wish.tool, tools
            )
            jobs.append(job)
            notes += _out_of_proportion(job, share_s, len(wishes))
    return Plan(
        scenario.name,
        cluster,
        modelled,
        tuple(jobs),
        _together(skipped),
        tuple(dict.fromkeys(notes)),
        scenario.budget_s,
    )


def _wishes(
    measurement: Measurement,
    scenario: Scenario,
    cluster: Cluster,
    machine: LocalMachine,
    patterns: Mapping[str, Pattern],
    modelled: bool,
    tools: Mapping[str, Installed],
) -> Iterator[Combination]:
    m = measurement
    variables = [[(name, value) for value in values] for name, values in m.env.items()]
    worlds = product(m.nodes or (cluster.nodes,), m.ranks_per_node)
    if modelled:
        chosen_by = dict.fromkeys(m.patterns, names_with("modelled"))
    else:
        chosen_by = {name: m.transports or _auto_transports(cluster, machine, patterns[name]) for name in m.patterns}
    by = [(name, transport) for name in m.patterns for transport in chosen_by[name]]
    for (num_nodes, per_node), (name, transport) in product(worlds, by):
        pattern = patterns[name]
        world = World(num_nodes, _ranks_per_node(per_node, cluster, machine, transport))
        factors = {each.name: _values(each, m, pattern, transport) for each in (*_RANKED, *_UNRANKED)}
        for *chosen, env in product(*factors.values(), product(*variables)):
            case = Case(
                pattern=name,
                transport=transport,
                max_s=scenario.max_s,
                instance=cluster.instance or "",
                links=tuple(sorted(cluster.links.items())),
                nics=cluster.nics,
                racks=_racks(cluster) if pattern.topology == "pairs" else (),
                **dict(zip(factors, chosen, strict=True)),
            )
            case = _with_preset(case)
            if case.dtype != "float32":  # only of float32 there are two kinds of product
                case = replace(case, tf32=False)
            if modelled:
                case = replace(case, nodes=world.num_nodes, ranks_per_node=world.ranks_per_node)
            yield Combination(case, world, tuple(env), scenario.max_s)
            for tool in m.tools if not modelled else ():
                for part in tools[tool].tool.starts(case):
                    yield Combination(part, world, tuple(env), scenario.max_s, tool)


def _racks(cluster: Cluster) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((rack, tuple(hosts)) for rack, hosts in cluster.racks.items())


def _values(varied: Factor, m: Measurement, pattern: Pattern, transport: str) -> tuple[Any, ...]:
    """The values to try of a factor. One that can be varied has its default where it does not matter."""
    depends_on = FACTOR[varied.depends_on] if varied.depends_on else None
    unused = depends_on is not None and m.values_of(depends_on) == (depends_on.default,)
    if unused or (varied.several and not applies(varied, pattern, transport)):
        return (varied.default,)
    return m.values_of(varied)


def _with_preset(case: Case) -> Case:
    """The case with the settings that its `like` fixes. Raises UsageError if it sets one of them otherwise."""
    fixed = preset_fields(case.like, case.pattern)
    for name, value in fixed.items():
        if getattr(case, name) not in (value, getattr(_DEFAULT, name)):
            raise UsageError(f"like: {case.like} measures with {name} {value}: leave {getattr(case, name)} out")
    return replace(case, **fixed)


def _auto_transports(cluster: Cluster, machine: LocalMachine, pattern: Pattern) -> tuple[str, ...]:
    """The pattern's only one; the first choice for GPUs if there are any, else every host transport that can run."""
    if pattern.transport is not None:
        return (pattern.transport,)
    if cluster.instance is not None or machine.num_gpus:
        return auto_choices(on_gpu=True)[:1]
    of_hosts = auto_choices(on_gpu=False)
    return tuple(name for name in of_hosts if name not in machine.lacks) or of_hosts


def _ranks_per_node(asked: int | None, cluster: Cluster, machine: LocalMachine, transport: str) -> int:
    asked = asked or cluster.ranks_per_node
    if asked is not None:
        return asked
    if cluster.instance is not None:  # a login node's GPUs and CPUs say nothing of it
        return catalogue.instance(cluster.instance).gpus
    if traits(transport).on_gpu and machine.num_gpus:
        return machine.num_gpus
    return min(max(2, machine.num_cpus), _MOST_AUTO_RANKS)


def _spare_hosts(cluster: Cluster) -> list[str]:
    """A note where more hosts are named than there are nodes."""
    spare = cluster.hosts[cluster.nodes :]
    if not spare:
        return []
    named = f"cluster {cluster.name!r} has nodes: {cluster.nodes}, and hosts: names {len(cluster.hosts)}"
    return [f"{named}: {hostlist.compress(spare)} stay unused (leave nodes: out to use all)"]


def _why_not(wish: Combination, cluster: Cluster, machine: LocalMachine, patterns: Mapping[str, Pattern]) -> str | None:
    case, pattern = wish.case, patterns[wish.case.pattern]
    if traits(case.transport).modelled and case.pattern in NOT_MODELLED:
        return "the model knows messages between ranks: it has neither copies of GPUs nor products of matrices"
    # A cluster that names its instance type is a claim about this machine, which the preflight holds it to.
    if cluster.instance is None and case.transport in machine.lacks and cluster.launcher not in _ELSEWHERE:
        return machine.lacks[case.transport]
    if (ignored := ignored_option(case, case.transport)) is not None:
        return ignored.text
    if wish.tool and cluster.launcher == "kubernetes":
        return f"{wish.tool} is started where its programs are, not in containers"
    if cluster.launcher == "torchrun" and traits(case.transport).over_mpi:
        return "torchrun starts no MPI ranks: let mpirun or slurm start them"
    if wish.world.num_nodes > cluster.nodes:
        return f"needs {wish.world.num_nodes} nodes, cluster {cluster.name!r} has {cluster.nodes}"
    if case.topology.removesuffix(IN_TURN) in ("node", "rail") and wish.world.num_nodes == 1:
        return f"one node: topology {case.topology} is {'the world' if 'node' in case.topology else 'between nodes'}"
    return _why_no_groups(wish, machine, pattern)


def _why_too_few(wish: Combination, measurement: Measurement) -> str | None:
    there = wish.world.num_ranks
    if there >= measurement.least_ranks:
        return None
    if there == 1:
        return "one rank by itself: nothing would cross a link"
    return f"the scenario measures this from {measurement.least_ranks} ranks on, there are {there}"


def _why_no_groups(wish: Combination, machine: LocalMachine, pattern: Pattern) -> str | None:
    case = wish.case
    if wish.world.num_ranks < pattern.min_ranks:
        return f"{pattern.name} needs at least {pattern.min_ranks} ranks, there are {wish.world.num_ranks}"
    return _why_no_rounds(case, wish.world, machine, pattern)


def _why_no_rounds(case: Case, world: World, machine: LocalMachine, pattern: Pattern) -> str | None:
    """Why the groups of a case can not be made."""
    if case.aggressor and case.transport not in machine.separates:
        return f"{case.transport} can not run two patterns at once, {' and '.join(sorted(machine.separates))} can"
    if case.schedule == "ladder":
        if case.aggressor:
            return LADDER_ALONE
        return None if pattern.topology == "pairs" else f"a ladder is climbed by pairs, {pattern.name} has none"
    try:
        split = parts(case, world)
        if split and len(split.victims.ranks) < pattern.min_ranks:
            return f"{pattern.name} needs at least {pattern.min_ranks} victims, there are {len(split.victims.ranks)}"
        if split:
            shape_of_aggressors(case, len(split.aggressors.ranks))
        rounds(case, world, pattern.topology_of(case.topology))
    except UsageError as error:
        return str(error)
    return None


def _why_no_tool(wish: Combination, tools: Mapping[str, Installed]) -> str | None:
    if not wish.tool:
        return None
    there = tools[wish.tool]
    if wish.case.transport != there.tool.transport:
        return f"{there.tool.title} stands beside {there.tool.transport}, not {wish.case.transport}"
    reason = there.unsupported_reason(wish.case, wish.world)
    return reason.text if reason else None


def _fitted(wish: Combination, share_s: float | None, patterns: Mapping[str, Pattern]) -> tuple[Case, str | None]:
    """The case with its share of the budget, its sizes thinned where they would not fit; and a note if they were."""
    case = wish.case
    if share_s is None or traits(case.transport).modelled:
        return case, None
    rows = len(case.sizes) * len(case.modes) * count_rounds(case, wish.world, patterns[case.pattern])
    sizes = thin(case.sizes, int(share_s / MIN_ROW_S) * len(case.sizes) // rows)
    fitted = replace(case, sizes=sizes, budget_s=round(share_s, 3))
    if len(sizes) == len(case.sizes):
        return fitted, None
    return fitted, (
        f"sizes thinned from {len(case.sizes)} to {len(sizes)} (first and last kept) so that each row has at least "
        f"{MIN_ROW_S} s of the {format_duration(share_s)} that each job has of the budget"
    )


def _out_of_proportion(job: Job, share_s: float | None, num_jobs: int) -> list[str]:
    """A note when a job's rows, thinned as far as they may be, are still more than its share of the budget holds."""
    least_s = job.num_rows * MIN_ROW_S
    if job.case.budget_s is None or share_s is None or least_s <= share_s or job.num_rounds == 1:
        return []
    fewer = ", or let ranks_per_node: 1 compare nodes" if job.world.ranks_per_node > 1 else ""
    return [
        f"{job.name}: {job.num_rounds:,} rounds over {job.world.num_ranks:,} ranks are {job.num_rows:,} rows and need "
        f"{format_duration(least_s)} at least ({MIN_ROW_S} s each); its share of the budget is "
        f"{format_duration(share_s)}, so most are left out: give --budget {math.ceil(least_s * num_jobs / 60)}m{fewer}"
    ]


def _together(skipped: Iterable[tuple[Combination, str]]) -> tuple[PlanSkip, ...]:
    """One entry for all patterns that are left out over one transport for the same reason."""
    patterns: dict[tuple[str, str], dict[str, None]] = {}
    for wish, reason in skipped:
        by = " ".join([wish.tool or wish.case.transport, *(f"{name}={value}" for name, value in wish.env)])
        patterns.setdefault((by, reason), {})[wish.case.pattern] = None
    return tuple(PlanSkip(f"{', '.join(names)} {by}", reason) for (by, reason), names in patterns.items())


def _name(wish: Combination, launch: int, taken: set[str]) -> str:
    """A job's name from what tells it from others: allreduce-mpi-2x8, with a number where that is not enough."""
    case, world = wish.case, wish.world
    parts = [case.pattern, wish.tool or case.transport, f"{world.num_nodes}x{world.ranks_per_node}"]
    default = replace(_DEFAULT, **preset_fields(case.like, case.pattern))
    for each in _RANKED:
        value = getattr(case, each.name)
        if value != getattr(default, each.name):
            parts.append(each.name_part(value))
    parts += [f"{name}.{value}" for name, value in wish.env]
    parts += [f"launch{launch}"] * (launch > 1)
    name = "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in "-".join(parts))[:120]
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique
