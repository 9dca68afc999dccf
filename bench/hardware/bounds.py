"""What this traffic on these links can reach at most, and the least time that it needs.

A bound follows from bytes that must cross a link whatever the algorithm is: t >= bytes / rate, so that the bus
bandwidth, S x factor / t, is at most S x factor x rate / bytes. `hard` bounds are physics: a figure above one is a
mistake. `reference` bounds are ceilings met in practice, which may be exceeded. Where a rate is unknown there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log

from bench.core.derived import Bound
from bench.core.fabric import NVLINK_PEERS, NodeLinks
from bench.core.record import SHARED_GPU, THROUGH_HOST, Header, Record
from bench.core.units import format_bytes, format_rate
from bench.hardware import _live_copies
from bench.hardware.catalogue import pcie_packet_share

_FASTEST_PCIE_BYTES_PER_S = 250e9  # what carries more is NVLink-C2C in its place, and has other packets
# Transports that move bytes from host memory: a GPU's ports say nothing about them.
HOST_MEMORY_TRANSPORTS = frozenset({"gloo", "mpi", "osu", "perftest"})


# Patterns of single copies: rows of nvbandwidth and p2pBandwidthLatencyTest. The first two cross a link; but for copies
# between two GPUs, one GPU is all that there is to them.
COPIES = ("host_device", "peer_copy")
COPY_PATTERNS = (*COPIES, "local_copy", "copy_call")
COPIES_OF_ONE_GPU = frozenset({"host_device", "local_copy", "copy_call"})
# Of a matrix (core/foreign.py: Matrix).
COPY_DIRECTIONS = ("h2d", "d2h", "d2d", "bidirectional", "bidirectional_sum", "through_host", "through_host_sum",
                   "local", "load", "calls")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Traffic:
    """One record beside the links it ran on."""

    header: Header
    record: Record
    links: NodeLinks
    num_ranks: int
    num_nodes: int
    useful_bytes: float  # S x factor: what the bus bandwidth counts

    @property
    def port_bytes(self) -> float:
        """Bytes per direction through one rank's port; S x factor is what they are by definition of the factor."""
        return self.useful_bytes if self.record.rank_bytes is None else self.record.rank_bytes

    @property
    def one_node(self) -> bool:
        """Does nothing leave a node? Messages between two ranks of one node may run in a group that spans several."""
        return self.num_nodes == 1 or self.record.node_bytes == 0

    @property
    def one_rank_per_node(self) -> bool:
        return self.num_ranks == self.num_nodes

    @property
    def in_gpus(self) -> bool:
        of_host = self.header.transport in HOST_MEMORY_TRANSPORTS and self.header.facts.get("memory") != "device"
        return self.links.peer != "memory" and not of_host

    @property
    def by_nvlink(self) -> bool:
        """Can some of it go by NVLink?"""
        inside = not self.one_rank_per_node or self.links.nvlink_nodes > 1
        return self.in_gpus and inside and self.links.peer in NVLINK_PEERS

    def bound(self, rate: float, num_bytes: float, name: str, kind: str, why: str, used: Sequence[str]) -> Bound:
        """The bound of `num_bytes` at `rate`; `used`: the links of NodeLinks.sources that it rests on."""
        sources = dict.fromkeys(self.links.sources[link] for link in used if link in self.links.sources)
        return Bound(
            bytes_per_s=self.useful_bytes * rate / num_bytes,
            name=name,
            kind=kind,
            why=why,
            source="; ".join(sources) or "unknown",
            verified=all(self.links.verified.get(link, False) for link in used),
        )


