"""Compute bounds from the bytes that must leave a node, a rank or an NVLink domain through NICs."""

from __future__ import annotations

from collections.abc import Iterator

from bench.core.links import Bound, Limit
from bench.core.units import format_bytes, format_rate
from bench.hardware._traffic import RecordTraffic


def network_bounds(traffic: RecordTraffic) -> Iterator[Bound]:
    """Yield the bounds that the NICs of a node set, from the bytes that must leave the node."""
    links, record = traffic.links, traffic.record
    if not record.node_bytes or links.nic_bytes_per_s is None or links.num_nics is None:
        return
    if _by_nvlink_between_nodes(traffic):
        yield from _domain_bounds(traffic, links.num_nics * links.nic_bytes_per_s)
        return
    rate = links.num_nics * links.nic_bytes_per_s
    nics = "NIC carries" if links.num_nics == 1 else f"{links.num_nics} NICs carry"
    node = f"a node's {nics} {format_rate(rate)} each way"
    why = f"{node}, {format_bytes(record.node_bytes)} must leave it with any algorithm of sends and receives"
    # A reducing switch reads S from each node and returns S, for any number of nodes.
    if links.network_reduces and traffic.header.pattern == "allreduce" and record.node_bytes > record.payload_bytes:
        reads = f"{node}; switches that reduce need S from each"
        yield traffic.bound(rate, record.payload_bytes, Limit.NETWORK_REDUCING, "hard", reads, ("network",))
        yield traffic.bound(rate, record.node_bytes, Limit.NETWORK, "reference", why, ("network",))
    else:
        yield traffic.bound(rate, record.node_bytes, Limit.NETWORK, "hard", why, ("network",))


def own_nic_bound(traffic: RecordTraffic) -> Iterator[Bound]:
    """Yield the bound that a rank's own NICs set. The bound applies to groups with one rank per node.

    A rank uses only its share of the node's NICs, even if it is the only rank of its group on the node.
    """
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
    yield traffic.bound(rate, traffic.port_bytes, Limit.OWN_NICS, "hard", why, ("nic",))


def _by_nvlink_between_nodes(traffic: RecordTraffic) -> bool:
    """Check whether NVLink may join some of these nodes. NVLink may then carry some of the bytes that leave a node."""
    return traffic.links.nvlink_nodes > 1 and traffic.in_gpus


def _domain_bounds(traffic: RecordTraffic, node_rate: float) -> Iterator[Bound]:
    """Yield the bounds that all NICs together set, from the bytes that must cross between NVLink domains.

    It is unknown which nodes share a domain. The bounds therefore assume as few domains as possible, because then the
    fewest bytes must cross. If all nodes can be in one domain, the function yields no bound.
    """
    num_domains = -(-traffic.num_nodes // traffic.links.nvlink_nodes)
    crossing = _between_domains(traffic, num_domains)
    if num_domains < 2 or crossing is None:
        return
    rate = traffic.num_nodes * node_rate
    nics = (
        f"{traffic.num_nodes} nodes are at least {num_domains} NVLink domains; all their NICs carry {format_rate(rate)}"
    )
    why = f"{nics}, {format_bytes(crossing)} must cross between domains with any algorithm of sends and receives"
    reduced = num_domains * traffic.record.payload_bytes
    reduces = traffic.links.network_reduces and traffic.header.pattern == "allreduce" and crossing > reduced
    if reduces:
        reads = f"{nics}; switches that reduce need S from each domain"
        yield traffic.bound(rate, reduced, Limit.DOMAINS_REDUCING, "hard", reads, ("network",))
    kind = "reference" if reduces else "hard"
    yield traffic.bound(rate, crossing, Limit.DOMAINS, kind, why, ("network",))


def _between_domains(traffic: RecordTraffic, num_domains: int) -> float | None:
    """Return how many bytes must leave the NVLink domains, summed over all domains. None if there is no formula.

    With k domains and payload S, an allgather or a reducescatter sends at least (k - 1) S between domains. An allreduce
    sends at least 2 (k - 1) S. In an alltoall, every rank divides S into equal parts, one for each rank. The share of S
    that goes to other domains is smallest if all domains except one are full.
    """
    size, pattern = traffic.record.payload_bytes, traffic.header.pattern
    if pattern in ("allreduce", "allgather", "reducescatter"):
        return (2 if pattern == "allreduce" else 1) * (num_domains - 1) * size
    if pattern != "alltoall":
        return None
    full = traffic.links.nvlink_nodes / traffic.num_nodes
    shares = [full] * (num_domains - 1) + [1 - full * (num_domains - 1)]
    return traffic.num_ranks * size * (1 - sum(share * share for share in shares))
