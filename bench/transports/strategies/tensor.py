"""Train with tensor parallelism. The ranks of a mesh row divide each layer, and sum the activations of the layer.

The rows of the mesh hold copies of the model, and average their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.core.strategies import StrategyTraits
from bench.transports.strategies import _hooks
from bench.transports.strategies._replica import Build, HeldGradient, Replica, Share, held_alike

TRAITS = StrategyTraits(inner="tensors", obeys=("mesh", "order", "bucket", "bucket_view", "micro_batches"))


class TensorReplica(Replica):
    """Divides layers as in Megatron.

    In each pass, a transformer layer sums activations twice: in its attention block and in its feed-forward block. Rows
    work like ddp.
    """

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        grid = build.grid
        _, column = grid.place(build.rank)
        self._share = Share("tensors", column, grid.inner, build.groups.of(grid.rows()))
        self._layers = build.torch.nn.Sequential(*build.blocks(self._share))
        self.model = self._layers
        copies = build.groups.of(grid.columns())
        if grid.outer > 1:
            self.model, self.exchanged = _hooks.parallel(build, self._layers, copies)
        self.optimizer = build.optimizer(self.model.parameters())

    def blocks(self) -> list[tuple[int, object]]:
        """Return all blocks."""
        return list(enumerate(self._layers))

    def held(self) -> Iterator[HeldGradient]:
        """Yield this rank's part of each layer. All ranks of a mesh column hold the same part."""
        grid = self.build.grid
        column = grid.columns()[self._share.place]
        part = f"tensor {self._share.place}"
        yield from held_alike(self, part, self._share, column, shared=True, num_rounded=grid.outer)


STRATEGY = TensorReplica