def bounds_of(header: Header, record: Record) -> tuple[Bound, ...]:
    """Every known bound on the bus bandwidth of a record, tightest first; none where no bus bandwidth is defined.

    None either where nobody knows how many ranks there were, or on how many nodes, or where ranks shared a GPU.
    """
    if shares_gpu(header, record.flags):
        return ()
    if header.pattern in COPIES:
        return _copy_bounds(header, record)
    if header.pattern == "local_copy":
        memory = _live_copies.memory_bound(header, record) if record.bus_factor and not header.imported else None
        return () if memory is None else (memory,)
    if not record.bus_factor or not record.payload_bytes:
        return ()
    if record.num_ranks is None or record.num_nodes is None or record.num_ranks < 2:
        return ()
    found = list(_memory_bound(header, record))
    links = _live_copies.told_links(header)
    if links is not None:
        useful_bytes = record.payload_bytes * record.bus_factor
        traffic = _Traffic(header, record, _of_row(header, record, links), record.num_ranks, record.num_nodes,
                           useful_bytes)  # fmt: skip
        found += [*_port_bounds(traffic), *_network_bounds(traffic), *_own_nic_bound(traffic)]
    return tuple(sorted(found, key=lambda bound: (bound.bytes_per_s, bound.kind)))


def shares_gpu(header: Header, flags: Collection[str]) -> bool:
    """Several ranks on one GPU show that something works, and nothing of links. `flags`: of a row."""
    return bool(header.facts.get(SHARED_GPU)) or SHARED_GPU in flags


def _of_row(header: Header, record: Record, links: NodeLinks) -> NodeLinks:
    """The links of the two GPUs themselves where a row is of two; by NVLink a library may go round by a third one."""
    if header.transport in HOST_MEMORY_TRANSPORTS or header.modelled:
        return links
    joined = _live_copies.between(header, record)
    if joined is None or (links.peer in NVLINK_PEERS and not joined.by_nvlink):
        return _live_copies.links_of_part(header, record, links)
    return replace(joined.links, nvls=links.nvls)


def _copy_bounds(header: Header, record: Record) -> tuple[Bound, ...]:
    """Of a copy between a GPU and its host, or two GPUs, as other tools measure it; its size, often untold, cancels."""
    if not record.bus_factor or record.num_ranks is None or header.transport in HOST_MEMORY_TRANSPORTS:
        return ()
    if header.pattern == "host_device":
        own = _live_copies.own_links(header, record)
        return () if own is None else copy_bounds(own, "host")
    staged = (header.direction or "").startswith("through_host") or THROUGH_HOST in record.flags
    if record.num_ranks < 2 and not staged:
        return ()
    way = "through host" if staged else "peer"
    joined = _live_copies.between(header, record)
    if joined is not None:
        return tuple(
            replace(bound, why=f"{joined.why}; {bound.why}")
            for bound in copy_bounds(joined.links, way if joined.by_nvlink else "through host")
        )
    links = _live_copies.told_links(header)
    return () if links is None else copy_bounds(links, way)


def floor_of(header: Header, record: Record) -> tuple[float, str] | None:
    """The least seconds that an isolated operation needs for its latencies alone, and what they are; None: unknown.

    Pipelined operations overlap: their latency is no floor.
    """
    if record.mode == "pipelined" or record.num_ranks is None or record.num_nodes is None or record.num_ranks < 2:
        return None
    if shares_gpu(header, record.flags):
        return None
    steps = record.min_steps
    message_s = header.calibration.get("message_s")
    if message_s is not None:
        return steps * float(message_s), _times("ping-pong", steps)
    links = _live_copies.told_links(header)
    if links is None:
        return None
    traffic = _Traffic(header, record, links, record.num_ranks, record.num_nodes, 0.0)
    if _reduces_in_node(traffic) and _keeps_to_nvlink(traffic):
        steps = min(steps, 2)  # up to the switch and down again, however many ranks there are
    known = [(latency, name) for latency, name in _latencies(traffic) if latency is not None]
    if not known:
        return None
    latency, name = min(known)
    return steps * latency, _times(f"{name} latency", steps)


def _latencies(traffic: _Traffic) -> Iterator[tuple[float | None, str]]:
    links = traffic.links
    if traffic.by_nvlink:
        yield links.peer_s, "NVLink"
    elif not traffic.one_rank_per_node:
        yield links.host_s, "host"
    if not traffic.one_node:
        yield links.network_s, "network"


def _times(what: str, steps: int) -> str:
    return f"{what} x {steps} step{'s' if steps > 1 else ''}"


