"""Find what failed first, and separate the cause of a failure from its consequences.

The evidence consists of the messages in all files of one job. The page blames a rank only if a message names this rank.
Each cause is the earliest message of its type.

A message is a consequence in four cases:
- The same rank had waited or lost a connection before.
- The launcher ended the process, or the job was stopped from outside before.
- Another rank is known to have failed before.
- The message says that ranks are missing, and each of these ranks has an error or an end of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from bench.core.codes import Coded, fill, fill_present
from bench.explain import crash_records
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
    CrashCode,
)
from bench.explain.reason import Reason
from bench.logs.events import (
    _ends,
    gloo,
    launchers,
    nccl_init,
    nccl_inspector,
    nccl_ras,
    openmpi_errors,
    python_errors,
    torch_elastic,
    torch_watchdog,
)
from bench.logs.failure_events import Event, Role

_MOST_REASONS = 4
_MOST_CONSEQUENCES = 8
_MOST_RANKS = 1 << 20
_SURE = 0.6  # with a lower weight, the cause is uncertain
_LEAST_WEIGHT = 0.15  # causes with a lower weight are not shown
_MOST_OF_WARNING = 0.3  # the weight of a message that programs also print if all goes well, beside other messages
_FAILS = (Role.CAUSE, Role.NETWORK, Role.ABSENT, Role.ENDED, Role.WAITED, Role.PEER, Role.STOPPED)
_FOLLOWS = (Role.WAITED, Role.PEER, Role.STOPPED)
_ENDS = (Role.ENDED, Role.STOPPED)
_DEATHS = (_ends.KILLED.code, _ends.CRASHED.code, _ends.ABORTED.code, _ends.EXITED.code)
_OWN_ENDS = (_ends.ABORTED.code, _ends.EXITED.code)  # the process ended itself after an error
_LOSSES = (_ends.NODE_LOST.code, _ends.HOST_MEMORY.code)
_HARD = (*_DEATHS, *_LOSSES, launchers.ABORT.code)  # these messages never follow from the rank's own waiting
# the lines in which the next process of a stopped job ends, and in which it crashes or reports an error
_MOST_STOP_LINES, _SOON_LINES = 2000, 100
_AT_START = (_ends.STORE_UNREACHABLE.code, "gloo-cannot-connect", "ranks-did-not-start")  # errors of the next run
# errors that a process prints while the job is stopped; they do not count against a stop by an unknown reason
_ERRORS_OF_STOP = (
    launchers.MPI_ERROR.code,
    launchers.ABORT.code,
    launchers.MPI_ASSERTION.code,
)
_RAISED_AT_STOP = (python_errors.NO_INPUT_OUTPUT, python_errors.LOADER_ENDED)
_ALL_GATHERS = ("ALLGATHER", "_ALLGATHER_BASE")
_SAME_LOSS = (*_LOSSES, "gpu-broken")  # several programs report the same loss
_NO_PAIR = (  # not about two ranks of NCCL
    python_errors.CLOSED.code,
    launchers.MPI_PEER_LOST.code,
    launchers.CONNECTION_LOST.code,
    _ends.WORKER_LOST.code,
    _ends.WORKER_DIED.code,
    "horovod-stopped",
    "coordinator-lost",
    "coordination-stopped",
    "coordination-error",
    "collectives-aborted",
)
# the numbers of elements of these operations are equal on all ranks of a group
_WORKS_OF_ONE_SIZE = ("ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "BROADCAST", "REDUCE")
_MOST_AHEAD = 100  # operations by which a rank runs ahead of another; more belong to another attempt
_SENT = ("SEND", "RECV", "COALESCED")  # between two ranks; they have their own sequence numbers
_WORLDS = (None, "0", "0 default_pg")  # the names of groups that contain all ranks
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Crash:
    """What failed in a job, and what is known about the failure.

    `first`: the earliest message of the likeliest cause.
    `reporters`: the ranks that printed such a message.
    `absent`: the ranks that never reached the operation.
    `waiting`: the operation in which the other ranks waited.
    `reasons`: the causes, the likeliest first.
    `consequences`: what followed from the failure.
    `unknown`: the facts that the logs do not show, and the file or option that would show each fact.
    """

    first: Event
    reporters: tuple[int, ...]
    absent: tuple[int, ...]
    waiting: Event | None
    reasons: tuple[Reason, ...]
    consequences: tuple[Coded, ...]
    unknown: tuple[Coded, ...]
    num_ranks: int | None
    sources: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the crash as a dictionary for JSON documents."""
        first, waiting = self.first, self.waiting
        return {
            "first": _plain(first),
            "reported_by_ranks": list(self.reporters),
            "absent_ranks": list(self.absent),
            "waiting": _plain(waiting) if waiting is not None else None,
            "causes": [asdict(reason) for reason in self.reasons],
            "consequences": [_coded(line) for line in self.consequences],
            "unknown": [_coded(line) for line in self.unknown],
            "num_ranks": self.num_ranks,
            "sources": list(self.sources),
        }


