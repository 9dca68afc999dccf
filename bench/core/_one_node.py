"""Inside one node, all at once: over every link of a mesh, or through a switch that combines (NVLS)."""

from __future__ import annotations

from bench.core.fabric import SWITCH, Flow
from bench.core.pattern import log2_steps
from bench.core.phases import Call, Phase, Phases


def direct(call: Call) -> Phases | None:
    """allgather, reducescatter inside a node: everybody sends S/n to everybody at once, over all links of a mesh.

    Messages of one rank begin one after the other, which is counted as the log2 n latencies of a tree.
    """
    if not call.mesh or len(call.nodes()) > 1:
        return None
    edges = [(a, b) for a in call.ranks for b in call.ranks if a != b]
    filling = Phase(log2_steps(call.num) - 1, tuple((a, b, 0.0) for a, b in edges))
    return [filling, Phase(1, tuple((a, b, call.block_bytes) for a, b in edges))]


def direct_allreduce(call: Call) -> Phases | None:
    """Reduce-scatter, then all-gather."""
    once = direct(call)
    return once and once * 2


def nvls_allreduce(call: Call) -> Phases | None:
    """The node's switch reduces: each member has the switch read and combine 1/n of all buffers, then copy it to all.

    So each port sends S (its buffer, read) and S/n (its result), and receives as much; one latency up, one down.
    """
    if not call.reduces or len(call.nodes()) > 1:
        return None
    return [Phase(1, tuple((rank, SWITCH, 0.0) for rank in call.ranks)), Phase(1, switched(call, call.num))]


def switched(call: Call, size: int) -> tuple[Flow, ...]:
    """Up to the switch and down from it, S (1 + 1/L) through each port: the switches of nodes of `size` = L combine."""
    num_bytes = call.payload_bytes * (1 + 1 / size)
    up = tuple((rank, SWITCH, num_bytes) for rank in call.ranks)
    down = tuple((SWITCH, rank, num_bytes) for rank in call.ranks)
    return up + down
