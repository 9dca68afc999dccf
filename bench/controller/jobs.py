"""Describe a job: the command that a user would type, the job's world, and its estimated time.

A job is one launch. This module starts nothing. A plan (expand.py) consists of jobs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.config import paths
from bench.config.clusters import Cluster
from bench.controller.messages import ControllerError
from bench.core.case import Case
from bench.core.case_argv import command_argv, from_argv, to_argv
from bench.core.codes import Coded
from bench.core.contention import rounds
from bench.core.errors import UsageError
from bench.core.launcher import SSH, Launcher, LaunchSite
from bench.core.pattern import Pattern
from bench.core.remarks import CodedRemark
from bench.core.secret_values import FROM_ENVIRONMENT, masked, masked_plain, masked_variables, secrets_of
from bench.core.training_step import StepVariant
from bench.core.traits import traits
from bench.core.world import World
from bench.diagnose.ladder import least_rounds
from bench.logs.tool import Installed

_CLIENT_SERVER, _ADAPTER = "bench.rank.client_server", "--adapter"
_ROW_OVERHEAD_S = 0.2  # warm-up and checks of a row, in addition to its timed part
_MODEL_RANK_S = 1e-4  # time to simulate one rank of a row (docs/scale.md)
# The timeout of pods is long, because nodes may pull images and may have to start first.
_POD_FACTOR, _POD_SLACK_S = 3.0, 900.0
_LADDER_MOST = 6  # rounds of the longest ladder, as a multiple of the rounds of a ladder that finds nothing slow


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """The resources of this machine that ranks can use.

    `lacks` maps each transport that cannot run on this machine to the reason.
    """

    num_cpus: int
    num_gpus: int
    lacks: Mapping[str, str]
    python: str
    mpirun: str
    default_launcher: Mapping[str, str]  # by transport
    mpi: str = ""  # the MPI that `mpirun` belongs to: mpich or openmpi; empty if unknown
    separates: frozenset[str] = frozenset()  # transports that can run two patterns at once


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster, and the patterns, launchers and tools that are available on this machine for the cluster's jobs."""

    cluster: Cluster
    machine: LocalMachine
    patterns: Mapping[str, Pattern]
    launchers: Mapping[str, Launcher]
    tools: Mapping[str, Installed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job measures, as plan.json stores it.

    `factors`: the environment variables that the scenario sets, with their values.
    `tool`: the other tool that measures the job. If linkbench itself measures the job, `tool` is empty.
    """

    name: str
    case: Case
    world: World
    factors: tuple[tuple[str, str], ...] = ()
    launch: int = 1
    tool: str = ""

    @classmethod
    def from_plain(cls, stored: Mapping[str, Any]) -> JobSpec:
        """Make a job from its form in a stored plan."""
        return cls(
            stored["name"],
            from_argv(stored["case"]),
            World(**stored["world"]),
            tuple(stored["factors"].items()),
            stored.get("launch") or 1,
            stored.get("tool") or "",
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One launch.

    `command` is the command that a user would type. The lines in `setup` run before `command` in the same shell.
    """

    name: str
    case: Case
    world: World
    launcher: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    setup: tuple[str, ...]
    num_rounds: int  # rounds of simultaneous groups, for each size and mode
    num_rows: int
    estimate_s: float
    launch: int = 1
    tool: str = ""  # the other tool that measures; empty if the suite measures itself
    hosts: tuple[str, ...] = ()  # hosts of the ranks, if the site names them
    agent: tuple[str, ...] = ()  # the words of the agent that reaches these hosts
    manifest: str = ""  # shell lines in place of the command (Kubernetes)
    python: str = "python3"  # the ranks' interpreter
    stores_samples: bool = False  # whether the script stores the samples, without a controller
    factors: Mapping[str, str] = field(default_factory=dict)  # the scenario's variables
    tool_program: str = ""  # in `command`, the tool's program or the interpreter that starts it
    num_records: int | None = None  # rows times the groups of a round; None for a ladder

    def script(self) -> str:
        """Return the whole job as shell text: set-up lines, variables, command."""
        if self.manifest:
            return self.manifest
        carried = {
            "BENCH_CARRY": ",".join([*self.env, "PYTHONPATH"]),
            "BENCH_PYTHON": sys.executable,  # for agent.sh
            "BENCH_SETUP": "\n".join(self.setup),
        }
        variables = {**self.env, **{name: value for name, value in carried.items() if value and self.hosts}}
        words = []
        for name, value in variables.items():
            # the user's shell must have this variable
            private = masked(name, value) != value or value == FROM_ENVIRONMENT
            words.append(f'{name}="${{{name}:?}}"' if private else f"{name}={shlex.quote(value)}")
        path = f"PYTHONPATH={shlex.quote(str(paths.PACKAGE_ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"
        line = " ".join([*words, path, shlex.join(self.command)])
        if not self.stores_samples:
            return "\n".join([*self.setup, line])
        folder = 'mkdir -p "${RESULTS:=results/$(date -u +%Y%m%d-%H%M%S)-' + self.launcher + '}"'
        described = shlex.join(_described(self.name, self.launch, self.world))
        records = f'--records "$RESULTS"/{shlex.quote(self.name)}.jsonl'
        return "\n".join([folder, *self.setup, f"{line} {described} {records}"])

    def to_plain(self) -> dict[str, Any]:
        """Return the job as plan.json stores it."""
        return {
            "name": self.name,
            "case": to_argv(self.case),
            "world": asdict(self.world),
            "launcher": self.launcher,
            "command": list(self.command),
            "script": self.script(),
            "factors": dict(self.factors),
            "launch": self.launch,
            "tool": self.tool,
            "num_rounds": self.num_rounds,
            "num_rows": self.num_rows,
            "estimate_s": self.estimate_s,
        }


@dataclass(frozen=True, slots=True)
class PlanSkip:
    """Jobs of a scenario that are not launched, and why. `what` is a text with the jobs' patterns and transport."""

    what: str
    reason: Coded
    patterns: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return the skip as plan.json stores it."""
        reason = self.reason
        told = {"what": self.what, "reason": reason.text, "code": reason.code, "facts": dict(reason.facts)}
        return told | {"patterns": list(self.patterns)}


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs that will run. `remarks` list every choice that the planner made for the user."""

    scenario: str
    cluster: Cluster
    modelled: bool
    jobs: tuple[Job, ...]
    skipped: tuple[PlanSkip, ...]
    remarks: tuple[CodedRemark, ...]
    budget_s: float | None

    @property
    def estimate_s(self) -> float:
        """The estimated time of all jobs together, in seconds."""
        return sum(job.estimate_s for job in self.jobs)

    def to_plain(self, scenario_text: str) -> dict[str, Any]:
        """Return the plan in the form that plan.json stores and `linkbench plan --format json` prints."""
        secrets = set(secrets_of(self.cluster.env))
        for job in self.jobs:
            secrets.update(secrets_of(job.factors))
        plain: dict[str, Any] = masked_plain(self._plain(scenario_text), secrets)
        return plain

    def _plain(self, scenario_text: str) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "scenario_text": scenario_text,
            "cluster": stored_cluster(self.cluster),
            "modelled": self.modelled,
            "budget_s": self.budget_s,
            "estimate_s": self.estimate_s,
            "notes": [remark.text for remark in self.remarks],
            "remarks": [asdict(remark) for remark in self.remarks],
            "skipped": [skip.to_plain() for skip in self.skipped],
            "jobs": [job.to_plain() for job in self.jobs],
        }


