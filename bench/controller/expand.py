"""Expand a scenario on a cluster into a plan: jobs to launch, skipped jobs with reasons, and the estimated time.

Expanding starts nothing, and the same input gives the same plan. The time budget covers one launch of all jobs, and
each job gets an equal share. A row needs at least MIN_ROW_S. If a job's rows need more than the job's share, the plan
omits some sizes at even intervals and adds a remark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from bench.config.clusters import Cluster
from bench.config.scenario import Measurement, Scenario
from bench.controller.jobs import Job, JobSpec, LocalMachine, Plan, PlanSkip, Site, count_rounds, job_of
from bench.controller.messages import ControllerError, PlanRemark, PlanSkipCode
from bench.core import hostlist
from bench.core.case import (
    FACTOR,
    FACTORS,
    LADDER_ALONE,
    Case,
    applies,
    check_steps,
    ignored_option,
    ignores,
    preset_fields,
    refuses,
)
from bench.core.codes import Coded
from bench.core.contention import parts, rounds, shape_of_aggressors
from bench.core.errors import UsageError
from bench.core.factors import Factor
from bench.core.pattern import Pattern
from bench.core.remarks import CodedRemark, RemarkCode
from bench.core.secret_values import masked
from bench.core.sweep import thin
from bench.core.topology import IN_TURN
from bench.core.traits import auto_choices, names_with, traits
from bench.core.world import World
from bench.hardware import catalogue
from bench.hardware.bounds import COPIES_OF_ONE_GPU

# Patterns that the model does not simulate. The model simulates messages over links. It does not simulate copies within
# a GPU, matrix products or reads of files, nor their effect on messages.
NOT_MODELLED = COPIES_OF_ONE_GPU | {"peer_copy", "gpu_baseline", "overlap", "replay", "feed", "step", "checkpoint"}
MIN_ROW_S = 0.12  # time of a row of small messages: warm-up, thirty samples and three checks
_MOST_AUTO_RANKS = 8
_ELSEWHERE = ("slurm", "kubernetes")  # launchers whose ranks run on machines with other packages and GPUs
_DEFAULT = Case(pattern="")
# Job names list factors in this order. Nested loops vary the last factor fastest.
_RANKED = sorted(
    (factor for factor in FACTORS if factor.name_rank is not None), key=lambda factor: factor.name_rank or 0
)
_UNRANKED = [factor for factor in FACTORS if factor.name_rank is None and factor.keys]


def expand(scenario: Scenario, site: Site, modelled: bool) -> Plan:
    """Return the plan of a scenario on a site. Raises UsageError if a modelled cluster names no instance type."""
    cluster = site.cluster
    if cluster.differs:
        raise UsageError.of(ControllerError.HOSTS_DIFFER, cluster=cluster.name, why=cluster.differs)
    if modelled and cluster.instance is None:
        raise UsageError.of(ControllerError.NO_INSTANCE, cluster=cluster.name)
    specs: list[JobSpec] = []
    skipped: list[tuple[JobSpec, Coded]] = []
    for measurement in scenario.measurements:
        for spec in _specs(measurement, scenario, site, modelled):
            reason = _skip_reason(spec, measurement, site)
            if reason is None:
                specs.append(spec)
            else:
                skipped.append((spec, reason))
    specs = list(dict.fromkeys(specs))  # a scenario's lists may repeat an entry
    share_s = scenario.budget_s / len(specs) if scenario.budget_s and specs else None
    jobs: list[Job] = []
    remarks = _spare_hosts(cluster)
    for measurement in scenario.measurements:
        remarks += _ignored_factors(measurement, site, modelled)
    names: set[str] = set()
    for launch in range(1, scenario.launches + 1):
        # Alternate the order from launch to launch, so a drifting machine affects all jobs equally.
        for spec in specs if launch % 2 else reversed(specs):
            case = _fitted(spec, share_s, site)
            remarks += _thinned(spec.case, case, share_s)
            name = _name(spec, launch, names)
            names.add(name)
            job = job_of(replace(spec, name=name, case=case, launch=launch), site)
            jobs.append(job)
            remarks += _over_budget(job, share_s, len(specs))
    return Plan(
        scenario.name,
        cluster,
        modelled,
        tuple(jobs),
        _merge_skips(skipped),
        tuple({_key(remark): remark for remark in remarks}.values()),
        scenario.budget_s,
    )


def _key(coded: Coded) -> tuple[str, str]:
    """Return a key that is the same for all `Coded` values with equal codes and facts."""
    return coded.code, repr(sorted(coded.facts.items()))


def _specs(measurement: Measurement, scenario: Scenario, site: Site, modelled: bool) -> Iterator[JobSpec]:
    """Yield a job for every combination of the values that a measurement lists. The jobs have no names yet."""
    cluster, patterns = site.cluster, site.patterns
    m = measurement
    for name, values in m.env.items():
        if any(masked(name, value) != value for value in values):
            raise UsageError.of(ControllerError.SECRET_FACTOR, scenario=scenario.name, name=name)
    variables = [[(name, value) for value in values] for name, values in m.env.items()]
    worlds = product(m.nodes or (cluster.nodes,), m.ranks_per_node)
    chosen_by = _transports(m, site, modelled)
    by = [(name, transport) for name in m.patterns for transport in chosen_by[name]]
    for (num_nodes, per_node), (name, transport) in product(worlds, by):
        pattern = patterns[name]
        world = World(num_nodes, _ranks_per_node(per_node, cluster, site.machine, transport))
        named = () if modelled else m.transports or ()
        factors = {factor.name: _values(factor, m, pattern, transport, named) for factor in (*_RANKED, *_UNRANKED)}
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
            check_steps(case)
            if case.dtype != "float32":  # only float32 products can use TF32
                case = replace(case, tf32=False)
            if modelled:
                case = replace(case, nodes=world.num_nodes, ranks_per_node=world.ranks_per_node)
            yield JobSpec("", case, world, tuple(env))
            for tool in m.tools if not modelled else ():
                for part in site.tools[tool].tool.starts(case):
                    yield JobSpec("", part, world, tuple(env), tool=tool)


def _racks(cluster: Cluster) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((rack, tuple(hosts)) for rack, hosts in cluster.racks.items())


def _transports(m: Measurement, site: Site, modelled: bool) -> dict[str, tuple[str, ...]]:
    """Map each pattern of a measurement to its transports."""
    if modelled:
        return dict.fromkeys(m.patterns, names_with("modelled"))
    return {
        name: m.transports or _auto_transports(site.cluster, site.machine, site.patterns[name]) for name in m.patterns
    }


def _values(
    varied: Factor, m: Measurement, pattern: Pattern, transport: str, named: tuple[str, ...]
) -> tuple[Any, ...]:
    """Return the values of a factor to measure.

    If the pattern or the transport ignores the factor, the result is only the factor's default value. If every
    transport in `named` must refuse the factor, the result has all values. The plan then lists the skipped jobs.

    `named`: the transports that the user requires; empty if the plan may choose them.
    """
    unused = _is_unused(varied, m)
    if not unused and varied.patterns(pattern) and _none_obeys(varied, named):
        return m.values_of(varied)
    if unused or (varied.several and not applies(varied, pattern, transport)):
        return (varied.default,)
    return m.values_of(varied)


def _none_obeys(varied: Factor, named: tuple[str, ...]) -> bool:
    return bool(named) and all(refuses(transport, varied) for transport in named)


def _ignored_factors(m: Measurement, site: Site, modelled: bool) -> list[CodedRemark]:
    """Return a remark for each factor that the measurement sets, if at least one of its jobs would ignore this factor.

    If all transports that the measurement names must refuse the factor, the plan skips the jobs instead.
    """
    remarks = []
    chosen_by = _transports(m, site, modelled)
    for varied in FACTORS:
        if not _is_set(varied, m):
            continue
        key, having = varied.keys[0], [name for name in m.patterns if varied.patterns(site.patterns[name])]
        if not having:
            remarks.append(CodedRemark.of(PlanRemark.FACTOR_OF_OTHER_PATTERNS, key=key, patterns=list(m.patterns)))
        elif _is_unused(varied, m):
            other = FACTOR[varied.depends_on].keys[0]
            remarks.append(CodedRemark.of(PlanRemark.FACTOR_ALONE, key=key, other=other))
        elif varied.several and (modelled or not _none_obeys(varied, m.transports or ())):
            ignoring = sorted({each for name in having for each in chosen_by[name] if ignores(each, varied)})
            if ignoring:
                remarks.append(CodedRemark.of(PlanRemark.FACTOR_IGNORED, key=key, transports=ignoring))
    return remarks


def _is_set(varied: Factor, m: Measurement) -> bool:
    return any(value != varied.default for value in m.values_of(varied))


def _is_unused(varied: Factor, m: Measurement) -> bool:
    """Check whether a factor has no effect because the measurement does not set the factor named by `depends_on`."""
    return bool(varied.depends_on) and not _is_set(FACTOR[varied.depends_on], m)


def _with_preset(case: Case) -> Case:
    """Return the case with the settings of another tool, which the case's field `like` names.

    Raises UsageError if the user set one of these settings to another value.
    """
    fixed = preset_fields(case.like, case.pattern)
    for name, value in fixed.items():
        given = getattr(case, name)
        if given not in (value, getattr(_DEFAULT, name)):
            raise UsageError.of(ControllerError.LIKE_DIFFERS, like=case.like, name=name, fixed=value, given=given)
    return replace(case, **fixed)


def _auto_transports(cluster: Cluster, machine: LocalMachine, pattern: Pattern) -> tuple[str, ...]:
    """Return the transports that `auto` means.

    A pattern with only one transport gets this transport. On a cluster with GPUs, the result is the first transport for
    GPUs. If the cluster has no GPUs, the result is every transport for host memory that this machine can run. If this
    machine can run none of these transports, the result contains all transports for host memory.
    """
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
    if cluster.instance is not None:  # the GPUs and CPUs of a login node do not matter
        return catalogue.instance(cluster.instance).gpus
    if traits(transport).on_gpu and machine.num_gpus:
        return machine.num_gpus
    return min(max(2, machine.num_cpus), _MOST_AUTO_RANKS)


def _spare_hosts(cluster: Cluster) -> list[CodedRemark]:
    """Return a remark if `hosts:` lists more hosts than the number in `nodes:`."""
    spare = cluster.hosts[cluster.nodes :]
    if not spare:
        return []
    facts = {"num_nodes": cluster.nodes, "num_hosts": len(cluster.hosts), "spare": hostlist.compress(spare)}
    return [CodedRemark.of(PlanRemark.SPARE_HOSTS, cluster=cluster.name, **facts)]


def _skip_reason(spec: JobSpec, measurement: Measurement, site: Site) -> Coded | None:
    """Return why a job is not launched, or None if it can be launched."""
    return (
        _unsupported_here(spec, site)
        or _unsupported_world(spec, site)
        or _unsupported_by_tool(spec, site)
        or _too_few_ranks(spec, measurement)
    )


def _unsupported_here(spec: JobSpec, site: Site) -> Coded | None:
    """Return why the transport, the launcher or the tool cannot run the job on this site.

    Return None if the job can run.
    """
    case, cluster, machine = spec.case, site.cluster, site.machine
    its = case.traits
    if its.modelled and case.pattern in NOT_MODELLED:
        return Coded.of(PlanSkipCode.NOT_MODELLED)
    # With an instance type, preflight checks whether this machine can be of this type and has the transport.
    if cluster.instance is None and case.transport in machine.lacks and cluster.launcher not in _ELSEWHERE:
        return Coded.of(PlanSkipCode.UNAVAILABLE, transport=case.transport, why=machine.lacks[case.transport])
    if (ignored := ignored_option(case, case.transport)) is not None:
        return ignored
    if spec.tool and cluster.launcher == "kubernetes":
        return Coded.of(PlanSkipCode.TOOL_IN_CONTAINERS, tool=spec.tool)
    if cluster.launcher == "torchrun" and its.over_mpi:
        return Coded.of(PlanSkipCode.TORCHRUN_WITHOUT_MPI)
    return None


def _unsupported_world(spec: JobSpec, site: Site) -> Coded | None:
    """Return why this cluster cannot form the job's world or its groups, or None if it can."""
    case, world, cluster, pattern = spec.case, spec.world, site.cluster, site.patterns[spec.case.pattern]
    if world.num_nodes > cluster.nodes:
        return Coded.of(
            PlanSkipCode.TOO_FEW_NODES, num_nodes=world.num_nodes, cluster=cluster.name, found=cluster.nodes
        )
    if case.topology.removesuffix(IN_TURN) in ("node", "rail") and world.num_nodes == 1:
        what = "the whole world" if "node" in case.topology else "a separate group for each rank"
        return Coded.of(PlanSkipCode.ONE_NODE, topology=case.topology, what=what)
    if world.num_ranks < pattern.min_ranks:
        return Coded.of(PlanSkipCode.TOO_FEW_RANKS, least=pattern.min_ranks, num_ranks=world.num_ranks)
    separates = site.machine.separates
    if case.aggressor and case.transport not in separates:
        others = " and ".join(sorted(separates))
        return Coded.of(PlanSkipCode.NOT_SEPARABLE, transport=case.transport, others=others)
    return _unsupported_groups(case, world, pattern)


