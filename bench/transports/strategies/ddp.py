"""Train with DDP: every rank holds the whole model, and buckets of gradients are averaged during the backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from bench.core.strategies import StrategyTraits
from bench.transports.strategies import _hooks
from bench.transports.strategies._replica import WHOLE, Build, Replica

TRAITS = StrategyTraits(obeys=("bucket", "bucket_view", "hook", "micro_batches", "sync_each", "trained", "compiled"))


class Ddp(Replica):
    """torch's DistributedDataParallel."""

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        module = build.torch.nn.Sequential(*build.blocks(WHOLE))
        self.model, self.exchanged = _hooks.parallel(build, module, build.everyone())
        self.optimizer = build.optimizer(self.model.parameters())

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


STRATEGY = Ddp
