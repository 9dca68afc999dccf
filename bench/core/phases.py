"""What a schedule is made of: a collective of one group in, phases of messages that run together out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.core.fabric import Flow


@dataclass(frozen=True, slots=True)
class Phase:
    """Messages begun together, `repeat` times in a row."""

    repeat: int
    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One collective of one group. `ranks[m]` is the world rank of member m; `root` is a member.

    `split[i][j]`: bytes from member i to member j (alltoallv only). `reduces`: the node's switch combines (NVLS).
    `mesh`: the node's GPUs are joined pair by pair.
    `alike`: the way to one node is as long as to any other, so that one may stand for all.
    """

    ranks: tuple[int, ...]
    ranks_per_node: int
    payload_bytes: float
    root: int = 0
    split: tuple[tuple[int, ...], ...] = ()
    reduces: bool = False
    alike: bool = False
    mesh: bool = False

    @property
    def num(self) -> int:
        """n."""
        return len(self.ranks)

    @property
    def block_bytes(self) -> float:
        """S/n."""
        return self.payload_bytes / self.num

    def nodes(self) -> list[list[int]]:
        """The ranks of each node, in member order."""
        found: dict[int, list[int]] = {}
        for rank in self.ranks:
            found.setdefault(rank // self.ranks_per_node, []).append(rank)
        return list(found.values())

    def even_nodes(self) -> list[list[int]] | None:
        """The ranks of each node when all nodes have as many of the group, else None."""
        nodes = self.nodes()
        return nodes if len({len(ranks) for ranks in nodes}) == 1 else None


Phases = list[Phase]


def backwards(phases: Phases) -> Phases:
    """The same messages the other way round, last phase first."""
    return [Phase(each.repeat, tuple((b, a, size) for a, b, size in each.flows)) for each in reversed(phases)]


def scaled(flows: Iterable[Flow], part: float) -> tuple[Flow, ...]:
    """The same messages with `part` of their bytes."""
    return tuple((source, target, part * num_bytes) for source, target, num_bytes in flows)
