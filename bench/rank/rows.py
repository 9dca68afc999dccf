"""Plan the rows of a case: the sizes, shapes and buffers, the traffic across boundaries, and which rows to skip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from bench.core.case import Case
from bench.core.dtypes import dtype_of, undefined_reduction
from bench.core.pattern import Pattern, Shape, Traffic, traffic_of
from bench.core.program import Collective, Group, Round
from bench.core.record import Skip
from bench.core.skips import SkipCode
from bench.core.transport import Overlapping, Reduction, Transport
from bench.rank.messages import RankSkip

_MOST_SETS = 64
_IN_PLACE_ROOM_BYTES = 64 << 20
# A GPU has buffer sets for this many calls of an in-place batch, if they fit in this share of its free memory.
_DEVICE_CALLS, _DEVICE_SHARE = 16, 0.25
_ANY_BATCH = 1 << 30


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """The plan for one size and one mode, for groups that run at the same time.

    `max_s`: the time limit of the samples in seconds. If `max_s` is 0 or less, the row is skipped.
    """

    mode: str
    shape: Shape
    requested: tuple[int, ...]
    round: Round
    max_s: float


def ends_first(sizes: Iterable[int]) -> list[int]:
    """Return sizes in the order smallest, largest, second smallest, ...

    If the time budget runs out before all sizes are measured, only middle sizes are missing. The smallest sizes show
    the latency and the largest sizes the bandwidth. Sizes in between can be interpolated.
    """
    ascending = sorted(sizes)
    num_small = (len(ascending) + 1) // 2
    small, large = ascending[:num_small], ascending[: num_small - 1 : -1]
    order = [size for pair in zip(small, large, strict=False) for size in pair]
    return order + small[len(large) :]


def traffic(pattern: Pattern, shape: Shape, group: Group, hosts: tuple[str, ...]) -> dict[str, Any]:
    """Return those fields of a record that need no measurement, such as sizes, factors and bytes that cross nodes."""
    return next(traffic_of_round(pattern, shape, (group,), hosts))


def traffic_of_round(pattern: Pattern, shape: Shape, groups: Round, hosts: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the fields of `traffic` for each group of a round.

    If two groups have the same number of nodes, their traffic is the same.
    """
    known: dict[int | None, dict[str, Any]] = {}
    for group in groups:
        num_nodes, even = _nodes_of(group, hosts)
        parts = num_nodes if even else None
        if parts not in known:
            known[parts] = _plain(traffic_of(pattern, shape, parts))
        yield {
            "payload_bytes": shape.payload_bytes,
            "num_ranks": shape.num_ranks,
            "num_nodes": num_nodes,
            "group": group.name,
            "src": group.src,
            "dst": group.dst,
        } | known[parts]


def _nodes_of(group: Group, hosts: tuple[str, ...]) -> tuple[int, bool]:
    """Return the number of nodes of a group, and whether these nodes divide the group into equal parts.

    The parts are equal if the group's members are ordered by node, and each node has the same number of members.
    """
    at = [hosts[rank] for rank in group.ranks]
    counts = Counter(at)
    in_order = at == [host for host, num in counts.items() for _ in range(num)]
    return len(counts), in_order and len(set(counts.values())) == 1


def _plain(found: Traffic) -> dict[str, Any]:
    return {each.name: getattr(found, each.name) for each in fields(found)}


