"""Compute the phases of a collective's messages. For most collectives, there are several algorithms.

The messages of a phase run together, and the phases run one after the other. A library chooses an algorithm for each
message size. This module has the usual textbook algorithms (Thakur, Rabenseifner and Gropp, Optimization of Collective
Communication Operations in MPICH, 2005). This module also has rings over several rails, as in NCCL.

The source and the target of a message are world ranks, because the placement of the ranks is part of the schedule. A
schedule depends on which members share a node, but not on the ids of ranks and nodes (flows.AlikeGroups relies on
this).

In formulas, n is the number of members, N the number of nodes, and L the number of members of each node. S is the
payload, which is the larger of one rank's send and receive buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, repeat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.core.errors import UsageError
from bench.core.fabric import SWITCH, Flow
from bench.core.pattern import log2_steps
from bench.core.plugins import nearest
from bench.core.program import check_collective

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_AT_ONCE = 1 << 18  # the most messages of a phase; an alltoall with more messages is solved round by round


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """Messages that begin together. `repeat`: how many times the phase runs in a row.

    `flows`: an array of shape (messages, 3). A row has the source rank, the target rank and the bytes of a message.
    """

    repeat: int
    flows: Floats


Phases = list[Phase]


@dataclass(frozen=True, slots=True)
class Call:
    """One collective of one group.

    `ranks[m]`: the world rank of member m.
    `root`: the number of the root member.
    `split[i][j]`: the bytes that member i sends to member j (alltoallv only).
    `reduces`: whether the switch inside the node can reduce (NVLS).
    `mesh`: whether every pair of the node's GPUs has a link.
    `alike`: whether all paths between nodes are equally long. If all paths are equally long, the messages of one node
        represent the messages of all nodes.
    """

    ranks: tuple[int, ...]
    ranks_per_node: int
    payload_bytes: float
    root: int = 0
    split: tuple[tuple[int, ...], ...] = ()
    reduces: bool = False
    alike: bool = False
    mesh: bool = False

    @property
    def num(self) -> int:
        """The number of members, n."""
        return len(self.ranks)

    @property
    def block_bytes(self) -> float:
        """The bytes of a block, S/n."""
        return self.payload_bytes / self.num

    def nodes(self) -> list[list[int]]:
        """Return the ranks of each node, in member order."""
        found: dict[int, list[int]] = {}
        for rank in self.ranks:
            found.setdefault(rank // self.ranks_per_node, []).append(rank)
        return list(found.values())

    def even_nodes(self) -> list[list[int]] | None:
        """Return the ranks of each node if all nodes have the same number of members, otherwise None."""
        nodes = self.nodes()
        return nodes if len({len(ranks) for ranks in nodes}) == 1 else None


def algorithms(op: str) -> tuple[str, ...]:
    """Return the names of an operation's algorithms. Raises UsageError for an unknown operation."""
    check_collective(op)
    return tuple(_ALGORITHMS[op])


def schedule(op: str, algorithm: str, call: Call) -> Phases | None:
    """Return the phases of one collective, or None if the algorithm cannot run on the group.

    A group of one rank has no phases.
    """
    if algorithm not in algorithms(op):
        raise UsageError(f"{op} has no algorithm {algorithm!r}{nearest(algorithm, algorithms(op))}")
    return _ALGORITHMS[op][algorithm](call) if call.num > 1 else []


def backwards(phases: Phases) -> Phases:
    """Return the same messages in the opposite direction, with the last phase first."""
    return [Phase(each.repeat, each.flows[:, [1, 0, 2]]) for each in reversed(phases)]


def scaled(flows: Floats, part: float) -> Floats:
    """Return the same messages, with their bytes multiplied by `part`."""
    return flows * (1.0, 1.0, part)


def table(flows: Sequence[Flow]) -> Floats:
    """Return messages as an array of shape (messages, 3)."""
    return np.array(flows, dtype=np.float64).reshape(-1, 3)


def _flows(sources: ArrayLike, targets: ArrayLike, num_bytes: ArrayLike) -> Floats:
    """Return one message for each position in `sources` and `targets`: from the source to the target at this position.

    `num_bytes`: one size for all messages, or one size for each message.
    """
    sources = np.asarray(sources)
    found = np.empty((sources.size, 3))
    found[:, 0], found[:, 1], found[:, 2] = sources.ravel(), np.asarray(targets).ravel(), num_bytes
    return found


