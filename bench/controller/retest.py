"""Repeat the measurements that failed a run's gate: the failed sizes, and the pairs of suspected hosts.

A retest appends its attempts to the files of the same jobs. Reports therefore show the first result next to the retest.
`retests.json` stores the reasons for retests. The file also stores the hosts whose pairs were measured again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench.config.clusters import Cluster
from bench.controller import batch, links
from bench.controller.jobs import Job, JobSpec, Site, job_of
from bench.controller.messages import ControllerError
from bench.controller.run import RunContext, RunResult, run_jobs
from bench.core.errors import UsageError
from bench.core.world import World
from bench.gate.remeasured import RetestPlan
from bench.launchers import slurm
from bench.store import run_lock, runs


def retest(folder: Path, asked: RetestPlan, reasons: Sequence[str], context: RunContext) -> RunResult:
    """Run a retest, which adds rows to the run's folder.

    Raises UsageError if the run's launcher or a change in bench.yaml prevents a retest.
    """
    hosts = chosen_hosts(asked, context.site.cluster)
    jobs = []
    for stored in runs.read_plan(folder)["jobs"]:
        if stored["name"] in asked.sizes or stored["name"] in asked.ladders:
            jobs.append(_job(JobSpec.from_plain(stored), asked, hosts, context.site))
    if batch.needed(jobs, os.environ):
        named = ",".join(hosts or asked.suspects)
        raise UsageError.of(
            ControllerError.RETEST_IN_ALLOCATION,
            num_nodes=max(job.world.num_nodes for job in jobs),
            nodelist=f" --nodelist={named}" if named else "",
            run=str(folder),
        )
    for job in jobs:
        context.say(f"retest: {job.name}: {job.num_rows} rows on {job.world.num_nodes} nodes")
    tested = context.check(jobs)
    with run_lock.held(folder):
        links.store(folder, links.BEFORE, tested)
        return _again(jobs, folder, asked, hosts, reasons, context)


def _again(
    jobs: Sequence[Job],
    folder: Path,
    asked: RetestPlan,
    hosts: Sequence[str],
    reasons: Sequence[str],
    context: RunContext,
) -> RunResult:
    """Record the retest, then run its jobs."""
    before = runs.outcomes_or_error(folder)
    entry = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "jobs": {job.name: list(asked.suspects) if job.name in asked.ladders and hosts else [] for job in jobs},
        "reasons": list(reasons),
        "failures": dict(asked.failures or {}),
        "outcomes_before": {job.name: before[job.name] for job in jobs if job.name in before},
    }
    runs.write_retests(folder, [*runs.read_retests(folder), entry])
    return run_jobs(jobs, folder, context)


def chosen_hosts(asked: RetestPlan, cluster: Cluster) -> tuple[str, ...]:
    """Return the hosts whose pairs the retest's ladder measures again, in the cluster's order.

    A ladder measures pairs, and chooses the next pairs from earlier results (diagnose/ladder.py). The result is empty
    if the retest has no ladder, or if the ladder measures all hosts.
    """
    wanted = {*asked.suspects, *asked.partners}
    if not asked.ladders or not asked.suspects or len(wanted) >= cluster.nodes:
        return ()
    if cluster.launcher == "kubernetes":
        raise UsageError.of(ControllerError.RETEST_ON_KUBERNETES)
    if cluster.launcher == "slurm":
        return (*asked.suspects, *asked.partners)
    unknown = sorted(wanted - set(cluster.hosts))
    if unknown:
        raise UsageError.of(ControllerError.RETEST_HOSTS, hosts=unknown, cluster=cluster.name)
    return tuple(host for host in cluster.hosts if host in wanted)


def _job(spec: JobSpec, asked: RetestPlan, hosts: Sequence[str], site: Site) -> Job:
    # The scenario's time budget is meant for all sizes. The retest measures fewer.
    case, cluster = replace(spec.case, budget_s=None), site.cluster
    if spec.name in asked.ladders and hosts:
        some = replace(cluster, nodes=len(hosts), hosts=() if cluster.launcher == "slurm" else tuple(hosts))
        world = World(len(hosts), spec.world.ranks_per_node)
        job = job_of(replace(spec, case=case, world=world), replace(site, cluster=some))
        return replace(job, command=slurm.on_hosts(job.command, hosts)) if job.launcher == "slurm" else job
    sizes = tuple(size for size in case.sizes if size in asked.sizes.get(spec.name, ())) or case.sizes
    return job_of(replace(spec, case=replace(case, sizes=sizes)), site)
