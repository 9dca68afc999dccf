"""Can this plan run from here? Asked before anything is started, and before any host is.

What is checked is the place where the ranks would start: a login node without GPUs is no error for a cluster launched
by Slurm, a missing srun is. controller/survey.py asks the hosts themselves;
rank/preflight.py checks what only ranks can see (their world, variables and GPUs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.controller.expand import NOT_MODELLED
from bench.controller.jobs import Job, LocalMachine, Plan
from bench.core.errors import RefusedError
from bench.core.launcher import Launcher

_ELSEWHERE = (
    "`python -m bench plan {} --cluster NAME` shows the commands for another cluster of bench.yaml, such as one "
    "with GPUs (`python -m bench list` names them)"
)


def check(
    plan: Plan, machine: LocalMachine, launchers: Mapping[str, Launcher], which: Callable[[str], str | None]
) -> None:
    """Raise RefusedError (exit 3) saying what was expected, what was found, what to do. The model needs nothing."""
    if not plan.jobs:
        reasons = "; ".join(dict.fromkeys(skip.reason for skip in plan.skipped)) or "the scenario has no rows"
        can = "be modelled" if plan.modelled else "run"
        where = "leave --model (MODEL=1) out to measure it" if plan.modelled else _ELSEWHERE.format(plan.scenario)
        raise RefusedError(
            f"nothing of scenario {plan.scenario!r} can {can} on cluster {plan.cluster.name!r}: {reasons}; {where}"
        )
    if plan.modelled:
        return
    cluster = plan.cluster
    for name in dict.fromkeys(job.launcher for job in plan.jobs):
        if launchers[name].by_hand:
            raise RefusedError(
                f"the jobs of cluster {cluster.name!r} are given to {name} by you: "
                "type `plan` in place of `run` (make plan), and pipe what it prints into sh"
            )
        reason = launchers[name].unavailable(lambda program: _found(program, plan, machine, which))
        if reason is not None and name == "mpirun" and cluster.mpirun:
            raise RefusedError(
                f"cluster {cluster.name!r} starts its ranks by `mpirun: {cluster.mpirun}`, and here is no such "
                "program: correct it, or leave it out for the one of the interpreter's environment, else on PATH"
            )
        if reason is not None:
            raise RefusedError(
                f"cluster {cluster.name!r} starts its ranks by {name}, and here {reason}: "
                f"run this where {cluster.name} can be reached; {_instead(plan)}"
            )
        if launchers[name].remote:
            continue
        job = next(job for job in plan.jobs if job.launcher == name)
        if job.world.num_nodes > max(1, len(cluster.hosts)):
            raise RefusedError(
                f"cluster {cluster.name!r} has {job.world.num_nodes} nodes, but its `hosts:` names "
                f"{len(cluster.hosts)}: name the hosts, or use a launcher that knows them (slurm)"
            )
        if not cluster.hosts:  # those answer for themselves
            _check_here(job, plan, machine)


def _instead(plan: Plan) -> str:
    """What works here, of a plan that has commands."""
    shown = f"`python -m bench plan {plan.scenario} --cluster {plan.cluster.name}` shows the commands for that place"
    if plan.cluster.instance is None or all(job.case.pattern in NOT_MODELLED for job in plan.jobs):
        return shown
    return f"{shown}, `--model` (MODEL=1) models it here"


def _check_here(job: Job, plan: Plan, machine: LocalMachine) -> None:
    """A cluster that names its instance type claims that this machine, where its ranks start, is one."""
    cluster, num_gpus = plan.cluster, job.world.ranks_per_node
    if cluster.instance is None:
        return
    if machine.num_gpus < num_gpus:
        raise RefusedError(
            f"cluster {cluster.name!r} is {cluster.instance} with {num_gpus} ranks per node, one GPU each; this "
            f"machine has {machine.num_gpus} GPUs: run this on such a machine; {_instead(plan)}"
        )
    lacking = next(filter(None, (machine.lacks.get(job.case.transport) for job in plan.jobs)), None)
    if lacking is not None:
        raise RefusedError(f"cluster {cluster.name!r} can not be measured from here: {lacking}; {_instead(plan)}")


def _found(program: str, plan: Plan, machine: LocalMachine, which: Callable[[str], str | None]) -> str | None:
    if program == "mpirun":
        return which(plan.cluster.mpirun or machine.mpirun)
    return which(program)
