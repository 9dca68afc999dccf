"""Train with tensor parallelism within each row of the mesh, and with fsdp2 within each column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from bench.core.strategies import StrategyTraits
from bench.transports.strategies import _sharded
from bench.transports.strategies._replica import Build, HeldGradient, Replica, Share, is_divided

TRAITS = StrategyTraits(inner="tensors", pairs=True, obeys=("mesh", "order", "micro_batches", "sync_each"))


class TensorFsdp(Replica):
    """Layers divided among the ranks of a row. The column shards each part."""

    def __init__(self, build: Build) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        super().__init__(build)
        grid = build.grid
        self._row, column = grid.place(build.rank)
        self._share = Share("tensors", column, grid.inner, build.groups.of(grid.rows()))
        mesh = DeviceMesh.from_group(build.groups.of(grid.columns()), build.place.kind, mesh_dim_names=("shard",))
        blocks = build.blocks(self._share)
        self._whole = {
            (number, index)
            for number, block in enumerate(blocks)
            for index, weight in enumerate(block.parameters())
            if not is_divided(weight)
        }
        self.model = _sharded.sharded(build, blocks, mesh)
        self.optimizer = build.optimizer(self.model.parameters())

    def deferring(self) -> AbstractContextManager[Any]:
        """Keep complete gradients on this rank."""
        return _sharded.deferring(self.model)

    def held(self) -> Iterator[HeldGradient]:
        """Yield the gradients of this rank's shards. Each of them is a shard of this rank's part of a layer."""
        grid, share = self.build.grid, self._share
        column = grid.columns()[share.place]
        part = f"tensor {share.place}, shard {self._row}"
        yield from _sharded.held_shards(self, part, share, column, self._row, grid.outer, self._whole)


STRATEGY = TensorFsdp
