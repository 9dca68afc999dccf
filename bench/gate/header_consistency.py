"""Does each stored row fit the header above it? One that does not was edited, or written by a broken program.

What a row says of its ranks, its size and its factors follows from the case, the world and the pattern; it is worked
out again here, and no figure of a row that says otherwise is evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from bench.core import plugins
from bench.core.case import Case, own_case
from bench.core.dtypes import dtype_of
from bench.core.pattern import Pattern, Shape, Traffic, traffic_of
from bench.core.program import Group
from bench.core.record import Header, Record, Samples
from bench.gate.gate_input import groups_of, host_of
from bench.gate.rules import GateFault

_FACTORS = ("bus_factor", "rank_bytes", "node_bytes", "min_steps")
_CLOSE = 1e-9  # relative: a factor is the same formula on the same numbers
_MOST_TOLD = 20  # of one job


def faults(job: str, header: Header, records: Iterable[Record]) -> Iterator[GateFault]:
    """The rows of one attempt that contradict its header, by the first contradiction of each."""
    told = 0
    place = _Place(header)
    for record in records:
        if record.skipped is None and record.failed is None and told < _MOST_TOLD:
            why = _why(record, header, place)
            if why is not None:
                told += 1
                yield GateFault(
                    "inconsistent", why, job, header.pattern, record.mode, _whole(record.payload_bytes), record.group
                )


class _Place:
    """What a job's header tells of its rows: the case, the pattern, and which ranks each group has."""

    def __init__(self, header: Header) -> None:
        self.case = own_case(header.case) if not header.imported else None
        known = self.case is not None and self.case.pattern in plugins.names("pattern")
        self.pattern: Pattern | None = None
        if known and self.case is not None:
            self.pattern = plugins.load("pattern", self.case.pattern).PATTERN
        self._header = header
        self._groups: dict[str, Group] | None = None

    def group(self, record: Record) -> Group | None:
        """The ranks of a row's group; None where no group of its name is of this case."""
        if self.case is not None and self.case.schedule == "ladder":
            ends = (record.src, record.dst)
            ranks = tuple(rank for rank in ends if _is_count(rank))
            return Group(record.group, ranks, *ends) if len(ranks) == len(ends) else None  # type: ignore[arg-type]
        if self._groups is None:
            self._groups = {group.name: group for each in groups_of(self._header) for group in each}
        return self._groups.get(record.group)


def _why(record: Record, header: Header, place: _Place) -> str | None:
    """What of a row contradicts its header, in words; None for a sound one."""
    verified: Any = record.verified  # a file may hold anything
    if verified is not None and not isinstance(verified, bool):
        return f"verified is {verified!r}: true, false or nothing can stand there"
    if record.num_wrong is not None and not _is_count(record.num_wrong):
        return f"num_wrong is {record.num_wrong!r}, not a number of elements"
    if record.samples is None:
        return None
    if place.case is None or place.pattern is None or place.case.pattern != header.pattern:
        return f"it has samples of {header.pattern}, and its header's case is none of that pattern"
    group = place.group(record)
    if group is None:
        return f"its case measures no group {record.group!r}"
    if record.num_ranks != len(group.ranks) or type(record.num_ranks) is bool:
        return f"{record.num_ranks} ranks are told, group {record.group} has {len(group.ranks)}"
    return (
        _why_samples(record.samples, place.pattern, _shape(place.case, record), record.modelled)
        or _why_size(record, place.case, place.pattern)
        or _why_factors(record, header, place, group)
    )


def _why_samples(samples: Samples, pattern: Pattern, shape: Shape, modelled: bool) -> str | None:
    if not modelled:
        for what, lists in (("samples", samples.by_rank), ("means", samples.rank_mean_s)):
            if lists and len(lists) != shape.num_ranks:
                return f"{what} of {len(lists)} ranks are there, {shape.num_ranks} took part"
    for member, own in enumerate(samples.by_rank):
        least = min(own, default=0.0)
        if not all(map(math.isfinite, own)) or least < 0 or (least == 0 and pattern.steps(shape, member)):
            return f"rank {member} of its group has a sample that is no time"
    return None


def _why_size(record: Record, case: Case, pattern: Pattern) -> str | None:
    asked: Sequence[Any] = record.requested_bytes
    if not asked or any(size not in case.sizes for size in asked):
        return f"sizes {list(asked)} were asked for by the row, not by its case"
    blank = _shape(case, record, 0)
    if any(pattern.payload(size, blank) != record.payload_bytes for size in asked):
        return f"{record.payload_bytes} bytes are told, {asked[0]} asked for become {pattern.payload(asked[0], blank)}"
    return None


def _why_factors(record: Record, header: Header, place: _Place, group: Group) -> str | None:
    """The bus factor and the bytes that must cross a boundary; of modelled rows, hosts have no names here."""
    assert place.case is not None and place.pattern is not None
    at = [host_of(header, rank) for rank in group.ranks]
    if header.modelled or None in at:
        return None
    hosts = list(dict.fromkeys(at))
    if record.num_nodes != len(hosts):
        return f"{record.num_nodes} nodes are told, the ranks of group {record.group} are on {len(hosts)}"
    each = len(at) // len(hosts)
    even = at == [host for host in hosts for _ in range(each)]
    expected = _traffic(place.pattern, _shape(place.case, record), len(hosts) if even else None)
    for name in _FACTORS:
        wanted, got = getattr(expected, name), getattr(record, name)
        if not _same(wanted, got):
            return f"{name} is {got}, {record.num_ranks} ranks and {record.payload_bytes} bytes give {wanted}"
    return None


@lru_cache(maxsize=4096)
def _traffic(pattern: Pattern, shape: Shape, num_nodes: int | None) -> Traffic:
    return traffic_of(pattern, shape, num_nodes)


def _shape(case: Case, record: Record, payload_bytes: int | None = None) -> Shape:
    size = record.payload_bytes if payload_bytes is None else payload_bytes
    element_bytes = dtype_of(case.dtype).num_bytes
    num_ranks = record.num_ranks or 0
    return Shape(
        num_ranks,
        size,
        element_bytes,
        case.root,
        record.mode,
        case.direction,
        case.window,
        case.matrix,
        case.access,
        case.via,
    )


def _same(wanted: float | None, got: Any) -> bool:
    if wanted is None or got is None or isinstance(got, bool) or not isinstance(got, int | float):
        return wanted is None and got is None
    return math.isclose(wanted, got, rel_tol=_CLOSE)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _whole(value: Any) -> int | None:
    return value if _is_count(value) else None
