"""Check before the first row that all requested ranks take part, and that all ranks will measure the same case.

The controller makes other checks before it starts the ranks (controller/preflight.py). Only the ranks know the number
of ranks that found each other, their environment variables, and the versions of loaded libraries. Only the ranks can
test whether bytes pass between all ranks.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from bench.core.codes import Coded
from bench.core.ends import EndCode
from bench.core.errors import AbsentError, RefusedError, UsageError
from bench.core.program import Collective, Exchange, Group, Message, Step
from bench.core.remarks import CodedRemark
from bench.core.traits import library_facts
from bench.core.transport import Reduction, Transport
from bench.core.world import RankInfo
from bench.probes import environment, sysfs, versions
from bench.rank.messages import RankRefusal, RankRemark
from bench.store.heartbeat import End, LastWords

MEET_S = 15.0  # timeout of the exchange of the first eight bytes between all ranks
_CLOCK_S = 2.0
_MOST_NAMED = 4
_NOT_THERE, _NOT_SET = "not installed", "not set"
# Variables of unsupported launchers that hold the number of ranks.
_FOREIGN = ("FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")
# Variables that decide how a library moves bytes. Device names and debug output may differ between hosts.
_SHAPING = re.compile(
    r"(NCCL|TORCH_NCCL|GLOO|UCX|UCC|FI|IBV|RDMAV|HCOLL|SHARP|MPICH|MPIR|I_MPI|MV2|BENCH_MPI|OMP|KMP|GOMP|MALLOC)_"
    r"|CUDA_(DEVICE|LAUNCH|MODULE)_|PYTORCH_|MKL_NUM|OPENBLAS_NUM|GLIBC_TUNABLES$|LD_PRELOAD$"
)
_MAY_DIFFER = re.compile(
    r"IFNAME|_HCA|NET_DEVICES?$|_IFACE|_DOMAIN|_NIC|HOSTID|TOPO_FILE|AFFINITY|PLACES|DEBUG|_LOG|VERBOSE|_FILE$"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """The nodes and ranks that the controller requested.

    `hosts`: the names of the hosts, if the controller knows them.
    """

    num_nodes: int
    ranks_per_node: int
    hosts: tuple[str, ...] = ()

    @property
    def num_ranks(self) -> int:
        """The requested number of ranks: nodes times ranks per node."""
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class RankFacts:
    """A rank's own facts.

    `software`: the versions of the libraries that the rank loaded. A host's first rank adds the installed versions.
    """

    host: str
    boot_id: str | None
    time_s: float  # seconds since the epoch, just after all ranks had met
    environment: Mapping[str, str]
    software: Mapping[str, str]


def expected(text: str) -> Expected:
    """Parse `4x2` (4 nodes of 2 ranks) or `h0,h1x2` (2 ranks on each of these hosts). Raises UsageError."""
    nodes, _, ranks = text.rpartition("x")
    hosts = () if nodes.isdecimal() else tuple(nodes.split(","))
    if not nodes or not all(hosts) or not ranks.isdecimal() or 0 in (int(ranks), len(hosts) or int(nodes)):
        raise UsageError.of(RankRefusal.BAD_EXPECT, given=text)
    return Expected(len(hosts) or int(nodes), int(ranks), hosts)


def check_place(me: RankInfo, world: Expected | None, env: Mapping[str, str]) -> None:
    """Check that the world has the requested number of ranks.

    A launcher may start each rank as a separate world. Without this check, every separate world of one rank would
    succeed.

    Raises RefusedError on every rank if the number differs.
    """
    if world is not None and me.num_ranks != world.num_ranks:
        source = None if me.launcher == "direct" else me.launcher
        raise RefusedError.of(
            RankRefusal.OTHER_NUM_RANKS,
            found=me.num_ranks,
            source=source,
            num_ranks=world.num_ranks,
            num_nodes=world.num_nodes,
            ranks_per_node=world.ranks_per_node,
        )
    if me.launcher != "direct":
        return
    for name in _FOREIGN:
        if env.get(name, "").isdecimal() and int(env[name]) > 1:
            raise RefusedError.of(RankRefusal.FOREIGN_LAUNCHER, variable=name, value=env[name])
    if env.get("PMIX_RANK", "0") != "0":
        raise RefusedError.of(RankRefusal.FOREIGN_LAUNCHER, variable="PMIX_RANK", value=env["PMIX_RANK"])


def absent_words(error: AbsentError, me: RankInfo, world: Expected | None) -> LastWords:
    """Return a text that names the ranks that did not arrive, and the hosts where they were expected."""
    per_node = world.ranks_per_node if world is not None else me.local_size
    nodes: dict[int, list[int]] = {}
    for rank in error.ranks[1:]:
        nodes.setdefault(rank // per_node, []).append(rank)
    others = [_ranks(ranks, node, world) for node, ranks in nodes.items()]
    more = f" and {len(others) - _MOST_NAMED} more hosts" if len(others) > _MOST_NAMED else ""
    also = f" (nor did {'; '.join(others[:_MOST_NAMED])}{more})" if others else ""
    first = error.ranks[0]
    host = _host_of(first // per_node, world)
    end = End.of(
        EndCode.ABSENT,
        missing=_ranks([first], first // per_node, world),
        ranks=error.ranks,
        seen_by=me.rank,
        seen_on=socket.gethostname(),
        waited_s=error.waited_s,
        others=also,
    )
    return LastWords(end, first if host is not None else None, host)


def meet(transport: Transport) -> float:
    """Send eight bytes over the path that will be measured.

    After this exchange, return this host's time of day in seconds.
    """
    num = transport.place.num_ranks
    if num > 1 and not transport.carries_messages:
        transport.sync()
    elif num > 1:
        step = _first_step(transport)
        buffers = transport.allocate(8, 8, 1)
        in_place = transport.must_be_in_place((step,))
        group = Group("world", tuple(range(num)))
        compiled = transport.compile((step,), group, buffers, Reduction("float32", "sum"), in_place)
        compiled.calls[0]()
        transport.sync()
        if compiled.release is not None:
            compiled.release()
    return time.time()


def _first_step(transport: Transport) -> Step:
    """Return an allreduce or, without collectives, a message from each rank to the next rank."""
    if transport.carries_collectives:
        return Collective("allreduce", 8, 8)
    rank, num = transport.place.rank, transport.place.num_ranks
    return Exchange(sends=(Message((rank + 1) % num, 8),), recvs=(Message((rank - 1) % num, 8),))


def of_this_rank(me: RankInfo, launched: Mapping[str, str], facts: Mapping[str, str], met_s: float) -> RankFacts:
    """Return the facts of this rank.

    `launched`: the environment variables with which the rank was started.
    `facts`: the transport's facts.
    """
    software = versions.software() | {"linkbench's own files": versions.source()} if me.local_rank == 0 else {}
    software |= {name: facts[name] for name in sorted(library_facts()) if name in facts}
    boot_id = sysfs.read(sysfs.ROOT / "proc/sys/kernel/random/boot_id")
    return RankFacts(socket.gethostname(), boot_id, met_s, environment.allowed(launched), software)


def agreed(transport: Transport, mine: RankFacts, world: Expected | None) -> list[CodedRemark]:
    """Compare the facts of all ranks on rank 0. Return remarks on rank 0.

    If two ranks differ in a fact that must be equal, raises RefusedError on all ranks.
    """
    ranks = transport.channel.gather(mine)
    difference = transport.channel.broadcast(None if ranks is None else difference_between(ranks, world))
    if difference is not None:
        raise RefusedError.coded(difference)
    return clocks_off(ranks) if ranks is not None else []


def difference_between(ranks: Sequence[RankFacts], world: Expected | None) -> Coded | None:
    """Find the first fact that must be equal on all ranks but is not. Return the difference, or None."""
    return _layout(ranks, world) or _host_names(ranks) or _software(ranks) or _variables(ranks)


def clocks_off(ranks: Sequence[RankFacts]) -> list[CodedRemark]:
    """Return a remark on each host whose time of day differs from the time of the other hosts.

    The ranks read the time of day directly after their first synchronisation.
    """
    middle_s = sorted(rank.time_s for rank in ranks)[len(ranks) // 2]
    off = {rank.host: rank.time_s - middle_s for rank in ranks if abs(rank.time_s - middle_s) > _CLOCK_S}
    return [CodedRemark.of(RankRemark.CLOCK_OFF, host=host, off_s=off_s) for host, off_s in off.items()]


def _layout(ranks: Sequence[RankFacts], world: Expected | None) -> Coded | None:
    counts: dict[str, int] = {}
    for rank in ranks:
        counts[rank.host] = counts.get(rank.host, 0) + 1
    if world is None or (len(counts) == world.num_nodes and set(counts.values()) == {world.ranks_per_node}):
        return None
    found = ", ".join(f"{host} with {num}" for host, num in list(counts.items())[:_MOST_NAMED])
    if len(counts) > _MOST_NAMED:
        found += ", ..."
    return Coded.of(
        RankRefusal.OTHER_LAYOUT, num_nodes=world.num_nodes, ranks_per_node=world.ranks_per_node, found=found
    )


def _host_names(ranks: Sequence[RankFacts]) -> Coded | None:
    """Return a refusal if two machines have the same host name.

    This is an error, because each host name must identify exactly one node.
    """
    boots: dict[str, str | None] = {}
    for rank in ranks:
        if boots.setdefault(rank.host, rank.boot_id) != rank.boot_id:
            return Coded.of(RankRefusal.SAME_HOST_NAME, host=rank.host)
    return None


def _software(ranks: Sequence[RankFacts]) -> Coded | None:
    for name in sorted({name for rank in ranks for name in rank.software}):
        by_host: dict[str, set[str]] = {rank.host: set() for rank in ranks}
        for rank in ranks:
            if name in rank.software:
                by_host[rank.host].add(rank.software[name])
        if len(set(map(frozenset, by_host.values()))) > 1:
            return Coded.of(RankRefusal.SOFTWARE_DIFFERS, name=name, where=_listed(by_host))
    return None


def _variables(ranks: Sequence[RankFacts]) -> Coded | None:
    """Return a refusal if a variable differs between hosts.

    Within a host, a variable may differ between ranks, for example because each rank uses another rail. All hosts must
    have the same set of values of this variable.
    """
    for name in sorted({name for rank in ranks for name in rank.environment}):
        if not _SHAPING.match(name) or _MAY_DIFFER.search(name):
            continue
        by_host: dict[str, set[str]] = {}
        for rank in ranks:
            by_host.setdefault(rank.host, set()).add(rank.environment.get(name, _NOT_SET))
        if len(set(map(frozenset, by_host.values()))) > 1:
            return Coded.of(RankRefusal.VARIABLE_DIFFERS, name=name, where=_listed(by_host))
    return None


def _listed(by_host: Mapping[str, Set[str]]) -> str:
    """Return a text with each value and its hosts, such as `Ring on h0, not set on h1, h2`."""
    hosts_of: dict[str, list[str]] = {}
    for host, values in by_host.items():
        hosts_of.setdefault(" or ".join(sorted(values)) or _NOT_THERE, []).append(host)
    parts = []
    for value, hosts in hosts_of.items():
        more = f" and {len(hosts) - _MOST_NAMED} more" if len(hosts) > _MOST_NAMED else ""
        parts.append(f"{value} on {', '.join(hosts[:_MOST_NAMED])}{more}")
    return ", ".join(parts)


def _host_of(node: int, world: Expected | None) -> str | None:
    return world.hosts[node] if world is not None and node < len(world.hosts) else None


def _ranks(ranks: Sequence[int], node: int, world: Expected | None) -> str:
    """Return a text with some ranks and their host, such as `ranks 2, 3 on h1`.

    If the host's name is unknown, the text has the node's number.
    """
    more = ", ..." if len(ranks) > _MOST_NAMED else ""
    host = _host_of(node, world)
    where = f"on {host}" if host is not None else f"of node {node} (counted from 0)"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MOST_NAMED]))}{more} {where}"
