"""Compute upper bounds on the bus bandwidth of a record, and lower bounds on its latency.

Whatever the algorithm, some bytes must cross a link, so `t >= bytes / rate`. The bus bandwidth is `S x factor / t`,
with the payload S and the bus factor. The bus bandwidth is therefore at most `S x factor x rate / bytes`.

A `hard` bound is a physical limit. A figure above a hard bound is an error. A `reference` bound is a measured or
typical limit, which a figure may exceed. A link with an unknown rate gives no bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, log
from typing import Any

from bench.core.links import NVLINK_PEERS, Bound, Floor, FloorKind, Limit, NodeLinks
from bench.core.record import Flag, Header, Record
from bench.core.units import format_bytes, format_rate
from bench.hardware import _live_copies
from bench.hardware._network_bounds import network_bounds, own_nic_bound
from bench.hardware._traffic import RecordTraffic, moves_host_memory
from bench.hardware.catalogue import pcie_packet_share

__all__ = [
    "COPIES",
    "COPIES_OF_ONE_GPU",
    "COPY_DIRECTIONS",
    "COPY_PATTERNS",
    "bounds_of",
    "copy_bounds",
    "floor_of",
    "moves_host_memory",
    "shares_gpu",
]

_TIGHTER = 0.999  # a traffic bound is reported only if it is tighter than the hard bounds
_FASTEST_PCIE_BYTES_PER_S = 250e9  # a faster link to the host is not PCIe but NVLink-C2C, which has other packets
# Patterns of single copies, which nvbandwidth and p2pBandwidthLatencyTest measure. The first two cross a link. All
# except peer_copy use one GPU.
COPIES = ("host_device", "peer_copy")
COPY_PATTERNS = (*COPIES, "local_copy", "copy_call")
COPIES_OF_ONE_GPU = frozenset({"host_device", "local_copy", "copy_call"})
# Directions of a matrix (logs/foreign.py: Matrix).
COPY_DIRECTIONS = (
    "h2d",
    "d2h",
    "d2d",
    "bidirectional",
    "bidirectional_sum",
    "through_host",
    "through_host_sum",
    "local",
    "load",
    "calls",
)

_MOST_KNOWN = 4096
# Maps the inputs of the bounds to (header, links, bounds). Keeping header and links prevents reuse of their ids.
_known: dict[tuple[Any, ...], tuple[Header, NodeLinks, tuple[Bound, ...]]] = {}


def bounds_of(header: Header, record: Record) -> tuple[Bound, ...]:
    """Return all known bounds on the bus bandwidth of a record, the tightest first.

    The result is empty in three cases: the record has no bus bandwidth, the number of ranks or nodes is unknown, or
    several ranks shared a GPU.
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
    links = _live_copies.header_links(header)
    if links is not None:
        useful_bytes = record.payload_bytes * record.bus_factor
        traffic = RecordTraffic(
            header, record, _of_row(header, record, links), record.num_ranks, record.num_nodes, useful_bytes
        )
        found += _link_bounds(traffic)
        found += _traffic_bound(traffic, found)
    if len(found) > 1:
        found.sort(key=lambda bound: (bound.bytes_per_s, bound.kind))
    return tuple(found)


def _link_bounds(traffic: RecordTraffic) -> Sequence[Bound]:
    """Return the bounds that ports and NICs set.

    The result is cached, because many rows have equal bytes.
    """
    record = traffic.record
    sizes = (record.payload_bytes, record.bus_factor, record.rank_bytes, record.node_bytes)
    key = (id(traffic.header), id(traffic.links), traffic.num_ranks, traffic.num_nodes, *sizes)
    known = _known.get(key)
    if known is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = (*_port_bounds(traffic), *network_bounds(traffic), *own_nic_bound(traffic))
        known = _known[key] = (traffic.header, traffic.links, found)
    return known[2]


def _traffic_bound(traffic: RecordTraffic, others: Sequence[Bound]) -> Iterator[Bound]:
    """Yield the bound that the busiest link sets, if this bound is lower than all hard bounds of the row.

    The busiest link is the link that needs the longest time for its traffic.
    """
    from bench.hardware import link_traffic  # imports numpy, which a look-up of an instance type does not need

    use = link_traffic.use_of(traffic.header, traffic.record, traffic.links, traffic.in_gpus)
    if use is None:
        return
    least = min((bound.bytes_per_s for bound in others if bound.kind == "hard"), default=inf)
    if use.busbw_bytes_per_s >= _TIGHTER * least:
        return
    source, verified = traffic.links.sources.get(use.source, "unknown"), traffic.links.verified.get(use.source, False)
    yield Bound(use.busbw_bytes_per_s, use.limit.template, "traffic", use.why, source, verified, use.limit)


