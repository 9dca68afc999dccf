"""While a rank computes its passes, it exchanges weights with its two neighbours in a ring.

After the passes, the rank averages its own weights and the received weights. The method is algorithm 1 of Lian et al.,
"Can Decentralized Algorithms Outperform Centralized Algorithms?" (NeurIPS 2017). Each rank sends its current weights
while it computes the gradient at these weights. To get the new weights, the rank averages its weights with those of its
neighbours, and applies its gradient to the average.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.core.strategies import StrategyTraits
from bench.transports.strategies._replica import Build, HeldGradient, Span
from bench.transports.strategies._weights import OwnWeights, of_rank

TRAITS = StrategyTraits(exact=False, vectors="neighbours", obeys=("order", "micro_batches", "trained", "compiled"))


class Gossip(OwnWeights):
    """Sends all weights to both neighbours in each step. A rank waits only for its neighbours."""

    probe_rounds = 2  # what the first step changes is sent in the second

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        ranks = build.grid.ranks
        place = ranks.index(build.rank)
        self._group = build.everyone()
        self._neighbours = sorted({ranks[place - 1], ranks[(place + 1) % len(ranks)]} - {build.rank})
        self._sent: Any = None
        self._received: dict[int, Any] = {}
        self._works: list[Any] = []

    def passes(self, inputs: Any, targets: Any) -> list[Span]:
        """Send the weights to the neighbours, and compute the gradients at the same time."""
        dist, began = self.build.torch.distributed, self.build.place.mark()
        self._sent = self.flat(self.trained())
        self._received = {rank: self.build.torch.full_like(self._sent, float("nan")) for rank in self._neighbours}
        receives = [dist.P2POp(dist.irecv, vector, rank, self._group) for rank, vector in self._received.items()]
        sends = [dist.P2POp(dist.isend, self._sent, rank, self._group) for rank in self._neighbours]
        self._works = dist.batch_isend_irecv([*receives, *sends]) if sends else []  # one rank has no neighbours
        posted = self.build.place.mark()
        return [("optimizer", began, posted), *super().passes(inputs, targets)]

    def update(self) -> None:
        """Wait for the neighbours' weights, compute the average, and apply this rank's gradients to the average."""
        for work in self._works:
            work.wait()
        total = self._sent.clone()
        for vector in self._received.values():
            total += vector
        self.copy_back(total.div_(1 + len(self._received)), self.trained())
        self.change()

    def held(self) -> Iterator[HeldGradient]:
        """Yield this rank's gradients, or the averaged weights after a probe.

        Also yield the weights that this rank sent and received.
        """
        rank = self.build.rank
        if self.is_probed:
            yield from self.moved(f"around {of_rank(rank)}", (rank, *self._neighbours))
        else:
            yield from self.own_gradients()
        for sender, vector in {rank: self._sent, **self._received}.items():
            yield HeldGradient(f"weights of {of_rank(sender)}", vector)


STRATEGY = Gossip
