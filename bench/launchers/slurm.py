"""srun: one step of a Slurm job, which makes an allocation of its own where there is none.

A rank reads SLURM_PROCID and its kin, but only inside a step that srun started: a plain sbatch script and the shell of
salloc see SLURM_PROCID=0 and SLURM_NTASKS, too, and a process there that believed them would wait for peers that never
come.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bench.core import hostlist
from bench.core.errors import UsageError
from bench.core.launcher import Launcher, Site
from bench.core.world import Place, World
from bench.launchers._variables import checked, long_options, rendezvous, whole

# Ports for the ranks' meeting: above the registered services that matter, below Linux's ephemeral ports (32768).
_FIRST_PORT, _NUM_PORTS = 20000, 12000
# slurm.h, SLURM_MAX_NORMAL_STEP_ID: steps above it are salloc's shell, the batch script and the like.
_LAST_STEP = 0xFFFFFFF0


class Slurm(Launcher):
    """Ranks as tasks of one srun."""

    program = "srun"
    precedence = 30
    remote = True

    def place(self, env: Mapping[str, str]) -> Place | None:
        """From SLURM_PROCID, SLURM_LOCALID and the step's tasks per node; None outside a step of srun."""
        if "SLURM_PROCID" not in env or "SLURM_STEP_ID" not in env:
            return None
        if whole(env, "SLURM_STEP_ID", "srun") > _LAST_STEP:
            return None
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
        node, per_node = whole(env, "SLURM_NODEID", "srun"), tasks_per_node(env)
        if node >= len(per_node):
            raise UsageError(f"srun says node {node} of {len(per_node)}: unset the SLURM_* variables of another job")
        place = Place(
            rank=whole(env, "SLURM_PROCID", "srun"),
            num_ranks=whole(env, size, "srun"),
            local_rank=whole(env, "SLURM_LOCALID", "srun"),
            local_size=per_node[node],
            launcher="slurm",
            rendezvous=rendezvous(env, "srun") or _meeting(env),
        )
        return checked(place)

    def command(self, program: list[str], world: World, site: Site, env: Mapping[str, str]) -> list[str]:
        """`srun --nodes=N --ntasks=.. --ntasks-per-node=R PYTHON ...`; the site's options replace ours.

        Ranks are numbered node by node, and one that fails ends the others. srun hands its own environment on.
        """
        options = {
            "nodes": str(world.num_nodes),
            "ntasks": str(world.num_ranks),
            "ntasks-per-node": str(world.ranks_per_node),
            "distribution": "block",
            "kill-on-bad-exit": "1",
        }
        return ["srun", *long_options(options | dict(site.options)), site.python, *program]


def tasks_per_node(env: Mapping[str, str]) -> tuple[int, ...]:
    """The tasks of each node of the step, from Slurm's `8(x2),4`. UsageError when it is missing or something else."""
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
    """The first name of Slurm's `n[1-3,7],m0`: n1. UsageError when there is none."""
    return hostlist.expand(nodelist)[0]


def _meeting(env: Mapping[str, str]) -> tuple[str, int] | None:
    """The step's first host, and a port that follows from the job and step, so that jobs on one host differ."""
    nodelist = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    if not nodelist or "SLURM_JOB_ID" not in env:
        return None
    number = whole(env, "SLURM_JOB_ID", "srun") * 31 + whole(env, "SLURM_STEP_ID", "srun")
    return first_host(nodelist), _FIRST_PORT + number % _NUM_PORTS


LAUNCHER = Slurm()
