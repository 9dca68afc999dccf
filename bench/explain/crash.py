"""Find what failed first in a job, what followed from it, and what its logs do not show.

The evidence consists of the messages in all files of one job. The page blames a rank only if a message names this rank.
The earliest message of each type is listed as a cause. Messages that did not end the job are set aside first
(`survived.py`). `crash_causes.py` then divides the remaining messages into causes and consequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.core.codes import Coded
from bench.explain import crash_ranks, crash_records
from bench.explain.crash_causes import (
    DEATHS,
    FAILS,
    FOLLOWS,
    absent_ranks,
    divided,
    first_of,
    kind_of,
    ranked_causes,
    without_reports,
)
from bench.explain.crash_facts import coded_document, event_document, reason_of, who, words
from bench.explain.crash_messages import ALL_TIMED_OUT, HUNG_AFTER_START, HUNG_AT_START, CrashCode
from bench.explain.crash_ranks import WORLDS
from bench.explain.reason import Reason
from bench.explain.survived import Survived, doubted_causes, set_aside, survived_lines, with_doubted
from bench.logs.events import _ends, launchers, nccl_init, openmpi_errors, python_errors, torch_watchdog
from bench.logs.failure_events import Event, Role

_MOST_REASONS = 4
_MOST_CONSEQUENCES = 8
_MOST_RANKS = 1 << 20
_SURE = 0.6  # with a lower weight, the cause is uncertain
_MOST_OF_WARNING = 0.3  # the weight of a message that programs also print if all goes well, beside other messages
_ENDS = (Role.ENDED, Role.STOPPED)
_ALL_GATHERS = ("ALLGATHER", "_ALLGATHER_BASE")
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


@dataclass(frozen=True, slots=True)
class Crash:
    """What failed in a job, and what is known about the failure.

    `first`: the earliest message of the likeliest cause.
    `reporters`: the ranks that printed a message of this cause.
    `num_alike`: the number of other ranks that printed the same message. Numbers inside the message may differ.
    `absent`: the ranks that never reached the operation for which the other ranks waited.
    `waiting`: the message about the operation in which the other ranks waited.
    `reasons`: the possible causes, the likeliest first.
    `consequences`: what followed from the failure.
    `unknown`: what the logs do not show, and which option or file would show it.
    `survived`: messages that did not end the job.
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
    survived: tuple[Coded, ...] = ()
    num_alike: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the crash as a dictionary for JSON documents."""
        first, waiting = self.first, self.waiting
        return {
            "first": event_document(first),
            "reported_by_ranks": list(self.reporters),
            "absent_ranks": list(self.absent),
            "waiting": event_document(waiting) if waiting is not None else None,
            "causes": [asdict(reason) for reason in self.reasons],
            "consequences": [coded_document(line) for line in self.consequences],
            "unknown": [coded_document(line) for line in self.unknown],
            "survived": [coded_document(line) for line in self.survived],
            "num_ranks": self.num_ranks,
            "sources": list(self.sources),
        }


def crash_of(events: Sequence[Event], failed: bool = False) -> Crash | None:
    """Find what failed. Return None if no message reports a failure.

    `failed`: whether the job is known to have failed. If so, its last stage shows where the job hung, even without a
        message.
    """
    num_ranks = _num_ranks(events)
    kept, survived = set_aside(events, failed)
    crash = _crash(kept, survived, num_ranks, failed)
    return _crash(events, (), num_ranks, failed) if crash is None and failed else crash


def _crash(events: Sequence[Event], survived: Sequence[Survived], num_ranks: int | None, failed: bool) -> Crash | None:
    """Find what failed. `survived`: the messages that did not end the job."""
    events = _attributed(events)
    shown = [event for event in events if event.role in FAILS]
    shown += crash_records.recorded(events)
    if not all(event.kind.advisory for event in shown):
        shown = [_doubted(event) for event in shown]
    shown = without_reports(shown)
    reporters: set[int | None] = set()
    for event in (event for event in shown if not event.kind.advisory):
        if event.role not in _ENDS and event.code not in DEATHS:
            reporter = event.rank if event.role != Role.ABSENT else None  # an absent rank did not print the message
            reporters |= {reporter, event.facts.get("reported_by")}
    if any(event.kind is torch_watchdog.TIMED_OUT for event in shown):
        shown = [event for event in shown if event.kind is not torch_watchdog.STATUS_AT]
    compared = crash_ranks.compared_calls(events) or crash_ranks.compared_timeouts(events)
    if compared:
        shown = [event for event in shown if event.code != torch_watchdog.MISMATCH.code] + compared
    shown += crash_ranks.behind(events) or crash_ranks.left_behind(events)
    shown += [] if compared else crash_ranks.differing_timeouts(events)
    if shown or failed:
        shown += crash_ranks.slowest_finished(events)
    shown += crash_ranks.silent(shown, num_ranks)
    shown += [] if shown else crash_ranks.timed_out_elsewhere(events)
    if not shown and failed:
        shown += crash_ranks.hung(events)
    if not failed and all(event.kind.advisory for event in shown):
        return None
    doubted = doubted_causes(events, survived, failed)
    causes, followed = divided(shown, reporters)
    ranked = with_doubted(ranked_causes(causes), ranked_causes(doubted))
    if not ranked:
        return None
    first = ranked[0][0]
    absent = absent_ranks(causes, followed, first)
    waiting = first_of([event for event in shown if event.seq is not None])
    alike = {event.rank for event in shown if kind_of(event) == kind_of(first)} - {first.rank, None}
    return Crash(
        first=first,
        reporters=tuple(sorted({event.rank for event in shown if event.code == first.code and event.rank is not None})),
        absent=absent,
        waiting=waiting,
        reasons=tuple(reason_of(event, weight) for event, weight in ranked[:_MOST_REASONS]),
        consequences=tuple(_consequences(followed)),
        unknown=tuple(_unknown(events, shown, first, ranked[0][1], num_ranks)),
        num_ranks=num_ranks,
        sources=tuple(dict.fromkeys(event.source for event in events)),
        survived=tuple(survived_lines(survived)),
        num_alike=len(alike),
    )


def _doubted(event: Event) -> Event:
    """Reduce the weight of a message that healthy programs also print.

    Afterwards, every message of a failure has more weight.
    """
    if not event.kind.advisory:
        return event
    return replace(event, kind=replace(event.kind, weight=min(event.kind.weight, _MOST_OF_WARNING)))


def _num_ranks(events: Sequence[Event]) -> int | None:
    """Return the number of ranks according to the logs; None if the logs do not state the number.

    Messages of NCCL or the store, a list of ranks, torchrun's table and dumps may state the number. The sizes of an
    allgather also show the number of ranks.
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
        if event.operation in _ALL_GATHERS and sent and received and received % sent == 0 and event.group in WORLDS:
            gathered.append(received // sent)
    highest = max((event.rank for event in events if event.rank is not None), default=0)
    gathered = [count for count in gathered if count > highest]  # a smaller count is the size of a subgroup
    counts = [*map(int, stated), *listed, len(members), *gathered]
    largest = max(counts, default=0)
    return largest if 0 < largest <= _MOST_RANKS else None


def _attributed(events: Sequence[Event]) -> list[Event]:
    """Add to each event the rank and host that other lines state for the same process.

    An event from a spawned process gets no rank, because its label names the rank that spawned the process.

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

    The report in the table is kept, because it states the rank and the host.
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

    The error is assigned only if exactly one type of error has no rank, and exactly one process ended first without an
    error of its own.
    """
    explained = {event.rank for event in events if event.role in (Role.CAUSE, *FOLLOWS) and event.code not in DEATHS}
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
            "who": who(ranks),
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
        found.append(Coded.of(CrashCode.DUMPS_MISSING, ranks=lacking, who=who(lacking)))
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
