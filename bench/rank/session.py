"""From a case to ranks that are ready to measure: the transport chosen and opened, the world checked."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bench.core import plugins
from bench.core.case import Case, ignored_option, to_argv
from bench.core.errors import NotInstalledError, RefusedError, UsageError
from bench.core.pattern import Pattern, Shape
from bench.core.program import Product
from bench.core.traits import auto_choices, traits
from bench.core.transport import Options, Transport
from bench.core.units import format_size
from bench.core.world import RankInfo, World
from bench.launchers import mpirun
from bench.probes import machine, nvml, sysfs
from bench.rank import binding, measure, nics, preflight
from bench.rank.clocks import Clocks
from bench.store import heartbeat

_ANY_BYTES = 64  # of a shape whose size does not matter
_MEMORY_SHARE = 0.5  # of a host's free memory that its ranks take together at most


class ReportProgress(Protocol):
    """Says what this rank is doing; `within_s`: how long that may take at most, where it is not the usual."""

    def __call__(self, doing: str, within_s: float | None = None) -> None:
        """Between batches, never in a timed region."""


@dataclass(frozen=True, slots=True)
class Session:
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
    beat: ReportProgress


def open_case(
    case: Case,
    me: RankInfo,
    beat: ReportProgress,
    timeout_s: float,
    expected: preflight.Expected | None,
    opened: Callable[[Transport], object],
) -> Session:
    """Choose and open the transport, and check that the ranks see each other, are alike and were asked for the same.

    `opened` gets the transport as soon as it is there: what goes wrong from then on may have to end it.
    Raises RefusedError when they are not the world that was launched.
    """
    chosen, why = choose_transport(case, me)
    if (ignored := ignored_option(case, chosen)) is not None:
        raise RefusedError(ignored.text)
    case = replace(case, transport=chosen)
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    beat(heartbeat.OPENING)
    launched = dict(os.environ)
    num_cpus = binding.num_cpus()
    library: type[Transport] = plugins.load("transport", chosen).TRANSPORT
    bound = binding.bind(me, case.bind, library.num_threads)
    nics.use(nics.of(case, me.local_rank), chosen, os.environ)
    options = Options(
        mpi=mpirun.mpi_of(os.environ),
        timeout_s=timeout_s,
        thread_level=case.thread_level,
        sync=case.sync,
        loop=case.loop,
        alignment_bytes=case.alignment,
        oversubscribed=me.local_size > num_cpus,
        engine=case.engine,
        memory=case.memory if "memory" in pattern.factors else "pinned",
        graph=case.graph,
        tf32=case.tf32,
        share_gpu=case.share_gpu,
        require=case.require,
        near_cpus=sysfs.cpus_beside,
        case=case,
    )
    if not library.carries_messages and pattern.transport != chosen:
        others = " or ".join((*auto_choices(on_gpu=True), *auto_choices(on_gpu=False)))
        raise RefusedError(f"{chosen} only copies, and {pattern.name} has messages or products: use {others}")
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
    return Session(case, transport, measure.Measurer(setting), clocks, world, hosts, num_cpus, bound, notes, beat)


def _opened(name: str, library: type[Transport], me: RankInfo, options: Options) -> Transport:
    """The transport. Where it misses a package and there is no GPU at all, that is said: packages would not help."""
    try:
        return library(me, options)  # type: ignore[call-arg]
    except NotInstalledError as error:
        if not traits(name).on_gpu or nvml.has_device():
            raise
        instead = f", or use {_of_hosts()}" if library.carries_messages else ""
        raise RefusedError(
            f"rank {me.rank}: no NVIDIA GPU was found on {socket.gethostname()}, and {name} needs one for each rank: "
            f"run this where there are GPUs{instead}"
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


def choose_transport(case: Case, me: RankInfo) -> tuple[str, str]:
    """(transport, why): the pattern's only one; the first choice for GPUs if every rank has its own, else the
    first one over MPI if an MPI launcher started the ranks, else the first other one.
    """
    if case.transport != "auto":
        return case.transport, "as asked"
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    if pattern.transport is not None:
        return pattern.transport, f"{case.pattern} needs it"
    if nvml.count_gpus() >= me.local_size > 0:
        return auto_choices(on_gpu=True)[0], "every rank has a GPU of its own"
    by_mpi = me.launcher in ("mpirun", "slurm")
    chosen = next(name for name in auto_choices(on_gpu=False) if traits(name).over_mpi == by_mpi)
    if by_mpi:
        return chosen, f"no GPU for every rank, started by {me.launcher}"
    return chosen, f"no GPU for every rank, {'one rank' if me.num_ranks == 1 else 'started by ' + me.launcher}"


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


def _start_more(case: Case) -> str:
    if traits(case.transport).on_gpu:
        return "Start more on a machine with more GPUs"
    if traits(case.transport).launcher == "torchrun":
        return "Start more: torchrun --nproc-per-node 2"
    return f"Start more: mpirun -n 2 python -m bench.{case.pattern}"


def _of_hosts() -> str:
    return " or ".join(auto_choices(on_gpu=False))


def _limits(case: Case, pattern: Pattern, world: World, num_cpus: int) -> list[str]:
    """What these ranks can not measure, said before the figures."""
    limits = []
    alone = pattern.bus_factor(Shape(1, _ANY_BYTES)) is None and not _multiplies(pattern)
    if world.num_ranks == 1 and alone:
        limits.append(
            "one rank: no bytes cross a link, so there is no bus bandwidth; times are the library's overhead. "
            f"{_start_more(case)}"
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