def _from_each_to_others(groups: ArrayLike, num_bytes: float) -> Floats:
    """Return the messages from every rank of a group to every other rank of this group.

    `groups`: an array of shape (groups, ranks), or the ranks of one group.
    """
    groups = np.atleast_2d(groups)
    size = groups.shape[1]
    sources, targets = np.nonzero(~np.eye(size, dtype=np.bool_))
    return _flows(groups[:, sources], groups[:, targets], num_bytes)


# ---- Rings: each member passes a block to the next. A chain is a ring that is open at its root. ----


def ring_blocks(call: Call) -> Phases:
    """Return the phases of an allgather or reducescatter over rings.

    There are n - 1 steps. In each step, every rank sends S/n bytes.
    """
    return [Phase(call.num - 1, _ring_step([call.ranks], call, call.block_bytes))]


def ring_allreduce(call: Call) -> Phases:
    """Return the phases of allreduce: reduce-scatter, then all-gather, in 2 (n-1) steps of S/n."""
    return ring_blocks(call) * 2


def chain_broadcast(call: Call) -> Phases:
    """Return the phases of a broadcast along rings.

    The data move in small pieces from the root to the member before the root.

    All edges of the rings are busy at once. The time is n - 1 latencies plus the time to send S over one edge. For
    small pieces, the time to fill the pipeline with data is negligible.
    """
    ranks = np.array(call.ranks)
    sources, targets, shares = _ring(call.ranks, call.ranks_per_node, call.mesh)
    kept = targets != call.root
    edges = _flows(ranks[sources[kept]], ranks[targets[kept]], shares[kept])
    return [Phase(call.num - 2, scaled(edges, 0.0)), Phase(1, scaled(edges, call.payload_bytes))]


def chain_reduce(call: Call) -> Phases:
    """Return the messages of a chain broadcast in the opposite direction, with the last phase first."""
    return backwards(chain_broadcast(call))


def _ring_step(groups: Sequence[Sequence[int]], call: Call, num_bytes: float) -> Floats:
    """Return one step of a ring in each of several groups.

    In one step of a ring, every member sends `num_bytes` to the next member. If members i and j share a node in one
    group, they must share a node in every group.
    """
    sources, targets, shares = _ring(tuple(groups[0]), call.ranks_per_node, call.mesh)
    ranks = np.array(groups)
    return _flows(ranks[:, sources], ranks[:, targets], np.tile(shares * num_bytes, len(groups)))


@lru_cache(maxsize=1024)  # the groups of a round, for all sizes and for all algorithms with rings
def _ring(ranks: tuple[int, ...], ranks_per_node: int, mesh: bool) -> tuple[Ints, Ints, Floats]:
    """Return the edges of a ring as three arrays: the source members, the target members and the shares of the data.

    The ring visits the nodes in the order of the group's members. If each node has L consecutive members, L rings
    (channels) each carry an equal share of the data. Ring number c enters each node at member number c of the node.
    Every member therefore sends to the next node in one of the rings, and all rails carry the same load. On a mesh, the
    rings together use all links of a node (`_zigzag`).
    """
    nodes = np.array(ranks) // ranks_per_node
    firsts = np.flatnonzero(np.r_[True, nodes[1:] != nodes[:-1]])  # where each run of members on one node begins
    sizes = np.diff(np.r_[firsts, len(ranks)])
    first, size = np.repeat(firsts, sizes), np.repeat(sizes, sizes)
    steps = np.arange(len(ranks)) - first
    channels = int(sizes.max())
    turns = (1, -1) if mesh and channels > 1 else (1,)
    if mesh:
        steps = _zigzag(steps)
    rings = [first + (channel + turn * steps) % size for channel in range(channels) for turn in turns]
    edges = np.concatenate([ring * len(ranks) + np.roll(ring, -1) for ring in rings])
    edges, places, uses = np.unique(edges, return_index=True, return_counts=True)
    order = np.argsort(places)  # an edge has the place of its first use
    share_of = np.array([*accumulate(repeat(1 / channels / len(turns), int(uses.max())), initial=0.0)])
    return edges[order] // len(ranks), edges[order] % len(ranks), share_of[uses[order]]


