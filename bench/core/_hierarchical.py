"""Hierarchical: inside nodes, then between the k-th members of all nodes (a rail each)."""

from __future__ import annotations

from collections.abc import Sequence

from bench.core._one_node import switched
from bench.core._rings import in_groups
from bench.core.pattern import log2_steps
from bench.core.phases import Call, Phase, Phases, scaled

PIECES = 8  # in flight on a pipelined way, as many as NCCL's buffers hold (NCCL_STEPS)


def allreduce(call: Call) -> Phases | None:
    """Reduce-scatter in the node, allreduce of S/L over each rail, all-gather in the node."""
    levels = _levels(call)
    if levels is None:
        return None
    inside, rails = levels
    between = in_groups(rails, call.ranks_per_node, call.block_bytes)
    return [inside, Phase(2 * (len(rails[0]) - 1), between), inside]


def allgather(call: Call) -> Phases | None:
    """All-gather over each rail, then in the node."""
    levels = _levels(call)
    if levels is None:
        return None
    inside, rails = levels
    return [Phase(len(rails[0]) - 1, in_groups(rails, call.ranks_per_node, call.block_bytes)), inside]


def reducescatter(call: Call) -> Phases | None:
    """The all-gather backwards: in the node, then over each rail."""
    forwards = allgather(call)
    return forwards[::-1] if forwards else None


def pipelined_allreduce(call: Call) -> Phases | None:
    """In pieces, so that node and network work at the same time: a tree or rails between nodes, fed by NVLS or rings.

    Per port S (1 + 1/L) with NVLS and 2 (L-1)/L S without, per rail 2 (N-1)/N S/L: what any algorithm must send. The
    first and last piece meet empty links: of PIECES, one goes through the levels one after the other.
    """
    levels = _levels(call)
    if levels is None:
        return None
    inside, rails = levels
    size, num = len(rails), len(rails[0])
    between = in_groups(rails, call.ranks_per_node, 2 * (num - 1) / num * call.payload_bytes / size)
    if call.reduces:
        within, steps = switched(call, size), 1
    else:
        within, steps = scaled(inside.flows, 2 * (size - 1)), size - 1
    filling = [Phase(2 * steps - 1, scaled(within, 0.0)), Phase(2 * log2_steps(num) - 1, scaled(between, 0.0))]
    singly = [Phase(1, scaled(each, 1 / PIECES)) for each in (within, between)]
    return [*filling, *singly, Phase(1, scaled(within + between, 1 - 1 / PIECES))]


def _levels(call: Call) -> tuple[Phase, list[Sequence[int]]] | None:
    """The phase inside nodes (L - 1 steps of S/L) and the rails; None unless N and L are 2 or more."""
    nodes = call.even_nodes()
    if nodes is None or len(nodes) < 2 or len(nodes[0]) < 2:
        return None
    size = len(nodes[0])
    inside = Phase(size - 1, in_groups(nodes, call.ranks_per_node, call.payload_bytes / size))
    return inside, list(zip(*nodes, strict=True))
