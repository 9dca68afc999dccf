"""One record beside the links it ran on: what bounds and latency floors ask of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.core.links import NVLINK_PEERS, Bound, NodeLinks
from bench.core.log_traits import log_traits
from bench.core.record import Header, Record
from bench.core.traits import traits


def moves_host_memory(transport: str) -> bool:
    """Does this transport, or the tool of an imported row, move host memory? A GPU's ports do not bound it."""
    return traits(transport).host_memory or log_traits(transport).host_memory


@dataclass(frozen=True, slots=True)
class RecordTraffic:
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
        """Has no node two ranks of the group?"""
        return self.num_ranks == self.num_nodes

    @property
    def in_gpus(self) -> bool:
        """Do the bytes begin and end in GPUs that have ports?"""
        of_host = moves_host_memory(self.header.transport) and self.header.facts.get("memory") != "device"
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