def shares_gpu(header: Header, flags: Collection[str]) -> bool:
    """Check whether several ranks of a row shared a GPU. A row with a shared GPU shows nothing about links.

    `flags`: the flags of the row.
    """
    return bool(header.facts.get(Flag.SHARED_GPU)) or Flag.SHARED_GPU in flags


def _of_row(header: Header, record: Record, links: NodeLinks) -> NodeLinks:
    """Return the links between the two GPUs of a row that measures a pair.

    If the node has NVLinks, but not between these two GPUs, return the links of the node. A library may then use
    NVLinks through a third GPU.
    """
    if moves_host_memory(header.transport) or header.modelled:
        return links
    joined = _live_copies.between(header, record)
    if joined is None or (links.peer in NVLINK_PEERS and not joined.by_nvlink):
        return _live_copies.links_of_part(header, record, links)
    return replace(joined.links, nvls=links.nvls)


def _copy_bounds(header: Header, record: Record) -> tuple[Bound, ...]:
    """Return the bounds of a copy between a GPU and its host or between two GPUs.

    The bounds of a copy do not depend on its size.
    """
    if not record.bus_factor or record.num_ranks is None or moves_host_memory(header.transport):
        return ()
    if header.pattern == "host_device":
        own = _live_copies.own_links(header, record)
        return () if own is None else copy_bounds(own, "host")
    staged = (header.direction or "").startswith("through_host") or Flag.THROUGH_HOST in record.flags
    if record.num_ranks < 2 and not staged:
        return ()
    way = "through host" if staged else "peer"
    joined = _live_copies.between(header, record)
    if joined is not None:
        return tuple(
            replace(bound, why=f"{joined.why}; {bound.why}")
            for bound in copy_bounds(joined.links, way if joined.by_nvlink else "through host")
        )
    links = _live_copies.header_links(header)
    return () if links is None else copy_bounds(links, way)


def host_link_bytes_per_s(header: Header, record: Record, through_host: bool = True) -> float | None:
    """Return the rate at which each rank of a row can copy between host and GPU while all ranks copy.

    The result is None if the rate is unknown.

    `through_host`: whether the data come from host memory. If so, the GPUs on one PCIe switch share the link of the
        switch.
    """
    return _live_copies.host_link_of_each(header, record, through_host)


def floor_of(header: Header, record: Record) -> Floor | None:
    """Return the latency floor of a row, which is the shortest possible time of an isolated operation.

    The result is None if the floor is unknown. A pipelined row has no floor, because pipelined operations overlap.
    """
    if record.mode == "pipelined" or record.num_ranks is None or record.num_nodes is None or record.num_ranks < 2:
        return None
    if record.step is not None:
        return None  # most of a training step is not communication
    if shares_gpu(header, record.flags):
        return None
    steps = record.min_steps
    message_s = header.calibration.get("message_s")
    if message_s is not None:
        return Floor(steps * float(message_s), _times("ping-pong", steps), FloorKind.REFERENCE)
    links = _live_copies.header_links(header)
    if links is None:
        return None
    traffic = RecordTraffic(header, record, links, record.num_ranks, record.num_nodes, 0.0)
    if _reduces_in_node(traffic) and _keeps_to_nvlink(traffic):
        steps = min(steps, 2)  # one step up to the switch and one down again, for any number of ranks
    known = [(latency, name) for latency, name in _latencies(traffic) if latency is not None]
    if not known:
        return None
    latency, name = min(known)
    return Floor(steps * latency, _times(f"{name} latency", steps), FloorKind.LINKS)


def _latencies(traffic: RecordTraffic) -> Iterator[tuple[float | None, str]]:
    links = traffic.links
    if traffic.by_nvlink:
        yield links.peer_s, "NVLink"
    elif not traffic.one_rank_per_node:
        yield links.host_s, "host"
    if not traffic.one_node:
        yield links.network_s, "network"


def _times(what: str, steps: int) -> str:
    return f"{what} x {steps} step{'s' if steps > 1 else ''}"


