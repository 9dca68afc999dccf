"""Compare what ranks print about their operations: ranks that are behind or silent, and calls that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from bench.explain import crash_records
from bench.explain.crash_causes import first_of
from bench.explain.crash_messages import (
    ALL_TIMED_OUT,
    ALL_WAITED,
    CALLS_DIFFER,
    FINISHED_LESS,
    HUNG_AFTER_START,
    HUNG_AT_START,
    LEFT_BEHIND,
    RECORDED_LAG,
    SILENT,
)
from bench.logs.events import gloo, nccl_init, nccl_inspector, nccl_ras, torch_elastic, torch_watchdog
from bench.logs.failure_events import Event, Role

# the numbers of elements of these operations are equal on all ranks of a group
_WORKS_OF_ONE_SIZE = ("ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "BROADCAST", "REDUCE")
_MOST_AHEAD = 100  # operations by which a rank runs ahead of another; more belong to another attempt
_SENT = ("SEND", "RECV", "COALESCED")  # between two ranks; they have their own sequence numbers
WORLDS = (None, "0", "0 default_pg")  # the names of groups that contain all ranks
_Key = TypeVar("_Key")


def behind(events: Sequence[Event]) -> list[Event]:
    """Return events about ranks that are behind.

    A rank is behind if it did not start an operation in which other ranks timed out. NCCL's RAS subsystem may also show
    that a rank is behind.
    """
    found = []
    timeouts = [
        event for event in events if event.code in (torch_watchdog.TIMED_OUT.code, torch_watchdog.STATUS_AT.code)
    ]
    stuck = first_of([event for event in timeouts if event.seq is not None])
    if stuck is not None and stuck.seq is not None and not _has_several_attempts(events):
        enqueued: dict[int, Event] = {}
        for event in events:
            number = event.facts.get("enqueued")
            same_group = stuck.group is None or event.group in (None, stuck.group)
            if number is not None and number >= 0 and event.rank is not None and same_group:
                enqueued[event.rank] = event
        behind = [event for event in enqueued.values() if event.facts["enqueued"] < stuck.seq]
        timed_out = {event.rank for event in timeouts if event.seq == stuck.seq}
        behind = [event for event in behind if event.rank not in timed_out]
        if behind:
            found.append(_lag(behind, stuck.seq, stuck.operation, stuck.group, len(timed_out)))
    launched = [event for event in events if event.kind is nccl_ras.LAUNCHED and event.seq is not None]
    for group, operation in dict.fromkeys((event.group, event.operation) for event in launched):
        alike = [event for event in launched if (event.group, event.operation) == (group, operation)]
        most = max(event.seq or 0 for event in alike)
        behind = [event for event in alike if event.rank is not None and (event.seq or 0) < most]
        ahead = sum(event.facts.get("num_ranks", 1) for event in alike if event.seq == most)
        if behind:
            least = min(event.seq or 0 for event in behind)
            behind = [event for event in behind if event.seq == least]
            found.append(_lag(behind, least + 1, operation, group, ahead))
    return found


def slowest_finished(events: Sequence[Event]) -> list[Event]:
    """Return events about ranks that are behind according to the records of NCCL's Inspector.

    The Inspector writes its records at intervals, so a record proves nothing without other evidence.
    """
    finished = [event for event in events if event.kind is nccl_inspector.FINISHED and event.seq is not None]
    found = []
    for group in dict.fromkeys(event.group for event in finished):
        alike = [event for event in finished if event.group == group]
        most, least = max(event.seq or 0 for event in alike), min(event.seq or 0 for event in alike)
        behind = [event for event in alike if event.seq == least]
        if least < most and len(behind) * 2 < len(alike):
            event = _lag(behind, least + 1, None, group, len(alike) - len(behind))
            found.append(replace(event, kind=FINISHED_LESS))
    return found


def _lag(behind: Sequence[Event], seq: int, operation: str | None, group: str | None, waiting: int) -> Event:
    first = min(behind, key=lambda event: event.rank or 0)
    ranks = tuple(sorted({event.rank for event in behind if event.rank is not None}))
    only = ranks[0] if len(ranks) == 1 else None
    kind = RECORDED_LAG
    facts = {"num_waiting": waiting}
    return replace(first, kind=kind, rank=only, seq=seq, operation=operation, group=group, ranks=ranks, facts=facts)


def silent(events: Sequence[Event], num_ranks: int | None) -> list[Event]:
    """Return an event about ranks that reported nothing although most ranks timed out in an operation.

    If all ranks timed out, return an event that says so. In all other cases, return an empty list.
    """
    codes = (torch_watchdog.TIMED_OUT.code, gloo.TIMED_OUT.code)
    timeouts = [event for event in events if event.code in codes and event.rank is not None]
    explained = any(event.role in (Role.ABSENT, Role.CAUSE) and not event.kind.advisory for event in events)
    stuck = first_of([event for event in timeouts if event.seq is not None] or timeouts)
    if stuck is None or num_ranks is None or explained:
        return []
    timed_out = {event.rank for event in timeouts if _call(event) == _call(stuck)}
    reported = {event.rank for event in timeouts}
    silent = tuple(rank for rank in range(num_ranks) if rank not in reported)
    if not silent and timed_out != reported:
        return []
    facts = {"num_waiting": len(timed_out), "num_ranks": num_ranks}
    if not silent:
        kind = ALL_TIMED_OUT if stuck.seq is None else ALL_WAITED
        return [replace(stuck, kind=kind, rank=None, host=None, facts=facts)]
    if len(silent) * 2 >= num_ranks:
        return []
    only = silent[0] if len(silent) == 1 else None
    return [replace(stuck, kind=SILENT, rank=only, host=None, pid=None, ranks=silent, facts=facts)]


def _call(event: Event) -> tuple[str, int | None, str | None, int | None]:
    """Return what identifies the operation in which a rank timed out."""
    size = event.facts.get("numel_in") if event.operation in _WORKS_OF_ONE_SIZE else None
    return event.code, event.seq, event.operation, size


def compared_calls(events: Sequence[Event]) -> list[Event]:
    """Merge the messages about different calls into one event about all ranks. Each message names two ranks."""
    reports = [event for event in events if event.code == torch_watchdog.MISMATCH.code]
    calls: dict[int, tuple[str, str, str]] = {}
    for event in reports:
        other = event.facts.get("other_rank")
        if event.rank is not None:
            calls.setdefault(event.rank, (event.operation or "?", event.facts.get("shape", ""), ""))
        if isinstance(other, int):
            calls.setdefault(other, (event.facts["other_operation"], event.facts.get("other_shape", ""), ""))
    if len(reports) < 2 or len(set(calls.values())) < 2:
        return []
    return [crash_records.mismatch(reports[0], reports[0].group, reports[0].seq, calls)]


def compared_timeouts(events: Sequence[Event]) -> list[Event]:
    """Return events about ranks that timed out in different operations.

    The operations have the same sequence number in the same group.

    If the message about a timeout does not name the group, another message of the same rank with the same sequence
    number supplies the name. Different groups may have the same name, and each group has its own sequence numbers. Two
    groups are known to be different if their GUIDs differ, or if two ranks have the same number within the group.
    """
    names: dict[tuple[int, int], set[str]] = {}
    guids: dict[tuple[int, int], set[str]] = {}
    places: dict[tuple[int, int], set[int]] = {}
    for event in events:
        if event.group and event.rank is not None and event.seq is not None:
            own = (event.rank, event.seq)
            names.setdefault(own, set()).add(event.group)
            guid, place = event.facts.get("guid"), event.facts.get("group_rank")
            guids.setdefault(own, set()).update([guid] if guid is not None else [])
            places.setdefault(own, set()).update([place] if place is not None else [])

    def key_of(rank: int, seq: int) -> tuple[str, str, int] | None:
        own = (rank, seq)
        is_known = len(names.get(own, ())) == 1 and len(guids[own]) <= 1 and len(places[own]) <= 1
        return (min(names[own]), min(guids[own], default=""), seq) if is_known else None

    found = []
    for (group, _, seq), by_rank in _timed_out_calls(events, key_of).items():
        in_group = [place for rank in by_rank for place in places[rank, seq]]
        signatures = _signatures(by_rank)
        if len(set(signatures.values())) > 1 and len({*in_group}) == len(in_group):
            found.append(crash_records.mismatch(by_rank[min(by_rank)], group, seq, signatures))
    return found[:1]


def _timed_out_calls(
    events: Sequence[Event], key_of: Callable[[int, int], _Key | None]
) -> dict[_Key, dict[int, Event]]:
    """Return the first timeout of each rank, grouped by the key of the operation.

    `key_of`: a function that returns the key for a rank and a sequence number, or None if the operation cannot be
    compared.
    """
    calls: dict[_Key, dict[int, Event]] = {}
    for event in events:
        if event.kind is not torch_watchdog.TIMED_OUT or event.rank is None or event.seq is None:
            continue
        key = key_of(event.rank, event.seq)
        if key is not None and event.operation not in (None, *_SENT):
            calls.setdefault(key, {}).setdefault(event.rank, event)
    return calls


def _signatures(by_rank: Mapping[int, Event]) -> dict[int, tuple[str, str, str]]:
    """Return the tuple (operation, size, "") for each rank.

    The size is empty if it is unknown, the same on all ranks, or allowed to differ between ranks.
    """
    sizes = {
        rank: str(event.facts["numel_in"])
        for rank, event in by_rank.items()
        if event.operation in _WORKS_OF_ONE_SIZE and event.facts.get("numel_in") is not None
    }
    if not _sizes_of_one_operation_differ({rank: by_rank[rank].operation for rank in sizes}, sizes):
        sizes = {}
    return {rank: (event.operation or "?", sizes.get(rank, ""), "") for rank, event in by_rank.items()}


def _sizes_of_one_operation_differ(operations: Mapping[int, str | None], sizes: Mapping[int, str]) -> bool:
    """Check whether two ranks called the same operation with different sizes."""
    return len({(operations[rank], size) for rank, size in sizes.items()}) > len(set(operations.values()))


def differing_timeouts(events: Sequence[Event]) -> list[Event]:
    """Return an event about ranks that timed out in different operations with the same sequence number.

    No line names the group.

    Torch before 2.3 does not name groups. The ranks may belong to different groups, so the event blames no rank.
    """
    grouped = {event.rank for event in events if event.group is not None}
    calls = _timed_out_calls(events, lambda rank, seq: None if rank in grouped else seq)
    for seq, by_rank in sorted(calls.items()):
        ranks_of = crash_records.ranks_by_call(_signatures(by_rank))
        if len(ranks_of) > 1:
            first = by_rank[min(by_rank)]
            facts = {"calls": crash_records.calls_text(ranks_of)}
            return [
                replace(first, kind=CALLS_DIFFER, rank=None, host=None, pid=None, operation=None, seq=seq, facts=facts)
            ]
    return []


def left_behind(events: Sequence[Event]) -> list[Event]:
    """Return an event about ranks that timed out in an operation that other ranks had finished.

    All ranks take part in the operation. If the sequence numbers may belong to different attempts of the job, the list
    is empty.
    """
    if _has_several_attempts(events):
        return []
    stuck: dict[int, int] = {}
    completed: dict[int, int] = {}
    for event in events:
        if event.rank is None or event.group not in WORLDS[1:] or event.facts.get("completed") is None:
            continue
        completed[event.rank] = max(event.facts["completed"], completed.get(event.rank, -1))
        if event.kind is torch_watchdog.STATUS_AT and event.seq is not None:
            stuck[event.rank] = min(event.seq, stuck.get(event.rank, event.seq))
    least = min(stuck.values(), default=0)
    ahead = [rank for rank, number in completed.items() if number >= least]
    behind = tuple(sorted(rank for rank, seq in stuck.items() if seq == least and rank not in ahead))
    most = max(completed.values(), default=0)
    if not ahead or not behind or most - least > _MOST_AHEAD:
        return []
    at = [event for event in events if event.rank in behind and event.seq == least]
    named = [event for event in at if event.kind is torch_watchdog.TIMED_OUT] or at
    facts = {"num_ahead": len(ahead)}
    only = behind[0] if len(behind) == 1 else None
    return [replace(named[0], kind=LEFT_BEHIND, rank=only, ranks=behind, facts=facts)]


def _has_several_attempts(events: Sequence[Event]) -> bool:
    """Check whether the job may have been restarted within these logs. A restarted job counts its operations from 0.

    Signs of a restart: torchrun printed that it restarts the workers, or a rank's operation number in a group falls.
    """
    reached: dict[tuple[int | None, str | None, str | None], int] = {}
    for event in events:
        if event.kind is torch_elastic.RESTARTED:
            return True
        number = event.facts.get("completed")
        own = (event.rank, event.group, event.facts.get("guid"))
        if number is None or event.rank is None:
            continue
        if number < reached.get(own, number):
            return True
        reached[own] = number
    return False


def timed_out_elsewhere(events: Sequence[Event]) -> list[Event]:
    """Return an event for each timeout that a rank reported about another rank."""
    reported = [event for event in events if event.kind is torch_watchdog.STATUS and "reported_by" in event.facts]
    return [
        replace(
            event, kind=torch_watchdog.TIMED_OUT_ELSEWHERE, rank=int(event.facts["reported_by"]), host=None, pid=None
        )
        for event in reported
    ]


def hung(events: Sequence[Event]) -> list[Event]:
    """Return an event about where NCCL's initialisation stopped, from the last stage of each process.

    The list is empty if no stage is known.
    """
    stages = [event for event in events if event.kind is nccl_init.STAGE]
    if not stages:
        return []
    order = {stage: number for number, stage in enumerate(nccl_init.STAGES)}
    last = min(stages, key=lambda event: order[event.facts["stage"]])
    if last.facts["stage"] == nccl_init.STAGES[-1]:
        return [
            replace(last, kind=HUNG_AFTER_START, rank=None, host=None, pid=None, facts={"num_processes": len(stages)})
        ]
    reached: dict[tuple[str, str], int] = {}
    for event in stages:
        key = (event.host or "?", event.facts["stage"])
        reached[key] = reached.get(key, 0) + 1
    texts = [f"{host} reached {stage} ({count} of its processes)" for (host, stage), count in list(reached.items())[:8]]
    return [replace(last, kind=HUNG_AT_START, rank=None, host=None, pid=None, facts={"stages": ", ".join(texts)})]
