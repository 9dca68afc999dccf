"""Compare the flight records of several ranks to find different calls, late ranks, and unfinished operations.

An operation is unfinished if no rank finished the operation. Gloo never updates the states of its operations. This
module therefore reports unfinished operations only in groups with records of finished operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.explain.crash_messages import RECORDED_LAG, RECORDED_MISMATCH, RECORDED_STUCK, WITHOUT_DUMP
from bench.logs.events import flight_recorder
from bench.logs.failure_events import Event, MessageKind

Record = tuple[str, str, str, str]  # operation, sizes, dtypes, state
_RECORDED_OF_ONE_SIZE = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "reduce",
    "all_gather",
    "_all_gather_base",
    "reduce_scatter",
)
_MOST_CALLS = 4  # a sentence names at most this many different calls


def recorded(events: Sequence[Event]) -> Iterator[Event]:
    """Yield what the dumps show, as events. For each group, find the first operation in which the ranks differ."""
    groups: dict[str, dict[int, Event]] = {}
    for event in events:
        if event.kind is flight_recorder.RECORDS and event.rank is not None and event.group is not None:
            groups.setdefault(event.group, {})[event.rank] = event
    for group, by_rank in groups.items():
        calls = {rank: _calls(event.facts["records"]) for rank, event in by_rank.items()}
        calls = {rank: found for rank, found in calls.items() if found}
        parted = list(_parted(group, calls, by_rank)) if len(calls) > 1 else []
        yield from parted or _without_dump(group, calls, by_rank, members(events))


def members(events: Sequence[Event]) -> tuple[int, ...]:
    """Return every rank that a dump lists as a member of a group, in rising order."""
    listed = [event.facts["members"] for event in events if event.kind is flight_recorder.RECORDS]
    return tuple(sorted({rank for ranks in listed for rank in ranks}))


def dumped(events: Sequence[Event]) -> tuple[int, ...]:
    """Return the ranks whose dumps were read."""
    ranks = {event.rank for event in events if event.kind is flight_recorder.RECORDS}
    return tuple(sorted(rank for rank in ranks if rank is not None))


def _calls(records: Sequence[Sequence[Any]]) -> dict[int, Record]:
    """Map each sequence number to the first record with this number."""
    found: dict[int, Record] = {}
    for seq, operation, sizes, dtypes, state in records:
        found.setdefault(seq, (operation, sizes, dtypes, state))
    return found


def _parted(group: str, calls: Mapping[int, Mapping[int, Record]], events: Mapping[int, Event]) -> Iterator[Event]:
    """Yield the first difference between the ranks of a group.

    Ranks made different calls, some ranks are late, or no rank finished an operation.
    """
    first = max(min(found) for found in calls.values())  # the recorder keeps only the last operations
    last = {rank: max(found) for rank, found in calls.items()}
    for seq in sorted({seq for found in calls.values() for seq in found if first <= seq <= min(last.values())}):
        at_seq = {rank: found[seq] for rank, found in calls.items() if seq in found}
        signatures = {rank: _signature(record) for rank, record in at_seq.items()}
        if len(set(signatures.values())) > 1:
            yield mismatch(events[min(signatures)], group or None, seq, signatures)
            return
    behind = tuple(rank for rank in sorted(last) if last[rank] < max(last.values()))
    if behind:
        seq = min(last.values()) + 1
        behind = tuple(rank for rank in behind if last[rank] < seq)
        waiting = [rank for rank in calls if seq in calls[rank]]
        operation = calls[waiting[0]][seq][0] if waiting else None
        facts = {"num_waiting": len(last) - len(behind)}
        yield _event(RECORDED_LAG, events[behind[0]], group, seq, operation, facts, behind)
        return
    finished = any(record[3] == "completed" for found in calls.values() for record in found.values())
    open_seqs = [
        min((seq for seq, record in found.items() if record[3] != "completed"), default=0) for found in calls.values()
    ]
    if finished and all(open_seqs) and len(set(open_seqs)) == 1:
        seq, rank = open_seqs[0], min(calls)
        yield _event(RECORDED_STUCK, events[rank], group, seq, calls[rank][seq][0], {"num_ranks": len(calls)}, ())


def _without_dump(
    group: str, calls: Mapping[int, Mapping[int, Record]], events: Mapping[int, Event], expected: Sequence[int]
) -> Iterator[Event]:
    """Yield an event about the ranks that wrote no dump, if these are fewer than half and all dumps agree."""
    lacking = tuple(rank for rank in expected if rank not in events)
    if not calls or not lacking or len(lacking) * 2 >= len(expected):
        return
    rank = min(calls)
    seq = max(calls[rank])
    facts = {"num_waiting": len(calls), "num_ranks": len(expected)}
    yield _event(WITHOUT_DUMP, events[rank], group, seq, calls[rank][seq][0], facts, lacking)


def _signature(record: Record) -> tuple[str, str, str]:
    """Return the operation, sizes and types of a record, which must be equal on all ranks.

    If ranks may use different sizes and types in this operation, these two texts are empty.
    """
    operation, sizes, dtypes, _ = record
    return (operation, sizes, dtypes) if operation in _RECORDED_OF_ONE_SIZE else (operation, "", "")


def ranks_by_call(signatures: Mapping[int, tuple[str, str, str]]) -> dict[tuple[str, str, str], list[int]]:
    """Return the ranks that made each call, in rising order. `signatures`: the call of each rank."""
    ranks_of: dict[tuple[str, str, str], list[int]] = {}
    for rank, signature in sorted(signatures.items()):
        ranks_of.setdefault(signature, []).append(rank)
    return ranks_of


def calls_text(ranks_of: Mapping[tuple[str, str, str], Sequence[int]]) -> str:
    """Return which ranks called which operation: `ranks 0, 2 called A; rank 1 called B`.

    `ranks_of`: for each (operation, sizes, types), the ranks that made this call.
    """
    texts = []
    for signature, ranks in sorted(ranks_of.items(), key=lambda item: -len(item[1]))[:_MOST_CALLS]:
        operation, sizes, dtypes = signature
        named = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        what = f"{operation}[{sizes}] {dtypes}".strip() if sizes else operation
        texts.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {named} called {what}")
    return "; ".join(texts)


def mismatch(
    report: Event, group: str | None, seq: int | None, signatures: Mapping[int, tuple[str, str, str]]
) -> Event:
    """Return an event that says which rank called which operation.

    `signatures`: for each rank, (operation, sizes, types). If one call has more ranks than any other call, the event
    blames the ranks with other calls.
    `report`: the message or dump that shows the difference.
    """
    texts = calls_text(ranks_by_call(signatures))
    most, second = Counter(signatures.values()).most_common(2)
    odd: tuple[int, ...] = ()
    if most[1] > second[1]:
        odd = tuple(rank for rank in sorted(signatures) if signatures[rank] != most[0])
    return replace(
        report,
        kind=RECORDED_MISMATCH,
        rank=odd[0] if len(odd) == 1 else None,
        host=None,
        pid=None,
        group=group,
        operation=signatures[odd[0]][0] if odd else most[0][0],
        seq=seq,
        ranks=odd,
        facts={"calls": texts},
    )


def _event(
    kind: MessageKind,
    dump: Event,
    group: str,
    seq: int,
    operation: str | None,
    facts: Mapping[str, Any],
    ranks: tuple[int, ...],
) -> Event:
    """Return a finding as an event. The event's rank is set only if the finding is about one rank."""
    rank = ranks[0] if len(ranks) == 1 else None
    return Event(
        kind,
        0,
        rank=rank,
        group=group or "default",
        operation=operation,
        seq=seq,
        ranks=ranks,
        source=dump.source,
        facts=facts,
    )
