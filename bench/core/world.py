"""The number of ranks and nodes, and the rank of this process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class World:
    """`num_nodes` nodes with `ranks_per_node` ranks each. Ranks are numbered node by node."""

    num_nodes: int
    ranks_per_node: int

    @property
    def num_ranks(self) -> int:
        """The number of all ranks."""
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One rank as its launcher describes it.

    `rendezvous`: the (address, port) where the ranks meet, if the launcher reports it.
    """

    rank: int
    num_ranks: int
    local_rank: int
    local_size: int
    launcher: str
    rendezvous: tuple[str, int] | None = None
