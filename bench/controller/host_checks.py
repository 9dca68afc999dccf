"""What the answers of a cluster's hosts say about a run to come: pure functions from facts to findings.

A finding that refuses is one that would end the run, make it hang, or make its figures those of something else; the
others are said and the run goes on. Each is one sentence that names the host and the remedy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.core.inventory import MIN_LOCKED_BYTES
from bench.core.traits import traits
from bench.probes.host import Facts

_MIB = 1 << 20
_MIN_RESULTS_BYTES = 16 * _MIB
_MIN_RANK_BYTES = 256 * _MIB  # an interpreter with torch
_MIN_SHM_RANK_BYTES = 16 * _MIB  # NCCL and MPI between ranks of one host; containers have 64 MiB in all by default
_FILES_OF_A_RANK = 256
_FILES_OF_A_PEER = 2
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class NamedNic:
    """A network device that the cluster names, and where: `nics:`, or a variable as its library reads it."""

    where: str
    name: str
    adapter: bool = False  # may it be an RDMA port, which is no network interface?
    begins: bool = False  # does it stand for all that begin so (NCCL)?

    def among(self, told: Facts) -> bool:
        """Is it there?"""
        known = (*told.interfaces, *(told.adapters if self.adapter else ()))
        return any(name.startswith(self.name) if self.begins else name == self.name for name in known)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the jobs of a plan need of each host. `port`: where ranks meet on the first host, None for nowhere."""

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
    node: bool = False  # is it wanted to know what hosts are made of?


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """Something that is not as it must be (`refuses`), or that may matter. `hosts`: those that it is about."""

    hosts: tuple[str, ...]
    what: str
    refuses: bool = True


def judge(facts: Mapping[str, Facts], wanted: Wanted) -> list[PreflightFinding]:
    """Everything that is wrong with hosts that answered, host by host, then between them."""
    found = [
        PreflightFinding((host,), f"`hosts:` names {host} {times} times: name each host once")
        for host, times in Counter(wanted.hosts).items()
        if times > 1
    ]
    found += [finding for host, told in facts.items() for finding in _alone(host, told, wanted)]
    found += _devices(facts, wanted)
    same = list(_same_machine(facts))
    one = {host for finding in same for host in finding.hosts}  # what they say of each other is no news
    found += _names({host: told for host, told in facts.items() if host not in one}, wanted)
    found += same
    found += _versions(facts, wanted)
    return found


def _alone(host: str, told: Facts, wanted: Wanted) -> Iterator[PreflightFinding]:
    """One host by itself."""
    first = host == wanted.hosts[0]
    if first and wanted.port is not None and told.port_taken is not None:
        yield PreflightFinding(
            (host,),
            f"port {wanted.port} of host {host}, where the ranks are to meet, is taken ({told.port_taken.lower()}): "
            "end what holds it, or name another by `port:` of the cluster",
        )
    if first and told.results_shared is False:
        yield PreflightFinding(
            (host,),
            f"host {host}, where rank 0 writes, does not see the folder {wanted.results} of this machine: give one "
            f"that both share by --results DIR, or start the run on {host}",
        )
    elif first and told.results_problem is not None:
        yield PreflightFinding(
            (host,),
            f"host {host} can not write to {wanted.results} ({told.results_problem}): "
            "make room or give it the right to, or choose another folder by --results DIR",
        )
    elif first and told.results_free_bytes is not None and told.results_free_bytes < _MIN_RESULTS_BYTES:
        yield PreflightFinding(
            (host,),
            f"host {host} has {told.results_free_bytes // _MIB} MiB left in {wanted.results}: make room, "
            "or choose another folder by --results DIR",
        )
    if any(traits(name).on_gpu for name in wanted.transports) and told.num_gpus < wanted.ranks_per_node:
        yield PreflightFinding(
            (host,),
            f"host {host} has {told.num_gpus} GPUs for {wanted.ranks_per_node} ranks, which need one each: "
            "lower `ranks_per_node`, or leave the host out of `hosts:`",
        )
    need = wanted.ranks_per_node * _MIN_RANK_BYTES
    if told.memory_bytes is not None and told.memory_bytes < need:
        yield PreflightFinding(
            (host,),
            f"host {host} has {told.memory_bytes // _MIB} MiB of free memory for {wanted.ranks_per_node} ranks: "
            "end what uses it, or start fewer ranks there",
        )
    files = _FILES_OF_A_RANK + _FILES_OF_A_PEER * wanted.num_ranks
    if told.max_files is not None and told.max_files < files:
        yield PreflightFinding(
            (host,),
            f"a process on host {host} may open {told.max_files} files, and one of {wanted.num_ranks} ranks may need "
            f"{files}: raise it by `ulimit -n` or in /etc/security/limits.conf",
        )
    shm = wanted.ranks_per_node * _MIN_SHM_RANK_BYTES
    if wanted.ranks_per_node > 1 and told.shm_free_bytes is not None and told.shm_free_bytes < shm:
        yield PreflightFinding(
            (host,),
            f"/dev/shm of host {host} has {told.shm_free_bytes // _MIB} MiB left for {wanted.ranks_per_node} ranks: "
            f"give a container --shm-size={2 * shm // _MIB}m",
            refuses=any(traits(name).needs_shm for name in wanted.transports),
        )
    if told.has_rdma and told.max_locked_bytes is not None and told.max_locked_bytes < MIN_LOCKED_BYTES:
        yield PreflightFinding(
            (host,),
            f"host {host} lets a process lock {told.max_locked_bytes // 1024} KiB of memory, too little for its RDMA "
            "ports: set `ulimit -l unlimited`",
            refuses=False,
        )