def _zigzag(steps: Ints) -> Ints:
    """Return the offsets 0, 1, -1, 2, -2, ... of the steps 0, 1, 2, ... on a path through all members of a node.

    A path from member m reaches, in each step, the member with the number m plus the offset. One such path and its
    mirror image begin at every member. All these paths together use each link of a mesh equally often (Williams,
    Experimental designs balanced for the estimation of residual effects, 1949).
    """
    return (steps + 1) // 2 * np.where(steps % 2, 1, -1)


# ---- Hierarchical: inside nodes, then between the k-th members of all nodes (one rail each). ----


def hierarchical_allreduce(call: Call) -> Phases | None:
    """Return the phases of a hierarchical allreduce.

    A hierarchical allreduce has three stages: reduce-scatter in each node, allreduce of S/L over each rail, and
    all-gather in each node.
    """
    levels = _levels(call)
    if levels is None:
        return None
    inside, rails = levels
    between = _ring_step(rails, call, call.block_bytes)
    return [inside, Phase(2 * (len(rails[0]) - 1), between), inside]


def hierarchical_allgather(call: Call) -> Phases | None:
    """Return the phases of a hierarchical all-gather: first over each rail, then in each node."""
    levels = _levels(call)
    if levels is None:
        return None
    inside, rails = levels
    return [Phase(len(rails[0]) - 1, _ring_step(rails, call, call.block_bytes)), inside]


def hierarchical_reducescatter(call: Call) -> Phases | None:
    """Return the phases of the hierarchical all-gather in reverse order, or None if the all-gather cannot run."""
    forwards = hierarchical_allgather(call)
    return forwards[::-1] if forwards else None


def pipelined_allreduce(call: Call) -> Phases | None:
    """Return the phases of an allreduce in many small pieces.

    The pieces keep the links inside nodes and the network busy at the same time.

    The algorithm uses NVLS or rings inside nodes, and rails between nodes. No algorithm can send fewer bytes:

    - each port with NVLS: S (1 + 1/L)
    - each port without NVLS: 2 S (L-1)/L
    - each rail: 2 (N-1)/N x S/L

    The time to fill the pipeline consists only of latencies, as in a chain broadcast.
    """
    levels = _levels(call)
    if levels is None:
        return None
    _, rails = levels
    size, num = len(rails), len(rails[0])
    return _overlapped(call, levels, _ring_step(rails, call, 2 * (num - 1) / num * call.payload_bytes / size))


def double_tree_allreduce(call: Call) -> Phases | None:
    """Return the phases of an allreduce over two binary trees of nodes, as in NCCL.

    Each tree reduces and broadcasts half of the data. The data move in small pieces, on all rails. An inner node of one
    tree is a leaf of the other tree (Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth broadcast,
    reduction and scan, 2009). A rail carries S/L bytes with two nodes, 3/2 S/L with three nodes, and 2 S/L with more
    nodes. Trees therefore send more bytes than the algorithm `pipelined`. Trees need fewer successive messages than a
    ring. Inside nodes the algorithm uses NVLS or rings.
    """
    levels = _levels(call)
    if levels is None:
        return None
    part = call.payload_bytes / len(levels[1]) / 2
    rails, edges = np.array(levels[1]), np.array(_tree_edges(len(levels[1][0])))
    ends = np.stack((edges, edges[:, ::-1]), axis=1).reshape(-1, 2)  # each edge in both directions
    return _overlapped(call, levels, _flows(rails[:, ends[:, 0]], rails[:, ends[:, 1]], part))


def _tree_edges(num: int) -> list[tuple[int, int]]:
    """Return the (child, parent) pairs of two binary trees of `num` nodes.

    If `num` is even, the second tree is the mirror image of the first tree. If `num` is odd, the second tree is the
    first tree with all node numbers increased by one, modulo `num`.
    """
    edges = []
    for node in range(1, num):
        lowest = node & -node
        parent = (node ^ lowest) | (lowest << 1)
        edges.append((node, parent if parent < num else node ^ lowest))
    if num % 2:
        return edges + [((child + 1) % num, (parent + 1) % num) for child, parent in edges]
    return edges + [(num - 1 - child, num - 1 - parent) for child, parent in edges]


