"""Is the place where the ranks would run what the cluster entry says? Asked before anything is started.

What is checked is that place: a login node without GPUs is no error for a cluster launched by Slurm, a missing srun is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.core.errors import RefusedError
from bench.core.launcher import Launcher
from bench.driver.expand import Machine, Plan

_INSTEAD = "`python -m bench plan` shows the commands for that place, `--model` (MODEL=1) models it here"


def check(plan: Plan, machine: Machine, launchers: Mapping[str, Launcher], which: Callable[[str], str | None]) -> None:
    """Raise RefusedError (exit 3) saying what was expected, what was found, what to do. The model needs nothing."""
    if plan.modelled:
        return
    if not plan.jobs:
        reasons = "; ".join(dict.fromkeys(skip.reason for skip in plan.skipped)) or "the scenario has no rows"
        raise RefusedError(
            f"nothing of scenario {plan.scenario!r} can run on cluster {plan.cluster.name!r}: {reasons}; {_INSTEAD}"
        )
    cluster = plan.cluster
    for name in dict.fromkeys(job.launcher for job in plan.jobs):
        if launchers[name].by_hand:
            raise RefusedError(
                f"the jobs of cluster {cluster.name!r} are given to {name} by you: "
                "type `plan` in place of `run` (make plan), and pipe what it prints into sh"
            )
        reason = launchers[name].unavailable(lambda program: _found(program, plan, machine, which))
        if reason is not None:
            raise RefusedError(
                f"cluster {cluster.name!r} starts its ranks by {name}, and here {reason}: "
                f"run this where {cluster.name} can be reached; {_INSTEAD}"
            )
        if launchers[name].remote:
            continue
        job = next(job for job in plan.jobs if job.launcher == name)
        if job.world.num_nodes > max(1, len(cluster.hosts)):
            raise RefusedError(
                f"cluster {cluster.name!r} has {job.world.num_nodes} nodes, but `hosts:` in bench.yaml names "
                f"{len(cluster.hosts)}: name the hosts, or use a launcher that knows them (slurm)"
            )
        wanted = job.world.ranks_per_node
        if cluster.instance is not None and machine.num_gpus < wanted:
            raise RefusedError(
                f"cluster {cluster.name!r} is {cluster.instance} with {wanted} ranks per node, one GPU each; this "
                f"machine has {machine.num_gpus} GPUs: run this on such a machine; {_INSTEAD}"
            )
        lacking = next(filter(None, (machine.lacks.get(job.case.transport) for job in plan.jobs)), None)
        if cluster.instance is not None and lacking is not None:
            raise RefusedError(f"cluster {cluster.name!r} can not be measured from here: {lacking}; {_INSTEAD}")


def _found(program: str, plan: Plan, machine: Machine, which: Callable[[str], str | None]) -> str | None:
    if program == "mpirun":
        return which(plan.cluster.mpirun or machine.mpirun)
    return which(program)
