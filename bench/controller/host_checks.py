"""Check the replies of a cluster's hosts before a run, with pure functions from facts to findings.

A finding prevents the run if the problem would make the run fail, hang or measure the wrong thing. Other findings are
printed, and the run starts. Each finding names the host and the remedy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.controller.messages import FindingCode
from bench.core.codes import UNCODED, Code, Coded
from bench.core.inventory import MIN_LOCKED_BYTES
from bench.core.traits import traits
from bench.probes.host import Facts
from bench.probes.ports import PeerReply

_MIB = 1 << 20
_MIN_RESULTS_BYTES = 16 * _MIB
_MIN_RANK_BYTES = 256 * _MIB  # memory of an interpreter with torch
# For NCCL and MPI between ranks of one host. By default a container has 64 MiB for all its ranks.
_MIN_SHM_RANK_BYTES = 16 * _MIB
_FILES_OF_A_RANK = 256
_FILES_OF_A_PEER = 2
_MOST_NAMED = 4
_CLOCK_S = 1.0
_OPEN = "open the ports above 1023 between the hosts in both directions (cables, routes, firewall)"

Reach = Mapping[str, Mapping[str, PeerReply]]  # [a][b]: the reply of b when a tried to connect
_Failed = dict[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class NamedNic:
    """A network device that the cluster names. `where`: `nics:`, or the variable of a library that names it."""

    where: str
    name: str
    adapter: bool = False  # whether it may be an RDMA port, which is not a network interface
    begins: bool = False  # whether it is a prefix that matches several devices (NCCL)

    def among(self, facts: Facts) -> bool:
        """Whether the host with these facts has the device."""
        known = (*facts.interfaces, *(facts.adapters if self.adapter else ()))
        return any(name.startswith(self.name) if self.begins else name == self.name for name in known)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Requirements of a plan's jobs on each host. `port`: the rendezvous port of the first host, if ranks use one."""

    hosts: tuple[str, ...]
    ranks_per_node: int = 1
    num_ranks: int = 1
    transports: frozenset[str] = frozenset()
    port: int | None = None
    mpirun: str | None = None
    results: str = ""
    source: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[NamedNic, ...] = ()
    node: bool = False  # whether hosts also report their hardware


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """A problem that prevents the run (`refuses`), or only may matter. `hosts` are affected; `what` is the text."""

    hosts: tuple[str, ...]
    what: str
    refuses: bool = True
    code: str = UNCODED
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, code: Code, hosts: Sequence[str], refuses: bool = True, **facts: Any) -> PreflightFinding:
        """Make a finding from a code, whose template may also use `host` (the first) and `named` ("hosts h1, h2")."""
        known = {"host": hosts[0] if hosts else "", "named": named_hosts(hosts) if hosts else "", **facts}
        return cls(tuple(hosts), code.words(known), refuses, code, facts)

    @classmethod
    def refused(cls, reason: Coded) -> PreflightFinding:
        """A finding that prevents the run and concerns no host."""
        return cls((), reason.text, True, reason.code, reason.facts)


def findings(facts: Mapping[str, Facts], wanted: Wanted) -> list[PreflightFinding]:
    """All findings about the hosts that answered: first about single hosts, then about differences between hosts."""
    found = []
    for host, times in Counter(wanted.hosts).items():
        if times > 1:
            found.append(PreflightFinding.of(FindingCode.NAMED_TWICE, (host,), times=times))
    for host, own in facts.items():
        found += _of_host(host, own, wanted)
    found += _devices(facts, wanted)
    same = list(_same_machine(facts))
    one_machine = {host for finding in same for host in finding.hosts}  # their names need no check
    found += _names({host: own for host, own in facts.items() if host not in one_machine}, wanted)
    found += same
    found += _versions(facts, wanted)
    return found


