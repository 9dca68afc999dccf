"""Measure again what of a run failed its gate: the sizes that failed, and the pairs of the hosts under suspicion.

New attempts are appended to the files of the same jobs, so that reports show the first result and the retest side by
side; `retests.json` says why, and whose pairs were measured again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.config.clusters import Cluster
from bench.controller import batch
from bench.controller.jobs import Job, LocalMachine, job_of
from bench.controller.run import Ran, RunContext, cluster_of, run_jobs
from bench.core.case import from_argv
from bench.core.errors import UsageError
from bench.core.pattern import Pattern
from bench.core.world import World
from bench.gate.remeasured import RetestPlan
from bench.launchers import slurm
from bench.store import runs


def retest(
    folder: Path,
    asked: RetestPlan,
    reasons: Sequence[str],
    here: LocalMachine,
    patterns: Mapping[str, Pattern],
    means: RunContext,
) -> Ran:
    """Run what is asked, into the same folder. Raises UsageError where its hosts can not be chosen from here."""
    stored = runs.read_plan(folder)
    cluster = cluster_of(stored["cluster"])
    hosts = chosen(asked, cluster)
    todo: list[Job] = []
    for job in stored["jobs"]:
        name = job["name"]
        if name in asked.sizes or name in asked.ladders:
            todo.append(_job(job, asked, hosts, cluster, here, patterns, means))
    if batch.wanted(todo, os.environ):
        named = ",".join(hosts or asked.suspects)
        raise UsageError(
            "a retest chooses its hosts, so under Slurm it runs inside an allocation that holds them: "
            f"salloc --nodes={max(job.world.num_nodes for job in todo)}{f' --nodelist={named}' if named else ''} "
            f"python -m bench run --retest {folder}"
        )
    for job_again in todo:
        means.say(f"again: {job_again.name}: {job_again.num_rows} rows on {job_again.world.num_nodes} nodes")
    means.ready(cluster, todo)
    before = runs.outcomes_or_error(folder)
    entry = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "jobs": {job.name: list(asked.suspects) if job.name in asked.ladders and hosts else [] for job in todo},
        "reasons": list(reasons),
        "failures": dict(asked.failures or {}),
        "outcomes_before": {job.name: before[job.name] for job in todo if job.name in before},
    }
    runs.write_retests(folder, [*runs.read_retests(folder), entry])
    return run_jobs(todo, folder, means)


def chosen(asked: RetestPlan, cluster: Cluster) -> tuple[str, ...]:
    """The hosts of the ladder, in the cluster's own order; none where all of them take part anyway."""
    wanted = {*asked.suspects, *asked.partners}
    if not asked.ladders or not asked.suspects or len(wanted) >= cluster.nodes:
        return ()
    if cluster.launcher == "kubernetes":
        raise UsageError("on Kubernetes hosts can not be chosen from here: run the scenario again as a whole")
    if cluster.launcher == "slurm":
        return (*asked.suspects, *asked.partners)
    unknown = sorted(wanted - set(cluster.hosts))
    if unknown:
        raise UsageError(
            f"hosts {', '.join(unknown)} call themselves so and not as `hosts:` of cluster {cluster.name!r} in "
            "bench.yaml: give them the same names there, or run the scenario again as a whole"
        )
    return tuple(host for host in cluster.hosts if host in wanted)


def _job(
    job: Mapping[str, Any],
    asked: RetestPlan,
    hosts: Sequence[str],
    cluster: Cluster,
    here: LocalMachine,
    patterns: Mapping[str, Pattern],
    means: RunContext,
) -> Job:
    name, world, tool = job["name"], World(**job["world"]), job.get("tool", "")
    case = replace(from_argv(job["case"]), budget_s=None)  # that was for all of its sizes
    launch, env = job.get("launch", 1), job["factors"]
    if name in asked.ladders and hosts:
        few = replace(cluster, nodes=len(hosts), hosts=() if cluster.launcher == "slurm" else tuple(hosts))
        world = World(len(hosts), world.ranks_per_node)
        made = job_of(name, case, world, env, few, here, patterns, means.launchers, launch, tool, means.tools)
        return replace(made, command=slurm.on_hosts(made.command, hosts)) if made.launcher == "slurm" else made
    sizes = tuple(size for size in case.sizes if size in asked.sizes.get(name, ())) or case.sizes
    case = replace(case, sizes=sizes)
    return job_of(name, case, world, env, cluster, here, patterns, means.launchers, launch, tool, means.tools)
