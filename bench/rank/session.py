"""Prepare the ranks for a case: choose and open the transport, then check the world."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from bench.core import plugins
from bench.core.case import FACTOR, Case, applies, ignored_option
from bench.core.case_argv import to_argv
from bench.core.errors import NotInstalledError, RefusedError, UsageError
from bench.core.pattern import Pattern, Shape
from bench.core.program import Product
from bench.core.remarks import CodedRemark
from bench.core.traits import auto_choices, traits
from bench.core.transport import Options, Transport
from bench.core.units import format_size
from bench.core.world import RankInfo, World
from bench.launchers import mpirun
from bench.probes import _nvml_reader, amd, machine, nvml, sysfs
from bench.probes.cpu_reader import CpuReader
from bench.probes.device_sampler import DeviceSampler
from bench.rank import measure, placement, preflight, replay, training_step
from bench.rank.clocks import Clocks
from bench.rank.messages import RankRefusal, RankRemark
from bench.store import heartbeat

_ANY_BYTES = 64  # payload of a shape for which any payload is suitable
_MEMORY_SHARE = 0.5  # share of a host's free memory that all its ranks may use


class ReportProgress(Protocol):
    """Reports this rank's activity.

    `within_s`: the timeout of the activity in seconds. The value None means the usual timeout.
    """

    def __call__(self, doing: str, within_s: float | None = None) -> None:
        """Record a heartbeat. The rank calls this method between batches, never in a timed region."""

    def working(self) -> AbstractContextManager[None]:
        """Return a context for work that this rank does without other ranks.

        Within the context, use of CPU time counts as progress.
        """


@dataclass(frozen=True, slots=True)
class OpenTransport:
    """A case, and the open transport that measures it.

    `why`: why this transport was chosen.
    `launched`: the environment in which the launcher started this rank.
    """

    case: Case
    pattern: Pattern
    transport: Transport
    why: str
    launched: Mapping[str, str]
    cpus: frozenset[int]  # CPUs of this host, for all its ranks together
    binding: str  # how the ranks were bound to CPUs, as text


@dataclass(frozen=True, slots=True)
class Session:
    """A case that this rank is ready to measure, with the open transport and the compared clocks."""

    case: Case
    transport: Transport
    measurer: measure.Measurer
    clocks: Clocks
    world: World
    hosts: tuple[str, ...]
    cpus: frozenset[int]
    binding: str
    remarks: tuple[CodedRemark, ...]
    beat: ReportProgress


def open_transport(case: Case, me: RankInfo, beat: ReportProgress, timeout_s: float) -> OpenTransport:
    """Choose the transport, bind this rank to CPUs and a NIC, and open the transport.

    Raises RefusedError if the transport cannot run here or would ignore an option of the case.
    """
    chosen, why = choose_transport(case, me)
    if (ignored := ignored_option(case, chosen)) is not None:
        if case.transport == "auto":
            raise RefusedError.of(RankRefusal.AUTO_IGNORES, **ignored.facts, why=why)
        raise RefusedError.coded(ignored)
    case = replace(case, transport=chosen)
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    beat(heartbeat.OPENING)
    launched = dict(os.environ)
    cpus = placement.usable_cpus()
    library: type[Transport] = plugins.load("transport", chosen).TRANSPORT
    gpus = nvml.visible_addresses(os.environ) if traits(chosen).on_gpu else ()
    binding = placement.bind_cpus(me, case.bind, library.num_threads, placement.cpus_beside_gpus(me, gpus))
    placement.use_nic(placement.nic_of(case, me.local_rank), chosen, os.environ)
    options = Options(
        mpi=mpirun.mpi_of(os.environ),
        timeout_s=timeout_s,
        thread_level=case.thread_level,
        sync=case.sync,
        loop=case.loop,
        timer=case.timer if applies(FACTOR["timer"], pattern, chosen) else "system",
        alignment_bytes=case.alignment,
        oversubscribed=me.local_size > len(cpus),
        engine=case.engine,
        memory=case.memory if "memory" in pattern.factors else "pinned",
        graph=case.graph,
        tf32=case.tf32,
        share_gpu=case.share_gpu,
        require=case.require,
        near_cpus=sysfs.cpus_beside,
        near_node=sysfs.node_beside,
        case=case,
    )
    if not library.carries_messages and pattern.transport != chosen:
        others = " or ".join((*auto_choices(on_gpu=True), *auto_choices(on_gpu=False)))
        raise RefusedError.of(RankRefusal.COPIES_ONLY, transport=chosen, pattern=pattern.name, others=others)
    transport = _opened(chosen, library, me, options)
    return OpenTransport(case, pattern, transport, why, launched, cpus, binding)


def open_case(
    opened: OpenTransport,
    me: RankInfo,
    beat: ReportProgress,
    expected: preflight.Expected | None,
    marker: measure.StepMarker | None = None,
) -> Session:
    """Check that the ranks reach each other. Also check that all ranks have the same software, variables and case.

    `marker`: marks the steps of a profiled launch. Raises RefusedError if the ranks do not form the world that was
        launched.
    """
    case, pattern, transport = opened.case, opened.pattern, opened.transport
    beat("the first eight bytes between all ranks", preflight.MEET_S)
    met_s = preflight.meet(transport)
    beat("comparing versions")
    mine = preflight.of_this_rank(me, opened.launched, transport.facts(), met_s)
    doubts = preflight.agreed(transport, mine, expected)
    beat("comparing cases")
    shared = transport.channel.share((socket.gethostname(), tuple(to_argv(case))))
    hosts = tuple(host for host, _ in shared)
    different = [rank for rank, (_, argv) in enumerate(shared) if argv != shared[0][1]]
    if different:
        raise RefusedError.of(RankRefusal.OTHER_CASE, rank=different[0])
    world = world_of(hosts)
    cache_bytes, own_cache = _cache_bytes(transport, pattern)
    available = _available_bytes(transport, pattern, sum(host == socket.gethostname() for host in hosts))
    replayed = replay.load(case, transport) if pattern.replays else None
    trained = training_step.plan_of(case, world) if pattern.trains else None
    setting = measure.Setting(
        case=case,
        pattern=pattern,
        transport=transport,
        world=world,
        hosts=hosts,
        cache_bytes=cache_bytes,
        available_bytes=available,
        beat=beat,
        own_cache=own_cache,
        working=beat.working,
        cpus=opened.cpus,
        replayed=replayed,
        trained=trained,
        marker=marker,
        samplers=_samplers(case, me, transport, opened.cpus),
    )
    cache = transport.cache_words(case.cache) or _cache_words(case, cache_bytes, own_cache)
    remarks = [_choice(case, opened.why, cache)]
    remarks += [CodedRemark.of(RankRemark.TRANSPORT, text=note) for note in transport.notes]
    if replayed is not None:
        remarks += replay.remarks(case, replayed, world.num_ranks)
    remarks += [*doubts, *_limits(case, pattern, world, len(opened.cpus))]
    return Session(
        case=case,
        transport=transport,
        measurer=measure.Measurer(setting),
        clocks=Clocks(transport, hosts),
        world=world,
        hosts=hosts,
        cpus=opened.cpus,
        binding=opened.binding,
        remarks=tuple(remarks),
        beat=beat,
    )


def _samplers(case: Case, me: RankInfo, transport: Transport, cpus: frozenset[int]) -> tuple[DeviceSampler, ...]:
    """Return the objects that sample devices while rows are measured.

    If the transport uses GPUs, the result samples this rank's GPU. If the transport uses no GPUs, only the first rank
    of a host samples the host's CPUs, and only with `--soak`.
    """
    host = socket.gethostname()
    if case.traits.on_gpu:
        address = transport.facts().get("gpu_pci_bus") or _own_address(me)
        reader = (_nvml_reader.open_reader(address) or amd.open_reader(address)) if address else None
        return () if reader is None else (DeviceSampler(reader, host),)
    if case.soak_s and me.local_rank == 0:
        return (DeviceSampler(CpuReader(cpus), host),)
    return ()


def _own_address(me: RankInfo) -> str | None:
    addresses = nvml.visible_addresses(os.environ)
    return addresses[me.local_rank % len(addresses)] if addresses else None


def _opened(name: str, library: type[Transport], me: RankInfo, options: Options) -> Transport:
    """Open the transport.

    If both the GPU and a required package are missing, the RefusedError names the missing GPU. Without a GPU,
    installing the package would not help.
    """
    try:
        return library(me, options)  # type: ignore[call-arg]
    except NotInstalledError as error:
        if not traits(name).on_gpu or nvml.has_device() or amd.has_device():
            raise
        instead = f", or use {' or '.join(auto_choices(on_gpu=False))}" if library.carries_messages else ""
        raise RefusedError.of(
            RankRefusal.NO_GPU, rank=me.rank, host=socket.gethostname(), transport=name, instead=instead
        ) from error


def _cache_bytes(transport: Transport, pattern: Pattern) -> tuple[int, bool]:
    """Return the size of the cache that cold buffers must exceed, and whether each rank has a separate cache.

    If buffers are in host memory and in device memory, the result is the larger cache. If ranks have different caches,
    the result is the largest cache. A batch of in-place reductions has one call per buffer set, so all ranks need the
    same number of sets. All ranks therefore use the same cache size.
    """
    own, host = transport.cache_bytes(), sysfs.last_level_cache_bytes()
    mine = max(own or 0, host or 0) if "memory" in pattern.factors else own or host or 0
    caches = transport.channel.share((mine, own is not None))
    return max(cache for cache, _ in caches), all(is_own for _, is_own in caches)


def _available_bytes(transport: Transport, pattern: Pattern, num_local: int) -> int:
    """Return the bytes available to one rank's buffers.

    If buffers are in host memory and in device memory, the smaller amount is used.
    """
    own = transport.available_bytes()
    host = int((machine.available_memory_bytes() or 1 << 30) * _MEMORY_SHARE / num_local)
    if own is None:
        return host
    return min(own, host) if "memory" in pattern.factors else own


def choose_transport(case: Case, me: RankInfo) -> tuple[str, str]:
    """Return the name of the transport, and the reason for this choice.

    The function uses the first rule that applies. If the case names a transport, the rank uses this transport. If the
    pattern supports only one transport, the rank uses the pattern's transport. If every rank has its own GPU, the rank
    uses the first choice for GPUs. If mpirun or srun started the ranks, the rank uses the first choice over MPI. If
    none of these rules applies, the rank uses the first choice without MPI.
    """
    if case.transport != "auto":
        return case.transport, "as asked"
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    if pattern.transport is not None:
        return pattern.transport, f"{case.pattern} needs it"
    if nvml.count_gpus() >= me.local_size > 0:
        return auto_choices(on_gpu=True)[0], "every rank has its own GPU"
    by_mpi = me.launcher in ("mpirun", "slurm")
    chosen = next(name for name in auto_choices(on_gpu=False) if traits(name).over_mpi == by_mpi)
    if by_mpi:
        return chosen, f"no GPU for every rank, started by {me.launcher}"
    return chosen, f"no GPU for every rank, {'one rank' if me.num_ranks == 1 else 'started by ' + me.launcher}"


def world_of(hosts: Sequence[str]) -> World:
    """Return the world of ranks whose hosts are given in rank order.

    Raises UsageError if hosts have different numbers of ranks, or if the ranks of a host do not have successive
    numbers.
    """
    names = list(dict.fromkeys(hosts))
    per_node = len(hosts) // len(names)
    if list(hosts) != [name for name in names for _ in range(per_node)]:
        found = ", ".join(f"{name}: {list(hosts).count(name)}" for name in names)
        raise UsageError.of(RankRefusal.UNEVEN_RANKS, found=found)
    return World(len(names), per_node)


def _choice(case: Case, why: str, cache: str) -> CodedRemark:
    modes = "isolated and pipelined modes" if case.mode == "both" else f"{case.mode} mode"
    return CodedRemark.of(RankRemark.CHOICE, transport=case.transport, why=why, modes=modes, cache=cache)


def _cache_words(case: Case, cache_bytes: int, of_gpu: bool) -> str:
    name = "the GPU's L2 cache" if of_gpu else "the last-level cache"
    if case.cache == "hot":
        return "cache hot: one buffer is used repeatedly"
    if cache_bytes:
        return f"cache cold: buffers rotate through twice {name} of {format_size(cache_bytes)}"
    return f"cache hot: the size of {name} is unknown here"


def _limits(case: Case, pattern: Pattern, world: World, num_cpus: int) -> list[CodedRemark]:
    """Return remarks on the limits of what these ranks can measure. The remarks are printed before the results."""
    limits = []
    moves_nothing = pattern.bus_factor(Shape(1, _ANY_BYTES)) is None and not _multiplies(pattern)
    if world.num_ranks == 1 and moves_nothing:
        limits.append(CodedRemark.of(RankRemark.ONE_RANK, remedy=_start_more(case)))
    if world.ranks_per_node > num_cpus:
        limits.append(CodedRemark.of(RankRemark.OVERSUBSCRIBED, ranks_per_node=world.ranks_per_node, num_cpus=num_cpus))
    return limits


def _start_more(case: Case) -> str:
    if case.traits.on_gpu:
        return "Start more on a machine with more GPUs"
    if case.traits.launcher == "torchrun":
        return "Start more: torchrun --nproc-per-node 2"
    return f"Start more: mpirun -n 2 python -m bench.{case.pattern}"


def _multiplies(pattern: Pattern) -> bool:
    """Check whether this pattern multiplies matrices. A pattern that multiplies matrices can run on a single rank."""
    shape = Shape(1, pattern.payload(_ANY_BYTES, Shape(1, 0)))
    return pattern.needs(shape) is None and any(isinstance(step, Product) for step in pattern.steps(shape, 0))
