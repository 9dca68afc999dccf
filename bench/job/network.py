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


def pattern_of(one: MatchedCollective) -> str | None:
    """Return the pattern of this suite that does what a collective did; None if there is none."""
    return _PATTERNS.get(one.op)


def size_of(one: MatchedCollective) -> int:
    """Return the number of ranks of a collective."""
    return one.group_size or len(one.parts)


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

    refusal: UsageError | None = None  # why an exchange could not be predicted: an unknown rate

    def alone(self, one: MatchedCollective, blocks: bool = True) -> Prediction | None:
        """Return what one collective takes alone; None if its size is unknown or its kind cannot be predicted.

        blocks: whether a rank waits for it before it issues another; predictions make no difference.
        """
        pattern = pattern_of(one)
        size = size_of(one)
        if pattern is None or not one.num_bytes or size < 2:
            return None
        nodes = self._num_nodes(one)
        key = (pattern, one.num_bytes, nodes, -(-size // nodes))
        if key not in self._known:
            self._known[key] = self._predicted(*key)
        return self._known[key]

    def rested(self, one: MatchedCollective, idle_s: float) -> float:
        """Return 1: nothing is known of these links after a rest."""
        return 1.0

    @cached_property
    def _known(self) -> dict[tuple[str, int, int, int], Prediction | None]:
        return {}

    def _predicted(self, pattern: str, num_bytes: int, num_nodes: int, per_node: int) -> Prediction | None:
        if pattern not in predict.patterns():
            return None
        try:
            return predict.collective(pattern, num_bytes, self.links, num_nodes, per_node, self.evidence)
        except UsageError as error:
            self.refusal = self.refusal or error
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
