"""Start ranks with Slurm. sbatch allocates the nodes, and srun starts each launch as a job step.

bench.yaml gives a cluster's options in the form of an `srun` command line. linkbench passes options about nodes, time
or an account to sbatch, and options about the layout of a step to srun. A rank reads SLURM_PROCID and related variables
only inside a step of srun. sbatch scripts and the shell of salloc also see SLURM_PROCID=0 and SLURM_NTASKS. A process
outside a step would wait forever for other ranks.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence

from bench.core import hostlist
from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.launcher import Blame, BlameCode, Launcher, LaunchSite
from bench.core.world import RankInfo, World
from bench.launchers._variables import check_one_line, checked, long_options, rendezvous, whole

# Ports for the rendezvous are above those of most registered services, and below Linux's ephemeral ports (from 32768).
# Each job has _PORTS_OF_JOB ports, which its steps use one after the other.
_FIRST_PORT, _PORTS_OF_JOB, _NUM_JOBS = 20000, 31, 387
# slurm.h, SLURM_MAX_NORMAL_STEP_ID: larger step numbers are salloc's shell, the batch script and similar steps.
_LAST_STEP = 0xFFFFFFF0
# Options that only a step accepts (srun(1)), including --container-* of the pyxis plug-in.
_OF_STEPS = frozenset(
    (
        "mpi",
        "distribution",
        "m",
        "kill-on-bad-exit",
        "K",
        "cpu-bind",
        "mem-bind",
        "gpu-bind",
        "accel-bind",
        "tres-bind",
        "label",
        "l",
        "unbuffered",
        "u",
        "exact",
        "overlap",
        "relative",
        "r",
        "resv-ports",
        "preserve-env",
        "E",
        "threads",
        "T",
        "wait",
        "W",
        "ntasks",
        "n",
        "export",
        "cpu-freq",
        "task-prolog",
        "task-epilog",
        "slurmd-debug",
        "whole",
    )
)
# Options that both sbatch and srun need. Since Slurm 22.05, srun does not inherit the CPUs per task from its job.
_OF_BOTH = frozenset(("nodes", "N", "ntasks-per-node", "cpus-per-task", "c"))
_LOST = re.compile(r"srun: error: (\S+): tasks? (\d+)[\d,-]*: (.+)")
_EXITED = re.compile(r"Exited with exit code (\d+)")
# The PMI that each MPI needs under srun. With a wrong PMI, each rank becomes a separate world.
_PMI = {"mpich": "pmi2", "openmpi": "pmix"}


class Slurm(Launcher):
    """Starts ranks as the tasks of one srun."""

    program = "srun"
    precedence = 30
    remote = True

    def place(self, env: Mapping[str, str]) -> RankInfo | None:
        """Return the rank and local rank of this process.

        The sources are SLURM_PROCID, SLURM_LOCALID and the number of tasks on each node of the step.

        Return None outside a step of srun.
        """
        if "SLURM_PROCID" not in env or "SLURM_STEP_ID" not in env:
            return None
        if whole(env, "SLURM_STEP_ID", "srun") > _LAST_STEP:
            return None
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
        node, per_node = whole(env, "SLURM_NODEID", "srun"), tasks_per_node(env)
        if node >= len(per_node):
            raise UsageError(f"srun set node {node} of {len(per_node)}: unset the SLURM_* variables of another job")
        place = RankInfo(
            rank=whole(env, "SLURM_PROCID", "srun"),
            num_ranks=whole(env, size, "srun"),
            local_rank=whole(env, "SLURM_LOCALID", "srun"),
            local_size=per_node[node],
            launcher="slurm",
            rendezvous=rendezvous(env, "srun") or _meeting(env),
        )
        return checked(place)

    def command(self, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str]) -> list[str]:
        """Return the command `srun --nodes=N --ntasks=M --ntasks-per-node=R PYTHON ...`.

        A step option of the site replaces this command's option of the same name.

        Ranks are numbered node by node, and srun ends all ranks if one fails. srun passes its environment to the ranks.
        The site's MPI determines the value of srun's option `--mpi`. If this MPI is unknown, Slurm uses its setting
        MpiDefault.
        """
        options = {
            "nodes": str(world.num_nodes),
            "ntasks": str(world.num_ranks),
            "ntasks-per-node": str(world.ranks_per_node),
            "distribution": "block",
            "kill-on-bad-exit": "1",
        }
        if site.mpi in _PMI:
            options["mpi"] = _PMI[site.mpi]
        return ["srun", *long_options(options | step_options(site.options)), site.python, *program]

    def blamed(self, log: str) -> Blame | None:
        """Return the rank that failed, from srun's line about the first lost task.

        An example of such a line is `srun: error: h2: task 2: Killed`.
        """
        match = _LOST.search(log)
        if match is None:
            return None
        host, rank, how = match.groups()
        if exited := _EXITED.fullmatch(how):
            return Blame(int(rank), host, Coded.of(BlameCode.EXITED, exit_code=int(exited[1])))
        return Blame(int(rank), host, Coded.of(BlameCode.REPORTED, launcher="srun", how=how))


def on_hosts(command: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return an srun command that uses only these hosts of the allocation."""
    return (command[0], f"--nodelist={hostlist.compress(names)}", *command[1:])