def _overlapped(call: Call, levels: tuple[Phase, list[Sequence[int]]], between: Floats) -> Phases:
    """Return the phases of an allreduce in which all messages inside nodes and between nodes flow at the same time."""
    inside, rails = levels
    if call.reduces:
        within, steps = _through_switch(call, len(rails)), 1
    else:
        within, steps = scaled(inside.flows, 2 * inside.repeat), inside.repeat
    filling = [Phase(2 * steps, scaled(within, 0.0)), Phase(2 * log2_steps(len(rails[0])) - 1, scaled(between, 0.0))]
    return [*filling, Phase(1, np.concatenate((within, between)))]


def _levels(call: Call) -> tuple[Phase, list[Sequence[int]]] | None:
    """Return the phase of messages inside the nodes, and the ranks of each rail.

    The result is None if nodes have different numbers of members, if there is only one node, or if nodes have only one
    member.

    Inside a node, each member sends its part S/L to all other members. The phase inside a node takes L - 1 steps of a
    ring, or one step over the links of a mesh.
    """
    nodes = call.even_nodes()
    if nodes is None or len(nodes) < 2 or len(nodes[0]) < 2:
        return None
    size = len(nodes[0])
    part = call.payload_bytes / size
    if call.mesh:
        inside = Phase(1, _from_each_to_others(nodes, part))
    else:
        inside = Phase(size - 1, _ring_step(nodes, call, part))
    return inside, list(zip(*nodes, strict=True))


# ---- One node, all GPUs at once: over every link of a mesh, or through a switch that reduces (NVLS). ----


def direct(call: Call) -> Phases | None:
    """Return the phase of allgather or reducescatter in one node, in which each rank sends S/n to every other rank.

    The node must be a mesh, and the messages use all its links. A rank starts its messages one after the other. The
    schedule counts log2 n latencies for starting these messages, as many as a tree needs.
    """
    if not call.mesh or len(call.nodes()) > 1:
        return None
    flows = _from_each_to_others(call.ranks, call.block_bytes)
    return [Phase(log2_steps(call.num) - 1, scaled(flows, 0.0)), Phase(1, flows)]


def direct_allreduce(call: Call) -> Phases | None:
    """Return the phases of an allreduce in one node: a direct reduce-scatter, then a direct all-gather."""
    once = direct(call)
    return once and once * 2


def nvls_allreduce(call: Call) -> Phases | None:
    """Return the phases of an allreduce in the node's switch.

    The switch combines the data in n parts, one for each member. The switch reads each part from all members' buffers
    and sends the result to all members. Each port therefore sends S + S/n bytes: the member's buffer, and the result of
    one part. Each port also receives S + S/n bytes. The time includes one latency for messages to the switch and one
    latency for messages from the switch.
    """
    if not call.reduces or len(call.nodes()) > 1:
        return None
    up = _flows(call.ranks, SWITCH, 0.0)
    return [Phase(1, up), Phase(1, _through_switch(call, call.num))]


def _through_switch(call: Call, size: int) -> Floats:
    """Return the messages to and from the switch. Each port carries S (1 + 1/L) in nodes of `size` = L members."""
    num_bytes = call.payload_bytes * (1 + 1 / size)
    up = _flows(call.ranks, SWITCH, num_bytes)
    return np.concatenate((up, up[:, [1, 0, 2]]))


# ---- Halving and doubling: log2 n exchanges with a partner; n must be a power of two. ----


def halving(call: Call) -> Phases | None:
    """Return the phases of reducescatter.

    Each rank sends S/2 to a neighbour, then S/4 to the next partner, and so on.
    """
    return _exchanges(call, [call.payload_bytes / 2 ** (k + 1) for k in range(log2_steps(call.num))])


def doubling(call: Call) -> Phases | None:
    """Return the phases of an allgather by recursive doubling.

    The phases are those of `halving` in reverse order. A rank first exchanges S/n with its farthest partner. The
    messages grow from phase to phase, up to S/2 with a neighbour.
    """
    halved = halving(call)
    return halved[::-1] if halved else None


def halving_doubling(call: Call) -> Phases | None:
    """Return the phases of allreduce: reduce-scatter by halving, all-gather by doubling (Rabenseifner)."""
    halved = halving(call)
    return [*halved, *halved[::-1]] if halved else None


def recursive_doubling(call: Call) -> Phases | None:
    """Return the phases of the allreduce that needs the fewest steps.

    In each step, a member sends its whole buffer to another partner.
    """
    return _exchanges(call, [call.payload_bytes] * log2_steps(call.num))


