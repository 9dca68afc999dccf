"""Read traces of torch's profiler (Kineto), in Chrome's JSON format: one rank with CUDA, with ROCm or without a GPU.

The category of an event determines its type. If the category is not sufficient, the name of the event determines the
type. Times are in microseconds of the Unix clock, or in microseconds since `baseTimeNanoseconds`. The reader was tested
with files of 2021 to 2026. In these files, names have an old or a new form (`Operator` or `cpu_op`, `Kernel` or
`kernel`, `ncclKernel_*` or `ncclDevKernel_*`). Only some files contain metadata of collectives.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bench.core import collector, spans
from bench.core.codes import Coded
from bench.core.spans import Spans
from bench.core.step_trace import Direction, HostWait, RankTrace, TracedCollective, TracedCopy, WaitKind
from bench.logs.archives import ArchiveError
from bench.logs.trace_messages import TraceCode
from bench.logs.traces import _host_ranges, _names, _open
from bench.logs.traces._columns import NO_CORRELATION, Kernels, Launches, correlation_of
from bench.logs.traces._host_ranges import HostRange
from bench.logs.traces._json_stream import DamagedError, JsonStream

_HEAD = re.compile(rb'^\s*(\{|\[\s*\{).*"(traceEvents|schemaVersion|deviceProperties|ph)"', re.DOTALL)
_MOST_EPOCH_NS = 1 << 63
_OF_COLLECTIVES = ("nccl:", "c10d::", "gloo:", "record_param_comms", "mpi:", "xccl:")
_PEER_PLACE = 2  # index of the peer among the arguments of a message's call
_NO_ARGS: Mapping[str, Any] = MappingProxyType({})
# larger timestamps, in microseconds, count from 1970
_UNIX_US = 1e15
# Kind of event by category, in the spelling of any version.
_HOST, _KERNEL, _COPY, _RUNTIME = "host", "kernel", "copy", "runtime"
_KINDS = {
    "cpu_op": _HOST,
    "operator": _HOST,
    "user_annotation": _HOST,
    "kernel": _KERNEL,
    "gpu_memset": _KERNEL,
    "memset": _KERNEL,
    "gpu_memcpy": _COPY,
    "memcpy": _COPY,
    "cuda_runtime": _RUNTIME,
    "cuda_driver": _RUNTIME,
    "hip_runtime": _RUNTIME,
    "privateuse1_runtime": _RUNTIME,
    "runtime": _RUNTIME,
    "driver": _RUNTIME,
}
_KIND_OF = _KINDS | {word.capitalize(): kind for word, kind in _KINDS.items()}
_DIRECTIONS = {"htod": Direction.H2D, "dtoh": Direction.D2H, "dtod": Direction.D2D, "ptop": Direction.P2P}


class _Name:
    """A name that events share, and the meaning of the name.

    A file has few different names and repeats each name many times.
    """

    __slots__ = ("is_exchange", "is_of_collective", "name", "wait")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_of_collective = name.startswith(_OF_COLLECTIVES)
        self.is_exchange = _names.COLLECTIVE_KERNEL.search(name) is not None
        self.wait: WaitKind | None = None
        if _names.SYNC.match(name):
            self.wait = WaitKind.SYNC
        elif _names.ALLOCATOR.match(name):
            self.wait = WaitKind.ALLOCATOR


@dataclass(slots=True)
class _Events:
    """The events of a file, by type. Times are in microseconds, as in the file."""

    names: dict[str, _Name] = field(default_factory=dict)
    host: list[HostRange] = field(default_factory=list)
    compute: Kernels = field(default_factory=Kernels)
    kinds: dict[tuple[str, str], int] = field(default_factory=dict)  # name and grid of a kernel -> its number
    exchange: list[tuple[float, float, int, str, Mapping[str, Any]]] = field(default_factory=list)
    copies: list[tuple[float, float, int, str, Mapping[str, Any]]] = field(default_factory=list)
    launches: Launches = field(default_factory=Launches)
    waits: list[tuple[WaitKind, float, float, str]] = field(default_factory=list)
    devices: set[str] = field(default_factory=set)

    def known(self, name: Any) -> _Name:
        """Return the meaning of a name. All events with the same name share one object."""
        text = str(name)
        found = self.names.get(text)
        if found is None:
            found = self.names[text] = _Name(text)
        return found


class TorchProfiler:
    """Reads a trace of torch's profiler."""

    name = "torch-profiler"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Check the first bytes of the unpacked file."""
        return _HEAD.match(head) is not None

    def read(self, path: Path) -> Iterator[RankTrace]:
        """Yield the only rank of the file. Damage becomes a remark of the trace. Raises OSError."""
        remarks: list[Coded] = []
        stream = JsonStream(_open.pieces(path), "traceEvents")
        events = _Events()
        facts = {"source": str(path)}
        try:
            with collector.paused():
                for batch in stream.batches():
                    _add(batch, events)
        except DamagedError as damage:
            code = TraceCode.CUT if damage.is_cut else TraceCode.DAMAGED
            remarks.append(Coded.of(code, num=stream.num_members, **facts))
        except ArchiveError as damage:
            if damage.most is not None:
                remarks.append(Coded.of(TraceCode.ARCHIVE_LIMIT, most=damage.most, **facts))
            else:
                code = TraceCode.CUT if damage.is_cut else TraceCode.DAMAGED
                remarks.append(Coded.of(code, num=stream.num_members, **facts))
        if not (events.host or events.compute or events.exchange or events.copies):
            remarks.append(Coded.of(TraceCode.NO_EVENTS, **facts))
        yield _Reading(str(path), events, stream.others, remarks).trace(stream.num_members)


READER = TorchProfiler()


def _add(batch: Iterable[Any], events: _Events) -> None:
    """Store each event that has a duration under its type.

    This loop handles millions of events. Many of these events are not used.
    """
    for event in batch:
        if type(event) is dict and event.get("ph") == "X":
            category = event.get("cat")
            kind = _KIND_OF.get(category) if type(category) is str else None
            if kind is not None:
                _add_one(event, kind, events)


def _add_one(event: Mapping[str, Any], kind: str, events: _Events) -> None:
    """Add one event. An event whose times are not finite numbers is left out."""
    try:
        start = float(event["ts"])
        end = start + float(event.get("dur") or 0.0)
    except (KeyError, TypeError, ValueError, OverflowError):
        return
    if not 0 <= end - start < inf:
        return
    known = events.known(event.get("name", ""))
    args = event.get("args")
    if type(args) is not dict:
        args = _NO_ARGS
    thread = event.get("tid")
    if type(thread) is not int:
        thread = str(thread)
    if kind is _HOST:
        # Arguments of other events are not needed and would fill the memory.
        kept = args if known.is_of_collective else _NO_ARGS
        events.host.append(HostRange(start, end, thread, known.name, kept))
    elif kind is _RUNTIME:
        number = correlation_of(args.get("correlation"))
        if number != NO_CORRELATION:
            events.launches.add(number, start, thread)
        if known.wait is not None:
            events.waits.append((known.wait, start, end, known.name))
    else:
        _add_of_device(event, kind, start, end, known, args, events)


def _add_of_device(
    event: Mapping[str, Any],
    kind: str,
    start: float,
    end: float,
    known: _Name,
    args: Mapping[str, Any],
    events: _Events,
) -> None:
    """Add a kernel or a copy."""
    number = correlation_of(args.get("correlation"))
    events.devices.add(str(args.get("device", event.get("pid"))))
    if kind is _COPY:
        events.copies.append((start, end, number, known.name, args))
    elif known.is_exchange or "Collective name" in args:
        events.exchange.append((start, end, number, known.name, args))
    else:
        key = known.name, str(args.get("grid"))
        events.compute.add(start, end, number, events.kinds.setdefault(key, len(events.kinds)))


class _Reading:
    """Converts the events of one file to a trace."""

    def __init__(self, source: str, events: _Events, others: Mapping[str, Any], remarks: list[Coded]) -> None:
        self._source, self._events, self._others, self._remarks = source, events, others, remarks
        events.host.sort(key=attrgetter("end"), reverse=True)
        events.host.sort(key=attrgetter("start"))
        starts = [one.start for one in events.host[:1]]
        starts += [min(one[0] for one in some) for some in (events.exchange, events.copies) if some]
        starts += [events.compute.first_start()] if len(events.compute) else []
        self._zero = min(starts, default=0.0)
        distributed = others.get("distributedInfo")
        self._distributed: Mapping[str, Any] = distributed if isinstance(distributed, dict) else {}
        self._groups = _groups(self._distributed)
        size = self._distributed.get("world_size")
        self._world_size = size if type(size) is int and size > 0 else None
        self._main = _host_ranges.main_thread(events.host)
        self._on_device = bool(events.compute or events.exchange)

    def trace(self, num_events: int) -> RankTrace:
        """Return the trace."""
        events, facts = self._events, {"source": self._source}
        kernels, correlations, kinds = events.compute.in_order()
        launches = events.launches.starts_of(correlations)
        if self._on_device:
            unknown = int(np.isnan(launches).sum())
            if unknown > len(kernels) // 10:
                self._remarks.append(Coded.of(TraceCode.UNMATCHED_LAUNCHES, num=unknown, **facts))
            collectives = tuple(self._device_collectives())
        else:
            collectives = tuple(self._host_collectives())
        if not collectives:
            self._remarks.append(Coded.of(TraceCode.NO_COLLECTIVES, **facts))
        if len(events.devices) > 1:
            self._remarks.append(Coded.of(TraceCode.SEVERAL_DEVICES, num=len(events.devices), **facts))
        phases = _host_ranges.phases(events.host, self._main)
        steps = sorted((one.start, one.end, one.name) for one in events.host if _host_ranges.is_step(one.name))
        if self._on_device:
            work, launched = (kernels - self._zero) * 1e-6, (launches - self._zero) * 1e-6
        else:
            work = self._operators(collectives)
            launched = np.full(len(work), np.nan)
        device_names = self._others.get("deviceProperties")
        rank = self._distributed.get("rank")
        return RankTrace(
            source=self._source,
            on_device=self._on_device,
            compute=work,
            compute_launch_s=launched,
            compute_kind=kinds if self._on_device else None,
            collectives=collectives,
            copies=tuple(self._copies()),
            waits=tuple(self._waits()),
            phases={phase: (union - self._zero) * 1e-6 for phase, union in phases.items()},
            steps=tuple((self._time(start), self._time(end)) for start, end, _ in steps),
            step_names=tuple(name for _, _, name in steps),
            rank=rank if isinstance(rank, int) else _names.rank_in_name(self._source),
            world_size=self._world_size,
            host=_text(self._others.get("host_name")),
            device_name=_device_name(device_names),
            backend=_text(self._distributed.get("backend")),
            epoch_s=self._epoch_s(),
            num_events=num_events,
            remarks=tuple(self._remarks),
        )

    def _time(self, microseconds: float) -> float:
        return (microseconds - self._zero) * 1e-6

    def _spans(self, pairs: Iterable[tuple[float, float]]) -> Spans:
        return (spans.of(pairs) - self._zero) * 1e-6

    def _epoch_s(self) -> float | None:
        """Return the Unix time of the first event in the trace, or None if this time is unknown."""
        base = self._others.get("baseTimeNanoseconds")
        if isinstance(base, int) and 0 <= base < _MOST_EPOCH_NS:
            return base * 1e-9 + self._zero * 1e-6
        return self._zero * 1e-6 if self._zero > _UNIX_US else None

    def _device_collectives(self) -> Iterator[TracedCollective]:
        """Yield the collectives whose kernels ran on the device, each with the data of its call on the host."""
        calls: dict[Any, list[HostRange]] = defaultdict(list)
        for one in self._events.host:
            if one.name.startswith(("nccl:", "record_param_comms", "xccl:")):
                calls[one.thread].append(one)
        starts = {thread: [one.start for one in own] for thread, own in calls.items()}
        found = []
        for start, end, number, name, args in self._events.exchange:
            call = self._events.launches.of(number)
            launch = None if call is None else call.start
            enclosing: list[HostRange] = []
            if call is not None and call.thread in calls:
                behind = bisect_right(starts[call.thread], call.start)
                enclosing = [one for one in calls[call.thread][max(behind - 4, 0) : behind] if one.end >= call.start]
            stated = dict(args)
            for one in enclosing:
                if "Collective name" in one.args:
                    stated = {**one.args, **stated}
            spoken = next((one for one in reversed(enclosing) if one.name.startswith(("nccl:", "xccl:"))), None)
            found.append((start, end, launch, name, stated, spoken))
        found.sort(key=lambda one: one[0] if one[2] is None else one[2])
        places: dict[tuple[str, tuple[int, ...] | None], int] = defaultdict(int)
        for start, end, launch, name, stated, spoken in found:
            group, members, size = self._group(stated)
            op = _names.op(str(stated.get("Collective name") or (spoken.name.partition(":")[2] if spoken else name)))
            num_bytes, dtype = _stated_bytes(stated)
            if num_bytes is None and spoken is not None:
                num_bytes, dtype = _dims_bytes(spoken.args)
            key = (group, members)
            yield TracedCollective(
                op=op,
                place=places[key],
                start_s=self._time(start),
                end_s=self._time(end),
                group=group,
                members=members,
                group_size=size,
                seq=_sequence(op, stated),
                num_bytes=num_bytes,
                dtype=dtype,
                peer=_peer(op, stated),
                called_s=None if spoken is None else self._time(spoken.start),
                launch_s=None if launch is None else self._time(launch),
                lane=str(stated.get("stream", "")),
            )
            places[key] += 1

    def _group(self, stated: Mapping[str, Any]) -> tuple[str, tuple[int, ...] | None, int | None]:
        """Return the name, the members and the size of a collective's group.

        A value that the file does not state is None.
        """
        name = str(stated.get("Process Group Name", ""))
        size = stated.get("Group size")
        members = _names.numbers(stated.get("Process Group Ranks")) or self._groups.get(name)
        known = size if isinstance(size, int) and size > 0 else None
        if members is not None and known is not None and len(members) != known:
            members = None  # the file cuts long lists
        return name, members, known or (len(members) if members else self._world_size)

    def _host_collectives(self) -> Iterator[TracedCollective]:
        """Yield the collectives of a rank without a device.

        A host thread calls a collective, and a thread of the library transfers the data. If the library transfers data
        in the order of the calls, the n-th transfer belongs to the n-th call.
        """
        host = self._events.host
        calls = [one for one in host if one.name.startswith("c10d::") and _names.op(one.name) in _names.KNOWN_OPS]
        transfers = [one for one in host if one.name.startswith(("gloo:", "mpi:"))]
        if calls and len(calls) != len(transfers):
            calls = _nested_left_out(calls)
        if calls and transfers and len(calls) != len(transfers):
            calls = _called_before(calls, transfers)
        if not transfers and calls:
            facts = {"source": self._source, "num": len(calls)}
            self._remarks.append(Coded.of(TraceCode.NO_DEVICE_TRANSFER, **facts))
        pairs: Sequence[tuple[HostRange | None, HostRange | None]]
        if transfers:
            known = calls if len(calls) == len(transfers) else [None] * len(transfers)
            pairs = [*zip(known, transfers, strict=True)]
        else:
            pairs = [(call, None) for call in calls]
        for place, (call, transfer) in enumerate(pairs):
            event = call or transfer
            assert event is not None
            moved = transfer or event
            num_bytes, dtype = _dims_bytes(moved.args)
            if num_bytes is None:
                num_bytes, dtype = _dims_bytes(event.args)
            op = _names.op(event.name)
            yield TracedCollective(
                op=op,
                place=place,
                start_s=self._time(moved.start),
                end_s=self._time(moved.end),
                group_size=self._world_size,
                num_bytes=num_bytes,
                dtype=dtype,
                peer=None if call is None else _called_peer(op, call.args),
                called_s=None if call is None else self._time(call.start),
                timed=transfer is not None,
            )

    def _operators(self, collectives: Sequence[TracedCollective]) -> Spans:
        """Return the times in which a host thread runs an operator and does not wait for a collective.

        An operator that calls a collective is assumed to wait for this collective. The wait ends when the collective
        ends, when another operator begins, or when the operator itself ends.
        """
        own = [one for one in self._events.host if not _is_wait(one.name)]
        busy = spans.union(self._spans((one.start, one.end) for one in own))
        waiting = []
        by_call = {one.called_s: one for one in collectives if one.called_s is not None}
        for parent, call, following in _calls_in_operators(self._events.host, self._time):
            done = by_call.get(call)
            if done is not None:
                waiting.append((call, min(done.end_s, parent, following)))
        return spans.minus(busy, spans.union(spans.of(waiting)))

    def _copies(self) -> Iterator[TracedCopy]:
        for start, end, number, name, args in sorted(self._events.copies, key=lambda one: one[0]):
            words = name.lower()
            direction = next((found for word, found in _DIRECTIONS.items() if word in words), None)
            if direction is None:
                continue
            pinned = False if "pageable" in words else True if "pinned" in words else None
            size = args.get("bytes")
            launch = self._events.launches.of(number)
            yield TracedCopy(
                direction=direction,
                start_s=self._time(start),
                end_s=self._time(end),
                num_bytes=size if isinstance(size, int) else None,
                pinned=pinned,
                launch_s=None if launch is None else self._time(launch.start),
            )

    def _waits(self) -> Iterator[HostWait]:
        for kind, start, end, name in sorted(self._events.waits, key=lambda one: one[1]):
            yield HostWait(kind, self._time(start), self._time(end), name)
        for one in self._events.host:
            if one.name in _names.ITEM:
                yield HostWait(WaitKind.ITEM, self._time(one.start), self._time(one.end), one.name)


def _is_wait(name: str) -> bool:
    """Check whether an event of a host thread does no work of its own.

    An event does no work of its own if it marks a step, waits for data or belongs to a collective.
    """
    exchange = ("gloo:", "mpi:", "c10d::", "record_param_comms", "nccl:")
    return _host_ranges.is_annotation(name) or name.startswith((*exchange, "FSDP::", "## "))


def _calls_in_operators(host: Sequence[HostRange], time: Any) -> Iterator[tuple[float, float, float]]:
    """Yield a tuple of times for each collective that an operator calls.

    The tuple has the operator's end, the call, and the start of the next operator.
    """
    by_thread: dict[Any, list[HostRange]] = defaultdict(list)
    for one in host:
        by_thread[one.thread].append(one)
    for own in by_thread.values():
        starts = [one.start for one in own]
        parents: list[HostRange] = []
        for one in own:
            while parents and parents[-1].end <= one.start:
                parents.pop()
            if one.name.startswith("c10d::"):
                outer = [each for each in parents if not _is_wait(each.name)]
                if outer:
                    place = bisect_left(starts, one.end)
                    following = starts[place] if place < len(starts) else np.inf
                    yield time(outer[0].end), time(one.start), time(following)
            parents.append(one)


def _nested_left_out(calls: Sequence[HostRange]) -> list[HostRange]:
    """Return the calls that are not inside another call of the same thread."""
    kept: list[HostRange] = []
    for one in calls:
        if not any(other.thread == one.thread and other.end >= one.end for other in kept[-3:]):
            kept.append(one)
    return kept


def _called_before(calls: Sequence[HostRange], transfers: Sequence[HostRange]) -> list[HostRange]:
    """Return one call for each transfer. The call has the same operation as the transfer and began earlier.

    The trace may begin or end between a call and the transfer of this call. If a transfer has no matching call, the
    result is an empty list.
    """
    found = []
    remaining = list(calls)
    for transfer in transfers:
        op = _names.op(transfer.name)
        while remaining and (remaining[0].start > transfer.start or _names.op(remaining[0].name) != op):
            if remaining[0].start > transfer.start:
                return []
            remaining.pop(0)
        if not remaining:
            return []
        found.append(remaining.pop(0))
    return found


def _groups(distributed: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the members of the groups that the file lists."""
    configured = distributed.get("pg_config")
    found = {}
    for one in configured if isinstance(configured, list) else ():
        if isinstance(one, dict) and "pg_name" in one:
            members = _names.numbers(one.get("ranks"))
            if members:
                found[str(one["pg_name"])] = members
    return found