def _port_bounds(traffic: RecordTraffic) -> Iterator[Bound]:
    """Yield the bounds that the ports of one rank set. A rank may have NVLink, PCIe or both."""
    if not traffic.in_gpus:
        return
    links = traffic.links
    if not traffic.by_nvlink:
        yield from _pcie_bounds(traffic)
    elif links.nvlink_bytes_per_s is not None:
        nvlink, why = _nvlink_rate(traffic)
        if _keeps_to_nvlink(traffic):
            yield from _nvlink_bounds(traffic, nvlink, 0.0, _port(links), why, ("nvlink",))
        elif links.pcie_bytes_per_s is not None:
            pcie = links.pcie_bytes_per_s
            link = "NVLink-C2C (its link to the CPU)" if pcie > _FASTEST_PCIE_BYTES_PER_S else "its PCIe link"
            why = f"{why}, and {format_rate(pcie)} by {link}"
            yield from _nvlink_bounds(traffic, nvlink, pcie, Limit.NVLINK_AND_PCIE, why, ("nvlink", "pcie"))


def _port(links: NodeLinks) -> Limit:
    return Limit.INFINITY_FABRIC_PORT if links.peer == "infinity_fabric" else Limit.NVLINK_PORT


def _keeps_to_nvlink(traffic: RecordTraffic) -> bool:
    """Check whether all traffic of the group can use NVLink."""
    if traffic.links.peer == "nvlink_pairs":
        return traffic.one_node and traffic.num_ranks == 2
    return traffic.one_node or traffic.num_nodes <= traffic.links.nvlink_nodes


def _nvlink_rate(traffic: RecordTraffic) -> tuple[float, str]:
    """Return one rank's NVLink rate inside its group in bytes per second, and the reason as text."""
    links, peers = traffic.links, traffic.num_ranks - 1
    assert links.nvlink_bytes_per_s is not None
    pairs = None if links.pair_bytes_per_s is None else peers * links.pair_bytes_per_s
    if pairs is not None and pairs < links.nvlink_bytes_per_s:
        return pairs, f"a rank has {format_rate(links.pair_bytes_per_s)} to each of {peers} peers"
    port = _port(links).template
    return links.nvlink_bytes_per_s, f"a rank's {port} carries {format_rate(links.nvlink_bytes_per_s)} each way"


