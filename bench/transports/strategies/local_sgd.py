"""Train with local SGD. Each rank changes its own weights for some steps.

At the end of the period, all ranks average their weights. The method is that of Stich, "Local SGD Converges Fast and
Communicates Little" (ICLR 2019). In post-local SGD, the first steps are as in ddp (Lin et al., "Don't Use Large
Mini-Batches, Use Local SGD", ICLR 2020). A row shows the mean step of one period.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.core.strategies import StrategyTraits
from bench.transports.strategies._replica import Build, HeldGradient
from bench.transports.strategies._weights import OwnWeights

TRAITS = StrategyTraits(
    exact=False, vectors="own", obeys=("period", "post_local", "micro_batches", "trained", "compiled")
)


class LocalSgd(OwnWeights):
    """At the end of each period, the ranks average all weights with one allreduce."""

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        self.round_steps = build.case.period
        self._group, self._num_steps = build.everyone(), 0

    def update(self) -> None:
        """Change the weights. Average the weights at the end of a period.

        Before local steps begin (post-local SGD), average the gradients instead.
        """
        self._num_steps += 1
        if self.build.learning_rate and self._num_steps <= self.build.case.post_local:
            self._average([weight.grad for weight in self.trained()])
            self.change()
            return
        self.change()
        if self._num_steps % self.round_steps == 0:
            self._average(self.trained())

    def held(self) -> Iterator[HeldGradient]:
        """Yield this rank's gradients and weights. After a probe, yield only the weights."""
        if self.is_probed:
            yield from self.moved("all", range(self.build.num_ranks))
        else:
            yield from self.own_gradients()
            yield HeldGradient("weights", self.flat(self.trained()))

    def _average(self, values: Sequence[Any]) -> None:
        vector = self.flat(values)
        self.build.torch.distributed.all_reduce(vector, group=self._group)
        self.copy_back(vector.div_(self.build.num_ranks), values)


STRATEGY = LocalSgd
