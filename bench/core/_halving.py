"""Halving and doubling: log2 n exchanges with a partner; n must be a power of two."""

from __future__ import annotations

from collections.abc import Sequence

from bench.core.pattern import log2_steps
from bench.core.phases import Call, Phase, Phases


def halving(call: Call) -> Phases | None:
    """reducescatter: S/2 to the neighbour, S/4 to the next but one, ... so that the most bytes go the shortest way."""
    return _exchanges(call, [call.payload_bytes / 2 ** (k + 1) for k in range(log2_steps(call.num))])


def doubling(call: Call) -> Phases | None:
    """allgather: the halving backwards, from S/n to the farthest up to S/2 to the neighbour."""
    halved = halving(call)
    return halved[::-1] if halved else None


def halving_doubling(call: Call) -> Phases | None:
    """allreduce: reduce-scatter by halving, all-gather by doubling (Rabenseifner)."""
    halved = halving(call)
    return [*halved, *halved[::-1]] if halved else None


def recursive_doubling(call: Call) -> Phases | None:
    """allreduce in the fewest steps: everything to each partner."""
    return _exchanges(call, [call.payload_bytes] * log2_steps(call.num))


def _exchanges(call: Call, sizes: Sequence[float]) -> Phases | None:
    """Exchange number k, of sizes[k] bytes, is with the member whose number differs in bit k: neighbours first."""
    if call.num & (call.num - 1):
        return None
    ranks = call.ranks
    return [
        Phase(1, tuple((ranks[m], ranks[m ^ (1 << k)], num_bytes) for m in range(call.num)))
        for k, num_bytes in enumerate(sizes)
    ]
