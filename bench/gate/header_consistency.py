"""Find stored rows that contradict their header, for example because somebody edited the file.

The case, the world and the pattern of a job determine the ranks, the size and the factors of its rows. This module
recomputes the ranks, the size and the factors of each row. A row that has other values is not valid evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from bench.core import plugins
from bench.core.case import Case
from bench.core.case_argv import own_case
from bench.core.pattern import Pattern, Shape, Traffic, traffic_of
from bench.core.program import Group
from bench.core.record import Header, Record, Samples
from bench.gate.gate_input import groups_of, host_of
from bench.gate.messages import FaultCode
from bench.gate.rules import GateFault

_FACTORS = ("bus_factor", "rank_bytes", "node_bytes", "min_steps")
_CLOSE = 1e-9  # relative difference: both factors come from the same formula and the same numbers
_MOST_FAULTS = 20  # at most this many faults are reported for one job
_Contradiction = tuple[FaultCode, dict[str, Any]]


def faults(job: str, header: Header, records: Iterable[Record]) -> Iterator[GateFault]:
    """Yield a fault for each row of one attempt that contradicts its header.

    Only the first contradiction of a row is reported.
    """
    num_found = 0
    job_case = _JobCase(header)
    for record in records:
        if record.skipped is not None or record.failed is not None:
            continue
        found = _contradiction(record, header, job_case)
        if found is not None:
            code, facts = found
            size = record.payload_bytes if _is_count(record.payload_bytes) else None
            yield GateFault(code, facts, job, header.pattern, record.mode, size, record.group)
            num_found += 1
            if num_found == _MOST_FAULTS:
                return


class _JobCase:
    """What the header of a job determines for its rows: the case, the pattern, and the ranks of each group."""

    def __init__(self, header: Header) -> None:
        self.case = None if header.imported else own_case(header.case)
        self.pattern: Pattern | None = None
        if self.case is not None and self.case.pattern in plugins.names("pattern"):
            self.pattern = plugins.load("pattern", self.case.pattern).PATTERN
        self._header = header
        self._groups: dict[str, Group] | None = None

    def group(self, record: Record) -> Group | None:
        """Return the group of a row, or None if the case has no group with this name."""
        if self.case is not None and self.case.is_ladder:
            ends = (record.src, record.dst)
            ranks = tuple(rank for rank in ends if _is_count(rank))
            return Group(record.group, ranks, *ends) if len(ranks) == len(ends) else None  # type: ignore[arg-type]
        if self._groups is None:
            self._groups = {group.name: group for each in groups_of(self._header) for group in each}
        return self._groups.get(record.group)


def _contradiction(record: Record, header: Header, job_case: _JobCase) -> _Contradiction | None:
    """Return the first contradiction between a row and its header; None for a consistent row."""
    verified: Any = record.verified  # a file may hold a value of any type
    if verified is not None and not isinstance(verified, bool):
        return FaultCode.VERIFIED_ODD, {"value": verified}
    if record.num_wrong is not None and not _is_count(record.num_wrong):
        return FaultCode.NUM_WRONG_ODD, {"value": record.num_wrong}
    if record.samples is None:
        return None
    case, pattern = job_case.case, job_case.pattern
    if case is None or pattern is None or case.pattern != header.pattern:
        return FaultCode.CASE_OF_OTHER_PATTERN, {"pattern": header.pattern}
    group = job_case.group(record)
    if group is None:
        return FaultCode.GROUP_NOT_OF_CASE, {"group": record.group}
    if record.num_ranks != len(group.ranks) or type(record.num_ranks) is bool:
        facts = {"num_ranks": record.num_ranks, "group": record.group, "expected": len(group.ranks)}
        return FaultCode.NUM_RANKS_ODD, facts
    return (
        _odd_samples(record.samples, pattern, _shape(case, record), record.modelled)
        or _odd_size(record, case, pattern)
        or _odd_factors(record, header, case, pattern, group)
    )


def _odd_samples(samples: Samples, pattern: Pattern, shape: Shape, modelled: bool) -> _Contradiction | None:
    if not modelled:
        for name, lists in (("samples", samples.by_rank), ("means", samples.rank_mean_s)):
            if lists and len(lists) != shape.num_ranks:
                facts = {"lists": name, "num_lists": len(lists), "num_ranks": shape.num_ranks}
                return FaultCode.LISTS_OF_RANKS_ODD, facts
    for member, own in enumerate(samples.by_rank):
        least = min(own, default=0.0)
        if not all(map(math.isfinite, own)) or least < 0 or (least == 0 and pattern.steps(shape, member)):
            return FaultCode.SAMPLE_ODD, {"member": member}
    return None


def _odd_size(record: Record, case: Case, pattern: Pattern) -> _Contradiction | None:
    requested: Sequence[Any] = record.requested_bytes
    if not requested or any(size not in case.sizes for size in requested):
        return FaultCode.SIZE_NOT_OF_CASE, {"sizes": tuple(requested)}
    blank = _shape(case, record, 0)
    if any(pattern.payload(size, blank) != record.payload_bytes for size in requested):
        facts = {
            "payload_bytes": record.payload_bytes,
            "requested_bytes": requested[0],
            "expected": pattern.payload(requested[0], blank),
        }
        return FaultCode.PAYLOAD_ODD, facts
    return None


def _odd_factors(record: Record, header: Header, case: Case, pattern: Pattern, group: Group) -> _Contradiction | None:
    """Recompute a row's bus factor, and the bytes that must leave a rank or a node.

    Compare the recomputed values with the row. Modelled rows are not checked, because they have no hosts.
    """
    at = [host_of(header, rank) for rank in group.ranks]
    if header.modelled or None in at:
        return None
    hosts = list(dict.fromkeys(at))
    if record.num_nodes != len(hosts):
        facts = {"num_nodes": record.num_nodes, "group": record.group, "expected": len(hosts)}
        return FaultCode.NUM_NODES_ODD, facts
    ranks_per_host = len(at) // len(hosts)
    even = at == [host for host in hosts for _ in range(ranks_per_host)]
    expected = _traffic(pattern, _shape(case, record), len(hosts) if even else None)
    for name in _FACTORS:
        wanted, got = getattr(expected, name), getattr(record, name)
        if not _same(wanted, got):
            facts = {
                "factor": name,
                "value": got,
                "num_ranks": record.num_ranks,
                "payload_bytes": record.payload_bytes,
                "expected": wanted,
            }
            return FaultCode.FACTOR_ODD, facts
    return None


@lru_cache(maxsize=4096)
def _traffic(pattern: Pattern, shape: Shape, num_nodes: int | None) -> Traffic:
    return traffic_of(pattern, shape, num_nodes)


def _shape(case: Case, record: Record, payload_bytes: int | None = None) -> Shape:
    num_bytes = record.payload_bytes if payload_bytes is None else payload_bytes
    return case.shape(record.num_ranks or 0, num_bytes, record.mode)


def _same(wanted: float | None, got: Any) -> bool:
    if wanted is None or got is None or isinstance(got, bool) or not isinstance(got, int | float):
        return wanted is None and got is None
    return math.isclose(wanted, got, rel_tol=_CLOSE)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
