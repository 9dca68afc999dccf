"""Which ranks form which groups, in which order, and which groups run at the same time.

`world`: everybody. `node`: each node's ranks, all nodes at once. `rail`: the k-th rank of every node, all rails at
once. `groups of K`: neighbours in the order. `pairs`: every pair of ranks, N/2 disjoint pairs at a time by the circle
method. The order of ranks inside a group is a factor of its own: `linear`, `reverse`, `interleaved` (node by node in
turn, which makes a ring cross the network at every step), or the ranks themselves: `0,2,1,3`.
"""

from __future__ import annotations

import re

from bench.core.errors import UsageError
from bench.core.program import Group, Round
from bench.core.world import World

TOPOLOGIES = ("world", "node", "rail", "pairs", "groups of K")
ORDERS = ("linear", "reverse", "interleaved", "RANK,RANK,...")
_GROUPS_OF = re.compile(r"groups of (\d+)")


def check_topology(text: str) -> str:
    """The text itself when it names a topology, else UsageError."""
    match = _GROUPS_OF.fullmatch(text)
    if text in TOPOLOGIES[:-1] or (match and int(match[1]) > 0):
        return text
    raise UsageError(f"no topology is called {text!r}; there are: {', '.join(TOPOLOGIES)}")


def check_order(text: str) -> str:
    """The text itself when it names an order of ranks, else UsageError."""
    if text in ORDERS[:-1] or re.fullmatch(r"\d+(,\d+)*", text):
        return text
    raise UsageError(f"no order of ranks is called {text!r}; there are: {', '.join(ORDERS)}")


def rounds(world: World, topology: str, order: str = "linear") -> tuple[Round, ...]:
    """The groups that run at once, round after round. Raises UsageError when they do not fit the world."""
    ranks = _ordered(world, order)
    per_node = world.ranks_per_node
    if topology == "world" or (topology == "pairs" and len(ranks) < 2):  # one rank has no pair: the pattern says so
        return ((Group("world", ranks),),)
    if topology == "node":
        nodes = range(world.num_nodes)
        return (tuple(Group(f"node{n}", tuple(r for r in ranks if r // per_node == n)) for n in nodes),)
    if topology == "rail":
        rails = range(per_node)
        return (tuple(Group(f"rail{k}", tuple(r for r in ranks if r % per_node == k)) for k in rails),)
    if topology == "pairs":
        return tuple(tuple(Group(f"{a}-{b}", (a, b), a, b) for a, b in pairs) for pairs in circle(ranks))
    size = int(check_topology(topology).rsplit(" ", 1)[1])
    if len(ranks) % size:
        raise UsageError(f"{len(ranks)} ranks do not divide into groups of {size}")
    starts = range(0, len(ranks), size)
    return (tuple(Group(f"group{k}", ranks[start : start + size]) for k, start in enumerate(starts)),)


def circle(ranks: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """All pairs in rounds of disjoint pairs: the first stays, the others rotate (N-1 rounds, N for odd N)."""
    seats: list[int | None] = [*ranks] if len(ranks) % 2 == 0 else [*ranks, None]
    schedule = []
    for _ in range(len(seats) - 1):
        folded = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        schedule.append(tuple((min(a, b), max(a, b)) for a, b in folded if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(schedule)


def _ordered(world: World, order: str) -> tuple[int, ...]:
    ranks = range(world.num_ranks)
    if order == "linear":
        return tuple(ranks)
    if order == "reverse":
        return tuple(reversed(ranks))
    if order == "interleaved":
        return tuple(sorted(ranks, key=lambda rank: (rank % world.ranks_per_node, rank)))
    listed = tuple(int(part) for part in check_order(order).split(","))
    if sorted(listed) != list(ranks):
        raise UsageError(f"order {order!r} must name each of the ranks 0 to {world.num_ranks - 1} once")
    return listed
