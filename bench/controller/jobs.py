"""A job is one launch: the very command that a person would type, its world, and how long it should take.

Pure: nothing is started. A plan (expand.py) is made of jobs; `bench diagnose` makes one without a plan.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from bench.config.clusters import Cluster
from bench.core.case import Case, to_argv
from bench.core.contention import rounds
from bench.core.errors import UsageError
from bench.core.launcher import SSH, Launcher, LaunchSite
from bench.core.pattern import Pattern
from bench.core.traits import traits
from bench.core.world import World
from bench.diagnose.ladder import least_rounds
from bench.logs.tool import Installed

_PACKAGE_ROOT = Path(__file__).resolve().parent.parent.parent  # as in config/paths.py
_ROW_OVERHEAD_S = 0.15  # warm-up and checks beside the timed part of a row
_MODEL_RANK_S = 1e-4  # to simulate one rank of a row (docs/scale.md)
_POD_FACTOR, _POD_SLACK_S = 3.0, 900.0  # until pods are ended: images must be pulled, and nodes may have to come
_LADDER_MOST = 6  # times the rounds that a ladder takes where nothing is slow
NO_TOOLS: Mapping[str, Installed] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """What the machine at hand offers, where ranks are started on it. `lacks`: transport -> why it can not run here."""

    num_cpus: int
    num_gpus: int
    lacks: Mapping[str, str]
    python: str
    mpirun: str
    default_launcher: Mapping[str, str]  # of each transport
    mpi: str = ""  # whose mpirun that is: mpich or openmpi; empty: not known
    separates: frozenset[str] = frozenset()  # transports that can run two patterns at once


@dataclass(frozen=True, slots=True)
class Job:
    """One launch. `command` is what a person would type; `setup` lines run before it in the same shell."""

    name: str
    case: Case
    world: World
    launcher: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    setup: tuple[str, ...]
    num_rounds: int  # of groups that run at the same time, for each size and mode
    num_rows: int
    estimate_s: float
    launch: int = 1
    tool: str = ""  # whose program it is; '' for ours
    hosts: tuple[str, ...] = ()  # where the ranks are, where the site names them
    agent: tuple[str, ...] = ()  # the words that reach them
    manifest: str = ""  # shell lines in the command's place, where no command of this machine starts ranks
    python: str = "python3"  # the ranks' interpreter
    keeps: bool = False  # does the script keep the samples, since no desk is there to watch it?
    num_records: int | None = None  # rows times the groups of a round; of a ladder they are not known before

    def script(self) -> str:
        """The whole of it as shell text: set-up lines, variables, command."""
        if self.manifest:
            return self.manifest
        carried = {
            "BENCH_CARRY": ",".join([*self.env, "PYTHONPATH"]),
            "BENCH_PYTHON": sys.executable,  # of agent.sh
            "BENCH_SETUP": "\n".join(self.setup),
        }
        variables = {**self.env, **{name: value for name, value in carried.items() if value and self.hosts}}
        words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        path = f"PYTHONPATH={shlex.quote(str(_PACKAGE_ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"
        line = " ".join([*words, path, shlex.join(self.command)])
        if not self.keeps:
            return "\n".join([*self.setup, line])
        where = 'mkdir -p "${RESULTS:=results/$(date -u +%Y%m%d-%H%M%S)-' + self.launcher + '}"'
        told = shlex.join(["--job", self.name, "--launch", str(self.launch), "--expect", self.expected])
        return "\n".join([where, *self.setup, f'{line} {told} --records "$RESULTS"/{shlex.quote(self.name)}.jsonl'])

    @property
    def expected(self) -> str:
        """The world as `--expect` of its ranks takes it."""
        return f"{self.world.num_nodes}x{self.world.ranks_per_node}"


@dataclass(frozen=True, slots=True)
class PlanSkip:
    """A job that will not be launched, and why."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What will happen. `notes` say every choice that was made for the user."""

    scenario: str
    cluster: Cluster
    modelled: bool
    jobs: tuple[Job, ...]
    skipped: tuple[PlanSkip, ...]
    notes: tuple[str, ...]
    budget_s: float | None

    @property
    def estimate_s(self) -> float:
        """Seconds that all jobs together should take."""
        return sum(job.estimate_s for job in self.jobs)


