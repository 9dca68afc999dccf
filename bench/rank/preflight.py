"""Before the first row: are these ranks the run that was asked for, and will they measure the same thing?

What the desk checked from outside (controller/preflight.py) only ranks can know for certain: their world, the variables
that reached them, the versions that they loaded, that bytes really pass between all of them.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from bench.core.errors import AbsentError, RefusedError, UsageError
from bench.core.program import Collective, Group
from bench.core.traits import library_facts
from bench.core.transport import Reduction, Transport
from bench.core.world import RankInfo
from bench.probes import environment, sysfs, versions

MEET_S = 15.0  # for the first eight bytes between all ranks
_CLOCK_S = 2.0
_MOST_NAMED = 4
_NOT_THERE, _NOT_SET = "not there", "not set"
# Sizes of a world in the variables of launchers that nothing in launchers/ reads.
_FOREIGN = ("FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")
# What decides how a library moves bytes. Names of devices may differ between hosts, and what is only printed may, too.
_SHAPING = re.compile(
    r"(NCCL|TORCH_NCCL|GLOO|UCX|UCC|FI|IBV|RDMAV|HCOLL|SHARP|MPICH|MPIR|I_MPI|MV2|BENCH_MPI|OMP|KMP|GOMP|MALLOC)_"
    r"|CUDA_(DEVICE|LAUNCH|MODULE)_|PYTORCH_|MKL_NUM|OPENBLAS_NUM|GLIBC_TUNABLES$|LD_PRELOAD$"
)
_MAY_DIFFER = re.compile(
    r"IFNAME|_HCA|NET_DEVICES?$|_IFACE|_DOMAIN|_NIC|HOSTID|TOPO_FILE|AFFINITY|PLACES|DEBUG|_LOG|VERBOSE|_FILE$"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """The world that the desk means to start. `hosts`: their names, where it knows them."""

    num_nodes: int
    ranks_per_node: int
    hosts: tuple[str, ...] = ()

    @property
    def num_ranks(self) -> int:
        """All ranks together."""
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class Self:
    """What a rank tells of itself. `software`: what it loaded, and on the first rank of a host what is installed."""

    host: str
    boot_id: str | None
    time_s: float  # since the epoch, when all ranks had just met
    environment: Mapping[str, str]
    software: Mapping[str, str]


def expected(text: str) -> Expected:
    """From `4x2` (4 nodes of 2 ranks) or `h0,h1x2` (those hosts). Raises UsageError."""
    nodes, _, ranks = text.rpartition("x")
    hosts = () if nodes.isdecimal() else tuple(nodes.split(","))
    if not nodes or not all(hosts) or not ranks.isdecimal() or 0 in (int(ranks), len(hosts) or int(nodes)):
        raise UsageError(f"--expect {text!r} is not a world such as 4x2 or h0,h1x2")
    return Expected(len(hosts) or int(nodes), int(ranks), hosts)


def check_place(me: RankInfo, world: Expected | None, env: Mapping[str, str]) -> None:
    """Is this process one of as many ranks as were to be started? Many worlds of one rank would all end well.

    Raises RefusedError, on every rank alike.
    """
    if world is not None and me.num_ranks != world.num_ranks:
        who = "no launcher that is known here has left its variables" if me.launcher == "direct" else me.launcher
        raise RefusedError(
            f"{world.num_ranks} ranks ({world.num_nodes} x {world.ranks_per_node}) were to be started, and this one is "
            f"of {me.num_ranks} (told by {who}): start them by mpirun, by torchrun, or by srun as tasks of one step"
        )
    if me.launcher != "direct":
        return
    for name in _FOREIGN:
        if env.get(name, "").isdecimal() and int(env[name]) > 1:
            raise RefusedError(
                f"{name}={env[name]} says that there are {env[name]} ranks, but nothing here can tell which one this "
                "process is: start by mpirun, torchrun or srun, or unset it"
            )
    if env.get("PMIX_RANK", "0") != "0":
        raise RefusedError(
            f"PMIX_RANK={env['PMIX_RANK']} says that this is one rank of several, but nothing here can tell of how "
            "many: start by mpirun, torchrun or srun, or unset it"
        )


def absent(error: AbsentError, me: RankInfo, world: Expected | None) -> str:
    """Who did not come, with the hosts where they were to be, in a sentence with the remedy."""
    per_node = world.ranks_per_node if world is not None else me.local_size
    nodes: dict[int, list[int]] = {}
    for rank in error.ranks[1:]:
        nodes.setdefault(rank // per_node, []).append(rank)
    others = [_ranks(ranks, node, world) for node, ranks in nodes.items()]
    more = f" and {len(others) - _MOST_NAMED} more hosts" if len(others) > _MOST_NAMED else ""
    besides = f" (nor did {'; '.join(others[:_MOST_NAMED])}{more})" if others else ""
    return (
        f"{_ranks(error.ranks[:1], error.ranks[0] // per_node, world)}: did not come to rank {me.rank} on "
        f"{socket.gethostname()} within {error.waited_s:.0f} s"
        f"{besides}: see whether that host runs and "
        "what it said; `python -m bench doctor` tries the ports between the hosts"
    )


def meet(transport: Transport) -> float:
    """Eight bytes over the very path that will be measured. Returns the time of day just after, in seconds."""
    num = transport.place.num_ranks
    if num > 1 and not transport.carries_messages:
        transport.sync()
    elif num > 1:
        step = Collective("allreduce", 8, 8)
        buffers = transport.allocate(8, 8, 1)
        in_place = transport.must_be_in_place((step,))
        group = Group("world", tuple(range(num)))
        compiled = transport.compile((step,), group, buffers, Reduction("float32", "sum"), in_place)
        compiled.calls[0]()
        transport.sync()
        if compiled.release is not None:
            compiled.release()
    return time.time()


def of_this_rank(me: RankInfo, launched: Mapping[str, str], facts: Mapping[str, str], met_s: float) -> Self:
    """`launched`: the environment as this process got it; `facts`: those of the transport."""
    software = versions.software() | {"the suite's own files": versions.source()} if me.local_rank == 0 else {}
    software |= {name: facts[name] for name in sorted(library_facts()) if name in facts}
    boot_id = sysfs.read(sysfs.ROOT / "proc/sys/kernel/random/boot_id")
    return Self(socket.gethostname(), boot_id, met_s, environment.allowed(launched), software)


def agreed(transport: Transport, mine: Self, world: Expected | None) -> list[str]:
    """Rank 0 compares all ranks. Raises RefusedError on all of them alike; returns notes, on rank 0."""
    told = transport.channel.gather(mine)
    wrong = transport.channel.broadcast(None if told is None else different(told, world))
    if wrong is not None:
        raise RefusedError(wrong)
    return clocks(told) if told is not None else []


def different(told: Sequence[Self], world: Expected | None) -> str | None:
    """The first thing that ranks do not have alike and must, in a sentence; None when there is none."""
    return _spread(told, world) or _names(told) or _software(told) or _variables(told)


def clocks(told: Sequence[Self]) -> list[str]:
    """Hosts whose time of day, just after all ranks met, is not that of the others."""
    middle_s = sorted(one.time_s for one in told)[len(told) // 2]
    off = {one.host: one.time_s - middle_s for one in told if abs(one.time_s - middle_s) > _CLOCK_S}
    return [
        f"the clock of host {host} is {by_s:+.0f} s off: its times of day are not those of the other hosts"
        for host, by_s in off.items()
    ]


def _spread(told: Sequence[Self], world: Expected | None) -> str | None:
    counts: dict[str, int] = {}
    for one in told:
        counts[one.host] = counts.get(one.host, 0) + 1
    if world is None or (len(counts) == world.num_nodes and set(counts.values()) == {world.ranks_per_node}):
        return None
    found = ", ".join(f"{host} with {num}" for host, num in list(counts.items())[:_MOST_NAMED])
    return (
        f"{world.num_nodes} x {world.ranks_per_node} ranks (hosts x ranks) were to be started, and the hosts are "
        f"{found}{', ...' if len(counts) > _MOST_NAMED else ''}: see `hosts:` and `options:` in bench.yaml, and that "
        "every host has a host name of its own"
    )


def _names(told: Sequence[Self]) -> str | None:
    """Nodes are told apart by host name."""
    boots: dict[str, str | None] = {}
    for one in told:
        if boots.setdefault(one.host, one.boot_id) != one.boot_id:
            return f"two machines call themselves {one.host}: give each a host name of its own"
    return None


def _software(told: Sequence[Self]) -> str | None:
    for name in sorted({name for one in told for name in one.software}):
        by_host: dict[str, set[str]] = {one.host: set() for one in told}
        for one in told:
            by_host[one.host] |= {one.software[name]} if name in one.software else set()
        if len(set(map(frozenset, by_host.values()))) > 1:
            return f"{name} is {_listed(by_host)}: have the same on all of them"
    return None


def _variables(told: Sequence[Self]) -> str | None:
    """Ranks of one host may differ where they do so on every host: local rank 1 uses its own rail."""
    for name in sorted({name for one in told for name in one.environment}):
        if not _SHAPING.match(name) or _MAY_DIFFER.search(name):
            continue
        by_host: dict[str, set[str]] = {}
        for one in told:
            by_host.setdefault(one.host, set()).add(one.environment.get(name, _NOT_SET))
        if len(set(map(frozenset, by_host.values()))) > 1:
            return f"the variable {name} is {_listed(by_host)}: set it by `env:` of the cluster, or alike on every host"
    return None


def _listed(by_host: Mapping[str, Set[str]]) -> str:
    """`Ring on h0, not set on h1, h2`."""
    hosts_of: dict[str, list[str]] = {}
    for host, values in by_host.items():
        hosts_of.setdefault(" or ".join(sorted(values)) or _NOT_THERE, []).append(host)
    parts = []
    for value, hosts in hosts_of.items():
        more = f" and {len(hosts) - _MOST_NAMED} more" if len(hosts) > _MOST_NAMED else ""
        parts.append(f"{value} on {', '.join(hosts[:_MOST_NAMED])}{more}")
    return ", ".join(parts)


def _ranks(ranks: Sequence[int], node: int, world: Expected | None) -> str:
    """`rank 3 on h1`, `ranks 2, 3 on h1`; by number where the host's name is not known."""
    more = ", ..." if len(ranks) > _MOST_NAMED else ""
    where = f"on {world.hosts[node]}" if world is not None and node < len(world.hosts) else f"of node {node} (from 0)"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MOST_NAMED]))}{more} {where}"
