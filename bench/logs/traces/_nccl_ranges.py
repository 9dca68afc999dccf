"""Read NCCL's NVTX ranges: the calls that a kernel executes, and the sizes in their payloads."""

from __future__ import annotations

import json
import re
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.logs.traces._host_ranges import HostRange
from bench.logs.traces._sqlite import UNKNOWN, Database

_CALL = re.compile(r"^nccl[A-Z]\w*$")
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_MESSAGES = frozenset({"ncclSend", "ncclRecv"})
# For these collectives, NCCL states the block of one rank; the payload is the sum of all blocks.
_BLOCKS = frozenset({"allgather", "reduce_scatter", "alltoall", "gather", "scatter"})
_NUM_ENCLOSING = 8  # at most this many ranges before a time are searched for a range that contains it
_PAYLOAD_HEADER = struct.Struct("<IIIIQQ")  # domain, -, schema, -, bytes of the payload, bytes of all
# NVTX's types of payload entries that NCCL uses: int, integers of fixed size, size_t.
_PAYLOAD_TYPES = {5: "<i", 6: "<I", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
COMMUNICATOR, SIZE, _NUM_RANKS, _RANK = ("NCCL communicator ID", "Message size [bytes]", "No. of ranks", "Rank")


@dataclass(frozen=True, slots=True)
class NcclCall:
    """A range on a host thread in which NCCL launched a kernel, and the NCCL calls that this kernel executes."""

    start: int
    end: int
    calls: Sequence[HostRange]


class NcclCalls:
    """The ranges of NCCL calls, by thread."""

    def __init__(self, calls: Iterable[tuple[Any, NcclCall]]) -> None:
        """Store the calls of each thread. The calls must be sorted by start."""
        self._calls: dict[Any, list[NcclCall]] = defaultdict(list)
        for thread, call in calls:
            self._calls[thread].append(call)
        self._starts = {thread: [one.start for one in own] for thread, own in self._calls.items()}

    def at(self, thread: Any, time: int) -> NcclCall | None:
        """Return the innermost range of a thread that contains a time."""
        if thread not in self._starts:
            return None
        behind = bisect_right(self._starts[thread], time)
        near = self._calls[thread][max(behind - _NUM_ENCLOSING, 0) : behind]
        return next((one for one in reversed(near) if one.end >= time), None)


def is_call(name: str) -> bool:
    """Check whether a range is an NCCL call."""
    return name.startswith("nccl") and _CALL.match(name) is not None


def calls_of_torch(ranges: Iterable[HostRange]) -> Iterator[tuple[Any, NcclCall]]:
    """Yield (thread, range) for each range in which torch calls a collective."""
    for one in ranges:
        if one.name.startswith(("nccl:", "c10d::")):
            yield one.thread, NcclCall(int(one.start), int(one.end), [one])


def calls_of_kernels(ranges: Iterable[HostRange]) -> Iterator[tuple[Any, NcclCall]]:
    """Yield (thread, range) for each range in which NCCL launches kernels.

    Such a range is a single call, or the end of a group of calls.
    """
    depths: dict[Any, int] = defaultdict(int)
    grouped: dict[Any, list[HostRange]] = defaultdict(list)
    for one in ranges:
        if not is_call(one.name) or one.name.startswith("ncclComm"):
            continue
        if one.name == _GROUP_START:
            depths[one.thread] += 1
        elif one.name == _GROUP_END:
            depths[one.thread] = max(depths[one.thread] - 1, 0)
            if not depths[one.thread]:
                yield one.thread, NcclCall(int(one.start), int(one.end), grouped.pop(one.thread, []))
        elif depths[one.thread]:
            grouped[one.thread].append(one)
        else:
            yield one.thread, NcclCall(int(one.start), int(one.end), [one])


def communicators(ranges: Iterable[HostRange]) -> dict[int, tuple[int, int]]:
    """Map each communicator to the number of its ranks and to this process's rank.

    A communicator is known only if its creation or its destruction was recorded.
    """
    found = {}
    for one in ranges:
        if COMMUNICATOR in one.args:
            size, rank = one.args.get(_NUM_RANKS, 0), one.args.get(_RANK, -1)
            if 0 <= rank < size:
                found[one.args[COMMUNICATOR]] = (size, rank)
    return found


def payload(op: str, calls: Sequence[HostRange], num_ranks: int | None) -> int | None:
    """Return the payload of a kernel that executes these calls, or None if the calls state no sizes."""
    sent = [one for one in calls if one.name == "ncclSend"] or list(calls)
    if not sent or not all(SIZE in one.args for one in sent):
        return None
    total = sum(int(one.args[SIZE]) for one in sent)
    if op not in _BLOCKS or sent[0].name in _MESSAGES:
        return total
    return total * num_ranks if num_ranks else None


Schemas = Mapping[tuple[int, int], Mapping[str, tuple[str, int]]]  # domain, schema -> entry -> format, offset


def schemas(database: Database) -> Schemas:
    """Return the position of each number in NVTX payloads."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not database.has(table, "schemaId", "type", "name", "offset"):
        return {}
    domain = database.integer(table, "domainId")
    found: dict[tuple[int, int], dict[str, tuple[str, int]]] = defaultdict(dict)
    for number, schema, kind, name, offset in database.rows(
        f'SELECT {domain}, "schemaId", "type", "name", COALESCE("offset", 0) FROM "{table}"'
    ):
        if kind in _PAYLOAD_TYPES and isinstance(offset, int):
            found[number, schema][str(name)] = (_PAYLOAD_TYPES[kind], offset)
    return found


def stated(binary: Any, as_json: Any, known: Schemas) -> dict[str, int]:
    """Return the numbers of a payload by name. The result is empty if the file was exported without payloads."""
    if isinstance(as_json, str) and as_json.startswith("{"):
        try:
            return {name: value for name, value in json.loads(as_json).items() if isinstance(value, int)}
        except (ValueError, RecursionError):
            return {}
    if isinstance(binary, str):
        try:
            binary = bytes.fromhex(binary)
        except ValueError:
            return {}
    if not isinstance(binary, bytes) or len(binary) < _PAYLOAD_HEADER.size:
        return {}
    domain, _, schema, *_ = _PAYLOAD_HEADER.unpack_from(binary)
    entries = known.get((domain, schema)) or known.get((UNKNOWN, schema)) or {}
    found = {}
    for name, (kind, offset) in entries.items():
        place = _PAYLOAD_HEADER.size + offset
        if offset >= 0 and place + struct.calcsize(kind) <= len(binary):
            (found[name],) = struct.unpack_from(kind, binary, place)
    return found