def _port_bounds(traffic: _Traffic) -> Iterator[Bound]:
    """What must go through one rank's ports: NVLink, PCIe, or both where either may be taken."""
    if not traffic.in_gpus:
        return
    links = traffic.links
    if not traffic.by_nvlink:
        yield from _pcie_bounds(traffic)
    elif links.nvlink_bytes_per_s is not None:
        nvlink, why = _nvlink_rate(traffic)
        if _keeps_to_nvlink(traffic):
            yield from _nvlink_bounds(traffic, nvlink, 0.0, "NVLink port", why, ("nvlink",))
        elif links.pcie_bytes_per_s is not None:
            pcie = links.pcie_bytes_per_s
            link = "NVLink-C2C (its link to the CPU)" if pcie > _FASTEST_PCIE_BYTES_PER_S else "its PCIe link"
            why = f"{why}, and {format_rate(pcie)} by {link}"
            yield from _nvlink_bounds(traffic, nvlink, pcie, "NVLink and PCIe ports", why, ("nvlink", "pcie"))


def _keeps_to_nvlink(traffic: _Traffic) -> bool:
    """Is NVLink the way between any two ranks of the group?"""
    if traffic.links.peer == "nvlink_pairs":
        return traffic.one_node and traffic.num_ranks == 2
    return traffic.one_node or traffic.num_nodes <= traffic.links.nvlink_nodes


def _nvlink_rate(traffic: _Traffic) -> tuple[float, str]:
    """One rank's NVLink bytes per second inside its group, and how that comes."""
    links, peers = traffic.links, traffic.num_ranks - 1
    assert links.nvlink_bytes_per_s is not None
    pairs = None if links.pair_bytes_per_s is None else peers * links.pair_bytes_per_s
    if pairs is not None and pairs < links.nvlink_bytes_per_s:
        return pairs, f"a rank has {format_rate(links.pair_bytes_per_s)} to each of {peers} peers"
    return links.nvlink_bytes_per_s, f"a rank's NVLink port carries {format_rate(links.nvlink_bytes_per_s)} each way"


