"""Train with ZeRO-1. Each rank updates a part of the weights, and broadcasts the updated part.

All other work is as in ddp.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from bench.core.strategies import StrategyTraits
from bench.transports.strategies import _hooks
from bench.transports.strategies._replica import WHOLE, Build, Replica

TRAITS = StrategyTraits(obeys=("bucket", "bucket_view", "hook", "micro_batches", "sync_each", "trained", "compiled"))


class Zero1Replica(Replica):
    """Uses torch's ZeroRedundancyOptimizer.

    After a step, each rank broadcasts the part of the weights that it has updated.
    """

    def __init__(self, build: Build) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        super().__init__(build)
        module = build.torch.nn.Sequential(*build.blocks(WHOLE))
        self.model, self.exchanged = _hooks.parallel(build, module, build.everyone())
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]  # only these are broadcast
        self.optimizer = ZeroRedundancyOptimizer(
            trained, build.torch.optim.SGD, process_group=build.everyone(), lr=build.learning_rate
        )

    def blocks(self) -> list[tuple[int, Any]]:
        """Return all blocks."""
        return list(enumerate(self.model.module))

    def own_log(self) -> Mapping[str, float]:
        """Return the times that torch's own logger recorded."""
        return _hooks.logged(self.model)

    def deferring(self) -> AbstractContextManager[Any]:
        """Keep gradients on this rank."""
        context: AbstractContextManager[Any] = self.model.no_sync()
        return context


STRATEGY = Zero1Replica
