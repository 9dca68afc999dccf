"""Which ranks form which groups, in which order, and which groups run at the same time.

`world`: everybody. `node`: each node's ranks, all nodes at once. `rail`: the k-th rank of every node, all rails at
once. `groups of K`: neighbours in the order. `node in turn`, `rail in turn`, `groups of K in turn`: the same groups,
one at a time while the others idle: what each reaches alone. `pairs`: every pair of ranks, N/2 disjoint pairs at a time
by the circle method. `directed pairs`: the same, then each pair the other way round. The order of ranks inside a group
is a factor of its own: `linear`, `reverse`, `interleaved` (node by node in turn, which makes a ring cross the network
at every step), or the ranks themselves: `0,2,1,3`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

from bench.core.errors import UsageError
from bench.core.program import Group, Round
from bench.core.world import World

TOPOLOGIES = (
    "world",
    "node",
    "rail",
    "pairs",
    "directed pairs",
    "single ranks",
    "single pairs",
    "directed single pairs",
    "node in turn",
    "rail in turn",
    "groups of K",
    "groups of K in turn",
)
SPLITS = ("alternate", "halves", "RANKS/RANKS")
ORDERS = ("linear", "reverse", "interleaved", "RANK,RANK,...")
IN_TURN = " in turn"
_GROUPS_OF = re.compile(rf"groups of (\d+)({IN_TURN})?")
T = TypeVar("T")


class Lazy(Sequence[T], Generic[T]):
    """A sequence whose elements are made when they are asked for: all pairs of 8,192 ranks are 33.5 million groups."""

    def __init__(self, num: int, make: Callable[[int], T]) -> None:
        """`make(k)`: element k of `num`."""
        self._num, self._make = num, make

    def __len__(self) -> int:
        """How many there are; nothing is made."""
        return self._num

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """One element, or those of a slice."""
        at = range(self._num)[index]
        return self._make(at) if isinstance(at, int) else tuple(map(self._make, at))


def check_topology(text: str) -> str:
    """The text itself when it names a topology, else UsageError."""
    match = _GROUPS_OF.fullmatch(text)
    if text in TOPOLOGIES[:-2] or (match and int(match[1]) > 0):
        return text
    raise UsageError(f"no topology is called {text!r}; there are: {', '.join(TOPOLOGIES)}")


def check_order(text: str) -> str:
    """The text itself when it names an order of ranks, else UsageError."""
    if text in ORDERS[:-1] or re.fullmatch(r"\d+(,\d+)*", text):
        return text
    raise UsageError(f"no order of ranks is called {text!r}; there are: {', '.join(ORDERS)}")


def check_split(text: str) -> str:
    """The text itself when it says who is measured and who disturbs, else UsageError."""
    if text in SPLITS[:-1]:
        return text
    ranks = r"\d+(-\d+)?(,\d+(-\d+)?)*"
    if not re.fullmatch(f"{ranks}/{ranks}", text):
        raise UsageError(f"no split of ranks is called {text!r}; there are: {', '.join(SPLITS)}, such as 0-3/4-7")
    return text


def rounds(world: World, topology: str, order: str = "linear", among: tuple[int, ...] | None = None) -> Sequence[Round]:
    """The groups that run at once, round after round, as many in each; of the ranks `among` alone where they are given.

    The length costs nothing; rounds of pairs are made one at a time. Raises UsageError for groups that do not fit, or
    are not all of one size.
    """
    if topology.endswith(IN_TURN):
        (at_once,) = rounds(world, check_topology(topology).removesuffix(IN_TURN), order, among)
        return tuple((group,) for group in at_once)
    chosen = None if among is None else frozenset(among)
    ranks = tuple(rank for rank in _ordered(world, order) if chosen is None or rank in chosen)
    per_node = world.ranks_per_node
    alone = len(ranks) < 2 or ("single" in topology and per_node < 2)
    if topology == "world" or (topology.endswith("pairs") and alone):  # the pattern says that it has no pair
        return ((Group("world" if among is None else "victims", ranks),),)
    if topology == "node":
        return (_by(ranks, "node", world.num_nodes, lambda rank: rank // per_node),)
    if topology == "rail":
        return (_by(ranks, "rail", per_node, lambda rank: rank % per_node),)
    if "single" in topology:
        return _single(ranks, per_node, topology)
    if topology.endswith("pairs"):
        pairs = circle(ranks)
        num = len(pairs)
        turns = 2 if topology == "directed pairs" else 1
        return Lazy(turns * num, lambda k: tuple(_pair(*pair[:: -1 if k >= num else 1]) for pair in pairs[k % num]))
    size = int(check_topology(topology).rsplit(" ", 1)[1])
    if len(ranks) % size:
        raise UsageError(f"{len(ranks)} ranks do not divide into groups of {size}")
    starts = range(0, len(ranks), size)
    return (tuple(Group(f"group{k}", ranks[start : start + size]) for k, start in enumerate(starts)),)


def _single(ranks: Sequence[int], per_node: int, topology: str) -> Sequence[Round]:
    """One rank, or one pair of ranks, of each node at a time: alone on its node, beside those of other nodes."""
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank // per_node, []).append(rank)
    nodes = [own for own in by_node.values() if topology == "single ranks" or len(own) > 1]
    num = max(map(len, nodes), default=0)
    if topology == "single ranks":
        return tuple(tuple(Group(f"rank{own[k]}", (own[k],)) for own in nodes if k < len(own)) for k in range(num))
    pairs = [(a, b) for a in range(num) for b in range(a + 1, num)]
    if topology == "directed single pairs":
        pairs += [(b, a) for a, b in pairs]
    return tuple(tuple(_pair(own[a], own[b]) for own in nodes if max(a, b) < len(own)) for a, b in pairs)


def circle(ranks: Sequence[int]) -> Sequence[tuple[tuple[int, int], ...]]:
    """All pairs in rounds of disjoint pairs: the first stays, the others rotate (N-1 rounds, N for odd N)."""
    first, *others = [*ranks] if len(ranks) % 2 == 0 else [*ranks, None]

    def at(k: int) -> tuple[tuple[int, int], ...]:
        seats = [first, *others[len(others) - k :], *others[: len(others) - k]]
        folded = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        return tuple((min(a, b), max(a, b)) for a, b in folded if a is not None and b is not None)

    return Lazy(len(others), at)


def _pair(a: int, b: int) -> Group:
    return Group(f"{a}-{b}", (a, b), a, b)


def _by(ranks: Sequence[int], name: str, num: int, which: Callable[[int], int]) -> Round:
    """`num` groups of ranks, each in its `which`."""
    members: list[list[int]] = [[] for _ in range(num)]
    for rank in ranks:
        members[which(rank)].append(rank)
    if len({len(own) for own in members if own}) > 1:
        raise UsageError(f"topology {name} makes groups of different sizes of the ranks {', '.join(map(str, ranks))}")
    return tuple(Group(f"{name}{k}", tuple(own)) for k, own in enumerate(members) if own)


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
