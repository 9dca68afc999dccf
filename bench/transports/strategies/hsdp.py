"""Train with HSDP. Each row of the mesh works like fsdp2.

The rows of the mesh hold copies of the model, and average their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from bench.core.strategies import StrategyTraits
from bench.transports.strategies import _sharded
from bench.transports.strategies._replica import WHOLE, Build, HeldGradient, Replica

TRAITS = StrategyTraits(inner="shards", pairs=True, obeys=("mesh", "order", "micro_batches", "sync_each"))


class Hsdp(Replica):
    """Uses torch's fully_shard over a mesh with two dimensions, replicate and shard."""

    def __init__(self, build: Build) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        super().__init__(build)
        grid = build.grid
        groups = [build.groups.of(grid.columns()), build.groups.of(grid.rows())]
        mesh = DeviceMesh.from_group(
            groups, build.place.kind, build.torch.tensor(grid.rows()), mesh_dim_names=("replicate", "shard")
        )
        self.model = _sharded.sharded(build, build.blocks(WHOLE), mesh)
        self.optimizer = build.optimizer(self.model.parameters())

    def deferring(self) -> AbstractContextManager[Any]:
        """Keep complete gradients on this rank."""
        return _sharded.deferring(self.model)

    def held(self) -> Iterator[HeldGradient]:
        """Yield this rank's shards. All ranks of a mesh column hold the same shards."""
        _, column = self.build.grid.place(self.build.rank)
        everyone = range(self.build.num_ranks)
        yield from _sharded.held_shards(self, f"shard {column}", WHOLE, everyone, column, self.build.grid.inner)


STRATEGY = Hsdp
