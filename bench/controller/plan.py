"""Make a plan from the names of a scenario and a cluster.

The functions of this module read the files, inspect this machine and expand the scenario.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.config import clusters, paths
from bench.config.clusters import Cluster
from bench.config.scenario import Scenario, load_scenario
from bench.controller import expand
from bench.controller.jobs import LocalMachine, Plan, Site
from bench.controller.messages import PlanRemark
from bench.controller.tools import installed, without_mpi
from bench.core import plugins
from bench.core.launcher import Launcher
from bench.core.pattern import Pattern
from bench.core.remarks import CodedRemark
from bench.core.traits import names_with, traits
from bench.probes import nvml


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A user's request for a plan.

    If `budget_s` or `launches` is None, the plan uses the scenario's value. `tool_path`: the folder with the programs
    of other benchmark tools.
    """

    scenario: str
    cluster: str
    config: Path | None = None
    modelled: bool = False
    budget_s: float | None = None
    launches: int | None = None
    tool_path: Path | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, the scenario that it measures, and the site on which it runs."""

    plan: Plan
    scenario: Scenario
    site: Site


def make(request: PlanRequest) -> Planned:
    """Read the files and expand the scenario. Raises UsageError naming file and line."""
    cluster = clusters.cluster(paths.config_file(request.config), request.cluster)
    scenario = load_scenario(request.scenario, paths.scenarios_folder())
    if request.budget_s is not None:
        scenario = replace(scenario, budget_s=request.budget_s)
    if request.launches is not None:
        scenario = replace(scenario, launches=request.launches)
    site = site_of(cluster, {name for entry in scenario.measurements for name in entry.tools}, request.tool_path)
    # without an mpirun, transports that need no MPI still run
    if cluster.launcher == "auto" and shutil.which(site.machine.mpirun) is None:
        lacks = {name: "no mpirun was found next to the interpreter or on PATH" for name in names_with("over_mpi")}
        machine = replace(site.machine, lacks={**lacks, **site.machine.lacks})
        site = replace(site, machine=machine, tools={name: without_mpi(tool) for name, tool in site.tools.items()})
    plan = expand.expand(scenario, site, request.modelled)
    uses_mpirun = any(job.launcher == "mpirun" for job in plan.jobs)
    if cluster.mpirun is None and uses_mpirun and (remark := other_mpirun(site.machine.mpirun)) is not None:
        plan = replace(plan, remarks=(*plan.remarks, remark))
    return Planned(plan, scenario, site)


def site_of(cluster: Cluster, tools: Iterable[str], tool_path: Path | None) -> Site:
    """Return a cluster together with the patterns, launchers and tools of this machine.

    `tools` names the tools to look for.
    """
    machine = this_machine(cluster.python, cluster.mpirun)
    return Site(cluster, machine, all_patterns(), all_launchers(), installed(tools, tool_path))


def all_patterns() -> dict[str, Pattern]:
    """Return every pattern by name."""
    return {name: plugins.load("pattern", name).PATTERN for name in plugins.names("pattern")}


def all_launchers() -> dict[str, Launcher]:
    """Return every launcher by name."""
    return {name: plugins.load("launcher", name).LAUNCHER for name in plugins.names("launcher")}


def this_machine(python: str | None, mpirun: str | None) -> LocalMachine:
    """Return the resources of this machine for ranks.

    `python`, `mpirun`: the programs that the cluster's entry in bench.yaml names. The value is None if the entry names
        no program.
    """
    names = plugins.names("transport")
    lacks = {}
    for name in names:
        # If the cluster names an interpreter, this machine does not know its packages. The ranks report missing
        # packages.
        reason = paths.lacks(name) if python is None or traits(name).on_gpu else None
        if reason is not None:
            lacks[name] = reason
    mpirun = mpirun or _mpirun_of(python or sys.executable)
    return LocalMachine(
        num_cpus=len(os.sched_getaffinity(0)),
        num_gpus=nvml.count_gpus(),
        lacks=lacks,
        python=python or sys.executable,
        mpirun=mpirun,
        default_launcher={name: traits(name).launcher for name in names},
        mpi=_mpi_of(mpirun),
        separates=frozenset(names_with("separates")),
    )


def _mpirun_of(python: str) -> str:
    """Return the path of the mpirun in the interpreter's environment.

    If the interpreter's environment has no mpirun, return the path of the mpirun on PATH.
    """
    own_mpirun = Path(python).parent / "mpirun"
    return str(own_mpirun) if own_mpirun.exists() else shutil.which("mpirun") or "mpirun"


def _mpi_of(mpirun: str) -> str:
    """Return the MPI that an mpirun belongs to, or '' if unknown.

    Each MPI installs a program with a typical name next to mpirun. The function looks for these programs.
    """
    folder = Path(mpirun).resolve().parent
    marker_programs = {"ompi_info": "openmpi", "mpichversion": "mpich"}
    return next((mpi for program, mpi in marker_programs.items() if (folder / program).exists()), "")


def other_mpirun(chosen: str) -> CodedRemark | None:
    """Return a remark if the mpirun on PATH differs from the mpirun that the plan uses."""
    folder = str(Path(chosen).parent)
    elsewhere = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if part != folder)
    other = shutil.which("mpirun", path=elsewhere)
    if other is None or not Path(chosen).is_absolute() or Path(other).resolve() == Path(chosen).resolve():
        return None
    return CodedRemark.of(PlanRemark.OTHER_MPIRUN, chosen=chosen, other=other)