def _of_host(host: str, facts: Facts, wanted: Wanted) -> Iterator[PreflightFinding]:
    """Findings about one host, without regard to the others."""
    if host == wanted.hosts[0]:
        yield from _of_first_host(host, facts, wanted)
    on_gpu = any(traits(name).on_gpu for name in wanted.transports)
    if on_gpu and facts.num_gpus < wanted.ranks_per_node:
        counts: dict[str, Any] = {"num_gpus": facts.num_gpus, "num_ranks": wanted.ranks_per_node}
        yield PreflightFinding.of(FindingCode.TOO_FEW_GPUS, (host,), **counts)
    if facts.memory_bytes is not None and facts.memory_bytes < wanted.ranks_per_node * _MIN_RANK_BYTES:
        free: dict[str, Any] = {"free_mib": facts.memory_bytes // _MIB, "num_ranks": wanted.ranks_per_node}
        yield PreflightFinding.of(FindingCode.LITTLE_MEMORY, (host,), **free)
    files = _FILES_OF_A_RANK + _FILES_OF_A_PEER * wanted.num_ranks
    if facts.max_files is not None and facts.max_files < files:
        counts = {"max_files": facts.max_files, "num_ranks": wanted.num_ranks, "needed": files}
        yield PreflightFinding.of(FindingCode.FEW_FILES, (host,), **counts)
    shm = wanted.ranks_per_node * _MIN_SHM_RANK_BYTES
    if wanted.ranks_per_node > 1 and facts.shm_free_bytes is not None and facts.shm_free_bytes < shm:
        yield PreflightFinding.of(
            FindingCode.LITTLE_SHM,
            (host,),
            refuses=any(traits(name).needs_shm for name in wanted.transports),
            free_mib=facts.shm_free_bytes // _MIB,
            num_ranks=wanted.ranks_per_node,
            needed_mib=2 * shm // _MIB,
        )
    if facts.has_rdma and facts.max_locked_bytes is not None and facts.max_locked_bytes < MIN_LOCKED_BYTES:
        max_kib = facts.max_locked_bytes // 1024
        yield PreflightFinding.of(FindingCode.LITTLE_LOCKED_MEMORY, (host,), refuses=False, max_kib=max_kib)


def _of_first_host(host: str, facts: Facts, wanted: Wanted) -> Iterator[PreflightFinding]:
    """Findings about the first host, which has the rendezvous port and rank 0's results."""
    if wanted.port is not None and facts.port_taken is not None:
        why = facts.port_taken.lower()
        yield PreflightFinding.of(FindingCode.PORT_TAKEN, (host,), port=wanted.port, why=why)
    folder = wanted.results
    if facts.results_shared is False:
        yield PreflightFinding.of(FindingCode.RESULTS_NOT_SHARED, (host,), folder=folder)
    elif facts.results_problem is not None:
        why = facts.results_problem
        yield PreflightFinding.of(FindingCode.RESULTS_NOT_WRITABLE, (host,), folder=folder, why=why)
    elif facts.results_free_bytes is not None and facts.results_free_bytes < _MIN_RESULTS_BYTES:
        free_mib = facts.results_free_bytes // _MIB
        yield PreflightFinding.of(FindingCode.RESULTS_FULL, (host,), folder=folder, free_mib=free_mib)


def _devices(facts: Mapping[str, Facts], wanted: Wanted) -> Iterator[PreflightFinding]:
    """One finding for each network device that the cluster names and that is missing on some hosts."""
    for device in wanted.devices:
        lacking = [host for host, own in facts.items() if not device.among(own)]
        if lacking:
            found = ", ".join(facts[lacking[0]].interfaces) or "none"
            where: dict[str, Any] = {"device": device.name, "where": device.where, "first": lacking[0], "found": found}
            yield PreflightFinding.of(FindingCode.NO_DEVICE, lacking, **where)


def _names(facts: Mapping[str, Facts], wanted: Wanted) -> Iterator[PreflightFinding]:
    """Findings about names that a host cannot resolve, or that resolve to an address that other hosts cannot reach."""
    several = len(wanted.hosts) > 1
    for name in wanted.hosts:
        lacking = [host for host, own in facts.items() if isinstance(own.addresses.get(name), str)]
        if lacking and several:
            why = str(facts[lacking[0]].addresses[name]).lower()
            yield PreflightFinding.of(
                FindingCode.NAME_UNKNOWN, (name,), named=named_hosts(lacking), on=lacking, why=why
            )
        wrong = [host for host, own in facts.items() if host != name and _is_loopback(own.addresses.get(name, ()))]
        if wrong:
            yield PreflightFinding.of(FindingCode.NAME_IS_LOOPBACK, (name,), named=named_hosts(wrong), on=wrong)
    variables = {traits(name).host_name_variable for name in wanted.transports} - {""}
    if not several or not variables - set(wanted.env):
        return
    for host, own in facts.items():
        if isinstance(own.own_addresses, str):
            why = own.own_addresses.lower()
            yield PreflightFinding.of(FindingCode.OWN_NAME_UNKNOWN, (host,), name=own.host, why=why)
        elif _is_loopback(own.own_addresses[:1]):  # Gloo takes the first one
            address = own.own_addresses[0]
            yield PreflightFinding.of(FindingCode.OWN_NAME_IS_LOOPBACK, (host,), name=own.host, address=address)


def _same_machine(facts: Mapping[str, Facts]) -> Iterator[PreflightFinding]:
    """Findings about hosts with the same host name, because ranks distinguish hosts by their names."""
    hosts_of: dict[str, list[str]] = {}
    for host, own in facts.items():
        hosts_of.setdefault(own.host, []).append(host)
    for name, hosts in hosts_of.items():
        if len(hosts) > 1:
            one = len({facts[host].boot_id for host in hosts}) == 1
            remedy = "name it once in `hosts:`" if one else "give each machine its own host name"
            yield PreflightFinding.of(FindingCode.SAME_MACHINE, hosts, name=name, remedy=remedy, one_machine=one)


def _versions(facts: Mapping[str, Facts], wanted: Wanted) -> Iterator[PreflightFinding]:
    software = {host: dict(own.software) for host, own in facts.items()}
    if wanted.mpirun is not None:
        for host, own in facts.items():
            software[host][f"mpirun ({wanted.mpirun})"] = own.mpi or "none"
    different = False
    for name in sorted({name for own in software.values() for name in own}):
        for finding in _unusual(name, {host: own.get(name, "none") for host, own in software.items()}):
            different = True
            yield finding
    if different:  # the files of different versions of the suite differ anyway
        return
    yield from _unusual("the suite's own files", {host: own.source for host, own in facts.items()}, "copy one checkout")
    sources = {own.source for own in facts.values()}
    if len(sources) == 1 and wanted.source and wanted.source not in sources:
        yield PreflightFinding.of(FindingCode.SOURCE_DIFFERS, list(facts), source=sources.pop(), own=wanted.source)


def _unusual(what: str, values: Mapping[str, str], remedy: str = "install the same") -> Iterator[PreflightFinding]:
    """One finding for each value that differs from the most common one, about the hosts that have this value."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    others = named_hosts([host for host, value in values.items() if value == usual])
    for value in counts:
        if value != usual:
            hosts = [host for host in values if values[host] == value]
            facts: dict[str, Any] = {"what": what, "value": value, "usual": usual, "others": others, "remedy": remedy}
            yield PreflightFinding.of(FindingCode.VERSIONS_DIFFER, hosts, **facts)


def _is_loopback(addresses: Sequence[str] | str) -> bool:
    if not addresses or isinstance(addresses, str):
        return False
    return all(address.startswith("127.") or address == "::1" for address in addresses)


def named_hosts(hosts: Sequence[str]) -> str:
    """`host h1`, `hosts h1, h2`, `hosts h1, h2, h3, h4 and 12 more`."""
    listed = ", ".join(hosts[:_MOST_NAMED])
    more = f" and {len(hosts) - _MOST_NAMED} more" if len(hosts) > _MOST_NAMED else ""
    return f"host{'s' if len(hosts) > 1 else ''} {listed}{more}"


# -- connections and clocks between hosts


def connection_findings(reached: Reach, silent: Mapping[str, str]) -> list[PreflightFinding]:
    """Findings about connections and clocks: first unreachable hosts, then pairs, then clocks.

    `silent`: hosts that could not test their connections, and why.
    """
    found = [PreflightFinding.of(FindingCode.NOT_TRIED, (host,), why=why) for host, why in silent.items()]
    failed: _Failed = {}
    for a, peers in reached.items():
        for b, reply in peers.items():
            if reply.error and b not in silent:
                failed[a, b] = reply.error
    cut, rest = _whole_hosts(reached, failed)
    return [*found, *cut, *_pairs(rest), *_clocks(reached)]


def _whole_hosts(reached: Reach, failed: _Failed) -> tuple[list[PreflightFinding], _Failed]:
    """(findings about hosts that no other host reaches or that reach no other, failures that these do not explain)."""
    found: list[PreflightFinding] = []
    explained: set[tuple[str, str]] = set()
    for host in reached:
        inward = [pair for pair in failed if pair[1] == host]
        outward = [pair for pair in failed if pair[0] == host]
        num_tried = sum(host in peers for peers in reached.values())
        no_way_in = 1 < num_tried == len(inward)
        no_way_out = 1 < len(reached[host]) == len(outward)
        if no_way_in:
            explained |= set(inward)
        if no_way_out:
            explained |= set(outward)
        if no_way_in:
            facts: dict[str, Any] = {"why": failed[inward[0]], "remedy": _OPEN}
            found.append(PreflightFinding.of(FindingCode.NOBODY_CONNECTS, (host,), **facts))
        elif no_way_out:
            facts = {"why": failed[outward[0]], "remedy": _OPEN}
            found.append(PreflightFinding.of(FindingCode.CONNECTS_TO_NOBODY, (host,), **facts))
    return found, {pair: why for pair, why in failed.items() if pair not in explained}


def _pairs(failed: _Failed) -> list[PreflightFinding]:
    found = []
    for (a, b), why in failed.items():
        facts: dict[str, Any] = {"a": a, "b": b, "why": why, "remedy": _OPEN}
        if (b, a) not in failed:
            found.append(PreflightFinding.of(FindingCode.NOT_CONNECTED, (a, b), **facts))
        elif a < b:
            found.append(PreflightFinding.of(FindingCode.NEITHER_CONNECTED, (a, b), **facts))
    more = len(found) - _MOST_NAMED
    if more > 0:
        return [*found[:_MOST_NAMED], PreflightFinding.of(FindingCode.MORE_PAIRS, (), num=more)]
    return found


def _clocks(reached: Reach) -> list[PreflightFinding]:
    """Findings about hosts whose clock differs by more than _CLOCK_S from the clocks of most other hosts.

    Half of the round trip is the error of a difference, and is subtracted first.
    """
    off: dict[str, list[float]] = {}
    seen: Counter[str] = Counter()
    for a, peers in reached.items():
        for b, reply in peers.items():
            if reply.clock_offset_s is None or reply.round_trip_s is None:
                continue
            seen.update((a, b))
            if abs(reply.clock_offset_s) - reply.round_trip_s / 2 > _CLOCK_S:
                off.setdefault(b, []).append(reply.clock_offset_s)
                off.setdefault(a, []).append(-reply.clock_offset_s)
    wrong = [host for host in reached if 2 * len(off.get(host, ())) > seen[host]]
    if len(wrong) == 2 and len(reached) == 2:  # either of the two may be right
        facts: dict[str, Any] = {"a": wrong[0], "b": wrong[1], "apart_s": abs(off[wrong[0]][0])}
        return [PreflightFinding.of(FindingCode.CLOCKS_APART, wrong, **facts)]
    found = []
    for host in wrong:
        off_s = abs(sorted(off[host])[len(off[host]) // 2])
        direction = "ahead of" if off[host][0] > 0 else "behind"
        found.append(PreflightFinding.of(FindingCode.CLOCK_OFF, (host,), off_s=off_s, direction=direction))
    return found
