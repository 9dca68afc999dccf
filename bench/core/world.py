"""How many ranks there are, on how many nodes, and which one this process is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class World:
    """`num_nodes` nodes of `ranks_per_node` ranks each; ranks are numbered node by node."""

    num_nodes: int
    ranks_per_node: int

    @property
    def num_ranks(self) -> int:
        """All ranks together."""
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One rank's place, as its launcher told it. `rendezvous` is (address, port) where the launcher gives one."""

    rank: int
    num_ranks: int
    local_rank: int
    local_size: int
    launcher: str
    rendezvous: tuple[str, int] | None = None