def _devices(facts: Mapping[str, Facts], wanted: Wanted) -> Iterator[PreflightFinding]:
    """Network devices that the cluster names must be there, on every host."""
    for device in wanted.devices:
        lacking = [host for host, told in facts.items() if not device.among(told)]
        if lacking:
            there = ", ".join(facts[lacking[0]].interfaces) or "none"
            yield PreflightFinding(
                tuple(lacking),
                f"{_hosts(lacking)} {_has(lacking)} no network device {device.name}, which {device.where} names: "
                f"correct it (on {lacking[0]} there are {there})",
            )


def _names(facts: Mapping[str, Facts], wanted: Wanted) -> Iterator[PreflightFinding]:
    """Each host must find every other one by name, and Gloo its own name at an address that others reach."""
    several = len(wanted.hosts) > 1
    for name in wanted.hosts:
        lacking = [host for host, told in facts.items() if isinstance(told.addresses.get(name), str)]
        if lacking and several:
            reason = facts[lacking[0]].addresses[name]
            yield PreflightFinding(
                (name,),
                f"the name {name} is unknown on {_hosts(lacking)} ({str(reason).lower()}): "
                "correct it in `hosts:`, or add it to DNS or /etc/hosts there",
            )
        here = [h for h, told in facts.items() if h != name and _is_loopback(told.addresses.get(name, ()))]
        if here:
            yield PreflightFinding(
                (name,),
                f"{_hosts(here)} {_takes(here)} the name {name} for itself (127.*): correct /etc/hosts there",
            )
    variables = {traits(name).host_name_variable for name in wanted.transports} - {""}
    by_name = several and bool(variables - set(wanted.env))
    for host, told in facts.items():
        if not by_name:
            break
        if isinstance(told.own_addresses, str):
            yield PreflightFinding(
                (host,),
                f"host {host} does not know its own name {told.host} ({told.own_addresses.lower()}), by which Gloo "
                "finds the network: add it to /etc/hosts there, or name the interface by "
                "`env: {GLOO_SOCKET_IFNAME: ...}`",
            )
        elif _is_loopback(told.own_addresses[:1]):  # the first is the one that Gloo takes
            yield PreflightFinding(
                (host,),
                f"host {host} has its own name {told.host} at {told.own_addresses[0]}, where no other host reaches "
                "Gloo: take that line out of its /etc/hosts, or name the interface by `env: {GLOO_SOCKET_IFNAME: ...}`",
            )


def _same_machine(facts: Mapping[str, Facts]) -> Iterator[PreflightFinding]:
    """Ranks tell their hosts apart by host name."""
    called: dict[str, list[str]] = {}
    for host, told in facts.items():
        called.setdefault(told.host, []).append(host)
    for name, hosts in called.items():
        if len(hosts) < 2:
            continue
        one = len({facts[host].boot_id for host in hosts}) == 1
        remedy = "name it once in `hosts:`" if one else "give each machine a host name of its own"
        yield PreflightFinding(tuple(hosts), f"{_hosts(hosts)} call themselves {name} alike: {remedy}")


def _versions(facts: Mapping[str, Facts], wanted: Wanted) -> Iterator[PreflightFinding]:
    told = {host: dict(each.software) for host, each in facts.items()}
    if wanted.mpirun is not None:
        for host, each in facts.items():
            told[host][f"mpirun ({wanted.mpirun})"] = each.mpi or "none"
    different = False
    for name in sorted({name for each in told.values() for name in each}):
        for finding in _odd(name, {host: each.get(name, "none") for host, each in told.items()}):
            different = True
            yield finding
    if different:  # which of them has other files would be no news
        return
    yield from _odd("the suite's own files", {host: each.source for host, each in facts.items()}, "copy one checkout")
    sources = {each.source for each in facts.values()}
    if len(sources) == 1 and wanted.source and wanted.source not in sources:
        yield PreflightFinding(
            tuple(facts),
            f"{_hosts(list(facts))} {_runs(list(facts))} other files of the suite ({sources.pop()}) than this machine "
            f"({wanted.source}): copy this checkout to them",
        )


def _odd(what: str, values: Mapping[str, str], remedy: str = "install the same") -> Iterator[PreflightFinding]:
    """One sentence for each value that is not what most hosts have."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    others = [host for host, value in values.items() if value == usual]
    for value in counts:
        if value != usual:
            hosts = [host for host in values if values[host] == value]
            yield PreflightFinding(
                tuple(hosts),
                f"{what} is {value} on {_hosts(hosts)} and {usual} on {_hosts(others)}: {remedy} on all of them",
            )


def _is_loopback(addresses: Sequence[str] | str) -> bool:
    return (
        bool(addresses)
        and not isinstance(addresses, str)
        and all(address.startswith("127.") or address == "::1" for address in addresses)
    )


def _hosts(hosts: Sequence[str]) -> str:
    """`host h1`, `hosts h1, h2`, `hosts h1, h2, h3, h4 and 12 more`."""
    named = ", ".join(hosts[:_MOST_NAMED])
    more = f" and {len(hosts) - _MOST_NAMED} more" if len(hosts) > _MOST_NAMED else ""
    return f"host{'s' if len(hosts) > 1 else ''} {named}{more}"


def _takes(hosts: Sequence[str]) -> str:
    return "takes" if len(hosts) == 1 else "each take"


def _has(hosts: Sequence[str]) -> str:
    return "has" if len(hosts) == 1 else "have"


def _runs(hosts: Sequence[str]) -> str:
    return "runs" if len(hosts) == 1 else "run"