def _exchanges(call: Call, sizes: Sequence[float]) -> Phases | None:
    """Return a list with one phase for each element of `sizes`.

    In phase k, two members exchange `sizes[k]` bytes if their numbers differ only in bit k. The result is None if the
    number of members is not a power of two.
    """
    if call.num & (call.num - 1):
        return None
    ranks, members = np.array(call.ranks), np.arange(call.num)
    return [Phase(1, _flows(ranks, ranks[members ^ (1 << k)], num_bytes)) for k, num_bytes in enumerate(sizes)]


# ---- From one root to all and back: binomial trees (between nodes, then in all nodes at once), or one by one. ----


def tree_broadcast(call: Call) -> Phases:
    """Return the phases that send S along a binomial tree."""
    rounds = [np.array(edges) for edges in _tree_rounds(call)]
    return [Phase(1, _flows(edges[:, 0], edges[:, 1], call.payload_bytes)) for edges in rounds]


def tree_reduce(call: Call) -> Phases:
    """Return the messages of a tree broadcast in the opposite direction, with the last phase first."""
    return backwards(tree_broadcast(call))


def tree_allreduce(call: Call) -> Phases:
    """Return the phases of a tree reduce to a root, then of a tree broadcast from this root."""
    return [*tree_reduce(call), *tree_broadcast(call)]


def tree_scatter(call: Call) -> Phases:
    """Return the phases of a scatter along a binomial tree.

    The members form a ring that begins at the root. The root sends half of all blocks to the member halfway round the
    ring. After that, one member in each half of the ring has blocks. This member sends half of its blocks to the member
    in the middle of its half, and so on.
    """
    ranks = np.roll(call.ranks, -call.root)
    phases = []
    for k in reversed(range(log2_steps(call.num))):
        step = 1 << k
        heads = np.arange(0, call.num - step, 2 * step)
        num_blocks = np.minimum(step, call.num - (heads + step))
        phases.append(Phase(1, _flows(ranks[heads], ranks[heads + step], call.block_bytes * num_blocks)))
    return phases


def tree_gather(call: Call) -> Phases:
    """Return the messages of a tree scatter in the opposite direction, with the last phase first."""
    return backwards(tree_scatter(call))