@dataclass(frozen=True, slots=True)
class BufferSets:
    """Computes how many buffer sets a row of one pattern uses on one rank. Successive calls use successive buffer sets.

    `cache_bytes`: size of the cache that the buffers must exceed to be cold, or 0 if unknown.
    `num_sharing`: number of ranks of a node that share this cache.
    `cold`: whether the buffers must exceed the cache.
    `device_bytes`: free memory of a GPU, or 0 for buffers in host memory.
    """

    pattern: Pattern
    cache_bytes: int
    num_sharing: int
    cold: bool
    device_bytes: int = 0

    def num(self, shape: Shape, in_place: bool) -> int:
        """Return the number of buffer sets.

        For a cold cache, all ranks that share the cache together need sets with at least twice the size of the cache.
        No rank gets more than _MOST_SETS sets, even if a cold cache would require more sets.

        An in-place reduction overwrites its input, so every call of a pipelined batch needs its own buffer set. Calls
        on a GPU are short. The time of a batch with only a few calls would mostly show the launch of the batch. A row
        on a GPU therefore gets more buffer sets than a row on a host.
        """
        local_bytes = self._in_one_cache(shape)
        if local_bytes == 0:
            return 1
        cold = -(-2 * self.cache_bytes // local_bytes) if self.cold else 1
        own = 1
        if in_place and self.pattern.reduces:
            on_device = min(_DEVICE_CALLS, int(self.device_bytes * _DEVICE_SHARE) // shape.payload_bytes)
            own = max(_IN_PLACE_ROOM_BYTES // shape.payload_bytes, on_device)
        return max(1, min(max(cold, own), _MOST_SETS))

    def most_batch(self, shape: Shape, in_place: bool) -> int:
        """Return the largest number of calls in a pipelined sample.

        An in-place reduction overwrites its buffer set, so a sample can use each set for only one call.
        """
        if in_place and self.pattern.reduces:
            return self.num(shape, in_place)
        return _ANY_BATCH

    def state(self, shape: Shape, in_place: bool) -> str | None:
        """Return the actual cache state: "cold", "hot", or None if the state is unknown.

        The state is cold if all sets together have at least twice the size of the cache.
        """
        if not self.cache_bytes:
            return None
        return "cold" if self.num(shape, in_place) * self._in_one_cache(shape) >= 2 * self.cache_bytes else "hot"

    def _in_one_cache(self, shape: Shape) -> int:
        """Return the bytes of one set, summed over all ranks that share this rank's cache."""
        return self._set_bytes(shape) * min(self.num_sharing, shape.num_ranks)

    def _set_bytes(self, shape: Shape) -> int:
        """Return the bytes of one rank's buffers in a set.

        The result is at least twice the payload, and larger if each call sends a window of several messages.
        """
        members = range(min(2, shape.num_ranks))
        return max(2 * shape.payload_bytes, *(sum(self.pattern.buffers(shape, member)) for member in members))


def is_in_place(case: Case, pattern: Pattern, transport: Transport, shape: Shape) -> bool:
    """Check whether a row is in place.

    A row is in place if the user requests this, or if the library can run the pattern only in place.
    """
    steps = pattern.steps(shape, 0) if pattern.needs(shape) is None else ()
    return case.in_place or transport.must_be_in_place(steps)


def unsupported_reason(
    case: Case, pattern: Pattern, transport: Transport, row: PlannedRow, member: int, in_place: bool
) -> Skip | None:
    """Return why this rank cannot measure a row, or None if the rank can measure the row.

    If a library needs all ranks to find the reason, idle ranks must also call this function.

    `member`: this rank's number in its group. If the rank is idle, `member` is 0.
    """
    if row.max_s <= 0:
        return Skip.of(SkipCode.BUDGET, budget_s=case.budget_s)
    if pattern.one_way and transport.clock != "host":
        return Skip.of(RankSkip.ONE_WAY_CLOCK, transport=case.transport)
    if case.root >= row.shape.num_ranks and pattern.rooted:
        return Skip.of(SkipCode.NO_ROOT, root=case.root, num_ranks=row.shape.num_ranks)
    if pattern.overlaps and (reason := no_overlap_reason(case, transport)) is not None:
        return reason
    if pattern.one_way and case.aggressor:
        return Skip.of(RankSkip.ONE_WAY_AGGRESSOR, pattern=pattern.name)
    if in_place and not pattern.in_place:
        return Skip.of(RankSkip.NO_IN_PLACE, pattern=pattern.name)
    if (reason := pattern.needs(row.shape)) is not None:
        return reason
    if pattern.reduces and (undefined := undefined_reduction(dtype_of(case.dtype), case.reduce_op)) is not None:
        return undefined
    return _transport_reason(case, pattern, transport, row, member, in_place)


def _transport_reason(
    case: Case, pattern: Pattern, transport: Transport, row: PlannedRow, member: int, in_place: bool
) -> Skip | None:
    steps = pattern.steps(row.shape, member)
    collectives = any(isinstance(step, Collective) for step in steps)
    # Check all groups, because `unsupported_reason` may need all ranks: either all ranks call it or no rank does.
    unsorted = any(group.ranks != tuple(sorted(group.ranks)) for group in row.round)
    if collectives and not transport.keeps_order and unsorted:
        return Skip.of(RankSkip.RANKS_REORDERED, transport=case.transport)
    reduction = Reduction(dtype_of(case.dtype).name, case.reduce_op)
    for step in steps:
        reason = transport.unsupported_reason(step, reduction, in_place)
        if reason is not None:
            return reason
    return None


def no_overlap_reason(case: Case, transport: Transport) -> Skip | None:
    """Return why matrix products cannot overlap the case's collectives. Return None if the overlap is possible."""
    if not isinstance(transport, Overlapping):
        return Skip.of(RankSkip.NO_OVERLAP, transport=case.transport)
    if case.graph:
        return Skip.of(RankSkip.OVERLAP_GRAPH)
    if case.aggressor:
        return Skip.of(RankSkip.OVERLAP_AGGRESSOR)
    return None
