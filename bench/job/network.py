"""Estimate how long each exchange of a job takes in isolation on given links, from link rates and measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.job.model import MatchedCollective, TracedJob
from bench.predict import predict
from bench.predict.candidate import shared_links
from bench.predict.layout import CommGroup
from bench.predict.predict import EfficiencyEvidence, Prediction

_PATTERNS = {
    "allreduce": "allreduce",
    "reduce_scatter": "reducescatter",
    "allgather": "allgather",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}


def pattern_of(one: MatchedCollective) -> str | None:
    """Return linkbench's pattern for a collective; None if linkbench has no such pattern."""
    return _PATTERNS.get(one.op)


def size_of(one: MatchedCollective) -> int:
    """Return the number of ranks of a collective."""
    return one.group_size or len(one.parts)


@dataclass
class Network:
    """The links of a node, and evidence for the rates that libraries reach on them.

    `name`: the name of the machine.
    `ranks_per_node`: the number of ranks on each node of the machine; None if the job was recorded on this machine.
    """

    name: str
    links: NodeLinks
    evidence: EfficiencyEvidence
    job: TracedJob
    ranks_per_node: int | None = None

    refusal: UsageError | None = None  # why an exchange could not be predicted: a rate is unknown

    def alone(self, one: MatchedCollective, blocks: bool = True) -> Prediction | None:
        """Return the time of one collective in isolation; None if its size is unknown or its type cannot be predicted.

        `blocks`: not used, because predictions do not depend on whether a rank waits for the collective.
        """
        pattern = pattern_of(one)
        size = size_of(one)
        if pattern is None or not one.num_bytes or size < 2:
            return None
        nodes = self._num_nodes(one)
        group = CommGroup("traced", nodes, -(-size // nodes), self._num_beside(one))
        key = (pattern, one.num_bytes, group)
        if key not in self._known:
            self._known[key] = self._predicted(*key)
        return self._known[key]

    def rested(self, one: MatchedCollective, idle_s: float) -> float:
        """Return 1, because the effect of an idle time on these links is unknown."""
        return 1.0

    @cached_property
    def _known(self) -> dict[tuple[str, int, CommGroup], Prediction | None]:
        return {}

    def _predicted(self, pattern: str, num_bytes: int, group: CommGroup) -> Prediction | None:
        if pattern not in predict.patterns():
            return None
        links = shared_links(self.links, group)
        try:
            return predict.collective(pattern, num_bytes, links, group.num_nodes, group.per_node, self.evidence)
        except UsageError as error:
            self.refusal = self.refusal or error
            return None

    def _num_beside(self, one: MatchedCollective) -> int:
        """Return how many groups run the same collective on the same nodes at the same time.

        With tensor parallelism, for example, each node has several data-parallel groups, which share the node's NICs.
        """
        nodes = self._nodes(one)
        return len(self._groups[one.op, one.num_bytes, nodes]) if nodes and len(nodes) > 1 else 1

    @cached_property
    def _groups(self) -> Mapping[tuple[str, int | None, frozenset[object] | None], set[str]]:
        found: dict[tuple[str, int | None, frozenset[object] | None], set[str]] = {}
        for one in self.job.collectives:
            found.setdefault((one.op, one.num_bytes, self._nodes(one)), set()).add(one.group)
        return found

    def _nodes(self, one: MatchedCollective) -> frozenset[object] | None:
        """Return the nodes of a collective, from the placement or from the hosts in the files.

        Return None if unknown.
        """
        if not one.complete:
            return None
        if self.ranks_per_node is not None:
            return frozenset(rank // self.ranks_per_node for rank in one.parts)
        hosts = frozenset(self.job.traces[rank].host for rank in one.parts)
        return None if None in hosts else hosts

    def _num_nodes(self, one: MatchedCollective) -> int:
        """Return the number of nodes of a group, from the placement, the hosts in the files, or the rank numbers."""
        nodes = self._nodes(one)
        if nodes is not None:
            return len(nodes)
        size = size_of(one)
        members = next((part.members for part in one.parts.values() if part.members), None)
        if members:
            return len({rank // (self.ranks_per_node or self.links.gpus) for rank in members})
        return max(1, -(-size // (self.ranks_per_node or self.links.gpus)))

    def copy_rate(self, direction: str) -> float:
        """Return the low end of the predicted rate of host-device copies, in bytes per second."""
        size = float(1 << 28)
        return size / predict.copy(direction, size, self.links, self.evidence).high_s