def step_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the site options that srun needs inside an allocation."""
    return {name: value for name, value in options.items() if _of_steps(name) or name in _OF_BOTH}


def batch(
    name: str,
    world: World,
    limit_s: float,
    options: Mapping[str, str],
    lines: list[str],
    output: str = "",
) -> str:
    """Return the script for sbatch.

    The script allocates the nodes of `world` and runs the shell lines once, on the first node.
    `output`: the path, without suffix, of the files for standard output and standard error.
    Slurm replaces %j by the job id.
    If `output` is empty, Slurm chooses the path.

    If a node fails, Slurm ends the job. Slurm does not requeue the job, because a restart would be a new measurement.
    """
    check_one_line(options)
    asked = {
        "job-name": name,
        "nodes": str(world.num_nodes),
        "ntasks-per-node": str(world.ranks_per_node),
        "time": str(math.ceil(limit_s / 60)),
        "no-requeue": "",
    }
    short = {"J": "job-name", "N": "nodes", "t": "time", "o": "output", "e": "error"}
    asked |= {short.get(option, option): value for option, value in options.items() if not _of_steps(option)}
    if output:
        asked |= {"output": f"{output}.out", "error": f"{output}.err"}
    # sbatch reads quotes as a shell does.
    directives = [f"#SBATCH {shlex.join(long_options({option: value}))}" for option, value in asked.items()]
    return "\n".join(["#!/bin/sh", *directives, "", *lines, ""])


def _of_steps(option: str) -> bool:
    return option in _OF_STEPS or option.startswith("container-")


def tasks_per_node(env: Mapping[str, str]) -> tuple[int, ...]:
    """Return the number of tasks on each node of the step. Slurm lists these numbers in a form such as `8(x2),4`.

    Raises UsageError if the variable is missing or invalid.
    """
    name = "SLURM_STEP_TASKS_PER_NODE" if "SLURM_STEP_TASKS_PER_NODE" in env else "SLURM_TASKS_PER_NODE"
    text = env.get(name, "")
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part, re.ASCII)
        if match is None:
            raise UsageError(f"{name}={text!r}, set by srun, is not a list of tasks such as 8(x2),4")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def first_host(nodelist: str) -> str:
    """Return the first host of a host list, such as n1 for `n[1-3,7],m0`. Raises UsageError if the list has no name."""
    return hostlist.expand(nodelist)[0]


def _meeting(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the rendezvous of the ranks: the step's first host and a port. Return None outside a Slurm job.

    Ports that Slurm reserved for the step (`MpiParams=ports=` in slurm.conf) are preferred, because no other step gets
    them. Without a reserved port, the port is computed from the job id. Two jobs on one host have the same port only if
    their ids differ by a multiple of _NUM_JOBS.
    """
    nodelist = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    if not nodelist or "SLURM_JOB_ID" not in env:
        return None
    reserved = re.match(r"\d+", env.get("SLURM_STEP_RESV_PORTS", ""), re.ASCII)
    if reserved:
        return first_host(nodelist), int(reserved[0])
    job, step = whole(env, "SLURM_JOB_ID", "srun"), whole(env, "SLURM_STEP_ID", "srun")
    return first_host(nodelist), _FIRST_PORT + job % _NUM_JOBS * _PORTS_OF_JOB + step % _PORTS_OF_JOB


LAUNCHER = Slurm()