def crash_of(events: Sequence[Event], failed: bool = False) -> Crash | None:
    """Find what failed. Return None if no message reports a failure.

    `failed`: whether the job is known to have failed. If so, its last stage shows where the job hung, even without a
        message.
    """
    num_ranks = _num_ranks(events)
    events = _attributed(events)
    shown = [event for event in events if event.role in _FAILS]
    shown += crash_records.recorded(events)
    if not all(event.kind.advisory for event in shown):
        shown = [_doubted(event) for event in shown]
    reporters: set[int | None] = set()
    for event in (event for event in shown if not event.kind.advisory):
        if event.role not in _ENDS and event.code not in _DEATHS:
            reporters |= {event.rank, event.facts.get("reported_by")}
    if any(event.kind is torch_watchdog.TIMED_OUT for event in shown):
        shown = [event for event in shown if event.kind is not torch_watchdog.STATUS_AT]
    compared = _compared_calls(events) or _compared_timeouts(events)
    if compared:
        shown = [event for event in shown if event.code != torch_watchdog.MISMATCH.code] + compared
    shown += _behind(events) or _left_behind(events)
    shown += [] if compared else _differing_timeouts(events)
    if shown or failed:
        shown += _slowest_finished(events)
    shown += _silent(shown, num_ranks)
    shown += [] if shown else _timed_out_elsewhere(events)
    if not shown and failed:
        shown += _hung(events)
    if not failed and all(event.kind.advisory for event in shown):
        return None
    causes, followed = _divided(shown, reporters)
    ranked = _ranked(causes)
    if not ranked:
        return None
    first = ranked[0][0]
    absent = _absent(causes, followed, first)
    waiting = _first([event for event in shown if event.seq is not None])
    return Crash(
        first=first,
        reporters=tuple(sorted({event.rank for event in shown if event.code == first.code and event.rank is not None})),
        absent=absent,
        waiting=waiting,
        reasons=tuple(_reason(event, weight) for event, weight in ranked[:_MOST_REASONS]),
        consequences=tuple(_consequences(followed)),
        unknown=tuple(_unknown(events, shown, first, ranked[0][1], num_ranks)),
        num_ranks=num_ranks,
        sources=tuple(dict.fromkeys(event.source for event in events)),
    )


def _doubted(event: Event) -> Event:
    """Give a message that programs also print if all goes well less weight than any message of a failure."""
    if not event.kind.advisory:
        return event
    return replace(event, kind=replace(event.kind, weight=min(event.kind.weight, _MOST_OF_WARNING)))