def _unsupported_groups(case: Case, world: World, pattern: Pattern) -> Coded | None:
    if case.is_ladder:
        if case.aggressor:
            return Coded.of(PlanSkipCode.LADDER_ALONE, why=LADDER_ALONE)
        if pattern.topology != "pairs":
            return Coded.of(PlanSkipCode.LADDER_OF_PAIRS, pattern=pattern.name)
        return None
    try:
        split = parts(case, world)
        if split and len(split.victims.ranks) < pattern.min_ranks:
            facts = {"least": pattern.min_ranks, "num_ranks": len(split.victims.ranks)}
            return Coded.of(PlanSkipCode.TOO_FEW_VICTIMS, pattern=pattern.name, **facts)
        if split:
            shape_of_aggressors(case, len(split.aggressors.ranks))
        rounds(case, world, pattern.topology_of(case.topology))
    except UsageError as error:
        return Coded.of(PlanSkipCode.NO_GROUPS, why=str(error))
    return None


def _unsupported_by_tool(spec: JobSpec, site: Site) -> Coded | None:
    """Return why the job's tool cannot measure the job's case.

    The result is None if the tool can measure the case, or if the job uses no tool.
    """
    if not spec.tool:
        return None
    installed = site.tools[spec.tool]
    if spec.case.transport not in installed.tool.transports:
        return Coded.of(
            PlanSkipCode.OTHER_TRANSPORT,
            tool=installed.tool.title,
            wanted=" or ".join(installed.tool.transports),
            transport=spec.case.transport,
        )
    return installed.unsupported_reason(spec.case, spec.world)