def _nvlink_bounds(
    traffic: _Traffic, nvlink: float, pcie: float, name: str, why: str, used: Sequence[str]
) -> Iterator[Bound]:
    """The ports' bound; where the switch reduces that is only a reference, and the switch's own bound is the hard one.

    In-network reduction: a port sends S when the switch reads its buffer, and S/n as its share of the result (n ranks
    on the switch), so t >= S (1 + 1/n) / B and busbw <= 2B (n-1)/(n+1) inside a node.
    """
    rate, port_bytes = nvlink + pcie, traffic.port_bytes
    message = f"{why}; {format_bytes(port_bytes)} must leave through it"
    num = min(traffic.num_ranks, traffic.num_ranks // traffic.num_nodes * traffic.links.nvlink_nodes)
    reduced = nvlink * num / (num + 1) + pcie  # payload per second
    payload = traffic.record.payload_bytes
    if not _reduces_in_node(traffic) or reduced / payload <= rate / port_bytes:
        yield traffic.bound(rate, port_bytes, name, "hard", message, used)
        return
    alone = ", and what goes by the other link has no such extra" if pcie else ""
    reads = f"{why}; the switch reduces, so that an NVLink port sends S (1 + 1/{num}) of what it reduces{alone}"
    yield traffic.bound(reduced, payload, f"{name}, in-network reduction", "hard", reads, used)
    yield traffic.bound(rate, port_bytes, f"{name}, without in-network reduction", "reference", message, used)


def _reduces_in_node(traffic: _Traffic) -> bool:
    return traffic.header.pattern == "allreduce" and traffic.by_nvlink and traffic.links.nvls


def _pcie_bounds(traffic: _Traffic) -> Iterator[Bound]:
    rate = traffic.links.pcie_bytes_per_s
    if rate is None:
        return
    num_bytes = traffic.port_bytes
    why = f"a rank's PCIe link carries {format_rate(rate)} each way, {format_bytes(num_bytes)} must leave through it"
    yield traffic.bound(rate, num_bytes, "PCIe port", "hard", why, ("pcie",))
    share, packets = pcie_packet_share()
    yield traffic.bound(rate * share, num_bytes, "PCIe packets", "reference", f"{why}; {packets}", ("pcie",))


def _network_bounds(traffic: _Traffic) -> Iterator[Bound]:
    """What must leave a node through all its NICs together."""
    links, record = traffic.links, traffic.record
    if not record.node_bytes or links.nic_bytes_per_s is None or links.num_nics is None:
        return
    if _by_nvlink_between_nodes(traffic):
        yield from _domain_bounds(traffic, links.num_nics * links.nic_bytes_per_s)
        return
    rate = links.num_nics * links.nic_bytes_per_s
    nics = "NIC carries" if links.num_nics == 1 else f"{links.num_nics} NICs carry"
    node = f"a node's {nics} {format_rate(rate)} each way"
    why = f"{node}, {format_bytes(record.node_bytes)} must leave it by any algorithm of sends and receives"
    # A switch that reduces takes S from each node and returns S, whatever the number of nodes.
    if links.network_reduces and traffic.header.pattern == "allreduce" and record.node_bytes > record.payload_bytes:
        reads = f"{node}; switches that reduce need S from each"
        yield traffic.bound(rate, record.payload_bytes, "network, in-network reduction", "hard", reads, ("network",))
        yield traffic.bound(rate, record.node_bytes, "network", "reference", why, ("network",))
    else:
        yield traffic.bound(rate, record.node_bytes, "network", "hard", why, ("network",))


def _own_nic_bound(traffic: _Traffic) -> Iterator[Bound]:
    """One rank of each node: only the NICs that a rank has to itself, where ranks share out a node's."""
    links, per_node = traffic.links, traffic.header.ranks_per_node
    if per_node is None or per_node < 2:
        return
    alone = traffic.in_gpus and traffic.one_rank_per_node and not traffic.one_node
    if not alone or links.nic_bytes_per_s is None or links.num_nics is None or _by_nvlink_between_nodes(traffic):
        return
    num = links.nics_of_a_rank(per_node)
    rate = num * links.nic_bytes_per_s
    own = f"a rank's own {num:g} of {links.num_nics} NICs carry {format_rate(rate)} each way"
    why = f"{own}, {format_bytes(traffic.port_bytes)} must leave through them"
    yield traffic.bound(rate, traffic.port_bytes, "own NICs", "hard", why, ("nic",))


def _by_nvlink_between_nodes(traffic: _Traffic) -> bool:
    """NVLink may join some of these nodes, too, so that a node's own NICs need not carry what leaves it."""
    return traffic.links.nvlink_nodes > 1 and traffic.in_gpus


def _domain_bounds(traffic: _Traffic, node_rate: float) -> Iterator[Bound]:
    """What must cross between NVLink domains through all NICs of all nodes; nothing must where one domain holds them.

    Which node is in which domain is not known: as few domains as can hold them, which is the least that must cross.
    """
    num_domains = -(-traffic.num_nodes // traffic.links.nvlink_nodes)
    crossing = _between_domains(traffic, num_domains)
    if num_domains < 2 or crossing is None:
        return
    rate = traffic.num_nodes * node_rate
    nics = (
        f"{traffic.num_nodes} nodes are {num_domains} NVLink domains or more; all their NICs carry {format_rate(rate)}"
    )
    why = f"{nics}, {format_bytes(crossing)} must cross between domains by any algorithm of sends and receives"
    reduced = num_domains * traffic.record.payload_bytes
    reduces = traffic.links.network_reduces and traffic.header.pattern == "allreduce" and crossing > reduced
    if reduces:
        reads = f"{nics}; switches that reduce need S from each domain"
        yield traffic.bound(rate, reduced, "network of domains, in-network reduction", "hard", reads, ("network",))
    kind = "reference" if reduces else "hard"
    yield traffic.bound(rate, crossing, "network of domains", kind, why, ("network",))


def _between_domains(traffic: _Traffic, num_domains: int) -> float | None:
    """Bytes that leave domains, all together: of sums and blocks (k - 1) S for each of their passes, whatever part of
    the ranks a domain has; of an alltoall each rank's S times the share of ranks elsewhere, least where all domains but
    one are full. None for other patterns."""
    size, pattern = traffic.record.payload_bytes, traffic.header.pattern
    if pattern in ("allreduce", "allgather", "reducescatter"):
        return (2 if pattern == "allreduce" else 1) * (num_domains - 1) * size
    if pattern != "alltoall":
        return None
    full = traffic.links.nvlink_nodes / traffic.num_nodes
    shares = [full] * (num_domains - 1) + [1 - full * (num_domains - 1)]
    return traffic.num_ranks * size * (1 - sum(share * share for share in shares))


def _memory_bound(header: Header, record: Record) -> Iterator[Bound]:
    """What copying alone reached on this machine: a message through memory is copied once at least."""
    points: Sequence[Sequence[float]] = header.calibration.get("memcpy") or ()
    if not points or header.facts.get("memory") == "device":
        return
    assert record.bus_factor is not None
    rate = _interpolated(points, record.payload_bytes)
    useful = record.payload_bytes * record.bus_factor
    num_bytes = useful if record.rank_bytes is None else record.rank_bytes
    why = f"while all ranks copied {record.payload_bytes} bytes, each reached {format_rate(rate)}"
    yield Bound(useful * rate / num_bytes, "memory copy", "reference", why, "measured at the start of this run")


def _interpolated(points: Sequence[Sequence[float]], num_bytes: float) -> float:
    """The rate at a size between measured (bytes, bytes/s), straight in the logarithm of size; the ends beyond them."""
    ordered = sorted((float(size), float(rate)) for size, rate in points)
    if num_bytes <= ordered[0][0]:
        return ordered[0][1]
    for (left, low), (right, high) in pairwise(ordered):
        if num_bytes <= right:
            return low + (high - low) * log(num_bytes / left) / log(right / left)
    return ordered[-1][1]


def copy_bounds(links: NodeLinks, direction: str, both_added: bool = False) -> tuple[Bound, ...]:
    """What one copy at a time can reach, in bytes per second of one direction, tightest first; none where unknown.

    `direction`: "host" between a GPU and its host, "peer" between two GPUs that reach each other directly, "peers"
    between one and several at once, "through host" between two that do not. `both_added`: the figure is the sum of both
    directions, each of which has the link.
    """
    ways, added = (2, ", and the figure adds both") if both_added else (1, "")
    if direction in ("peer", "peers") and links.peer in NVLINK_PEERS:
        pair = links.pair_bytes_per_s if direction == "peer" else None
        rate = pair or links.nvlink_bytes_per_s
        if rate is None:
            return ()
        what = "the links between two GPUs carry" if pair else "a GPU's NVLink port carries"
        return (
            _of_copy(
                links, "nvlink", ways * rate, "NVLink port", "hard", f"{what} {format_rate(rate)} each way{added}"
            ),
        )
    rate = links.pcie_bytes_per_s
    if rate is None:
        return ()
    if rate > _FASTEST_PCIE_BYTES_PER_S:
        why = f"a GPU's NVLink-C2C to its CPU carries {format_rate(rate)} each way{added}"
        return (_of_copy(links, "pcie", ways * rate, "NVLink-C2C", "hard", why),)
    why = f"a GPU's PCIe link carries {format_rate(rate)} each way{added}"
    hard = _of_copy(links, "pcie", ways * rate, "PCIe port", "hard", why)
    share, packets = pcie_packet_share()
    return (_of_copy(links, "pcie", ways * rate * share, "PCIe packets", "reference", f"{why}; {packets}"), hard)


def _of_copy(links: NodeLinks, link: str, rate: float, name: str, kind: str, why: str) -> Bound:
    return Bound(rate, name, kind, why, links.sources.get(link, "unknown"), links.verified.get(link, False))
