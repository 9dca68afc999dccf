"""Train with experts that different ranks hold.

The ranks of a mesh row hold different experts and exchange tokens with each other. All other layers are as in ddp.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from bench.core.strategies import StrategyTraits
from bench.transports.strategies import _hooks
from bench.transports.strategies._replica import WHOLE, Build, HeldGradient, Replica, Share, Span

TRAITS = StrategyTraits(inner="experts", obeys=("mesh", "order", "bucket", "bucket_view", "micro_batches", "sync_each"))


class Expert(Replica):
    """In each pass, the ranks exchange tokens twice per expert layer.

    Each row of the mesh holds a copy of all experts.
    """

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        grid, torch = build.grid, build.torch
        _, column = grid.place(build.rank)
        self._share = Share("experts", column, grid.inner, build.groups.of(grid.rows()))
        self._copies = build.groups.of(grid.columns())
        self._layers = torch.nn.Sequential(*build.blocks(self._share))
        names = tuple(name for name, weight in self._layers.named_parameters() if _of_expert(weight))
        self._experts = [weight for weight in self._layers.parameters() if _of_expert(weight)]
        self.model, self.exchanged = _hooks.parallel(build, self._layers, build.everyone(), names)
        self.optimizer = build.optimizer(self.model.parameters())

    def deferring(self) -> AbstractContextManager[Any]:
        """Keep the gradients of all weights outside the experts on this rank."""
        context: AbstractContextManager[Any] = self.model.no_sync()
        return context

    def passes(self, inputs: Any, targets: Any) -> list[Span]:
        """Run the passes.

        After the backward pass, sum the gradients of experts over all copies, and divide the sums by the number of all
        ranks.
        """
        spans, build = super().passes(inputs, targets), self.build
        began = self.build.place.mark()
        for weight in self._experts:
            if build.grid.outer > 1:
                build.torch.distributed.all_reduce(weight.grad, group=self._copies)
            weight.grad.div_(build.num_ranks)
        return [*spans, ("backward", began, self.build.place.mark())]

    def blocks(self) -> list[tuple[int, Any]]:
        """Return all blocks."""
        return list(enumerate(self._layers))

    def held(self) -> Iterator[HeldGradient]:
        """Yield the gradients of all layers.

        All ranks of a mesh column hold the same experts. All ranks hold the other layers.
        """
        grid, source = self.build.grid, self.build.source
        for number, block in self.blocks():
            for index, weight in enumerate(block.parameters()):
                if _of_expert(weight):
                    column = grid.columns()[self._share.place]
                    expected = source.expected(self._share, number, index, column, weight.shape)
                    yield HeldGradient(f"expert {self._share.place}", weight.grad, expected)
                else:
                    expected = source.expected(WHOLE, number, index, tuple(grid.ranks), weight.shape)
                    yield HeldGradient("all", weight.grad, expected, self.build.num_ranks)


def _of_expert(weight: Any) -> bool:
    return bool(getattr(weight, "of_expert", False))


STRATEGY = Expert