def _too_few_ranks(spec: JobSpec, measurement: Measurement) -> Coded | None:
    """Return why a job is skipped if it has fewer ranks than the scenario requires, or None if it has enough."""
    num_ranks = spec.world.num_ranks
    if num_ranks >= measurement.least_ranks:
        return None
    if num_ranks == 1:
        return Coded.of(PlanSkipCode.ONE_RANK)
    return Coded.of(PlanSkipCode.SCENARIO_LEAST, least=measurement.least_ranks, num_ranks=num_ranks)


def _fitted(spec: JobSpec, share_s: float | None, site: Site) -> Case:
    """Return the case with the time budget `share_s`, the job's equal share of the run's budget in seconds.

    If measuring all sizes takes longer than `share_s`, some sizes are omitted.
    """
    case = spec.case
    if share_s is None or case.traits.modelled:
        return case
    num_rows = len(case.sizes) * len(case.modes) * count_rounds(case, spec.world, site.patterns[case.pattern])
    sizes = thin(case.sizes, int(share_s / MIN_ROW_S) * len(case.sizes) // num_rows)
    return replace(case, sizes=sizes, budget_s=round(share_s, 3))


def _thinned(asked: Case, fitted: Case, share_s: float | None) -> list[CodedRemark]:
    """Return a remark if sizes were omitted to fit the budget."""
    num_asked, num_kept = len(asked.sizes), len(fitted.sizes)
    if num_asked == num_kept:
        return []
    facts = {"num_asked": num_asked, "num_kept": num_kept, "row_s": MIN_ROW_S, "share_s": share_s}
    return [CodedRemark.of(RemarkCode.SIZES_THINNED, **facts)]


def _over_budget(job: Job, share_s: float | None, num_jobs: int) -> list[CodedRemark]:
    """Return a remark if a job exceeds its share of the budget even after sizes were omitted."""
    least_s = job.num_rows * MIN_ROW_S
    if job.case.budget_s is None or share_s is None or least_s <= share_s or job.num_rounds == 1:
        return []
    fewer = ", or compare nodes only with ranks_per_node: 1" if job.world.ranks_per_node > 1 else ""
    remark = CodedRemark.of(
        RemarkCode.ROWS_LEFT_OUT,
        job=job.name,
        num_rounds=job.num_rounds,
        num_ranks=job.world.num_ranks,
        num_rows=job.num_rows,
        least_s=least_s,
        row_s=MIN_ROW_S,
        share_s=share_s,
        needed_minutes=math.ceil(least_s * num_jobs / 60),
        fewer=fewer,
    )
    return [remark]


def _merge_skips(skipped: Iterable[tuple[JobSpec, Coded]]) -> tuple[PlanSkip, ...]:
    """Merge skipped jobs with the same transport, variables and reason.

    The merged skip names all patterns of these jobs.
    """
    patterns: dict[tuple[str, str, str], dict[str, None]] = {}
    reasons: dict[tuple[str, str, str], Coded] = {}
    for spec, reason in skipped:
        by = " ".join([spec.tool or spec.case.transport, *(f"{name}={value}" for name, value in spec.factors)])
        key = (by, *_key(reason))
        reasons[key] = reason
        patterns.setdefault(key, {})[spec.case.pattern] = None
    return tuple(
        PlanSkip(f"{', '.join(names)} {key[0]}", reasons[key], tuple(names)) for key, names in patterns.items()
    )


def _name(spec: JobSpec, launch: int, taken: set[str]) -> str:
    """Return a unique job name made of the case's factors, such as allreduce-mpi-2x8. A duplicate gets a number."""
    case, world = spec.case, spec.world
    words = [case.pattern, spec.tool or case.transport, f"{world.num_nodes}x{world.ranks_per_node}"]
    default = replace(_DEFAULT, **preset_fields(case.like, case.pattern))
    for factor in _RANKED:
        value = getattr(case, factor.name)
        if value != getattr(default, factor.name):
            words.append(factor.name_part(value))
    words += [f"{name}.{value}" for name, value in spec.factors]
    words += [f"launch{launch}"] * (launch > 1)
    name = "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in "-".join(words))[:120]
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique
