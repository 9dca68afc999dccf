"""Rings: each member passes a block to the next, and chains, which are rings cut open at their root."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.core.fabric import Flow
from bench.core.phases import Call, Phase, Phases, backwards


def blocks(call: Call) -> Phases:
    """allgather, reducescatter: n - 1 steps of S/n."""
    return [Phase(call.num - 1, in_groups([call.ranks], call.ranks_per_node, call.block_bytes))]


def allreduce(call: Call) -> Phases:
    """Reduce-scatter, then all-gather: 2 (n-1) steps of S/n."""
    return blocks(call) * 2


def chain_broadcast(call: Call) -> Phases:
    """Pieces pass along the rings, from the root to the member before it, all edges busy at once.

    n - 1 latencies and S through each edge: the limit of many small pieces, whose own time to fill the pipe is nothing.
    """
    root = call.ranks[call.root]
    shares = _shares(call.ranks, call.ranks_per_node)
    edges = {edge: share for edge, share in shares.items() if edge[1] != root}
    filling = tuple((a, b, 0.0) for a, b in edges)
    flowing = tuple((a, b, share * call.payload_bytes) for (a, b), share in edges.items())
    return [Phase(call.num - 2, filling), Phase(1, flowing)]


def chain_reduce(call: Call) -> Phases:
    """A broadcast backwards."""
    return backwards(chain_broadcast(call))


def in_groups(groups: Iterable[Sequence[int]], ranks_per_node: int, num_bytes: float) -> tuple[Flow, ...]:
    """One step of rings in several groups at once, `num_bytes` from each member to the next."""
    return tuple(
        (source, target, share * num_bytes)
        for ranks in groups
        for (source, target), share in _shares(ranks, ranks_per_node).items()
    )


def _shares(ranks: Sequence[int], ranks_per_node: int) -> dict[tuple[int, int], float]:
    """What part of the data each edge of a ring carries.

    The ring keeps the members' order from node to node. With L members side by side on a node there are L rings
    (channels) of 1/L of the data; channel c begins each node at its c-th member, so that every member is once the one
    that sends to the next node, and every rail is used alike.
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] // ranks_per_node == rank // ranks_per_node:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    channels = max(map(len, runs))
    shares: dict[tuple[int, int], float] = {}
    for channel in range(channels):
        ring = [run[(channel + i) % len(run)] for run in runs for i in range(len(run))]
        for edge in zip(ring, ring[1:] + ring[:1], strict=True):
            shares[edge] = shares.get(edge, 0.0) + 1 / channels
    return shares
