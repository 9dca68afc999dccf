"""Sort the records of single collectives, and count the records that the source lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from bench.core.codes import Coded
from bench.core.step_trace import TracedCollective
from bench.logs.trace_messages import TraceCode


def ordered(collectives: Iterable[TracedCollective]) -> tuple[tuple[TracedCollective, ...], int]:
    """Return the collectives sorted by start, each with its index in its group, and the number of lost collectives.

    Gaps in the sequence numbers show lost collectives. In a replayed CUDA graph, sequence numbers repeat within a
    group. The function removes repeated numbers, because they do not show whether collectives were lost.
    """
    groups: dict[str, list[TracedCollective]] = defaultdict(list)
    for one in collectives:
        groups[one.group].append(one)
    found = []
    num_lost = 0
    for own in groups.values():
        numbers = {one.seq for one in own if one.seq is not None}
        has_all = len(numbers) == len(own)
        own.sort(key=lambda one: (one.seq or 0, one.start_s) if has_all else (0, one.start_s))
        if has_all:
            num_lost += max(numbers) - min(numbers) + 1 - len(numbers)
        found += [replace(one, place=place, seq=one.seq if has_all else None) for place, one in enumerate(own)]
    return tuple(sorted(found, key=lambda one: (one.start_s, one.place))), num_lost


def lost(source: str, num_lost: int, num_found: int) -> list[Coded]:
    """Return a list with a remark on lost records. The list is empty if no record was lost."""
    if not num_lost:
        return []
    num_all = num_lost + num_found
    facts = {"source": source, "num": num_lost, "num_all": num_all, "share": num_lost / num_all}
    return [Coded.of(TraceCode.LOST_RECORDS, **facts)]
