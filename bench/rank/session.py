"""From a case to ranks that are ready to measure: the transport opened, the world checked, the header written."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from bench.analysis import stats
from bench.core import plugins
from bench.core.case import ON_GPUS, Case, to_argv, unheard
from bench.core.errors import NotInstalledError, RefusedError, UsageError
from bench.core.fabric import Fabric
from bench.core.links import NodeLinks
from bench.core.pattern import Pattern, Shape
from bench.core.program import Product
from bench.core.record import Header, Record
from bench.core.transport import Options, Transport
from bench.core.units import format_size
from bench.core.world import Place, World
from bench.hardware import catalogue, live
from bench.hardware.bounds import HOST_MEMORY_TRANSPORTS
from bench.launchers import mpirun
from bench.probes import environment, machine, nvml, sysfs, versions
from bench.rank import binding, calibrate, measure, nics, preflight, sampling
from bench.rank.clocks import Clocks
from bench.store import heartbeat

_ANY_BYTES = 64  # of a shape whose size does not matter
_MEMORY_SHARE = 0.5  # of a host's free memory that its ranks take together at most


class Beat(Protocol):
    """Says what this rank is doing; `within_s`: how long that may take at most, where it is not the usual."""

    def __call__(self, doing: str, within_s: float | None = None) -> None:
        """Between batches, never in a timed region."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A case with everything open for it on this rank."""

    case: Case
    transport: Transport
    measurer: measure.Measurer
    clocks: Clocks
    world: World
    hosts: tuple[str, ...]
    num_cpus: int  # of this host, that its ranks may use together
    bound: str  # who has bound the ranks to CPUs, in words
    notes: tuple[str, ...]
    beat: Beat


def open_case(case: Case, me: Place, beat: Beat, timeout_s: float, expected: preflight.Expected | None,
              opened: Callable[[Transport], object]) -> Opened:  # fmt: skip
    """Choose and open the transport, and check that the ranks see each other, are alike and were asked for the same.

    `opened` gets the transport as soon as it is there: what goes wrong from then on may have to end it.
    Raises RefusedError when they are not the world that was launched.
    """
    chosen, why = choose_transport(case, me)
    if (passed_over := unheard(case, chosen)) is not None:
        raise RefusedError(passed_over)
    case = replace(case, transport=chosen)
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    beat(heartbeat.OPENING)
    launched = dict(os.environ)
    num_cpus = binding.num_cpus()
    library: type[Transport] = plugins.load("transport", chosen).TRANSPORT
    bound = binding.bind(me, case.bind, library.num_threads)
    nics.use(nics.of(case, me.local_rank), chosen, os.environ)
    options = Options(
        mpi=mpirun.mpi_of(os.environ), timeout_s=timeout_s, thread_level=case.thread_level, sync=case.sync,
        loop=case.loop, alignment_bytes=case.alignment, oversubscribed=me.local_size > num_cpus,
        engine=case.engine, memory=case.memory if "memory" in pattern.factors else "pinned", graph=case.graph,
        tf32=case.tf32, share_gpu=case.share_gpu, require=case.require, near_cpus=sysfs.cpus_beside,
    )  # fmt: skip
    if not library.carries_messages and pattern.transport != chosen:
        raise RefusedError(f"{chosen} only copies, and {pattern.name} has messages or products: use nccl, mpi or gloo")
    transport = _opened(chosen, library, me, options)
    opened(transport)
    beat("the first eight bytes between all ranks", preflight.MEET_S)
    met_s = preflight.meet(transport)
    beat("comparing versions")
    mine = preflight.of_this_rank(me, launched, transport.facts(), met_s)
    doubts = preflight.agreed(transport, mine, expected)
    beat("comparing cases")
    shared = transport.channel.share((socket.gethostname(), tuple(to_argv(case))))
    hosts = tuple(host for host, _ in shared)
    different = [rank for rank, (_, argv) in enumerate(shared) if argv != shared[0][1]]
    if different:
        raise RefusedError(f"rank {different[0]} was asked for another case than rank 0: start all ranks alike")
    world = world_of(hosts)
    cache_bytes, own_cache = _cache_bytes(transport, pattern)
    available = _available_bytes(transport, pattern, sum(host == socket.gethostname() for host in hosts))
    setting = measure.Setting(case, pattern, transport, world, hosts, cache_bytes, available, beat, own_cache)
    told = _choice(case, why, cache_bytes, setting.own_cache)
    notes = (told, *transport.notes, *doubts, *_limits(case, pattern, world, num_cpus))
    clocks = Clocks(transport, hosts)
    return Opened(case, transport, measure.Measurer(setting), clocks, world, hosts, num_cpus, bound, notes, beat)


