"""Shard weights with torch's FSDP2 over a mesh of ranks.

Each rank holds a part of every weight. Before a rank computes a layer, the rank gathers the complete weights of this
layer.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.transports.strategies._replica import Build, HeldGradient, Replica, Share, local


def sharded(build: Build, blocks: Sequence[Any], mesh: Any) -> Any:
    """Return the blocks as one module. A rank gathers the weights of a whole block at once."""
    from torch.distributed.fsdp import fully_shard

    for block in blocks:
        fully_shard(block, mesh=mesh)
    model = build.torch.nn.Sequential(*blocks)
    fully_shard(model, mesh=mesh)
    return model


@contextmanager
def deferring(model: Any) -> Iterator[None]:
    """Keep complete gradients on this rank during a backward pass."""
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


def held_shards(
    replica: Replica,
    part: str,
    share: Share,
    replicas: Sequence[int],
    place: int,
    num: int,
    whole_weights: Container[tuple[int, int]] = (),
) -> Iterator[HeldGradient]:
    """Yield, for every gradient, shard number `place` of `num` shards.

    FSDP has averaged the gradients over the ranks in `replicas`. Each gradient is divided into shards along its first
    dimension.

    `whole_weights`: (block number, weight number) of each weight that is not divided among the ranks of a mesh row. The
        shards of such a weight are equal on all ranks of the row.
    """
    build = replica.build
    for number, block in replica.blocks():
        for index, weight in enumerate(weight for weight in block.parameters() if weight.requires_grad):
            whole = build.source.expected(share, number, index, replicas, weight.shape)
            pieces = [] if whole is None else whole.chunk(num)
            nothing = None if whole is None else whole[:0]
            expected = pieces[place] if place < len(pieces) else nothing
            alike = (number, index) in whole_weights
            name = f"all, shard {place}" if alike else part
            yield HeldGradient(name, local(weight.grad), expected, len(replicas))
