"""Check the replies of a cluster's hosts before a run. The functions are pure: they turn facts into findings.

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

_MIB = 1 << 20
_MIN_RESULTS_BYTES = 16 * _MIB
_MIN_RANK_BYTES = 256 * _MIB  # memory that a Python interpreter needs after importing torch
# Shared memory that NCCL and MPI need per rank on a host. By default a container has 64 MiB for all its ranks.
_MIN_SHM_RANK_BYTES = 16 * _MIB
_FILES_OF_A_RANK = 256
_FILES_OF_A_PEER = 2
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class NamedNic:
    """A network device that the cluster names.

    `where`: the setting that names the device, either `nics:` or an environment variable of a library such as NCCL.
    """

    where: str
    name: str
    adapter: bool = False  # whether the device may be an RDMA port, which is not a network interface
    begins: bool = False  # whether `name` is a prefix that matches several devices (NCCL)

    def among(self, facts: Facts) -> bool:
        """Check whether a host has the device, according to the host's facts."""
        known = (*facts.interfaces, *(facts.adapters if self.adapter else ()))
        return any(map(self.matches, known))

    def matches(self, name: str) -> bool:
        """Check whether the device `name` is this device.

        If `begins` is true, any name that begins with this device's name matches.
        """
        return name.startswith(self.name) if self.begins else name == self.name


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the jobs of a plan require of each host. `port`: the rendezvous port of the first host, if ranks use one."""

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
    """A problem of hosts.

    `refuses`: whether the problem prevents the run.
    `hosts`: the affected hosts.
    `what`: the message that describes the problem.
    """

    hosts: tuple[str, ...]
    what: str
    refuses: bool = True
    code: str = UNCODED
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, code: Code, hosts: Sequence[str], refuses: bool = True, **facts: Any) -> PreflightFinding:
        """Make a finding from a code.

        The template of the code can always use `host` (the first host) and `named` (such as "hosts h1, h2").
        """
        known = {"host": hosts[0] if hosts else "", "named": named_hosts(hosts) if hosts else "", **facts}
        return cls(tuple(hosts), code.words(known), refuses, code, facts)

    @classmethod
    def refused(cls, reason: Coded) -> PreflightFinding:
        """Make a finding that prevents the run and is not about a single host."""
        return cls((), reason.text, True, reason.code, reason.facts)


def findings(facts: Mapping[str, Facts], wanted: Wanted) -> list[PreflightFinding]:
    """Return all findings about the hosts that answered.

    Findings about single hosts come first, then findings about differences between hosts.
    """
    found = []
    for host, times in Counter(wanted.hosts).items():
        if times > 1:
            found.append(PreflightFinding.of(FindingCode.NAMED_TWICE, (host,), times=times))
    for host, own in facts.items():
        found += _of_host(host, own, wanted)
    found += _devices(facts, wanted)
    same = list(_same_machine(facts))
    one_machine = {host for finding in same for host in finding.hosts}  # the names of these hosts need no check
    found += _names({host: own for host, own in facts.items() if host not in one_machine}, wanted)
    found += same
    found += _versions(facts, wanted)
    return found


def _of_host(host: str, facts: Facts, wanted: Wanted) -> Iterator[PreflightFinding]:
    """Yield findings that concern one host and do not depend on other hosts."""
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
    if facts.use is not None and facts.use.is_busy:
        causes = [cause.text for cause in facts.use.causes()]
        programs = [program["name"] for program in facts.programs]
        busy: dict[str, Any] = {"causes": causes, "programs": programs}
        yield PreflightFinding.of(FindingCode.BUSY, (host,), refuses=False, **busy)


def _of_first_host(host: str, facts: Facts, wanted: Wanted) -> Iterator[PreflightFinding]:
    """Yield findings about the first host, which has the rendezvous port and rank 0's results."""
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
    """Yield a finding for each network device of the cluster that some hosts lack."""
    for device in wanted.devices:
        lacking = [host for host, own in facts.items() if not device.among(own)]
        if lacking:
            found = ", ".join(facts[lacking[0]].interfaces) or "none"
            where: dict[str, Any] = {"device": device.name, "where": device.where, "first": lacking[0], "found": found}
            yield PreflightFinding.of(FindingCode.NO_DEVICE, lacking, **where)


def _names(facts: Mapping[str, Facts], wanted: Wanted) -> Iterator[PreflightFinding]:
    """Yield findings about names of hosts that some hosts cannot resolve, or resolve to a wrong address.

    An address is wrong if other hosts cannot reach it.
    """
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
        elif _is_loopback(own.own_addresses[:1]):  # Gloo takes the first address
            address = own.own_addresses[0]
            yield PreflightFinding.of(FindingCode.OWN_NAME_IS_LOOPBACK, (host,), name=own.host, address=address)


def _same_machine(facts: Mapping[str, Facts]) -> Iterator[PreflightFinding]:
    """Yield findings about hosts with the same host name, because ranks distinguish hosts by their names."""
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
    if different:  # findings about versions make a finding about files unnecessary
        return
    yield from _unusual("the suite's own files", {host: own.source for host, own in facts.items()}, "copy one checkout")
    sources = {own.source for own in facts.values()}
    if len(sources) == 1 and wanted.source and wanted.source not in sources:
        yield PreflightFinding.of(FindingCode.SOURCE_DIFFERS, list(facts), source=sources.pop(), own=wanted.source)


def _unusual(what: str, values: Mapping[str, str], remedy: str = "install the same") -> Iterator[PreflightFinding]:
    """Yield a finding for each value that differs from the value that is most common among the hosts.

    The finding names the hosts that have the different value.
    """
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
    """Return the hosts as text, such as `host h1`, `hosts h1, h2` or `hosts h1, h2, h3, h4 and 12 more`."""
    listed = ", ".join(hosts[:_MOST_NAMED])
    more = f" and {len(hosts) - _MOST_NAMED} more" if len(hosts) > _MOST_NAMED else ""
    return f"host{'s' if len(hosts) > 1 else ''} {listed}{more}"