def stored_cluster(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as plan.json stores it, without secrets."""
    without = replace(cluster, env=masked_variables(cluster.env))
    plain: dict[str, Any] = masked_plain(asdict(without), secrets_of(cluster.env))
    return plain


def job_of(spec: JobSpec, site: Site) -> Job:
    """Return the job that measures `spec`. The job's command runs either a pattern of this suite or another tool."""
    case, world, cluster, machine = spec.case, spec.world, site.cluster, site.machine
    tool = site.tools[spec.tool] if spec.tool else None
    processes = tool.tool.processes(world, tool.build(case)) if tool else world
    name = _launcher(case.transport, processes, cluster, machine, spec.tool)
    launcher = site.launchers[name]
    launch_site = LaunchSite(
        python=cluster.python or launcher.python or machine.python,
        options=cluster.options,
        hosts=() if launcher.remote else cluster.hosts[: world.num_nodes],
        agent=cluster.agent or SSH,
        rendezvous_port=cluster.port,
        mpirun=cluster.mpirun or machine.mpirun,
        mpi=machine.mpi if case.traits.over_mpi or tool else "",
    )
    pattern_name, *arguments = command_argv(case)
    words = ["-m", f"bench.{pattern_name}", *arguments]
    if tool:
        program = tool.programs[tool.tool.program(case)]
        words = tool.tool.arguments(case, world, tool.build(case))
        if tool.tool.client_server:
            words = ["-m", _CLIENT_SERVER, *[_ADAPTER] * tool.tool.needs_adapter, program, *words]
        else:  # the tool's program runs instead of the interpreter
            launch_site = replace(launch_site, python=program)
    # The launcher's variables name programs, such as the agent. The factors of a stored plan never replace them.
    own = launcher.environment(launch_site)
    factors = {name: value for name, value in spec.factors if name not in own}
    variables = {**own, **cluster.env, **factors}
    try:
        command = launcher.command(words, processes, launch_site, variables)
    except UsageError as error:
        raise UsageError.of(ControllerError.LAUNCHER, cluster=cluster.name, why=str(error)) from None
    pattern = site.patterns[case.pattern]
    num_rounds = count_rounds(case, world, pattern)
    num_rows = 1 if pattern.trains else num_rounds * _num_sizes(case, world, pattern) * len(case.modes)
    estimate_s = _estimate_s(case, num_rows, world, len(StepVariant) if pattern.trains else 1)
    if launcher.by_hand and cluster.setup:
        raise UsageError.of(ControllerError.SETUP_IN_CONTAINERS, cluster=cluster.name)
    limit_s = _POD_FACTOR * estimate_s + _POD_SLACK_S
    manifest = launcher.manifest(
        spec.name, [*words, *_described(spec.name, spec.launch, world)], world, launch_site, variables, limit_s
    )
    num_records = None
    if not case.is_ladder and not pattern.plans_own_rows:
        num_records = num_rows * len(rounds(case, world, pattern.topology_of(case.topology))[0])
    return Job(
        name=spec.name,
        case=case,
        world=world,
        launcher=name,
        command=tuple(command),
        env=variables,
        setup=cluster.setup,
        num_rounds=num_rounds,
        num_rows=num_rows,
        estimate_s=estimate_s,
        launch=spec.launch,
        tool=spec.tool,
        hosts=launch_site.hosts,
        agent=launch_site.agent,
        manifest=manifest,
        python=cluster.python or machine.python,
        stores_samples=launcher.remote and not tool,
        factors=factors,
        tool_program=launch_site.python if tool else "",
        num_records=num_records,
    )


def _described(name: str, launch: int, world: World) -> list[str]:
    """Return the options that describe the job to ranks that start without a controller."""
    return ["--job", name, "--launch", str(launch), "--expect", f"{world.num_nodes}x{world.ranks_per_node}"]


def count_rounds(case: Case, world: World, pattern: Pattern) -> int:
    """Return the number of rounds for each size and mode.

    A ladder (diagnose/ladder.py) chooses its next rounds from the results of its earlier rounds. For a ladder, the
    function returns the number of rounds that are needed if no pair is slow.
    """
    if case.is_ladder and pattern.topology == "pairs":
        num_nics = len(case.nics) or (world.ranks_per_node if case.traits.on_gpu else 1)
        return least_rounds(world.num_nodes, world.ranks_per_node, num_nics)
    return len(rounds(case, world, pattern.topology_of(case.topology)))


def _num_sizes(case: Case, world: World, pattern: Pattern) -> int:
    """Return the number of sizes that are measured. Requested sizes that round to the same size are measured once."""
    if pattern.plans_own_rows or case.is_ladder:
        return len(case.sizes)
    topology = pattern.topology_of(case.topology)
    return len(case.payloads(pattern, len(rounds(case, world, topology)[0][0].ranks)))


def _launcher(transport: str, world: World, cluster: Cluster, machine: LocalMachine, tool: str) -> str:
    if tool and cluster.launcher in ("auto", "direct", "torchrun"):  # a tool's ranks need an MPI launcher
        return "direct" if world.num_ranks == 1 and not cluster.hosts else "mpirun"
    if traits(transport).modelled:
        return "direct"
    if cluster.launcher != "auto":
        return cluster.launcher
    return "direct" if world.num_ranks == 1 and not cluster.hosts else machine.default_launcher[transport]


def _estimate_s(case: Case, num_rows: int, world: World, num_variants: int) -> float:
    its = case.traits
    if its.modelled:
        return its.start_s + num_rows * world.num_ranks * _MODEL_RANK_S
    sides = 2 if case.aggressor else num_variants  # each row is measured without aggressors and with them
    times = _LADDER_MOST if case.is_ladder else 1
    rows_s = num_rows * (sides * max(case.max_s, case.soak_s) + _ROW_OVERHEAD_S) * times
    return its.start_s + (rows_s if case.budget_s is None else min(rows_s, case.budget_s + _ROW_OVERHEAD_S * 2))
