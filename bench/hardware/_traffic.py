"""Combine a record with the links that it used.

Bounds on rates and floors of latencies are computed from this input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.core.links import NVLINK_PEERS, Bound, Limit, NodeLinks
from bench.core.log_traits import log_traits
from bench.core.record import Header, Record
from bench.core.traits import traits


def moves_host_memory(transport: str) -> bool:
    """Check whether this transport, or the tool of an imported row, moves host memory.

    Data in host memory do not pass through the ports of a GPU. The rates of the ports therefore do not limit a row
    whose data are in host memory.
    """
    return traits(transport).host_memory or log_traits(transport).host_memory


@dataclass(slots=True)  # not frozen: each row makes one or two, and making a frozen one takes four times as long
class RecordTraffic:
    """A record, its header and the links that it used: the input for bounds and latency floors."""

    header: Header
    record: Record
    links: NodeLinks
    num_ranks: int
    num_nodes: int
    useful_bytes: float  # S x factor, as counted by the bus bandwidth

    @property
    def port_bytes(self) -> float:
        """The bytes that pass through one rank's port, per direction.

        If the record does not state these bytes, they are payload x bus factor, by the definition of the bus factor.
        """
        return self.useful_bytes if self.record.rank_bytes is None else self.record.rank_bytes

    @property
    def one_node(self) -> bool:
        """Whether all bytes stay inside nodes.

        A group may have ranks on several nodes although all its messages stay inside nodes.
        """
        return self.num_nodes == 1 or self.record.node_bytes == 0

    @property
    def one_rank_per_node(self) -> bool:
        """Whether every node has exactly one rank of the group."""
        return self.num_ranks == self.num_nodes

    @property
    def in_gpus(self) -> bool:
        """Whether the data are in GPU memory, so that they leave a rank through the ports of its GPU."""
        of_host = moves_host_memory(self.header.transport) and self.header.facts.get("memory") != "device"
        return self.links.peer != "memory" and not of_host

    @property
    def by_nvlink(self) -> bool:
        """Whether some of the traffic can use NVLink."""
        inside = not self.one_rank_per_node or self.links.nvlink_nodes > 1
        return self.in_gpus and inside and self.links.peer in NVLINK_PEERS

    def bound(self, rate: float, num_bytes: float, limit: Limit, kind: str, why: str, used: Sequence[str]) -> Bound:
        """Return the bound on the bus bandwidth that a link sets.

        `rate`: the bytes per second of the link.
        `num_bytes`: the bytes that must cross the link.

        `used`: the links (keys of NodeLinks.sources) whose rates the bound uses.
        """
        sources = dict.fromkeys(self.links.sources[link] for link in used if link in self.links.sources)
        return Bound(
            bytes_per_s=self.useful_bytes * rate / num_bytes,
            name=limit.template,
            kind=kind,
            why=why,
            source="; ".join(sources) or "unknown",
            verified=all(self.links.verified.get(link, False) for link in used),
            code=limit,
        )
