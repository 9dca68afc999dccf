"""What the exchanges of a job would take alone on given links: the bound, and what others or the own run measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.job.model import MatchedCollective, TracedJob
from bench.predict import predict
from bench.predict.predict import EfficiencyEvidence, Prediction

_PATTERNS = {
    "allreduce": "allreduce",
    "reduce_scatter": "reducescatter",
    "allgather": "allgather",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}


@dataclass
class Network:
    """Links of a node, and the evidence of what libraries reach on them.

    name: of the machine. ranks_per_node: how the ranks are placed on it; None if the job ran on it as recorded.
    """

    name: str
    links: NodeLinks
    evidence: EfficiencyEvidence
    job: TracedJob
    ranks_per_node: int | None = None

    def alone(self, one: MatchedCollective) -> Prediction | None:
        """Return what one collective takes alone; None if its size is unknown or its kind cannot be predicted."""
        pattern = _PATTERNS.get(one.op)
        size = one.group_size or len(one.parts)
        if pattern is None or not one.num_bytes or size < 2:
            return None
        nodes = self._num_nodes(one)
        key = (pattern, one.num_bytes, nodes, -(-size // nodes))
        if key not in self._known:
            self._known[key] = self._predicted(*key)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[str, int, int, int], Prediction | None]:
        return {}

    def _predicted(self, pattern: str, num_bytes: int, num_nodes: int, per_node: int) -> Prediction | None:
        if pattern not in predict.patterns():
            return None
        try:
            return predict.collective(pattern, num_bytes, self.links, num_nodes, per_node, self.evidence)
        except UsageError:
            return None

    def _num_nodes(self, one: MatchedCollective) -> int:
        """Return the number of nodes of a group: as placed, else by the files' hosts, else by the ranks' numbers."""
        if self.ranks_per_node is not None and one.complete:
            return len({rank // self.ranks_per_node for rank in one.parts})
        hosts = {self.job.traces[rank].host for rank in one.parts}
        if None not in hosts and one.complete:
            return len(hosts)
        size = one.group_size or len(one.parts)
        members = next((part.members for part in one.parts.values() if part.members), None)
        if members:
            return len({rank // (self.ranks_per_node or self.links.gpus) for rank in members})
        return max(1, -(-size // (self.ranks_per_node or self.links.gpus)))

    def copy_rate(self, direction: str) -> float:
        """Return the least rate of copies between host and one GPU, bytes/s, that others measured on such a link."""
        size = float(1 << 28)
        return size / predict.copy(direction, size, self.links, self.evidence).high_s
