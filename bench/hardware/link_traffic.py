"""Compute the traffic on each link while the groups of a round run, and the bus bandwidth that the links allow.

The fullest link is the link that needs the most time for its bytes. It limits the bus bandwidth. The bounds in
`bounds.py` are valid for any algorithm, but ignore the traffic of other groups. In contrast, this module assumes the
algorithms of a library (core/schedules.py) and adds the bytes of all groups of the round. Each message is assigned to
the links that it crosses (core/fabric.py). If a link of rate R carries B bytes in one operation, then t >= B / R.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product, zip_longest
from typing import TYPE_CHECKING

from bench.core import plugins
from bench.core.case import Case
from bench.core.case_argv import own_case
from bench.core.contention import rounds
from bench.core.errors import BenchError
from bench.core.fabric import Fabric
from bench.core.flows import AlikeGroups, alike_groups, by_step, collectives, phases_of
from bench.core.links import Limit, NodeLinks
from bench.core.log_traits import log_traits
from bench.core.pattern import Pattern, Shape
from bench.core.program import Collective, Group, Round, Step
from bench.core.record import Header, Record
from bench.core.schedules import Phases, algorithms
from bench.core.traits import traits
from bench.core.units import format_bytes, format_rate
from bench.core.world import World

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_MOST_GROUPS = 40_000  # most groups in all rounds together, about as many as there are pairs of 280 ranks
_MOST_RANKS = 4096  # with more ranks, messages are not assigned to links
_LIMITS = {
    "nic": Limit.NIC_IN_USE,
    "pcie": Limit.PCIE_IN_USE,
    "bridge": Limit.PCIE_SWITCH_IN_USE,
    "nvlink": Limit.NVLINK_IN_USE,
    "pair": Limit.NVLINK_IN_USE,
    "leaf": Limit.UPLINK_IN_USE,
}
_SOURCES = {"nic": "network", "bridge": "pcie", "pair": "nvlink", "leaf": "network"}  # kind -> key of NodeLinks.sources
# A library with rings sends these operations round a ring of all ranks. Each node's NICs carry all bytes of busbw,
# although two nodes need only half of them. With several GPUs per node NCCL has no other algorithm, except in-network
# algorithms (NVIDIA/nccl src/graph/tuning.cc: PAT is for one GPU per node, NVLS and CollNet need an in-network
# allgather).
BY_RING = ("allgather", "reducescatter")
# How a library with rings sends large data, unless it has a faster algorithm (trees, switches that reduce).
_USUAL = {
    **dict.fromkeys(("allreduce", "allgather", "reducescatter"), "ring"),
    **dict.fromkeys(("broadcast", "reduce"), "chain"),
    **dict.fromkeys(("gather", "scatter"), "linear"),
    **dict.fromkeys(("alltoall", "alltoallv"), "pairwise"),
}


@dataclass(frozen=True, slots=True)
class HashedRound:
    """The groups of a round, with a hash that is computed once.

    Computing the hash of thousands of ranks again for each row would be too slow.
    """

    round: Round
    digest: int

    @classmethod
    def of(cls, round_: Round) -> HashedRound:
        """Return a round with its hash."""
        return cls(round_, hash(round_))

    def __hash__(self) -> int:
        """Return the stored hash."""
        return self.digest


@dataclass(frozen=True, slots=True)
class LinkUse:
    """The link that takes the most time in a group's operation, for one algorithm.

    `busbw_bytes_per_s`: the highest bus bandwidth of the group that this link allows.
    `kind`: nic, pcie, bridge, nvlink, pair or leaf. Several NICs of one GPU count as one link.
    `num_bytes`: the bytes that all groups together send over the link in one operation.
    `rate`: the link's bytes per second.
    """

    algorithm: str
    busbw_bytes_per_s: float
    kind: str
    num_bytes: float
    rate: float
    num_links: int  # links of this kind and direction that the group uses on one node
    num_groups: int  # groups that run at the same time

    @property
    def limit(self) -> Limit:
        """The code of the bound that such a link sets."""
        return _LIMITS[self.kind]

    @property
    def why(self) -> str:
        """A text for people that says how many bytes cross the link."""
        link = self.limit.template.removesuffix(" as used")
        groups = f"{self.num_groups} groups run at once; " if self.num_groups > 1 else ""
        return (
            f"{groups}by the algorithm {self.algorithm!r} the fullest {link} carries {format_bytes(self.num_bytes)} "
            f"per operation, at {format_rate(self.rate)}"
        )

    @property
    def source(self) -> str:
        """The name of this link in NodeLinks.sources."""
        return _SOURCES.get(self.kind, self.kind)


def use_of(header: Header, record: Record, links: NodeLinks, in_gpus: bool) -> LinkUse | None:
    """Return the link that limits a row if the library uses the best algorithm, or None if that link is unknown.

    `in_gpus`: whether the data are in GPU memory. For data in host memory, the function assumes that the memory does
        not limit the rate. It also assumes that the ranks of a host share the total rate of its NICs.
    """
    case = own_case(header.case) if header.case else None
    if case is not None and (case.is_ladder or case.aggressor):
        return None
    place = _place(header, record, case)
    if place is None or record.bus_factor is None or not record.payload_bytes:
        return None
    groups, index = place
    pattern: Pattern = plugins.load("pattern", header.pattern).PATTERN
    shape = Shape(len(groups.round[0].ranks), record.payload_bytes)
    if case is not None:
        shape = case.shape(shape.num_ranks, shape.payload_bytes, record.mode)
    world = _world(header, record)
    if world is None or links.nvlink_nodes > 1:  # it is unknown which nodes share a domain
        return None
    rings = traits(header.transport).rings or log_traits(header.transport).rings
    modelled = record.algorithm if header.modelled else None
    uses = uses_of(_as_used(links, world, in_gpus), world, groups, index, pattern, shape, rings, modelled)
    return max(uses, key=lambda use: use.busbw_bytes_per_s, default=None)


def uses_of(
    links: NodeLinks,
    world: World,
    groups: HashedRound,
    index: int,
    pattern: Pattern,
    shape: Shape,
    rings: bool,
    modelled: str | None = None,
) -> tuple[LinkUse, ...]:
    """Return the fullest link of a group, for each algorithm that the library may use.

    `index`: the index of the group in the round `groups`.
    `rings`: whether the library sends large data along rings (traits.Traits.rings).
    `modelled`: if the row is modelled, its algorithm. The phases of a modelled row do not overlap. None for a measured
        row.
    """
    if not _fits(links, world, pattern, shape):
        return ()
    chosen = modelled or ("rings" if rings else "any")
    unit = _unit(pattern.name, shape)
    uses = _uses_by_group(_Key(_rates(links), world, groups, pattern.name, unit, chosen, "", modelled is not None))[
        index
    ]
    times = shape.payload_bytes // max(1, unit.payload_bytes)
    return uses if times == 1 else tuple(replace(use, num_bytes=times * use.num_bytes) for use in uses)


@lru_cache(maxsize=1024)
def _unit(pattern: str, shape: Shape) -> Shape:
    """Divide the payload of a shape by the largest possible power of two, so that many sizes share a cached result.

    If the blocks of a collective are equal, its messages are proportional to its payload. If the payload is divided by
    a power of two, all bytes and seconds are then divided by the same number without rounding, and the bandwidth stays
    the same. For other patterns, the result is `shape` itself.
    """
    own: Pattern = plugins.load("pattern", pattern).PATTERN
    blocks, rest = divmod(shape.payload_bytes, shape.element_bytes * shape.num_ranks)
    collective = all(isinstance(step, Collective) and not step.send_split for step in own.steps(shape, 0))
    if rest or not blocks or not collective:
        return shape
    return replace(shape, payload_bytes=shape.payload_bytes // (blocks & -blocks))


def usual_use(links: NodeLinks, world: World, pattern: Pattern, shape: Shape, kind: str = "") -> LinkUse | None:
    """Return the fullest link for large data over all ranks, if the library uses rings.

    `kind`: if given, only links of this kind are compared.
    """
    group = Group("world", tuple(range(world.num_ranks)))
    groups = HashedRound.of((group,))
    if not _fits(links, world, pattern, shape):
        return None
    key = _Key(_rates(in_play(links, world.ranks_per_node)), world, groups, pattern.name, shape, "usual", kind)
    return next(iter(_uses_by_group(key)[0]), None)


def _fits(links: NodeLinks, world: World, pattern: Pattern, shape: Shape) -> bool:
    """Check whether the traffic on the links can be computed.

    The node must have a GPU for each rank, the world must not be too large, and the pattern must be able to run.
    """
    too_many = links.peer != "memory" and world.ranks_per_node > links.gpus
    return not too_many and world.num_ranks <= _MOST_RANKS and pattern.needs(shape) is None


def in_play(links: NodeLinks, ranks_per_node: int) -> NodeLinks:
    """Return the links of a node if only `ranks_per_node` of its GPUs are used.

    Each GPU uses its own NICs, or shares a NIC with its neighbours. If fewer GPUs are used, fewer NICs are used.
    """
    nics, gpus = links.num_nics, links.gpus
    if nics is None or ranks_per_node >= gpus:
        return links
    least = -(-nics * ranks_per_node // gpus)  # neighbours share a NIC, so that 4 of 8 GPUs use 2 of 4 NICs
    return replace(links, num_nics=max(1, least))


@dataclass(frozen=True, slots=True)
class _Rates:
    """A hashable copy of the fields of NodeLinks that determine the traffic and the rates of the links."""

    values: tuple[tuple[str, object], ...]

    def links(self) -> NodeLinks:
        return NodeLinks(**dict(self.values))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Key:
    rates: _Rates
    world: World
    groups: HashedRound
    pattern: str
    shape: Shape
    chosen: str  # any, rings, usual, or the name of an algorithm
    kind: str = ""  # the kind of the links to look at; empty for all
    in_turn: bool = False  # whether each phase begins only when the phase before has ended on all links


def _rates(links: NodeLinks) -> _Rates:
    """Return the rates of these links.

    Unknown rates become infinite and all latencies become 0, so that neither sets a limit.
    """
    values: dict[str, object] = {
        name: getattr(links, name)
        for name in ("gpus", "peer", "pair_bytes_per_s", "num_nics", "nvls", "nvlink_nodes", "nodes_per_leaf")
    }
    for name in ("nvlink_bytes_per_s", "pcie_bytes_per_s", "nic_bytes_per_s", "memory_bytes_per_s"):
        values[name] = math.inf if getattr(links, name) is None else getattr(links, name)
    values |= {"oversubscription": links.oversubscription, "gpus_per_pcie_switch": links.gpus_per_pcie_switch}
    return _Rates((("instance", ""), *values.items(), ("peer_s", 0.0), ("host_s", 0.0), ("network_s", 0.0)))


def _as_used(links: NodeLinks, world: World, in_gpus: bool) -> NodeLinks:
    """Return the links that these ranks use on a node.

    If the data are in host memory, the ranks share one link with the rate of all NICs.
    """
    if in_gpus:
        return in_play(links, world.ranks_per_node)
    rate = None if links.nic_bytes_per_s is None else links.nic_bytes_per_s * (links.num_nics or 1)
    return replace(links, peer="memory", memory_bytes_per_s=None, nic_bytes_per_s=rate, num_nics=1)


def _world(header: Header, record: Record) -> World | None:
    """Return the world of a run, or None if the world is unknown or its nodes have different numbers of ranks."""
    num_ranks, num_nodes = header.num_ranks or record.num_ranks, header.num_nodes or record.num_nodes
    if not num_ranks or not num_nodes or num_ranks % num_nodes:
        return None
    return World(num_nodes, num_ranks // num_nodes)


def _place(header: Header, record: Record, case: Case | None) -> tuple[HashedRound, int] | None:
    """Return the round in which a record was measured, and the index of the record's group in the round.

    The result is None if the round is unknown.
    """
    world = _world(header, record)
    if world is None or record.num_ranks is None:
        return None
    if case is None:
        if record.num_ranks != world.num_ranks:
            return None
        return HashedRound.of((Group(record.group, tuple(range(world.num_ranks))),)), 0
    return _rounds_of(tuple(header.case), world, header.topology).get(record.group)


@lru_cache(maxsize=256)  # every row of a run looks up its round: the text of a case has a faster hash than the case
def _rounds_of(argv: tuple[str, ...], world: World, topology: str) -> Mapping[str, tuple[HashedRound, int]]:
    """Map the name of each group of a case to its round and its index, as `_rounds_by_group` does.

    `argv`: the command line of the case.
    """
    case = own_case(argv)
    return {} if case is None else _rounds_by_group(replace(case, sizes=()), world, topology)


@lru_cache(maxsize=32)
def _rounds_by_group(case: Case, world: World, topology: str) -> Mapping[str, tuple[HashedRound, int]]:
    """Map the name of each group to the round that contains the group, and to the index of the group in that round."""
    try:
        all_rounds = rounds(case, world, topology)
    except BenchError:
        return {}
    if len(all_rounds) * len(all_rounds[0]) > _MOST_GROUPS:
        return {}
    found = {}
    for round_ in all_rounds:
        groups = HashedRound.of(tuple(round_))
        for index, group in enumerate(round_):
            found[group.name] = groups, index
    return found


@lru_cache(maxsize=256)
def _uses_by_group(key: _Key) -> tuple[tuple[LinkUse, ...], ...]:
    """Return a tuple for each group of a round, which has the group's fullest link for each algorithm.

    The result is cached for the whole round.
    """
    pattern: Pattern = plugins.load("pattern", key.pattern).PATTERN
    links, round_ = key.rates.links(), key.groups.round
    if links.peer == "unknown":
        return ((),) * len(round_)
    fabric = Fabric(links, key.world)
    of_members = tuple(pattern.steps(key.shape, member) for member in range(key.shape.num_ranks))
    shared = alike_groups(fabric, round_, (of_members,) * len(round_))
    steps = list(by_step([each.program for each in shared]))
    ops = sorted({op for at_once in steps for op in collectives(at_once)})
    found: list[list[LinkUse]] = [[] for _ in round_]
    for names in product(*(_candidates(op, key) for op in ops)):
        phases = _all_phases(fabric, shared, steps, dict(zip(ops, names, strict=True)))
        if phases is None:
            continue
        for group, use in _fullest(fabric, _load_of(fabric, shared, phases), key, "+".join(names) or "messages"):
            found[group].append(use)
    return tuple(map(tuple, found))


def _candidates(op: str, key: _Key) -> Sequence[str]:
    """Return the algorithms that a library may use for an operation."""
    known = algorithms(op)
    if key.chosen in known:
        return [key.chosen]
    if key.chosen == "usual":
        return [_USUAL[op]] if op in _USUAL else known
    world = key.world
    crosses = world.num_nodes > 1 and world.ranks_per_node > 1 and len(key.groups.round[0].ranks) > world.num_nodes
    if key.chosen == "rings" and op in BY_RING and crosses:
        return ["ring"]
    return known


def _all_phases(
    fabric: Fabric,
    shared: Sequence[AlikeGroups],
    steps: Sequence[list[tuple[Step, ...]]],
    chosen: Mapping[str, str],
) -> list[Phases] | None:
    """Return the phases of each set of similar groups. The groups of a set have equal phases.

    The result is None if one of the chosen algorithms cannot run.
    """
    found: list[Phases] = [[] for _ in shared]
    for at_once in steps:
        for phases, each, own in zip(found, shared, at_once, strict=True):
            more = phases_of(fabric, each.first, own, chosen, fabric.alike)
            if more is None:
                return None
            phases += more
    return found


@dataclass(frozen=True, slots=True)
class _Load:
    """The traffic of a round on all links.

    `total`: the bytes through each link.
    `used`: a matrix with a row per group and a column per link. An element is true if the group sends bytes over the
        link.
    `seconds`: the sum of the times of all phases.
    """

    total: Floats
    used: NDArray[np.bool_]
    seconds: float


def _load_of(fabric: Fabric, shared: Sequence[AlikeGroups], phases: Sequence[Phases]) -> _Load:
    """Return the traffic of all groups of a round on the links.

    `phases`: the phases of the first group of each set of similar groups. Similar groups have equal phases.
    """
    import numpy as np

    num_links, num_groups = len(fabric.capacity), sum(len(each.numbers) for each in shared)
    total, used = np.zeros(num_links), np.zeros((num_groups, num_links), dtype=np.bool_)
    seconds = 0.0
    for at_once in zip_longest(*phases):  # groups that are spread over fewer nodes may have fewer phases
        loads = np.zeros(num_links)
        running = ((each, own) for each, own in zip(shared, at_once, strict=True) if own and own.repeat)
        sending = [(each, own) for each, own in running if len(own.flows)]
        if sending:
            flows = [each.flows(own.flows) for each, own in sending]
            groups = np.concatenate([np.repeat(each.numbers, len(own.flows)) for each, own in sending])
            repeats = np.repeat([own.repeat for _, own in sending], [len(table) for table in flows])
            paths, _, num_bytes = fabric.routes(np.concatenate(flows))
            loads += np.bincount(paths.ravel(), np.repeat(repeats * num_bytes, paths.shape[1]), num_links)
            moves = num_bytes > 0
            used[groups[moves, None], paths[moves]] = True
        loads[-1] = 0.0  # the last index stands for "no link"
        total += loads
        seconds += float((loads / fabric.capacity).max(initial=0.0))
    used[:, -1] = False
    return _Load(total, used, seconds)


def _fullest(fabric: Fabric, load: _Load, key: _Key, algorithm: str) -> Iterator[tuple[int, LinkUse]]:
    """Yield the index of each group, and the fullest link that the group uses.

    Groups whose messages cross no link with a known rate are omitted.
    """
    import numpy as np

    kinds = fabric.links_by_kind()
    only = kinds.get(key.kind, slice(0, 0)) if key.kind else slice(0, len(fabric.capacity))
    busy_s = (load.total / fabric.capacity)[only]
    # three times as fast as np.nonzero of a matrix
    groups, links = np.divmod(np.flatnonzero(load.used[:, only]), only.stop - only.start)
    order = np.lexsort((links, -busy_s[links], groups))
    fullest = order[np.unique(groups[order], return_index=True)[1]]  # if several links are equally full, the first one
    pattern: Pattern = plugins.load("pattern", key.pattern).PATTERN
    operations = pattern.operations(key.shape)
    useful = key.shape.payload_bytes * (pattern.bus_factor(key.shape) or 0.0) * operations
    for group, link in zip(groups[fullest].tolist(), (links[fullest] + only.start).tolist(), strict=True):
        kind, ids = next((name, ids) for name, ids in kinds.items() if ids.start <= link < ids.stop)
        link_s = float(busy_s[link - only.start])
        if not link_s or kind not in _LIMITS:
            continue
        per_node = (ids.stop - ids.start) // 2 // key.world.num_nodes
        first = ids.start + (link - ids.start) // max(1, per_node) * per_node
        num_used = int(load.used[group, first : first + per_node].sum()) if per_node else 1
        per_pass, rate = useful / (load.seconds if key.in_turn else link_s), float(fabric.capacity[link])
        per_operation = float(load.total[link]) / operations
        yield group, LinkUse(algorithm, per_pass, kind, per_operation, rate, num_used, len(key.groups.round))