def _num_ranks(events: Sequence[Event]) -> int | None:
    """Return the number of ranks according to the logs; None if the logs do not state the number.

    Messages of NCCL or the store, a list of ranks, torchrun's table and dumps may state the number. The sizes of an
    allgather also show the number.
    """
    stated = [event.facts["num_ranks"] for event in events if event.facts.get("num_ranks") and event.role != Role.STATE]
    listed = [event.rank + 1 for event in events if event.kind is nccl_init.RANK and event.rank is not None]
    workers = {event.rank for event in events if "first_observed" in event.facts and event.code != nccl_init.RANK.code}
    if workers == set(range(len(workers))):  # torchrun's table lists every worker of a node
        listed.append(len(workers))
    members = crash_records.members(events)
    gathered = []
    for event in events:
        sent, received = event.facts.get("numel_in"), event.facts.get("numel_out")
        if event.operation in _ALL_GATHERS and sent and received and received % sent == 0 and event.group in _WORLDS:
            gathered.append(received // sent)
    highest = max((event.rank for event in events if event.rank is not None), default=0)
    gathered = [count for count in gathered if count > highest]  # a smaller count is the size of a subgroup
    counts = [*map(int, stated), *listed, len(members), *gathered]
    largest = max(counts, default=0)
    return largest if 0 < largest <= _MOST_RANKS else None


def _attributed(events: Sequence[Event]) -> list[Event]:
    """Add to each event the rank and host that other lines state for the same process.

    The label before a message of a spawned process names the rank that spawned it, so such an event has no rank.

    Two reports about the end of the same process are merged.
    """
    ranks: dict[tuple[str | None, int], set[int]] = {}
    hosts: dict[int, set[str]] = {}
    for event in events:
        if event.pid is not None and event.rank is not None and not event.facts.get(openmpi_errors.SPAWNED):
            for host in {event.host, None}:
                ranks.setdefault((host, event.pid), set()).add(event.rank)
        if event.rank is not None and event.host is not None and event.role in (Role.PLACE, *_ENDS, Role.CAUSE):
            hosts.setdefault(event.rank, set()).add(event.host)
    found = []
    for event in events:
        if event.facts.get(openmpi_errors.SPAWNED):
            found.append(replace(event, rank=None))
            continue
        if event.rank is None and event.pid is not None:
            known = ranks.get((event.host, event.pid), set())
            event = replace(event, rank=next(iter(known))) if len(known) == 1 else event
        if event.rank is not None and event.host is None and len(hosts.get(event.rank, ())) == 1:
            event = replace(event, host=next(iter(hosts[event.rank])))
        found.append(event)
    return _with_only_rank(_once(found))


def _once(events: Sequence[Event]) -> list[Event]:
    """Merge two reports about the end of the same process, one by torchrun's agent and one in torchrun's table.

    The table's report is kept, because it has the rank and the host.
    """
    ended = {(event.pid, event.code) for event in events if "first_observed" in event.facts}
    found = []
    for event in events:
        if event.facts.get("by_agent") and (event.pid, event.code) in ended:
            continue
        found.append(event)
    return found


def _with_only_rank(events: Sequence[Event]) -> list[Event]:
    """Assign an error without a rank to the process that ended first.

    The error is assigned under two conditions. Exactly one error has no rank. Exactly one process without an error of
    its own ended first.
    """
    explained = {event.rank for event in events if event.role in (Role.CAUSE, *_FOLLOWS) and event.code not in _DEATHS}
    sure = [event for event in events if event.role == Role.CAUSE and not event.kind.advisory]
    named = {event.code for event in sure if event.rank is not None}
    nameless = [event for event in sure if event.rank is None and event.pid is None and event.code not in named]
    ended = [event for event in events if event.role == Role.ENDED and event.rank not in {*explained, None}]
    first = [event for event in ended if event.facts.get("first_observed")] or ended
    if len({event.code for event in nameless}) != 1 or len({event.rank for event in first}) != 1:
        return list(events)
    owner = first[0]
    owned = replace(nameless[0], rank=owner.rank, host=owner.host, pid=owner.pid)
    return [owned if event is nameless[0] else event for event in events]


def _behind(events: Sequence[Event]) -> list[Event]:
    """Return events about ranks that are behind.

    A rank is behind if it did not start an operation in which other ranks timed out. NCCL's RAS subsystem may also show
    that a rank is behind.
    """
    found = []
    timeouts = [
        event for event in events if event.code in (torch_watchdog.TIMED_OUT.code, torch_watchdog.STATUS_AT.code)
    ]
    stuck = _first([event for event in timeouts if event.seq is not None])
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


def _slowest_finished(events: Sequence[Event]) -> list[Event]:
    """Return events about ranks that are behind in the records of NCCL's Inspector.

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


def _silent(events: Sequence[Event], num_ranks: int | None) -> list[Event]:
    """Return an event about ranks that reported nothing although most ranks timed out in an operation.

    If all ranks timed out, return an event that says so. In all other cases, return an empty list.
    """
    codes = (torch_watchdog.TIMED_OUT.code, gloo.TIMED_OUT.code)
    timeouts = [event for event in events if event.code in codes and event.rank is not None]
    explained = any(event.role in (Role.ABSENT, Role.CAUSE) and not event.kind.advisory for event in events)
    stuck = _first([event for event in timeouts if event.seq is not None] or timeouts)
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


def _compared_calls(events: Sequence[Event]) -> list[Event]:
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


def _compared_timeouts(events: Sequence[Event]) -> list[Event]:
    """Return an event about ranks that timed out in different operations with one sequence number in one group.

    The message about a timeout often does not name the group. If so, the rank's message about the same number does. In
    two groups of equal name, each process counts its groups by itself; their GUIDs differ, or two ranks have the same
    number in the group.
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
    """Return the first timeout of each rank, by the key of its operation.

    `key_of`: returns the key for a rank and a sequence number, or None if the operation is not compared.
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
    """Return for each rank (operation, size, "").

    The size is empty if it is the same on all ranks, unknown, or need not be the same.
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


def _differing_timeouts(events: Sequence[Event]) -> list[Event]:
    """Return an event about ranks that timed out in different operations with one number, if no line names the group.

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


def _left_behind(events: Sequence[Event]) -> list[Event]:
    """Return an event about ranks that timed out in an operation of all ranks that other ranks had finished.

    The list is empty if the numbers may belong to different attempts.
    """
    if _has_several_attempts(events):
        return []
    stuck: dict[int, int] = {}
    completed: dict[int, int] = {}
    for event in events:
        if event.rank is None or event.group not in _WORLDS[1:] or event.facts.get("completed") is None:
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


def _timed_out_elsewhere(events: Sequence[Event]) -> list[Event]:
    """Return events about the ranks that, as other ranks print, timed out in an operation."""
    reported = [event for event in events if event.kind is torch_watchdog.STATUS and "reported_by" in event.facts]
    return [
        replace(
            event, kind=torch_watchdog.TIMED_OUT_ELSEWHERE, rank=int(event.facts["reported_by"]), host=None, pid=None
        )
        for event in reported
    ]


def _hung(events: Sequence[Event]) -> list[Event]:
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


def _divided(events: Sequence[Event], reporters: Collection[int | None]) -> tuple[list[Event], list[Event]]:
    """Divide events into causes and consequences.

    If all events are consequences, the cause is unknown. The function then returns the consequences as causes.

    `reporters`: the ranks that printed why they failed.
    """
    ordered = sorted(events, key=_order)
    follows = {id(event) for event in ordered if event.role == Role.STOPPED}
    follows |= _after_own_waiting(ordered) | _later_ends(ordered, reporters) | _after_stop(ordered)
    named = [event for event in ordered if id(event) not in follows and event.role not in _FOLLOWS]
    follows |= _after_failure(named) | _missing_after_own_end(named)
    causes = [event for event in named if id(event) not in follows]
    if all(event.kind.advisory for event in causes):
        causes += [event for event in ordered if event.role in (Role.WAITED, Role.PEER) and id(event) not in follows]
    causes = causes or ordered
    kept = {id(event) for event in causes}
    return causes, [event for event in ordered if id(event) not in kept]


def _after_failure(events: Sequence[Event]) -> set[int]:
    """Return the ids of network errors that follow from a failure of a process.

    The failure is an error of a known process, if the network error is not known to be earlier. An operator of
    Kubernetes reports the death of a pod after the other pods lost their connections, so the order of these lines does
    not matter. Beside an unreachable loopback address, an earlier error of an unknown process of the file also counts.
    """
    sure = [event for event in events if event.role == Role.CAUSE and not event.kind.advisory]
    died = _first([event for event in sure if event.rank is not None or event.pid])
    has_pod_died = any(_is_end_of_pod(event) for event in sure)
    follows = set()
    for event in events:
        if event.role != Role.NETWORK:
            continue
        is_after = died is not None and not _is_before(event, died)
        is_after |= has_pod_died and event.code not in _LOSSES
        if event.kind is gloo.LOOPBACK:
            is_after |= any(other.source == event.source and other.line < event.line for other in sure)
        if is_after:
            follows.add(id(event))
    return follows


def _is_end_of_pod(event: Event) -> bool:
    """Check whether an operator of Kubernetes reported that a pod was killed or crashed."""
    is_named = event.host is not None and event.rank is None and event.pid is None
    return is_named and event.code in (_ends.KILLED.code, _ends.CRASHED.code)


def _missing_after_own_end(events: Sequence[Event]) -> set[int]:
    """Return the ids of events about missing ranks that all have an error or an end of their own.

    A rank that raised an exception or was killed reaches no barrier and sends no heartbeats. Launchers report an end
    late, but an error that follows the message may be its consequence.
    """
    own = [event for event in events if event.role in (Role.CAUSE, Role.ENDED) and not event.kind.advisory]
    follows = set()
    for missing in events:
        if missing.role == Role.ABSENT and missing.ranks:
            explained = {event.rank for event in own if event.code in _DEATHS or not _is_before(missing, event)}
            follows |= {id(missing)} if explained.issuperset(missing.ranks) else set()
    return follows


def _after_own_waiting(events: Sequence[Event]) -> set[int]:
    """Return the ids of events that follow from a rank's own waiting.

    Such an event reports an error or the end of a rank. An earlier line of the same file says that the rank waited or
    lost a connection.
    """
    follows = set()
    waited: set[tuple[str, int]] = set()
    for event in sorted(events, key=lambda event: (event.source, event.line)):
        if event.rank is None:
            continue
        by_itself = event.code not in _HARD or event.code in _OWN_ENDS
        if event.role in _FOLLOWS:
            waited.add((event.source, event.rank))
        elif event.role in (Role.CAUSE, Role.ENDED) and by_itself and (event.source, event.rank) in waited:
            follows.add(id(event))
    return follows


def _later_ends(events: Sequence[Event], reporters: Collection[int | None]) -> set[int]:
    """Return the ids of events in which a process ended as a consequence of the failure.

    Another process ended before this process, or a message of the same rank explains why the process ended.
    """
    observed = _first([event for event in events if event.facts.get("first_observed") and event.code in _DEATHS])
    follows = set()
    first_of: dict[str, Event] = {}
    for event in events:
        if event.code not in _DEATHS:
            continue
        if event.code in _OWN_ENDS and event.rank is not None and event.rank in reporters:
            follows.add(id(event))
        first = first_of.setdefault(event.source, observed or event)
        same_pid = event.pid is not None and event.pid == first.pid
        same_rank = event.rank is not None and event.rank == first.rank
        if not (event is first or same_pid or same_rank or event.facts.get("first_observed")):
            follows.add(id(event))
    return follows


def _after_stop(events: Sequence[Event]) -> set[int]:
    """Return the ids of events that follow from the end of the job from outside.

    A user, the scheduler or a time limit ended the job. The scheduler may also end a job after a failure, and then only
    processes that were killed, missing ranks and lost connections are a consequence. A file may contain the next run of
    the job, so only the lines after the stop and after the ends that followed it count, and all except the ends of
    processes only soon after them.
    """
    last: dict[tuple[str, bool], Event] = {}
    follows = set()
    for event in sorted(events, key=lambda event: (event.source, event.line)):
        for from_outside in (True, False):
            stop = last.get((event.source, from_outside))
            if stop is not None and event.line - stop.line <= _lines_after_stop(event, from_outside):
                follows.add(id(event))
                last[event.source, from_outside] = event
        if event.kind in (*_ends.STOPS, _ends.STEP_ENDED, _ends.AGENT_ENDED):
            last[event.source, event.kind in _ends.STOPS] = event
    return follows


def _lines_after_stop(event: Event, from_outside: bool) -> int:
    """Return within how many lines after the end of the job the event is a consequence; -1 if it never is."""
    if event.code == _ends.KILLED.code:
        return _MOST_STOP_LINES
    if event.role in (Role.ABSENT, Role.NETWORK) and event.code not in (*_AT_START, *_LOSSES):
        return _SOON_LINES
    if not from_outside:
        return -1
    if event.code in _DEATHS and event.code != _ends.CRASHED.code:
        return _MOST_STOP_LINES
    is_error = event.code in (_ends.CRASHED.code, *_ERRORS_OF_STOP) or event.kind in _RAISED_AT_STOP
    is_lost = event.role == Role.PEER or event.code == _ends.NODE_LOST.code
    return _SOON_LINES if is_error or is_lost else -1


def _is_before(event: Event, other: Event) -> bool:
    """Check whether an event is known to be earlier than another.

    The event must be earlier by more than a second, or on an earlier line of the same file.
    """
    if event.time_s is not None and other.time_s is not None:
        return event.time_s + 1 < other.time_s
    return event.source == other.source and event.line < other.line


def _order(event: Event) -> tuple[float, str, int]:
    """Return the sort key of an event: the time (if the line states a time), the file and the line."""
    return (event.time_s if event.time_s is not None else float("inf"), event.source, event.line)


def _first(events: Sequence[Event]) -> Event | None:
    """Return the earliest event, or None if there are no events.

    Events are sorted by time if all events have a time, and otherwise by file and line.
    """
    if not events:
        return None
    if all(event.time_s is not None for event in events):
        return min(events, key=_order)
    return min(events, key=lambda event: (event.source, event.line))


def _ranked(causes: Sequence[Event]) -> list[tuple[Event, float]]:
    """Return (earliest message, weight) for each kind of cause. The likeliest cause comes first."""
    by_code: dict[str, list[Event]] = {}
    for event in causes:
        by_code.setdefault(event.code, []).append(event)
    earliest = []
    for alike in by_code.values():
        alike = [event for event in alike if not event.kind.advisory] or alike
        chosen = _first([event for event in alike if event.facts.get("first_observed")] or alike)
        earliest += [_named(chosen, alike)] if chosen is not None else []
    likely = [event for event in earliest if event.kind.weight >= _LEAST_WEIGHT]
    found = [(event, event.kind.weight) for event in likely or earliest[:1]]
    return sorted(found, key=lambda pair: -pair[1])


def _named(event: Event, alike: Sequence[Event]) -> Event:
    """Add the rank and host to an event without both, if all other messages about the same loss name one process."""
    if event.code not in _SAME_LOSS:
        return event
    places = {(other.rank, other.host) for other in alike if (other.rank, other.host) != (None, None)}
    if (event.rank, event.host) != (None, None) or len(places) != 1 or event.pid is not None:
        return event
    [(rank, host)] = places
    return replace(event, rank=rank, host=host)


def _absent(causes: Sequence[Event], followed: Sequence[Event], first: Event) -> tuple[int, ...]:
    """Return the ranks that never reached the operation, according to the likeliest message about absent ranks."""
    if first.role == Role.ABSENT:
        return first.ranks or ((first.rank,) if first.rank is not None else ())
    named = [event for event in (*causes, *followed) if event.role == Role.ABSENT and event.ranks]
    return max(named, key=lambda event: event.kind.weight).ranks if named else ()


def _facts(event: Event) -> dict[str, Any]:
    """Return all known facts and fields of a message."""
    fields = {
        "rank": event.rank,
        "host": event.host,
        "pid": event.pid,
        "group": event.group or None,
        "operation": event.operation,
        "seq": event.seq,
        "peer": event.peer,
        "duration_s": event.duration_s,
        "ranks": list(event.ranks) or None,
        "who": _who(event.ranks),
        "line": event.line or None,
        "source": event.source or None,
    }
    facts = {name: value for name, value in event.facts.items() if name != "records"}
    return {name: value for name, value in {**facts, **fields}.items() if value is not None}


def _who(ranks: Sequence[int]) -> str | None:
    """Name ranks: `rank 1` or `ranks 1, 3`. Return None if there are no ranks."""
    if not ranks:
        return None
    return fill("{word} {ranks:list 8}", {"word": "rank" if len(ranks) == 1 else "ranks", "ranks": list(ranks)})


def _reason(event: Event, weight: float) -> Reason:
    kind = event.kind
    return Reason(event.code, _facts(event), words(event), evidence(event), weight, kind.step, kind.command)


_UNNAMED = {
    "rank": "?",
    "host": "an unnamed host",
    "pid": "?",
    "peer": "its peer",
    "seq": "?",
    "operation": "an operation",
    "signal": "?",
    "exit_code": "?",
}


def words(event: Event) -> str:
    """Return the meaning of a message in words.

    A field that the log lacks becomes a placeholder such as a question mark.
    """
    facts = _facts(event)
    try:
        return fill_present(event.kind.what, facts)
    except KeyError:
        return fill_present(event.kind.what, {**_UNNAMED, **facts}, event.code)


def evidence(event: Event) -> str:
    """Return the file and line of a message, and its text."""
    where = f"{event.source}:{event.line}" if event.line else event.source
    return f"{where}: {event.printed}" if event.printed else where


def _consequences(followed: Sequence[Event]) -> list[Coded]:
    """Return one line for each kind of message that followed from the failure."""
    by_code: dict[str, list[Event]] = {}
    for event in followed:
        by_code.setdefault(event.code, []).append(event)
    lines = []
    for alike in list(by_code.values())[:_MOST_CONSEQUENCES]:
        ranks = sorted({event.rank for event in alike if event.rank is not None})
        where = f"{alike[0].source}:{alike[0].line}" if alike[0].line else alike[0].source
        facts = {
            "kind": alike[0].code,
            "who": _who(ranks),
            "ranks": ranks or None,
            "what": words(alike[0]),
            "where": where,
        }
        lines.append(Coded.of(CrashCode.CONSEQUENCE, **facts, count=len(alike) if len(alike) > 1 else None))
    return lines


def _unknown(
    events: Sequence[Event], shown: Sequence[Event], first: Event, weight: float, num_ranks: int | None
) -> list[Coded]:
    """Return the facts that the logs do not show, and the option or file that would show each fact."""
    found = []
    dumped = crash_records.dumped(events)
    lacking = [rank for rank in crash_records.members(events) if rank not in dumped]
    if dumped and lacking:
        found.append(Coded.of(CrashCode.DUMPS_MISSING, ranks=lacking, who=_who(lacking)))
    waited = first.role == Role.WAITED or first.kind is ALL_TIMED_OUT
    outside = (_ends.INTERRUPTED.code, _ends.CANCELLED.code, _ends.STEP_ENDED.code)
    if waited and first.code not in (HUNG_AT_START.code, HUNG_AFTER_START.code, *outside):
        found.append(Coded.of(CrashCode.WAITED_FOR_UNKNOWN))
    if first.role == Role.PEER and first.code not in _NO_PAIR:
        found.append(Coded.of(CrashCode.END_UNKNOWN))
    if first.role == Role.ENDED and first.rank is not None:
        found.append(Coded.of(CrashCode.REASON_UNKNOWN, rank=first.rank))
    if first.code == python_errors.RAISED.code and first.rank is None:
        found.append(Coded.of(CrashCode.RANK_UNKNOWN))
    if first.code == "system-call-failed" and first.kind.weight < _SURE:
        found.append(Coded.of(CrashCode.CALL_UNKNOWN))
    seen = {event.rank for event in [*events, *shown] if event.rank is not None and event.role != Role.PLACE}
    if weight < _SURE and num_ranks is not None and 0 < len(seen) < num_ranks:
        found.append(Coded.of(CrashCode.NOT_ALL_REPORTED, num_seen=len(seen), num_ranks=num_ranks))
    return found


def _coded(line: Coded) -> dict[str, Any]:
    return {"code": line.code, "facts": dict(line.facts), "text": line.text}


def _plain(event: Event) -> dict[str, Any]:
    facts: Mapping[str, Any] = _facts(event)
    return {"code": event.code, "text": words(event), "printed": event.printed, "facts": dict(facts)}
