"""The first line of a results file: what was measured, on what, by which versions, and what bounds it."""

from __future__ import annotations

import os
import socket
import time
from datetime import UTC, datetime
from typing import Any

from bench.core import plugins
from bench.core.case import Case, to_argv
from bench.core.pattern import Pattern
from bench.core.record import Header
from bench.core.traits import traits
from bench.core.transport import Transport
from bench.core.world import World
from bench.hardware import catalogue, live
from bench.hardware.bounds import moves_host_memory
from bench.probes import environment, machine, nvml, versions
from bench.rank import calibrate, nics, sampling
from bench.rank.session import Session
from bench.results import stats


def header_of(opened: Session, job: str, launch: int = 1) -> Header | None:
    """The results file's first line, on rank 0. All ranks take part: each tells its own facts."""
    case, transport, world = opened.case, opened.transport, opened.world
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    opened.beat("calibrating")
    calibration = calibrate.calibrate(transport, world, pattern, opened.clocks)
    transport.sync()
    transport.keep_link_active()
    stirred = world.ranks_per_node if not case.share_gpu else 1  # GPUs of a node, by its ranks
    under_load = transport.clock == "device" and nvml.count_gpus({}) <= stirred
    mine = {
        "host": socket.gethostname(),
        "local_rank": transport.place.local_rank,
        "process": os.getpid(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "nic": nics.of(case, transport.place.local_rank),
        "environment": environment.allowed(os.environ),
        "node": machine.facts(under_load=under_load) | {"num_cpus": opened.num_cpus}
        if transport.place.local_rank == 0
        else None,
    }
    gathered = transport.channel.gather(mine)
    if gathered is None:
        return None
    nodes = {one["host"]: one["node"] | _rack(case, one["host"]) for one in gathered if one["node"] is not None}
    real = () if moves_host_memory(case.transport) else nodes.values()
    links, linked = live.bounding(links_of(case, world), real)
    shared = gathered[0]["environment"]
    odd = sorted(
        {name for one in gathered for name, value in one["environment"].items() if shared.get(name) != value}
        - _PER_RANK
    )
    notes = [*opened.notes, *(f"the variable {name} is not the same on all ranks" for name in odd)]
    return Header(
        **described(case, pattern, world, job),
        clock=transport.clock,
        modelled=False,
        facts=transport.facts(),
        settings=_settings(case, transport, opened.bound),
        environment=shared,
        nodes=nodes,
        ranks=tuple({key: one[key] for key in ("host", "local_rank", "process", "cpus", "nic")} for one in gathered),
        calibration=calibration,
        links=links,
        notes=(*notes, *(each.text for each in linked)),
        launch=launch,
    )


def _rack(case: Case, host: str) -> dict[str, str]:
    rack = next((rack for rack, hosts in case.racks if host in hosts), None)
    return {} if rack is None else {"rack": rack}


# Set by launchers to tell ranks apart.
_PER_RANK = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "CUDA_VISIBLE_DEVICES",
    "OMPI_MCA_orte_ess_vpid",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_NODE_RANK",
    "OMPI_FILE_LOCATION",
    *nics.variables(),
}


def described(case: Case, pattern: Pattern, world: World, job: str) -> dict[str, Any]:
    """The part of a header that measured and modelled runs have alike. `argv`: what a person would type on a rank."""
    name, *options = to_argv(case)
    return {
        "job": job,
        "case": (name, *options),
        "argv": ("python", "-m", f"bench.{name}", *options),
        "pattern": case.pattern,
        "transport": case.transport,
        "dtype": case.dtype,
        "reduce_op": case.reduce_op if pattern.reduces else "",
        "root": case.root if pattern.rooted else None,
        "direction": pattern.way(case.direction) or None,
        "topology": pattern.topology_of(case.topology),
        "num_ranks": world.num_ranks,
        "num_nodes": world.num_nodes,
        "ranks_per_node": world.ranks_per_node,
        "started": now(),
        "versions": versions.versions(),
        "instance": case.instance or None,
    }


def now() -> str:
    """The time as the files have it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _settings(case: Case, transport: Transport, bound: str) -> dict[str, Any]:
    return {
        "sync": transport.sync_method,
        "rank_reduction": "max",
        "iteration_reduction": "median",
        "cache": case.cache,
        "data": "position- and rank-dependent",
        "seed": case.seed,
        "min_samples": sampling.MIN_SAMPLES,
        "confidence": float(stats.CONFIDENCE),
        "ci_method": "order statistics on the effective sample size",
        "target_half_width": sampling.TARGET_HALF_WIDTH,
        "max_s": case.max_s,
        "budget_s": case.budget_s,
        "garbage_collection": "off while timing",
        "clock_resolution_s": time.get_clock_info("perf_counter").resolution,
        "launcher": transport.place.launcher,
        "binding": bound,
    }


def links_of(case: Case, world: World) -> dict[str, Any]:
    """The links that bound a run: the instance type's, with the rates given in their place; {} when unknown."""
    its = traits(case.transport)
    one_per_gpu = its.on_gpu or its.modelled
    return catalogue.bounding_links(case.instance, dict(case.links), world.ranks_per_node, one_per_gpu)
