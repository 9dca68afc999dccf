"""How a collective becomes messages, per algorithm: phases of messages that run together, one phase after the other.

What a library does with a message size is its own choice; these are the textbook forms that libraries build on
(R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in MPICH, 2005; rings over
several rails as in NCCL). Ranks in messages are world ranks: placement is part of the schedule. n: members, N: nodes,
L: members of each node, S: the payload, the larger of one rank's send and receive buffers.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.core import _halving, _hierarchical, _one_node, _pairwise, _rings, _trees
from bench.core.errors import UsageError
from bench.core.phases import Call, Phases
from bench.core.plugins import nearest


def algorithms(op: str) -> tuple[str, ...]:
    """The names of an operation's algorithms. Raises UsageError for an operation that is none."""
    if op not in _ALGORITHMS:
        raise UsageError(f"no collective is called {op!r}{nearest(op, tuple(_ALGORITHMS))}")
    return tuple(_ALGORITHMS[op])


def schedule(op: str, algorithm: str, call: Call) -> Phases | None:
    """The phases of one collective; None when this algorithm can not run on such a group. One rank: no phase."""
    if algorithm not in algorithms(op):
        raise UsageError(f"{op} has no algorithm {algorithm!r}{nearest(algorithm, algorithms(op))}")
    return _ALGORITHMS[op][algorithm](call) if call.num > 1 else []


_Algorithm = Callable[[Call], Phases | None]

# In the order in which one is preferred when two take the same time.
_ALGORITHMS: dict[str, dict[str, _Algorithm]] = {
    "allreduce": {
        "ring": _rings.allreduce,
        "hierarchical": _hierarchical.allreduce,
        "nvls": _one_node.nvls_allreduce,
        "halving_doubling": _halving.halving_doubling,
        "recursive_doubling": _halving.recursive_doubling,
        "tree": _trees.allreduce,
        "pipelined": _hierarchical.pipelined_allreduce,
        "direct": _one_node.direct_allreduce,
    },
    "allgather": {
        "ring": _rings.blocks,
        "hierarchical": _hierarchical.allgather,
        "doubling": _halving.doubling,
        "direct": _one_node.direct,
    },
    "reducescatter": {
        "ring": _rings.blocks,
        "hierarchical": _hierarchical.reducescatter,
        "halving": _halving.halving,
        "direct": _one_node.direct,
    },
    "broadcast": {"chain": _rings.chain_broadcast, "tree": _trees.broadcast},
    "reduce": {"chain": _rings.chain_reduce, "tree": _trees.reduce},
    "gather": {"linear": _trees.linear_gather, "tree": _trees.gather},
    "scatter": {"linear": _trees.linear_scatter, "tree": _trees.scatter},
    "alltoall": {"pairwise": _pairwise.alltoall},
    "alltoallv": {"pairwise": _pairwise.alltoallv},
    "barrier": {"dissemination": _pairwise.barrier},
}
