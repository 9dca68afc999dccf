"""Collect facts for a results file: its header, and the state of hosts and GPUs after the last row."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from bench.core import plugins
from bench.core.case import Case, ineffective_flags
from bench.core.case_argv import to_argv
from bench.core.pattern import Pattern
from bench.core.record import Header
from bench.core.remarks import CodedRemark
from bench.core.transport import Transport
from bench.core.world import World
from bench.hardware import catalogue, live
from bench.hardware.bounds import moves_host_memory
from bench.probes import environment, host_use, machine, nvml, versions
from bench.rank import calibrate, placement, sampling
from bench.rank.messages import RankRemark
from bench.results import stats

if TYPE_CHECKING:
    from bench.rank.session import Session

T = TypeVar("T")


def header_of(opened: Session, job: str, launch: int = 1) -> Header | None:
    """Return the header of the results file on rank 0, and None on other ranks.

    All ranks must call this function, because each rank contributes facts about its process.
    """
    case, transport, world = opened.case, opened.transport, opened.world
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    calibration = calibrate.calibrate(transport, world, pattern, opened.clocks, opened.beat)
    transport.sync()
    transport.keep_link_active()
    active = world.ranks_per_node if not case.share_gpu else 1  # GPUs of a node with an active link
    under_load = transport.clock == "device" and nvml.count_gpus({}) <= active
    mine = {
        "host": socket.gethostname(),
        "local_rank": transport.place.local_rank,
        "process": os.getpid(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "nic": placement.nic_of(case, transport.place.local_rank),
        "gpu_pci_bus": transport.facts().get("gpu_pci_bus"),
        "environment": environment.allowed(os.environ),
        "node": None,
    }
    if transport.place.local_rank == 0:
        mine["node"] = machine.facts(under_load=under_load) | {
            "num_cpus": len(opened.cpus),
            "before": host_use.state(opened.cpus),
        }
    gathered = transport.channel.gather(mine)
    if gathered is None:
        return None
    nodes = {rank["host"]: rank["node"] | _rack(case, rank["host"]) for rank in gathered if rank["node"] is not None}
    real = () if moves_host_memory(case.transport) else nodes.values()
    links, link_notes = live.bounding(links_of(case, world), real)
    shared = gathered[0]["environment"]
    different: set[str] = set()
    for rank in gathered:
        different |= {name for name, value in rank["environment"].items() if shared.get(name) != value}
    remarks = [*opened.remarks, *ignored_options(case, pattern)]
    remarks += [CodedRemark.of(RankRemark.VARIABLE_DIFFERS, name=name) for name in sorted(different - _PER_RANK)]
    remarks += [CodedRemark(note.code, note.facts, note.text) for note in link_notes]
    return Header(
        **described(case, pattern, world, job),
        clock=transport.clock,
        modelled=False,
        facts=transport.facts(),
        settings=_settings(case, transport, opened.binding),
        environment=shared,
        nodes=nodes,
        ranks=tuple(_of_rank(rank) for rank in gathered),
        calibration=calibration,
        links=links,
        notes=tuple(remark.text for remark in remarks),
        remarks=tuple(remarks),
        launch=launch,
    )


def ignored_options(case: Case, pattern: Pattern) -> list[CodedRemark]:
    """Return a remark if the case sets options that the pattern or the transport ignores."""
    flags = ineffective_flags(case, pattern, case.transport)
    facts = {"pattern": pattern.name, "transport": case.transport, "options": flags}
    return [CodedRemark.of(RankRemark.OPTIONS_IGNORED, **facts)] if flags else []


def _of_rank(facts: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: facts[key] for key in ("host", "local_rank", "process", "cpus", "nic")}
    gpu = facts["gpu_pci_bus"]
    return kept | {"gpu_pci_bus": gpu} if gpu and ":" in gpu else kept  # a value without ":" is only an index


def _rack(case: Case, host: str) -> dict[str, str]:
    rack = next((rack for rack, hosts in case.racks if host in hosts), None)
    return {} if rack is None else {"rack": rack}


# Variables with which launchers identify ranks.
_PER_RANK = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "CUDA_VISIBLE_DEVICES",
    "OMPI_MCA_orte_ess_vpid",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_NODE_RANK",
    "OMPI_FILE_LOCATION",
    *placement.nic_variables(),
}


def described(case: Case, pattern: Pattern, world: World, job: str) -> dict[str, Any]:
    """Return the header fields that measured and modelled runs have in common.

    The field `argv` is the command that a user would type.
    """
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
    """Return the current time as results files store it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _settings(case: Case, transport: Transport, binding: str) -> dict[str, Any]:
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
        "binding": binding,
    }


def links_of(case: Case, world: World) -> dict[str, Any]:
    """Return the links whose rates limit a run, or {} if the links are unknown.

    The links are the links of the instance type, with their rates. If the case states a rate, this rate replaces the
    rate of the instance type.
    """
    its = case.traits
    one_per_gpu = its.on_gpu or its.modelled
    return catalogue.bounding_links(case.instance, dict(case.links), world.ranks_per_node, one_per_gpu)


class HostsAfterRows:
    """Reads the state of all hosts and their GPUs directly after the last row.

    All ranks must take part, but only rank 0 gets the result.
    """

    def __init__(self, opened: Session) -> None:
        """Begin to measure the CPU time of the programs on this host. Only the first rank of each host measures."""
        self._transport, self._cpus = opened.transport, opened.cpus
        self._local_size = opened.world.ranks_per_node
        self._programs = host_use.ProgramMeter() if opened.transport.place.local_rank == 0 else None
        self.gpus: dict[str, list[dict[str, Any]]] = {}  # GPUs by host; empty if no GPU took part
        self.hosts: dict[str, dict[str, Any]] = {}  # for each host: host_use.state, and the busiest other `programs`

    def reading_after(self, rows: Iterator[T]) -> Iterator[T]:
        """Yield the rows unchanged. After the last row, the first rank of each host reads the host's state."""
        yield from rows
        on_gpu = self._transport.clock == "device" or self._transport.available_bytes() is not None
        if on_gpu:
            self._transport.keep_link_active()
        mine = None
        if self._programs is not None:
            state = host_use.state(self._cpus) | {"programs": self._programs.busiest(self._local_size)}
            mine = socket.gethostname(), nvml.conditions() if on_gpu else None, state
        for reply in self._transport.channel.gather(mine) or []:
            if reply is not None:
                host, gpus, state = reply
                self.hosts[host] = state
                if gpus is not None:
                    self.gpus[host] = gpus