def linear_scatter(call: Call) -> Phases:
    """Return the phases of a scatter in which the root sends the blocks of all members one after the other."""
    root = call.ranks[call.root]
    others = [rank for rank in call.ranks if rank != root]
    if not call.alike:
        return [Phase(1, _flows(root, rank, call.block_bytes)) for rank in others]
    near = [rank for rank in others if rank // call.ranks_per_node == root // call.ranks_per_node]
    far = [rank for rank in others if rank // call.ranks_per_node != root // call.ranks_per_node]
    singly = [Phase(1, _flows(root, rank, call.block_bytes)) for rank in near]
    return singly + ([Phase(len(far), _flows(root, far[0], call.block_bytes))] if far else [])


def linear_gather(call: Call) -> Phases:
    """Return the messages of a linear scatter in the opposite direction, with the last phase first."""
    return backwards(linear_scatter(call))


_Rounds = list[list[tuple[int, int]]]


def _tree_rounds(call: Call) -> _Rounds:
    """Return the rounds of a binomial tree. A round is a list of (source, target) pairs.

    The number of ranks with the data at most doubles in each round.
    """
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


# ---- All to all, pair by pair; and the barrier, whose messages have no bytes. ----


def pairwise_alltoall(call: Call) -> Phases:
    """Return the phases of alltoall. In each round, every rank sends S/n."""
    times = len(call.nodes()) - 1 if call.alike else 1
    return [
        Phase(times if s else 1, _flows(sources, targets, call.block_bytes))
        for (s, _), (sources, targets) in _shifts(call).items()
    ]


def at_once_alltoall(call: Call) -> Phases | None:
    """Return the phases of an alltoall in which every rank sends to all other ranks at the same time.

    The links inside nodes, the network, and all links of a mesh carry data at the same time. NCCL and RCCL post all
    messages of a rank as one group. A rank starts its messages one after the other. The schedule counts log2 n
    latencies for starting these messages, as many as a tree needs. If `call.alike` is true, messages to the next node
    represent the messages to all other nodes.

    The result is None if nodes have different numbers of members, or if the schedule would have more than MOST_AT_ONCE
    messages.
    """
    nodes = call.even_nodes()
    if nodes is None:
        return None
    size, num_nodes = len(nodes[0]), len(nodes)
    others = min(num_nodes - 1, 1) if call.alike else num_nodes - 1
    if call.num * (size * (others + 1) - 1) > MOST_AT_ONCE:
        return None
    inside = call.block_bytes
    between = inside * (num_nodes - 1 if call.alike else 1)
    shifts = list(_shifts(call).items())
    flows = [_flows(sources, targets, between if s else inside) for (s, _), (sources, targets) in shifts]
    return [Phase(log2_steps(call.num) - 1, scaled(flows[-1], 0.0)), Phase(1, np.concatenate(flows))]


def pairwise_alltoallv(call: Call) -> Phases:
    """Return the rounds of an alltoallv.

    In each round, the same ranks exchange data as in `pairwise_alltoall`, but each message has its own size. Messages
    of 0 bytes are left out.
    """
    member = {rank: index for index, rank in enumerate(call.ranks)}
    phases = []
    for sources, targets in _shifts(replace(call, alike=False)).values():
        pairs = zip(sources.tolist(), targets.tolist(), strict=True)
        flows = _flows(sources, targets, [call.split[member[a]][member[b]] for a, b in pairs])
        phases.append(Phase(1, flows[flows[:, 2] > 0]))
    return [phase for phase in phases if len(phase.flows)]


def dissemination_barrier(call: Call) -> Phases:
    """Return the steps of a barrier. In step k, member m signals member m + 2^k modulo n (Hensgen, Finkel, Manber)."""
    ranks = np.array(call.ranks)
    return [Phase(1, _flows(ranks, np.roll(ranks, -(1 << k)), 0.0)) for k in range(log2_steps(call.num))]


def _shifts(call: Call) -> dict[tuple[int, int], tuple[Ints, Ints]]:
    """Return the rounds of an alltoall. In each round, every rank sends to one rank and receives from one rank.

    A round is a pair of arrays: the sources, and the target of each source. In a round, the distance (shift) from
    source to target is the same for all messages. If all nodes have the same number of members, a shift is a pair (s,
    t): s nodes, and t members within a node. In that case, a round has either only messages inside nodes or only
    messages between nodes. If `call.alike` is true, the result has no shifts by more than one node. The shift by one
    node represents them.
    """
    nodes = call.even_nodes() or [list(call.ranks)]
    size, num_nodes = len(nodes[0]), len(nodes)
    most = min(num_nodes, 2) if call.alike else num_nodes
    shifts = [(s, t) for s in range(most) for t in range(size) if (s, t) != (0, 0)]
    ranks = np.array(nodes)
    return {(s, t): (ranks.ravel(), np.roll(ranks, (-s, -t), axis=(0, 1)).ravel()) for s, t in shifts}


# If two algorithms take the same time, the first one in this table is chosen.
_ALGORITHMS: dict[str, dict[str, Callable[[Call], Phases | None]]] = {
    "allreduce": {
        "ring": ring_allreduce,
        "hierarchical": hierarchical_allreduce,
        "nvls": nvls_allreduce,
        "halving_doubling": halving_doubling,
        "recursive_doubling": recursive_doubling,
        "tree": tree_allreduce,
        "double_tree": double_tree_allreduce,
        "pipelined": pipelined_allreduce,
        "direct": direct_allreduce,
    },
    "allgather": {
        "ring": ring_blocks,
        "hierarchical": hierarchical_allgather,
        "doubling": doubling,
        "direct": direct,
    },
    "reducescatter": {
        "ring": ring_blocks,
        "hierarchical": hierarchical_reducescatter,
        "halving": halving,
        "direct": direct,
    },
    "broadcast": {"chain": chain_broadcast, "tree": tree_broadcast},
    "reduce": {"chain": chain_reduce, "tree": tree_reduce},
    "gather": {"linear": linear_gather, "tree": tree_gather},
    "scatter": {"linear": linear_scatter, "tree": tree_scatter},
    "alltoall": {"at_once": at_once_alltoall, "pairwise": pairwise_alltoall},
    "alltoallv": {"pairwise": pairwise_alltoallv},
    "barrier": {"dissemination": dissemination_barrier},
}