def job_of(
    name: str,
    case: Case,
    world: World,
    env: Mapping[str, str],
    cluster: Cluster,
    machine: LocalMachine,
    patterns: Mapping[str, Pattern],
    launchers: Mapping[str, Launcher],
    launch: int = 1,
    tool: str = "",
    tools: Mapping[str, Installed] = NO_TOOLS,
) -> Job:
    """One launch of a case: the very command that a person would type, of ours or of another tool."""
    processes = tools[tool].tool.processes(world, tools[tool].build(case)) if tool else world
    launcher = _launcher(case.transport, processes, cluster, machine, tool)
    site = LaunchSite(
        python=cluster.python or launchers[launcher].python or machine.python,
        options=cluster.options,
        hosts=() if launchers[launcher].remote else cluster.hosts[: world.num_nodes],
        agent=cluster.agent or SSH,
        rendezvous_port=cluster.port,
        mpirun=cluster.mpirun or machine.mpirun,
        mpi=machine.mpi if traits(case.transport).over_mpi or tool else "",
    )
    pattern, *arguments = to_argv(case)
    words = ["-m", f"bench.{pattern}", *arguments]
    if tool:
        there = tools[tool]
        site = replace(site, python=there.programs[there.tool.program(case)])  # in the interpreter's place
        words = there.tool.arguments(case, world, there.build(case))
    variables = {**launchers[launcher].environment(site), **cluster.env, **env}
    try:
        command = launchers[launcher].command(words, processes, site, variables)
    except UsageError as error:
        raise UsageError(f"cluster {cluster.name!r}: {error}") from None
    num_rounds = count_rounds(case, world, patterns[case.pattern])
    num_rows = num_rounds * len(case.sizes) * len(case.modes)
    estimate_s = _estimate_s(case, num_rows, world)
    if launchers[launcher].by_hand and cluster.setup:
        raise UsageError(f"cluster {cluster.name!r}: `setup:` does not reach into containers: put it into their image")
    told = ["--job", name, "--launch", str(launch), "--expect", f"{world.num_nodes}x{world.ranks_per_node}"]
    limit_s = _POD_FACTOR * estimate_s + _POD_SLACK_S
    manifest = launchers[launcher].manifest(name, [*words, *told], world, site, variables, limit_s)
    return Job(
        name,
        case,
        world,
        launcher,
        tuple(command),
        variables,
        cluster.setup,
        num_rounds,
        num_rows,
        estimate_s,
        launch,
        tool,
        site.hosts,
        site.agent,
        manifest,
        cluster.python or machine.python,
        launchers[launcher].remote and not tool,
        _num_records(case, num_rows, world, patterns[case.pattern]),
    )


def _num_records(case: Case, num_rows: int, world: World, pattern: Pattern) -> int | None:
    if case.schedule == "ladder":
        return None
    return num_rows * len(rounds(case, world, pattern.topology_of(case.topology))[0])


def count_rounds(case: Case, world: World, pattern: Pattern) -> int:
    """Rounds of groups, for each size and mode; of a ladder, those that it takes where nothing is slow."""
    if case.schedule == "ladder" and pattern.topology == "pairs":
        num_nics = len(case.nics) or (world.ranks_per_node if traits(case.transport).on_gpu else 1)
        return least_rounds(world.num_nodes, world.ranks_per_node, num_nics)
    return len(rounds(case, world, pattern.topology_of(case.topology)))


def _launcher(transport: str, world: World, cluster: Cluster, machine: LocalMachine, tool: str = "") -> str:
    if tool and cluster.launcher in ("auto", "direct", "torchrun"):  # which start ranks of ours; a tool's have MPI
        return "direct" if world.num_ranks == 1 and not cluster.hosts else "mpirun"
    if traits(transport).modelled:
        return "direct"
    if cluster.launcher != "auto":
        return cluster.launcher
    return "direct" if world.num_ranks == 1 and not cluster.hosts else machine.default_launcher[transport]


def _estimate_s(case: Case, num_rows: int, world: World) -> float:
    its = traits(case.transport)
    if its.modelled:
        return its.start_s + num_rows * world.num_ranks * _MODEL_RANK_S
    sides = 2 if case.aggressor else 1  # without aggressors and with them
    times = _LADDER_MOST if case.schedule == "ladder" else 1
    rows_s = num_rows * (sides * case.max_s + _ROW_OVERHEAD_S) * times
    return its.start_s + (rows_s if case.budget_s is None else min(rows_s, case.budget_s + _ROW_OVERHEAD_S * 2))