def _nvlink_bounds(
    traffic: RecordTraffic, nvlink: float, pcie: float, limit: Limit, why: str, used: Sequence[str]
) -> Iterator[Bound]:
    """Yield the bounds for a rank whose ports include NVLink.

    If the switch can reduce, the `hard` bound assumes in-network reduction. If the switch can reduce, the bound without
    in-network reduction is only a `reference`. With n ranks on the switch and payload S, the switch reads S through
    each port. Each port also sends S/n, its share of the result. For a port with rate B, inside a node:

    - t >= S (1 + 1/n) / B
    - busbw <= 2 B (n-1) / (n+1)
    """
    rate, port_bytes = nvlink + pcie, traffic.port_bytes
    message = f"{why}; {format_bytes(port_bytes)} must leave through it"
    num = min(traffic.num_ranks, traffic.num_ranks // traffic.num_nodes * traffic.links.nvlink_nodes)
    reduced = nvlink * num / (num + 1) + pcie  # payload per second
    payload = traffic.record.payload_bytes
    if not _reduces_in_node(traffic) or reduced / payload <= rate / port_bytes:
        yield traffic.bound(rate, port_bytes, limit, "hard", message, used)
        return
    alone = "; the other link adds no such overhead" if pcie else ""
    reads = f"{why}; the switch reduces, so an NVLink port sends S (1 + 1/{num}) of a payload S{alone}"
    reducing, plain = _WITH_SWITCH[limit]
    yield traffic.bound(reduced, payload, reducing, "hard", reads, used)
    yield traffic.bound(rate, port_bytes, plain, "reference", message, used)


# If a switch can reduce, maps a port's limit to its limits with and without in-network reduction.
_WITH_SWITCH = {
    Limit.NVLINK_PORT: (Limit.NVLINK_PORT_REDUCING, Limit.NVLINK_PORT_NOT_REDUCING),
    Limit.NVLINK_AND_PCIE: (Limit.NVLINK_AND_PCIE_REDUCING, Limit.NVLINK_AND_PCIE_NOT_REDUCING),
}


def _reduces_in_node(traffic: RecordTraffic) -> bool:
    return traffic.header.pattern == "allreduce" and traffic.by_nvlink and traffic.links.nvls


def _pcie_bounds(traffic: RecordTraffic) -> Iterator[Bound]:
    rate = traffic.links.pcie_bytes_per_s
    if rate is None:
        return
    num_bytes = traffic.port_bytes
    message = f"carries {format_rate(rate)} each way, {format_bytes(num_bytes)} must leave through it"
    if rate > _FASTEST_PCIE_BYTES_PER_S:
        why = f"a rank's NVLink-C2C to its CPU {message}"
        yield traffic.bound(rate, num_bytes, Limit.C2C, "hard", why, ("pcie",))
        return
    why = f"a rank's PCIe link {message}"
    yield traffic.bound(rate, num_bytes, Limit.PCIE_PORT, "hard", why, ("pcie",))
    share, packets = pcie_packet_share()
    yield traffic.bound(rate * share, num_bytes, Limit.PCIE_PACKETS, "reference", f"{why}; {packets}", ("pcie",))


def _memory_bound(header: Header, record: Record) -> Iterator[Bound]:
    """Yield the bound that the host's memory sets.

    The bound uses the copy rate that this machine reached at the start of the run.

    A message through memory is copied at least once.
    """
    points: Sequence[Sequence[float]] = header.calibration.get("memcpy") or ()
    if not points or header.facts.get("memory") == "device":
        return
    assert record.bus_factor is not None
    rate = _interpolated(points, record.payload_bytes)
    useful = record.payload_bytes * record.bus_factor
    num_bytes = useful if record.rank_bytes is None else record.rank_bytes
    if not num_bytes:
        return
    why = f"while all ranks copied {record.payload_bytes} bytes, each reached {format_rate(rate)}"
    limit = Limit.MEMORY_COPY
    source = "measured at the start of this run"
    yield Bound(useful * rate / num_bytes, limit.template, "reference", why, source, code=limit)


def _interpolated(points: Sequence[Sequence[float]], num_bytes: float) -> float:
    """Interpolate the rate at a size from measured points. A point is a size in bytes and a rate in bytes per second.

    The rate is interpolated linearly in log(size). The rate is constant below the first point and above the last point.
    """
    ordered = sorted((float(size), float(rate)) for size, rate in points)
    if num_bytes <= ordered[0][0]:
        return ordered[0][1]
    for (left, low), (right, high) in pairwise(ordered):
        if num_bytes <= right:
            return low + (high - low) * log(num_bytes / left) / log(right / left)
    return ordered[-1][1]


def copy_bounds(links: NodeLinks, direction: str, both_added: bool = False) -> tuple[Bound, ...]:
    """Return the bounds on the rate of a single copy, the lowest first.

    The result is empty if the rates are unknown. Rates are in bytes per second and direction. The value of `direction`
    says which copy it is:

    `host`: between a GPU and its host.
    `peer`: between two GPUs with direct access.
    `peers`: between one GPU and several other GPUs at the same time.
    `through host`: between two GPUs without direct access.

    `both_added`: whether the figure is the sum of the rates in both directions. A link can have its full rate in both
        directions at the same time.
    """
    ways, added = (2, ", and the figure adds both directions") if both_added else (1, "")
    if direction in ("peer", "peers") and links.peer in NVLINK_PEERS:
        pair = links.pair_bytes_per_s if direction == "peer" else None
        rate = pair or links.nvlink_bytes_per_s
        if rate is None:
            return ()
        what = "the links between two GPUs carry" if pair else f"a GPU's {_port(links).template} carries"
        return (
            _of_copy(links, "nvlink", ways * rate, _port(links), "hard", f"{what} {format_rate(rate)} each way{added}"),
        )
    rate = links.pcie_bytes_per_s
    if rate is None:
        return ()
    if rate > _FASTEST_PCIE_BYTES_PER_S:
        why = f"a GPU's NVLink-C2C to its CPU carries {format_rate(rate)} each way{added}"
        return (_of_copy(links, "pcie", ways * rate, Limit.C2C, "hard", why),)
    why = f"a GPU's PCIe link carries {format_rate(rate)} each way{added}"
    hard = _of_copy(links, "pcie", ways * rate, Limit.PCIE_PORT, "hard", why)
    share, packets = pcie_packet_share()
    return (_of_copy(links, "pcie", ways * rate * share, Limit.PCIE_PACKETS, "reference", f"{why}; {packets}"), hard)


def _of_copy(links: NodeLinks, link: str, rate: float, limit: Limit, kind: str, why: str) -> Bound:
    source, verified = links.sources.get(link, "unknown"), links.verified.get(link, False)
    return Bound(rate, limit.template, kind, why, source, verified, limit)
