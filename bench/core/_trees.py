"""From one root to all and back: binomial trees, between nodes first, then inside all nodes at once; and one by one."""

from __future__ import annotations

from collections.abc import Sequence

from bench.core.pattern import log2_steps
from bench.core.phases import Call, Phase, Phases, backwards

_Rounds = list[list[tuple[int, int]]]


def broadcast(call: Call) -> Phases:
    """S along a binomial tree."""
    return [Phase(1, tuple((a, b, call.payload_bytes) for a, b in edges)) for edges in _spread(call)]


def reduce(call: Call) -> Phases:
    """A broadcast backwards."""
    return backwards(broadcast(call))


def allreduce(call: Call) -> Phases:
    """Reduce to a root, broadcast from it."""
    return [*reduce(call), *broadcast(call)]


def scatter(call: Call) -> Phases:
    """The root sends half of all blocks half-way round, and each half does the same again."""
    ranks = call.ranks[call.root :] + call.ranks[: call.root]
    phases = []
    for k in reversed(range(log2_steps(call.num))):
        step = 1 << k
        heads = [(head, head + step) for head in range(0, call.num - step, 2 * step)]
        flows = ((ranks[a], ranks[b], call.block_bytes * min(step, call.num - b)) for a, b in heads)
        phases.append(Phase(1, tuple(flows)))
    return phases


def gather(call: Call) -> Phases:
    """A scatter backwards."""
    return backwards(scatter(call))


def linear_scatter(call: Call) -> Phases:
    """The root sends each member its block, one after the other."""
    root = call.ranks[call.root]
    others = [rank for rank in call.ranks if rank != root]
    if not call.alike:
        return [Phase(1, ((root, rank, call.block_bytes),)) for rank in others]
    near = [rank for rank in others if rank // call.ranks_per_node == root // call.ranks_per_node]
    far = [rank for rank in others if rank // call.ranks_per_node != root // call.ranks_per_node]
    singly = [Phase(1, ((root, rank, call.block_bytes),)) for rank in near]
    return singly + ([Phase(len(far), ((root, far[0], call.block_bytes),))] if far else [])


def linear_gather(call: Call) -> Phases:
    """A scatter backwards."""
    return backwards(linear_scatter(call))


def _spread(call: Call) -> _Rounds:
    """(source, target) per round of a binomial tree from the root: the ranks that have the data double each round."""
    root = call.ranks[call.root]
    nodes = sorted(call.nodes(), key=lambda ranks: root not in ranks)
    nodes = [sorted(ranks, key=lambda rank: rank != root) for ranks in nodes]
    rounds = _binomial([ranks[0] for ranks in nodes])
    inside = [_binomial(ranks) for ranks in nodes]
    for k in range(max(map(len, inside))):
        rounds.append([edge for each in inside if k < len(each) for edge in each[k]])
    return rounds


def _binomial(ranks: Sequence[int]) -> _Rounds:
    have, rounds = 1, []
    while have < len(ranks):
        rounds.append(list(zip(ranks, ranks[have : 2 * have], strict=False)))
        have *= 2
    return rounds
