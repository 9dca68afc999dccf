"""Form groups of ranks. A topology defines which ranks are in a group, and which groups run at the same time.

`world`: one group with all ranks.
`node`: for each node, a group with the ranks of this node. All groups run at the same time.
`rail`: for each k, a group with the k-th rank of every node. All groups run at the same time.
`groups of K`: groups of K consecutive ranks. All groups run at the same time.
`node in turn`, `rail in turn`, `groups of K in turn`: the same groups, but one group at a time. The ranks of all other
    groups are idle.
`pairs`: every pair of ranks. N/2 disjoint pairs run at a time, by the circle method.
`directed pairs`: the same pairs twice. The second time, source and target are swapped.
`single ranks`, `single pairs`, `directed single pairs`: on each node, one rank or pair at a time.

The order of ranks inside a group is a separate factor. The order is `linear`, `reverse`, `interleaved` or a list of the
ranks such as `0,2,1,3`. The order `interleaved` alternates between the nodes, so a ring crosses the network at every
step.
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
    """A sequence that computes an element only when the element is accessed.

    A lazy sequence saves memory: 8,192 ranks, for example, have 33.5 million pairs.
    """

    def __init__(self, num: int, make: Callable[[int], T]) -> None:
        """Set up a sequence of `num` elements. `make(k)` computes element k."""
        self._num, self._make = num, make

    def __len__(self) -> int:
        """Return the number of elements without making the elements."""
        return self._num

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return one element, or the elements of a slice."""
        at = range(self._num)[index]
        return self._make(at) if isinstance(at, int) else tuple(map(self._make, at))


def check_topology(text: str) -> str:
    """Return the text if it is the name of a topology. Raises UsageError otherwise."""
    match = _GROUPS_OF.fullmatch(text)
    if text in TOPOLOGIES[:-2] or (match and int(match[1]) > 0):
        return text
    raise UsageError(f"no topology is called {text!r}; there are: {', '.join(TOPOLOGIES)}")


def check_order(text: str) -> str:
    """Return the text if it names an order of ranks. Raises UsageError otherwise."""
    if text in ORDERS[:-1] or re.fullmatch(r"\d+(,\d+)*", text):
        return text
    raise UsageError(f"no order of ranks is called {text!r}; there are: {', '.join(ORDERS)}")


def check_split(text: str) -> str:
    """Return the text if it says which ranks are victims and which are aggressors. Raises UsageError otherwise."""
    if text in SPLITS[:-1]:
        return text
    ranks = r"\d+(-\d+)?(,\d+(-\d+)?)*"
    if not re.fullmatch(f"{ranks}/{ranks}", text):
        raise UsageError(f"no split of ranks is called {text!r}; there are: {', '.join(SPLITS)}, such as 0-3/4-7")
    return text


def rounds(world: World, topology: str, order: str = "linear", among: tuple[int, ...] | None = None) -> Sequence[Round]:
    """Return the rounds of a measurement. The groups of a round run at the same time.

    `among`: the ranks to use. The default is all ranks of the world.

    All rounds have the same number of groups. If the groups are pairs, a round is made only when it is accessed, which
    saves memory. Raises UsageError if the groups would have different sizes, or if the topology or the order is
    invalid.
    """
    if topology.endswith(IN_TURN):
        (at_once,) = rounds(world, check_topology(topology).removesuffix(IN_TURN), order, among)
        return tuple((group,) for group in at_once)
    chosen = None if among is None else frozenset(among)
    ranks = tuple(rank for rank in _ordered(world, order) if chosen is None or rank in chosen)
    per_node = world.ranks_per_node
    alone = len(ranks) < 2 or ("single" in topology and per_node < 2)
    if topology == "world" or (topology.endswith("pairs") and alone):  # the pattern itself refuses such a group
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
        raise UsageError(f"{len(ranks)} ranks cannot be divided into groups of {size}")
    starts = range(0, len(ranks), size)
    return (tuple(Group(f"group{k}", ranks[start : start + size]) for k, start in enumerate(starts)),)


def _single(ranks: Sequence[int], per_node: int, topology: str) -> Sequence[Round]:
    """Return rounds in which one rank, or one pair of ranks, is active on each node."""
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
    """Return all pairs in rounds of disjoint pairs.

    By the circle method, one rank keeps its place and the other ranks rotate. N ranks need N - 1 rounds, or N rounds if
    N is odd.
    """
    first, *others = [*ranks] if len(ranks) % 2 == 0 else [*ranks, None]

    def at(k: int) -> tuple[tuple[int, int], ...]:
        seats = [first, *others[len(others) - k :], *others[: len(others) - k]]
        folded = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        return tuple((min(a, b), max(a, b)) for a, b in folded if a is not None and b is not None)

    return Lazy(len(others), at)


def _pair(a: int, b: int) -> Group:
    return Group(f"{a}-{b}", (a, b), a, b)


def _by(ranks: Sequence[int], name: str, num: int, which: Callable[[int], int]) -> Round:
    """Divide ranks into `num` groups. `which`: a function that returns the number of a rank's group."""
    members: list[list[int]] = [[] for _ in range(num)]
    for rank in ranks:
        members[which(rank)].append(rank)
    if len({len(own) for own in members if own}) > 1:
        raise UsageError(
            f"topology {name} divides the ranks {', '.join(map(str, ranks))} into groups of different sizes"
        )
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
