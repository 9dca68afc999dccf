"""Each rank sends its gradients to all other ranks and continues. A rank waits only for ranks that are too far behind.

The method is bounded staleness (Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server", NeurIPS 2013). A rank applies its own gradients at once, and the gradients of other ranks exactly `--staleness`
steps later. A run therefore gives the same result when it is repeated. Ranks do not wait longer than in a method that
applies gradients as soon as they arrive. A row shows the mean step of a round. The last step of a round waits for all
gradients and applies them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.core.strategies import StrategyTraits
from bench.transports.strategies._replica import Build, HeldGradient
from bench.transports.strategies._weights import OwnWeights, of_rank

TRAITS = StrategyTraits(exact=False, vectors="all", obeys=("staleness", "micro_batches", "trained", "compiled"))

# Steps of a round for each step of staleness. No later step hides the exchanges of the last quarter of a round.
_ROUND = 4
_TAGS = 1 << 10


class AsyncSgd(OwnWeights):
    """Sends one message with all gradients to every other rank in each step."""

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        self.round_steps = _ROUND * build.case.staleness
        self._group, self._num_steps = build.everyone(), 0
        self._others = [rank for rank in range(build.num_ranks) if rank != build.rank]
        self._pending: deque[_Sent] = deque()
        self._applied: dict[int, Any] = {}

    @property
    def probe_rate(self) -> float:
        """The number of ranks.

        At this learning rate, a step changes the weights by the sum of all ranks' gradients. The gradients of timed
        layers are whole numbers, so their sum has no rounding error.
        """
        return float(self.build.num_ranks)

    def update(self) -> None:
        """Send and apply this rank's gradients. Apply the other ranks' gradients from `staleness` steps ago."""
        dist, torch = self.build.torch.distributed, self.build.torch
        own, rate = self.flat([weight.grad for weight in self.trained()]), self.next_rate()
        tag = self._num_steps % _TAGS
        received = {rank: torch.full_like(own, float("nan")) for rank in self._others}
        receives = [dist.P2POp(dist.irecv, vector, rank, self._group, tag) for rank, vector in received.items()]
        sends = [dist.P2POp(dist.isend, own, rank, self._group, tag) for rank in self._others]
        works = dist.batch_isend_irecv([*receives, *sends]) if sends else []  # one rank has no others
        self._pending.append(_Sent(works, received, rate))
        self._num_steps += 1
        self._apply(own, rate)
        is_last = self._num_steps % self.round_steps == 0
        while len(self._pending) > (0 if is_last else self.build.case.staleness):
            oldest = self._pending.popleft()
            for work in oldest.works:
                work.wait()
            self._applied = oldest.received
            for vector in oldest.received.values():
                self._apply(vector, oldest.rate)

    def held(self) -> Iterator[HeldGradient]:
        """Yield the gradients of all ranks in the last step.

        After a probe, yield the weights instead of the gradients, if the exact values of the weights are known.
        """
        num_ranks = self.build.num_ranks
        if self.is_probed and self.knows_gradients:
            yield from self.moved("all", range(num_ranks), factor=float(num_ranks))
            return
        yield from self.own_gradients()
        for rank, vector in self._applied.items():
            yield from self.in_vector(of_rank(rank), vector, (rank,))

    def _apply(self, vector: Any, rate: float) -> None:
        """Change the weights by one rank's gradients, divided by the number of ranks."""
        weights = self.trained()
        for piece, weight in zip(vector.split([one.numel() for one in weights]), weights, strict=True):
            weight.detach().add_(piece.view_as(weight), alpha=-rate / self.build.num_ranks)


@dataclass(slots=True)
class _Sent:
    """The gradients of one step while they are in flight between ranks.

    `works`: the torch operations to wait for.
    `received`: for each sender, the gradients that this rank receives.
    """

    works: list[Any]
    received: dict[int, Any]
    rate: float


STRATEGY = AsyncSgd
