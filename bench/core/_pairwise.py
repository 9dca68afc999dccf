"""Everybody to everybody, pair by pair; and nobody's bytes to anybody: the barrier."""

from __future__ import annotations

from dataclasses import replace

from bench.core.pattern import log2_steps
from bench.core.phases import Call, Phase, Phases


def alltoall(call: Call) -> Phases:
    """alltoall: S/n in each round."""
    times = len(call.nodes()) - 1 if call.alike else 1
    return [
        Phase(times if s else 1, tuple((a, b, call.block_bytes) for a, b in edges))
        for (s, _), edges in _shifts(call).items()
    ]


def alltoallv(call: Call) -> Phases:
    """alltoallv: the rounds of alltoall with each pair's own bytes; a pair without any sends nothing."""
    member = {rank: index for index, rank in enumerate(call.ranks)}
    phases = []
    for edges in _shifts(replace(call, alike=False)).values():
        flows = tuple((a, b, float(call.split[member[a]][member[b]])) for a, b in edges)
        phases.append(Phase(1, tuple(flow for flow in flows if flow[2] > 0)))
    return [phase for phase in phases if phase.flows]


def barrier(call: Call) -> Phases:
    """barrier: in step k everybody tells the member 2^k further (Hensgen, Finkel and Manber)."""
    ranks = call.ranks
    return [
        Phase(1, tuple((ranks[m], ranks[(m + (1 << k)) % call.num], 0.0) for m in range(call.num)))
        for k in range(log2_steps(call.num))
    ]


def _shifts(call: Call) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """n - 1 rounds in which each rank sends to one and receives from one, by their shift.

    With even nodes a round shifts by (s nodes, t members): it lies wholly inside the nodes, or wholly between them.
    Where ways are alike, the shift by one node stands for all N - 1.
    """
    nodes = call.even_nodes() or [list(call.ranks)]
    size, num_nodes = len(nodes[0]), len(nodes)
    most = min(num_nodes, 2) if call.alike else num_nodes
    shifts = [(s, t) for s in range(most) for t in range(size) if (s, t) != (0, 0)]
    seats = [(node, i) for node in range(num_nodes) for i in range(size)]
    return {
        (s, t): [(nodes[node][i], nodes[(node + s) % num_nodes][(i + t) % size]) for node, i in seats]
        for s, t in shifts
    }