def _opened(name: str, library: type[Transport], me: Place, options: Options) -> Transport:
    """The transport. Where it misses a package and there is no GPU at all, that is said: packages would not help."""
    try:
        return library(me, options)  # type: ignore[call-arg]
    except NotInstalledError as error:
        if name not in ON_GPUS or nvml.has_device():
            raise
        raise RefusedError(
            f"rank {me.rank}: no NVIDIA GPU was found on {socket.gethostname()}, and {name} needs one for each rank: "
            f"run this where there are GPUs{'' if name == 'cuda_copy' else ', or use mpi or gloo'}"
        ) from error


def _cache_bytes(transport: Transport, pattern: Pattern) -> tuple[int, bool]:
    """(the cache that buffers must exceed to be cold, whether each rank has one of its own), alike on all ranks.

    The larger one, where buffers lie in two kinds of memory. Of ranks that differ the largest: batches of reductions in
    place end with the buffer sets, and must be of one length everywhere.
    """
    own, host = transport.cache_bytes(), sysfs.last_level_cache_bytes()
    mine = max(own or 0, host or 0) if "memory" in pattern.factors else own or host or 0
    told = transport.channel.share((mine, own is not None))
    return max(each for each, _ in told), all(alone for _, alone in told)


def _available_bytes(transport: Transport, pattern: Pattern, num_local: int) -> int:
    """What one rank's buffers may take, of either kind of memory where they lie in both."""
    own = transport.available_bytes()
    host = int((machine.available_memory_bytes() or 1 << 30) * _MEMORY_SHARE / num_local)
    return host if own is None else min(own, host) if "memory" in pattern.factors else own


def choose_transport(case: Case, me: Place) -> tuple[str, str]:
    """(transport, why): the pattern's only one; NCCL where every rank has a GPU of its own, else MPI under mpirun,
    else Gloo.
    """
    if case.transport != "auto":
        return case.transport, "as asked"
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    if pattern.transport is not None:
        return pattern.transport, f"{case.pattern} needs it"
    if nvml.count_gpus() >= me.local_size > 0:
        return "nccl", "every rank has a GPU of its own"
    if me.launcher in ("mpirun", "slurm"):
        return "mpi", f"no GPU for every rank, started by {me.launcher}"
    return "gloo", f"no GPU for every rank, {'one rank' if me.num_ranks == 1 else 'started by ' + me.launcher}"


def world_of(hosts: Sequence[str]) -> World:
    """Nodes by host name, as ranks of one name after the other. Raises UsageError for an uneven or scattered world."""
    names = list(dict.fromkeys(hosts))
    per_node = len(hosts) // len(names)
    if list(hosts) != [name for name in names for _ in range(per_node)]:
        counts = ", ".join(f"{name}: {list(hosts).count(name)}" for name in names)
        raise UsageError(
            f"ranks must be the same number on every host and numbered host by host, they are {counts}: "
            "start them with a mapping by slot (the default of mpirun and srun)"
        )
    return World(len(names), per_node)


def _choice(case: Case, why: str, cache_bytes: int, of_gpu: bool) -> str:
    modes = "isolated and pipelined modes" if case.mode == "both" else f"{case.mode} mode"
    name = "the GPU's L2 cache" if of_gpu else "the last-level cache"
    if case.cache == "hot":
        cache = "cache hot: one buffer is used again and again"
    elif cache_bytes:
        cache = f"cache cold: buffers rotate through twice {name} of {format_size(cache_bytes)}"
    else:
        cache = f"cache hot: the size of {name} is unknown here"
    return f"transport {case.transport} ({why}), {modes}, {cache}"


_START_MORE = {
    "nccl": "Start more on a machine with more GPUs",
    "gloo": "Start more: torchrun --nproc-per-node 2",
}


