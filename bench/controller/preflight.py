"""Check that a plan can run from this machine. linkbench makes this check before it starts anything or asks any host.

The machine that starts the ranks must have the launcher's programs. For a cluster with Slurm, the login node needs no
GPUs, but it must have srun. Later, controller/survey.py checks the hosts, and rank/preflight.py checks what only ranks
can see (their world, variables and GPUs).
"""

from __future__ import annotations

import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.config.clusters import Cluster
from bench.controller import hosts
from bench.controller.expand import NOT_MODELLED
from bench.controller.host_checks import PreflightFinding
from bench.controller.jobs import Job, Plan, Site
from bench.controller.messages import ControllerError, FindingCode
from bench.core.errors import RefusedError
from bench.core.launcher import Launcher
from bench.core.plugins import nearest
from bench.core.secret_values import resolved

_SETUP_S, _HELP_S = 60.0, 60.0
_SHELL = re.compile(r"^\S*sh: (?:line )?\d+: (?:eval: )?(?:line \d+: )?")
_ELSEWHERE = (
    "`linkbench plan {} --cluster NAME` shows the commands for another cluster of bench.yaml, such as one with "
    "GPUs (`linkbench list` names them)"
)
Which = Callable[[str], str | None]


def check(plan: Plan, site: Site, which: Which = shutil.which) -> None:
    """Raise RefusedError (exit code 3) if the plan cannot run from this machine.

    For a modelled plan, the function only checks that the plan has jobs.
    """
    if not plan.jobs:
        raise _no_jobs(plan)
    if plan.modelled:
        return
    for name in dict.fromkeys(job.launcher for job in plan.jobs):
        launcher = site.launchers[name]
        _check_launcher(name, launcher, plan, site, which)
        if launcher.remote:
            continue
        job = next(job for job in plan.jobs if job.launcher == name)
        cluster = plan.cluster
        if job.world.num_nodes > max(1, len(cluster.hosts)):
            facts = {"num_nodes": job.world.num_nodes, "num_hosts": len(cluster.hosts)}
            raise RefusedError.of(ControllerError.HOSTS_MISSING, cluster=cluster.name, **facts)
        if not cluster.hosts:  # survey.py asks the hosts that the cluster names
            _check_this_machine(job, plan, site)


def _no_jobs(plan: Plan) -> RefusedError:
    reasons = "; ".join(dict.fromkeys(skip.reason.text for skip in plan.skipped)) or "the scenario has no rows"
    remedy = "omit --model (MODEL=1) to measure it" if plan.modelled else _ELSEWHERE.format(plan.scenario)
    return RefusedError.of(
        ControllerError.NO_JOBS,
        scenario=plan.scenario,
        verb="be modelled" if plan.modelled else "run",
        cluster=plan.cluster.name,
        reasons=reasons,
        codes=[skip.reason.code for skip in plan.skipped],
        remedy=remedy,
    )


def _check_launcher(name: str, launcher: Launcher, plan: Plan, site: Site, which: Which) -> None:
    cluster = plan.cluster
    if launcher.by_hand:
        raise RefusedError.of(ControllerError.BY_HAND, cluster=cluster.name, launcher=name)

    def find(program: str) -> str | None:
        return which((cluster.mpirun or site.machine.mpirun) if program == "mpirun" else program)

    why = launcher.unavailable(find)
    if why is None:
        return
    if name == "mpirun" and cluster.mpirun:
        raise RefusedError.of(ControllerError.NO_MPIRUN, cluster=cluster.name, mpirun=cluster.mpirun)
    raise RefusedError.of(
        ControllerError.NO_LAUNCHER, cluster=cluster.name, launcher=name, why=why, instead=_instead(plan)
    )


def _instead(plan: Plan) -> str:
    """Return advice for a user whose machine cannot run this plan."""
    shown = f"`linkbench plan {plan.scenario} --cluster {plan.cluster.name}` shows the commands to run there"
    if plan.cluster.instance is None or all(job.case.pattern in NOT_MODELLED for job in plan.jobs):
        return shown
    return f"{shown}, `--model` (MODEL=1) models it here"


def _check_this_machine(job: Job, plan: Plan, site: Site) -> None:
    """Raise RefusedError if this machine does not match the cluster's instance type. This machine starts the ranks.

    The machine does not match if it has too few GPUs, or if it cannot run the transport of a job.
    """
    cluster, machine, num_gpus = plan.cluster, site.machine, job.world.ranks_per_node
    if cluster.instance is None:
        return
    facts = {"cluster": cluster.name, "instead": _instead(plan)}
    if machine.num_gpus < num_gpus:
        counts = {"num_ranks": num_gpus, "num_gpus": machine.num_gpus}
        raise RefusedError.of(ControllerError.TOO_FEW_GPUS, instance=cluster.instance, **counts, **facts)
    for planned in plan.jobs:
        why = machine.lacks.get(planned.case.transport)
        if why is not None:
            raise RefusedError.of(ControllerError.UNAVAILABLE, why=why, **facts)


def local_findings(cluster: Cluster, jobs: Sequence[Job], site: Site) -> list[PreflightFinding]:
    """Return findings about the set-up lines and launcher options of jobs that start on this machine.

    Jobs that a scheduler starts are not checked.
    """
    names = dict.fromkeys(job.launcher for job in jobs)
    ours = [site.launchers[name] for name in names if not site.launchers[name].remote]
    findings = list(_setup(cluster)) if ours else []
    for launcher in ours:
        findings += _options(cluster, launcher)
    return findings


def _setup(cluster: Cluster) -> Iterator[PreflightFinding]:
    """Run the cluster's set-up lines in a shell, as each job does. Yields a finding about the first line that fails."""
    if not cluster.setup:
        return
    script = f'set -e; eval "$BENCH_SETUP"; echo {hosts.MARK}'
    variables = {**resolved(cluster.env), "BENCH_SETUP": "\n".join(cluster.setup)}
    answer = hosts.run_locally(hosts.HostCommand(("/bin/sh", "-c", script)), _SETUP_S, variables)
    if answer.exit_code is None or hosts.MARK in answer.out:
        return
    lines = [line for line in answer.err.splitlines() if line.strip()]
    why = _SHELL.sub("", lines[-1]) if lines else f"exit code {answer.exit_code}"
    yield PreflightFinding.of(FindingCode.SETUP_FAILS, (socket.gethostname(),), cluster=cluster.name, why=why)


def _options(cluster: Cluster, launcher: Launcher) -> Iterator[PreflightFinding]:
    """Check options against the launcher's own `--help`, because new releases add options.

    If the launcher prints no help, all options are accepted.
    """
    if not cluster.options or not launcher.help:
        return
    words = hosts.HostCommand((cluster.python or sys.executable, *launcher.help))
    known = re.findall(r"(?<![\w-])--?([A-Za-z][\w-]*)", hosts.run_locally(words, _HELP_S).out)
    for name in cluster.options if known else ():
        if name not in known:
            others = nearest(name, sorted({word for word in known if "_" not in word}))
            facts: dict[str, Any] = {"launcher": cluster.launcher, "option": name, "nearest": others}
            yield PreflightFinding.of(FindingCode.NO_OPTION, (), cluster=cluster.name, **facts)