def _stated_bytes(stated: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return the payload according to the metadata of a collective: the larger of the send and receive buffers."""
    counts = [stated.get(key) for key in ("In msg nelems", "Out msg nelems")]
    known = [count for count in counts if isinstance(count, int)]
    dtype = _text(stated.get("dtype"))
    width = _names.BYTES_OF.get((dtype or "").lower())
    if not known or width is None:
        return None, dtype
    return max(known) * width, dtype


def _dims_bytes(args: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return the bytes of the first tensors in `Input Dims`, and their type."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list) or not dims or not types:
        return None, None
    first, kind = dims[0], str(types[0])
    width = _names.BYTES_OF.get(kind.lower())
    if width is None or not isinstance(first, list):
        return None, None
    tensors = first if first and all(isinstance(one, list) for one in first) else [first]
    try:
        return int(sum(np.prod(one, dtype=np.int64) for one in tensors)) * width, kind
    except (TypeError, ValueError):
        return None, None


def _peer(op: str, stated: Mapping[str, Any]) -> int | None:
    """Return the rank at the other end of a message between two ranks."""
    peer = stated.get("Dst Rank" if op == "send" else "Src Rank") if op in ("send", "recv") else None
    return peer if isinstance(peer, int) and peer >= 0 else None


def _called_peer(op: str, args: Mapping[str, Any]) -> int | None:
    """Return the rank at the other end of a message between two ranks.

    The call `c10d::send` or `c10d::recv_` has this rank as third argument.
    """
    stated = args.get("Concrete Inputs")
    if op not in ("send", "recv") or not isinstance(stated, list) or len(stated) < _PEER_PLACE + 1:
        return None
    peer = str(stated[_PEER_PLACE])
    return int(peer) if peer.isdecimal() else None


def _sequence(op: str, stated: Mapping[str, Any]) -> int | None:
    """Return the sequence number of a collective in its group.

    Return None for a message between two ranks, because messages are counted separately.
    """
    number = stated.get("Seq")
    return number if isinstance(number, int) and op not in ("send", "recv", "sendrecv") else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _device_name(properties: Any) -> str | None:
    """Return the name of the first device in the file."""
    if isinstance(properties, list) and properties and isinstance(properties[0], dict):
        return _text(properties[0].get("name"))
    return None