def _limits(case: Case, pattern: Pattern, world: World, num_cpus: int) -> list[str]:
    """What these ranks can not measure, said before the figures."""
    limits = []
    alone = pattern.bus_factor(Shape(1, _ANY_BYTES)) is None and not _multiplies(pattern)
    if world.num_ranks == 1 and alone:
        limits.append(
            "one rank: no bytes cross a link, so there is no bus bandwidth; times are the library's overhead. "
            f"{_START_MORE.get(case.transport, f'Start more: mpirun -n 2 python -m bench.{case.pattern}')}"
        )
    if world.ranks_per_node > num_cpus:
        limits.append(
            f"oversubscribed: {world.ranks_per_node} ranks share {num_cpus} CPUs, so times include waiting for a CPU"
        )
    return limits


def _multiplies(pattern: Pattern) -> bool:
    """Is this what each GPU computes by itself?"""
    shape = Shape(1, pattern.payload(_ANY_BYTES, Shape(1, 0)))
    return pattern.needs(shape) is None and any(isinstance(step, Product) for step in pattern.steps(shape, 0))


def header(opened: Opened, job: str, launch: int = 1) -> Header | None:
    """The results file's first line, on rank 0. All ranks take part: each tells its own facts."""
    case, transport, world = opened.case, opened.transport, opened.world
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    opened.beat("calibrating")
    calibration = calibrate.calibrate(transport, world, pattern, opened.clocks)
    transport.sync()
    transport.stir()
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
    real = () if case.transport in HOST_MEMORY_TRANSPORTS else nodes.values()
    links, linked = live.bounding(_links(case, world), real)
    shared = gathered[0]["environment"]
    odd = sorted({name for one in gathered for name, value in one["environment"].items() if shared.get(name) != value}
                 - _PER_RANK)  # fmt: skip
    notes = [*opened.notes, *(f"the variable {name} is not the same on all ranks" for name in odd)]
    return Header(
        **_described(case, pattern, world, job),
        clock=transport.clock,
        modelled=False,
        facts=transport.facts(),
        settings=_settings(case, transport, opened.bound),
        environment=shared,
        nodes=nodes,
        ranks=tuple({key: one[key] for key in ("host", "local_rank", "process", "cpus", "nic")} for one in gathered),
        calibration=calibration,
        links=links,
        notes=(*notes, *linked),
        launch=launch,
    )


def _rack(case: Case, host: str) -> dict[str, str]:
    rack = next((rack for rack, hosts in case.racks if host in hosts), None)
    return {} if rack is None else {"rack": rack}


# Set by launchers to tell ranks apart.
_PER_RANK = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "OMPI_MCA_orte_ess_vpid",
             "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_NODE_RANK", "OMPI_FILE_LOCATION",
             *nics.VARIABLES}  # fmt: skip


def _described(case: Case, pattern: Pattern, world: World, job: str) -> dict[str, Any]:
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


def _links(case: Case, world: World) -> dict[str, Any]:
    """The links that bound a run: the instance type's, with the rates given in their place; {} when unknown."""
    one_per_gpu = case.transport in ("nccl", "mpi_cuda", "model")
    return catalogue.bounding_links(case.instance, dict(case.links), world.ranks_per_node, one_per_gpu)


def modelled(case: Case, job: str) -> tuple[Header, Iterator[tuple[Record, ...]]]:
    """Header and rows of a modelled case. Raises UsageError when it names no instance type."""
    from bench.rank import modelled as model_rows

    if not case.instance:
        raise UsageError("the model needs the links of an instance type: --instance p4d.24xlarge (see bench list)")
    case = replace(case, transport="model")
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    world = World(case.nodes or 1, case.ranks_per_node or catalogue.node_links(case.instance).gpus)
    links = NodeLinks.from_dict(_links(case, world))
    model = plugins.load("transport", "model").TRANSPORT(Fabric(links, world))
    head = Header(
        **_described(case, pattern, world, job),
        clock="virtual",
        modelled=True,
        facts=model.facts(),
        settings={"seed": case.seed},
        links=links.to_dict(),
        notes=(f"transport model (as asked): {world.num_nodes} x {world.ranks_per_node} ranks of {case.instance}, "
               "isolated and pipelined alike, no cache, nothing measured",),
    )  # fmt: skip
    return head, model_rows.rows(case, pattern, world, model)
