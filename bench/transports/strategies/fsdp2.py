"""Train with FSDP.

Ranks divide weights, gradients and optimizer state. A rank gathers the weights of a layer when the rank needs the
layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from bench.core.strategies import StrategyTraits
from bench.transports.strategies import _sharded
from bench.transports.strategies._replica import WHOLE, Build, HeldGradient, Replica

TRAITS = StrategyTraits(obeys=("micro_batches", "sync_each", "trained", "compiled"))


class Fsdp2(Replica):
    """Uses torch's fully_shard over a mesh with one dimension."""

    def __init__(self, build: Build) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        super().__init__(build)
        mesh = DeviceMesh.from_group(build.everyone(), build.place.kind, mesh_dim_names=("shard",))
        self.model = _sharded.sharded(build, build.blocks(WHOLE), mesh)
        self.optimizer = build.optimizer(self.model.parameters())

    def deferring(self) -> AbstractContextManager[Any]:
        """Keep complete gradients on this rank."""
        return _sharded.deferring(self.model)

    def held(self) -> Iterator[HeldGradient]:
        """Yield this rank's shards."""
        rank, num_ranks = self.build.rank, self.build.num_ranks
        yield from _sharded.held_shards(self, f"shard {rank}", WHOLE, range(num_ranks), rank, num_ranks)


STRATEGY = Fsdp2
