"""Read messages of torch's NCCL watchdog, monitors and debug checks (torch 1.8 to 2.13).

The messages are in ProcessGroupNCCL.cpp and Utils.hpp. The prefix `[rank3]:` states the global rank. The part `[PG ID 1
PG GUID 2(name) Rank 0]` states the rank within the group. If the prefix is missing, the reader uses the rank within the
group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bench.logs.events import _ends
from bench.logs.failure_events import Event, EventLine, MessageKind, Role, Sign, SignFormat

_GLOBAL_RANK = re.compile(r"\[(?:rank|default)(?P<rank>\d{1,6})\]:")
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<id>[^\s\]]+) (?:PG GUID (?P<guid>[^\s\]]+?) ?)?(?:\((?P<name>[^)]*)\) )?Rank (?P<rank>\d{1,6})\]"
)
_RANK = r"(?:\[Rank (?P<rank>\d{1,6})\]:? )?"
_WORK = (
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<operation>\w+)(?:, TensorShape=\[(?P<shape>[^\]]*)\])?"
    r"(?:, NumelIn=(?P<numel_in>\d+))?(?:, NumelOut=(?P<numel_out>\d+))?(?:, Timeout\(ms\)=(?P<timeout_ms>\d+))?\)"
)
_STATUS = r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
_FINGERPRINT = (
    r"Rank (?P<rank>\d+) is running (?:inconsistent )?collective: "
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d+), ?)?"
    r"OpType=(?P<operation>\w+)(?:, TensorShape=\[(?P<shape>[^\]]*)\])?"
)
TIMED_OUT = MessageKind(
    "collective-timeout",
    Role.WAITED,
    "rank {rank} waited<, {duration_s:time},> for the other ranks in <{operation} ><number {seq}>",
    0.4,
    "find the missing rank by its log, its stack, or the flight recorder's dumps of all ranks",
    "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 (torch before 2.9: TORCH_NCCL_TRACE_BUFFER_SIZE)",
)
STATUS = MessageKind("work-status", Role.STATE, "rank {rank} had enqueued work {enqueued} and completed {completed}")
TIMED_OUT_ELSEWHERE = MessageKind(
    "timeout-elsewhere",
    Role.WAITED,
    "rank {rank} timed out in a collective",
    0.35,
    TIMED_OUT.step,
    TIMED_OUT.command,
)
STATUS_AT = MessageKind(
    "work-status-at-failure",
    Role.WAITED,
    "rank {rank} did not complete work {seq}: it waited for other ranks, or an error ended it",
    0.4,
    TIMED_OUT.step,
    TIMED_OUT.command,
)
MISMATCH = MessageKind(
    "collective-mismatch",
    Role.CAUSE,
    "rank {rank} called {operation}<[{shape}]> where rank {other_rank} called {other_operation}<[{other_shape}]>",
    1.0,
    "make all ranks take the same branch: compare the two calls in the tracebacks",
)
_TOO_FEW_JOINED = MessageKind(
    "store-barrier-timeout",
    Role.WAITED,
    "only {num_joined} of {num_ranks} ranks joined the process group",
    0.6,
    "find the ranks without a log: they never started, or they cannot reach the store",
)
_TOO_MANY_JOINED = MessageKind(
    _TOO_FEW_JOINED.code,
    Role.WAITED,
    "{num_joined} processes joined a process group of {num_ranks} ranks: an earlier start of the job used the same "
    "store",
    0.6,
    "give each start of the job a new store: another port or rendezvous id, or another file",
)
_STORE_REFUSED = replace(_ends.STORE_UNREACHABLE, weight=0.3, advisory=True)
_LOGGED = re.compile(r"\[c10d\] The client socket has failed")  # and no exception
_RETRIED = "TCP client failed to connect/validate to host"  # and then torch tries again
_OF_CLIENT = re.compile(r"\s*$|.*client socket has")
_STORE_LOST = MessageKind(
    "store-lost",
    Role.PEER,
    "the store's connection was lost: the process of rank 0 ended before",
    0.3,
    "look for the error of rank 0",
)
_SIGNS = (
    (r"Watchdog caught collective operation timeout: " + _WORK + r" ran for (?P<ms>\d+) milliseconds", TIMED_OUT),
    (r"at work(?: sequence id)?: (?P<seq>\d+),? .*?" + _STATUS, STATUS_AT),
    (r"Timeout at NCCL work: (?P<seq>\d+), " + _STATUS, STATUS_AT),
    (r"collective timeout from\s{1,4}rank (?P<reported_by>\d+) .*?" + _STATUS, STATUS),
    (_STATUS, STATUS),
    (
        _WORK + r" raised the following async exception: (?P<error>.*)",
        MessageKind(
            "async-error",
            Role.PEER,
            "an operation of rank {rank} failed: {error}",
            0.4,
            "look for the rank that ended or failed first",
            "NCCL_DEBUG=WARN on all ranks",
        ),
    ),
    (
        r"Detected mismatch between collectives on ranks\. ?"
        + _FINGERPRINT
        + r".{0,1200}?but Rank (?P<other_rank>\d+) is "
        r"running (?:inconsistent )?collective: CollectiveFingerPrint\((?:SequenceNumber=\d+, "
        r"?)?OpType=(?P<other_operation>\w+)"
        r"(?:, TensorShape=\[(?P<other_shape>[^\]]*)\])?",
        MISMATCH,
    ),
    (
        r"Detected mismatch between collectives on ranks\. ?" + _FINGERPRINT,
        MessageKind(
            "collective-mismatch",
            Role.CAUSE,
            "rank {rank} called {operation} where other ranks called another operation",
            0.95,
            MISMATCH.step,
        ),
    ),
    (
        _RANK + r"Ranks? (?P<ranks>\d[\d, ]*) failed to pass monitoredBarrier in (?P<ms>\d+) ms",
        MessageKind(
            "missing-at-barrier",
            Role.ABSENT,
            "{who} did not reach the monitored barrier",
            0.9,
            "look at what these ranks do instead",
            "py-spy dump --pid PID",
        ),
    ),
    (
        r"Rank (?P<rank>\d+) successfully reached monitoredBarrier",
        MessageKind("reached-barrier", Role.WAITED, "rank {rank} waited in a monitored barrier", 0.2),
    ),
    (
        r"Found key in store: NCCLABORTEDCOMM\S*,? from rank: (?P<aborted_rank>\d+)",
        MessageKind("aborted-elsewhere", Role.PEER, "rank {aborted_rank} had aborted its communicators earlier", 0.3),
    ),
    (
        r"watchdog got stuck for (?P<seconds>\d+) ?seconds",
        MessageKind(
            "watchdog-stuck",
            Role.CAUSE,
            "torch's watchdog thread itself hung for {duration_s:time}: a call of CUDA or NCCL blocked it, or "
            "Python held its "
            "lock",
            0.55,
            "get the stacks of all threads of this rank during the hang",
            "py-spy dump --native --pid PID; gdb -p PID",
        ),
    ),
    (
        r"Heartbeat monitor timed out",
        MessageKind(
            "heartbeat-lost",
            Role.WAITED,
            "the watchdog's heartbeat of rank {rank} stopped",
            0.35,
            "get the stacks of all threads of this rank during the hang",
            "py-spy dump --native --pid PID",
        ),
    ),
    (
        r"[Tt]imed out (?:initializing process group )?in store based barrier on rank:? "
        r"(?P<rank>\d+).*?world_size=(?P<num_ranks>\d+), "
        r"(?:worker_count|num_workers_joined)=(?P<num_joined>\d+)",
        _TOO_FEW_JOINED,
    ),
    (
        r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<num_joined>\d+)/(?P<num_ranks>\d+) "
        r"clients joined",
        MessageKind(
            "ranks-did-not-start",
            Role.ABSENT,
            "only {num_joined} of {num_ranks} ranks reached the store within {duration_s:time}",
            0.85,
            "check that every node started its processes with the same MASTER_ADDR, port and world size",
        ),
    ),
    (
        # Without parentheses, "failed to connect to" is a warning about one of several addresses (errno 97, 99, 101).
        r"client socket has (?:timed out after (?:(?P<ms>\d+)ms|(?P<seconds>\d+)s?) .*?connect\w* to "
        r"(?:\((?P<peer>[^)]*)\)|(?P<peer_2>[\w.:\[\]-]*\w))|failed .*?connect\w* to "
        r"(?:any network address of )?\((?P<peer_3>[^)]*)\))",
        _ends.STORE_UNREACHABLE,
    ),
    (
        r"address already in use|Error: Address already in use|EADDRINUSE|"
        r"Errno 98\] Address|failed to listen on any local network address",
        MessageKind(
            "port-in-use",
            Role.CAUSE,
            "the port of the store is in use by another job or by the previous job",
            0.95,
            "choose another port",
            "ss -ltnp | grep PORT",
        ),
    ),
    (
        # a warning that other ranks also print if rank 0 ends before them after a healthy run
        r"\[W\d{3,4} .{0,200}(?:recvValue failed on|\"should dump\" flag on TCPStore).{0,300}"
        r"(?P<error>failed to recv), got 0 bytes",
        replace(_STORE_LOST, advisory=True),
    ),
    (
        r"(?:recvValue|sendBytes|recvBytes|recvVector|TCPStore).{0,200}?(?P<error>Connection (?:was )?(?:reset"
        r"|likely closed)[^.]*|"
        r"Broken pipe|failed to recv)",
        _STORE_LOST,
    ),
)


class TorchWatchdog(SignFormat):
    """Yields one event for each line. The event has the global rank if the line states it."""

    hints = (
        "Watchdog caught",
        "last enqueued",
        "Last enqueued",
        "WorkNCCL(",
        "Detected mismatch between",
        "monitoredBarrier",
        "NCCLABORTEDCOMM",
        "watchdog got stuck",
        "Heartbeat monitor",
        "store based barrier",
        "clients joined",
        "client socket has",
        "ddress already in use",
        "EADDRINUSE",
        "Errno 98",
        "failed to listen",
        "TCPStore",
        "recvValue",
        "sendBytes",
    )
    signs = tuple(Sign(re.compile(pattern), kind) for pattern, kind in _SIGNS)

    def __init__(self) -> None:
        """Start in the state in which no connection has failed."""
        self._refused: Event | None = None

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the next line may show that the program continued after a failed connection."""
        return self._refused is not None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield at most one event for a line. torch may try a connection again after it has logged a failure."""
        if self._refused is not None and _OF_CLIENT.match(line.text) is None:
            self._refused = None
        if _RETRIED in line.text:
            self._refused = None
            return
        for event in super().read(line):
            if event.kind is _ends.STORE_UNREACHABLE and _LOGGED.search(line.text):
                event = replace(event, kind=_STORE_REFUSED)
                self._refused = self._refused or event
            yield event

    def finish(self) -> Iterator[Event]:
        """Yield the event of a failed connection if the program printed nothing after the failure."""
        if self._refused is not None:
            yield replace(self._refused, kind=_ends.STORE_UNREACHABLE)

    def completed(self, event: Event, line: EventLine) -> Event:
        """Add the rank and the group to an event, and convert the event's counts from text to numbers."""
        group = _GROUP.search(line.text)
        rank = event.rank
        facts = dict(event.facts)
        if group is not None:
            rank = int(group["rank"]) if rank is None else rank
            facts["group_rank"] = int(group["rank"])
            facts |= {"guid": group["guid"]} if group["guid"] else {}
        label = _GLOBAL_RANK.search(line.text)
        if rank is None or group is not None:
            plain = re.search(r"\[Rank (\d{1,6})\]", line.text)
            rank = int(label["rank"]) if label else (int(plain[1]) if plain and rank is None else rank)
        for name in ("enqueued", "completed", "numel_in", "numel_out", "num_ranks", "num_joined", "other_rank"):
            if name in facts:
                facts[name] = int(facts[name]) if len(facts[name]) < 20 else None
        for name in ("enqueued", "completed"):
            if facts.get(name) is not None and abs(facts[name]) > max(1 << 40, facts.get("enqueued") or 0):
                facts[name] = None
        joined, expected = facts.get("num_joined"), facts.get("num_ranks")
        if event.kind is _TOO_FEW_JOINED and joined is not None and expected is not None and joined > expected:
            event = replace(event, kind=_TOO_MANY_JOINED)
        if event.ranks:  # the message is about other ranks, not about the rank that printed it
            facts["reported_by"], rank = rank, event.ranks[0] if len(event.ranks) == 1 else None
        named = " ".join(filter(None, (group["id"], group["name"]))) if group else None
        return replace(event, rank=rank, group=named, facts=facts)


FORMAT = TorchWatchdog
