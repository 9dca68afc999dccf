"""What `run` and `plan` share: their options, and from them the plan, the machine and the plug-ins."""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench.config import clusters, paths
from bench.config.scenario import Scenario, load_scenario
from bench.controller import expand, jobs
from bench.controller.programs import Search, below
from bench.controller.run import machine, other_mpirun
from bench.core import plugins
from bench.core.errors import UsageError
from bench.core.launcher import Launcher
from bench.core.pattern import Pattern
from bench.core.traits import names_with, traits
from bench.core.units import option_duration
from bench.logs.tool import Build, Installed, Tool
from bench.probes import nvml


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and all that carrying it out needs."""

    plan: jobs.Plan
    scenario: Scenario
    machine: jobs.LocalMachine
    patterns: Mapping[str, Pattern]
    launchers: Mapping[str, Launcher]
    tools: Mapping[str, Installed]


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Which scenario, where, and what to change in it."""
    parser.add_argument(
        "scenario", nargs="?", default="main", help="name of a file in scenarios/, or a path (default main)"
    )
    parser.add_argument("--cluster", default="local", help="entry of bench.yaml (default local)")
    parser.add_argument(
        "--config", type=Path, default=None, metavar="FILE", help="bench.yaml to read (default ./bench.yaml)"
    )
    parser.add_argument("--model", action="store_true", help="model the cluster's links instead of measuring")
    parser.add_argument("--budget", metavar="TIME", help="time budget of a launch, not the scenario's: 30s, 2m")
    parser.add_argument("--tool-path", type=Path, metavar="DIR", help="where the programs of a scenario's `tools:` are")
    parser.add_argument("--launches", metavar="N", help="how often each job is started, in place of the scenario's")


def planned(args: argparse.Namespace) -> Planned:
    """Read the files and expand the scenario. Raises UsageError naming file and line."""
    cluster = clusters.cluster(paths.config_file(args.config), args.cluster)
    scenario = load_scenario(args.scenario, paths.scenarios_folder())
    if args.budget is not None:
        scenario = replace(scenario, budget_s=option_duration("--budget", args.budget))
    if args.launches is not None:
        scenario = replace(scenario, launches=_launches(args.launches))
    patterns, launchers = all_patterns(), all_launchers()
    here = this_machine(cluster.python, cluster.mpirun)
    tools = installed({name for measurement in scenario.measurements for name in measurement.tools}, args.tool_path)
    if cluster.launcher == "auto" and shutil.which(here.mpirun) is None:  # others may do without: gloo, nccl
        lacks = {name: "no mpirun was found beside the interpreter or on PATH" for name in names_with("over_mpi")}
        here = replace(here, lacks={**lacks, **here.lacks})
        tools = {name: _alone(there) for name, there in tools.items()}
    plan = expand.expand(scenario, cluster, here, patterns, launchers, args.model, tools)
    note = other_mpirun(here.mpirun) if cluster.mpirun is None and _uses_mpirun(plan) else None
    if note:
        plan = replace(plan, notes=(*plan.notes, note))
    return Planned(plan, scenario, here, patterns, launchers, tools)


def _launches(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--launches {text!r} must be a whole number of 1 or more")
    return int(text)


def all_patterns() -> dict[str, Pattern]:
    """Every pattern by name."""
    return {name: plugins.load("pattern", name).PATTERN for name in plugins.names("pattern")}


def all_launchers() -> dict[str, Launcher]:
    """Every launcher by name."""
    return {name: plugins.load("launcher", name).LAUNCHER for name in plugins.names("launcher")}


def installed(names: Iterable[str], folder: Path | None) -> dict[str, Installed]:
    """The tools of these names with the programs that are found below `folder`, or below the folder of their variable
    (controller/programs.py: not without bounds).

    Raises UsageError when the folder that was given is none.
    """
    found = {}
    searched: dict[Path, Search] = {}
    for name in sorted(names):
        tool: Tool | None = getattr(plugins.load("tool", name), "TOOL", None)
        if tool is None:
            raise UsageError(f"{name} can not be started here: its logs are read by bench import")
        told = folder or (Path(os.environ[tool.variable]) if os.environ.get(tool.variable) else None)
        if told is not None and not told.is_dir():
            raise UsageError(
                f"{told} is no folder: --tool-path (or {tool.variable}) names the one that holds {tool.title}"
            )
        if told is not None and told not in searched:
            searched[told] = below(told)
        there = searched[told] if told is not None else None
        # Of several of one name the one with the tool's suffix is taken, then the nearest: it comes last.
        files = sorted(reversed(there.files if there else ()), key=lambda file: _has(file, tool.suffix))
        programs = {file.name.removesuffix(tool.suffix): str(file.resolve()) for file in files}
        where = f"in {told} ({there.words()})" if there else "here"
        lacks = f"its program of {tool.title} was not found {where}: give its folder by --tool-path or {tool.variable}"
        lacks += f"; {tool.remedy}" * bool(tool.remedy)
        found[name] = Installed(tool, programs, lacks, {name: _build(tool, path) for name, path in programs.items()})
    return found


def _alone(there: Installed) -> Installed:
    """A tool where nothing starts several processes: a program that has MPI is one process of all GPUs as well."""
    return replace(there, builds={name: build - {"mpi"} for name, build in there.builds.items()})


def _has(file: Path, suffix: str) -> bool:
    return bool(suffix) and file.name.endswith(suffix)


def _build(tool: Tool, path: str) -> Build:
    """Which of a tool's marks the file of a program has."""
    if not tool.marks or Path(path).stat().st_size == 0:
        return frozenset()
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        return frozenset(mark for mark, text in tool.marks.items() if held.find(text) >= 0)


def this_machine(python: str | None, mpirun: str | None) -> jobs.LocalMachine:
    """What this machine offers to ranks that are started on it by these, where a cluster names its own."""
    names = plugins.names("transport")
    # Another interpreter's packages are not known here: its ranks will say what they miss.
    reasons = {name: paths.lacks(name) for name in names if python is None or traits(name).on_gpu}
    return machine(
        python,
        mpirun,
        len(os.sched_getaffinity(0)),
        nvml.count_gpus(),
        {name: reason for name, reason in reasons.items() if reason is not None},
        {name: traits(name).launcher for name in names},
        frozenset(names_with("separates")),
    )


def _uses_mpirun(plan: jobs.Plan) -> bool:
    return any(job.launcher == "mpirun" for job in plan.jobs)
