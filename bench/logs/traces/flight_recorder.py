"""Read torch's flight recorder: the last collectives that a rank called, as JSON or as a pickle of plain data.

For each collective, a dump has the group, the sequence number, the bytes, and the time at which the host called it. A
dump has durations only if `TORCH_NCCL_ENABLE_TIMING=1` was set. The time at which a collective ran is never recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.core import spans
from bench.core.codes import Coded
from bench.core.step_trace import RankTrace, TracedCollective
from bench.logs.archives import ArchiveError
from bench.logs.events import flight_recorder
from bench.logs.trace_messages import TraceCode
from bench.logs.traces import _names, _open, _sequence
from bench.logs.traces._json_stream import DamagedError, JsonStream

_FIRST_KEY = re.compile(
    rb'^\s*\{\s*"(entries|comm_lib_version|nccl_version|nccl_comm_state|pg_config|pg_status|version)"'
)
_KEYS = (b"entries", b"pg_config", b"pg_status")
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_MOST_BYTES = 512 << 20
_PEERS = re.compile(r"(\d{1,6})\s*(?:->|<-)\s*(\d{1,6})")


class FlightRecorderDump:
    """Reads a dump of torch's flight recorder."""

    name = "flight-recorder"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Check whether the file begins like a JSON object or a pickle with the recorder's keys."""
        return (_FIRST_KEY.match(head) is not None or head.startswith(_PICKLES)) and any(key in head for key in _KEYS)

    def read(self, path: Path) -> Iterator[RankTrace]:
        """Yield the only rank of the dump. Raises OSError, or NoTraceError if the dump cannot be read as plain data."""
        remarks: list[Coded] = []
        if _open.head(path).startswith(_PICKLES):
            dump = _unpickled(path)
            entries, groups = dump.get("entries"), dump.get("pg_config")
        else:
            entries, groups = _json(path, remarks)
        members = flight_recorder.members_of(groups)
        own = entries if isinstance(entries, (list, tuple)) else []
        yield _trace(path, [entry for entry in own if isinstance(entry, Mapping)], members, remarks)


READER = FlightRecorderDump()


def _unpickled(path: Path) -> Mapping[Any, Any]:
    """Return the contents of a pickle, which must be plain data.

    Raises NoTraceError if the pickle is damaged or too large, or if it contains anything except plain data.
    """
    data = b""
    for piece in _open.pieces(path):
        data += piece
        if len(data) > _MOST_BYTES:
            raise _open.NoTraceError(Coded.of(TraceCode.ARCHIVE_LIMIT, source=str(path), most=_MOST_BYTES))
    dump = flight_recorder.load(data)
    if not isinstance(dump, Mapping):
        raise _open.NoTraceError(Coded.of(TraceCode.PICKLE_NOT_PLAIN, source=str(path)))
    return dump


def _json(path: Path, remarks: list[Coded]) -> tuple[list[Any], Any]:
    """Return the complete records and groups of a JSON dump."""
    stream = JsonStream(_open.pieces(path), "entries")
    entries = []
    try:
        for entry in stream.members():
            entries.append(entry)
    except (DamagedError, ArchiveError) as damage:
        code = TraceCode.CUT if damage.is_cut else TraceCode.DAMAGED
        remarks.append(Coded.of(code, source=str(path), num=len(entries)))
    return entries, stream.others.get("pg_config")


def _trace(
    path: Path, entries: list[Mapping[Any, Any]], members: Mapping[str, tuple[int, ...]], remarks: list[Coded]
) -> RankTrace:
    """Return the trace. Raises NoTraceError if no record is complete."""
    source = str(path)
    created = [entry["time_created_ns"] for entry in entries if isinstance(entry.get("time_created_ns"), int)]
    zero = min(created, default=0)
    names = {_group(entry) for entry in entries}
    if len(members) == 1 and len(names) == 1:  # some versions call the only group '' in one field and '0' in another
        members = dict.fromkeys(names, next(iter(members.values())))
    found = [collective for entry in entries if (collective := _collective(entry, zero, members)) is not None]
    if not found:
        raise _open.NoTraceError(remarks[0] if remarks else Coded.of(TraceCode.NO_COLLECTIVES, source=source))
    collectives, num_lost = _sequence.ordered(found)
    remarks += _sequence.lost(source, num_lost, len(found))
    without = [one for one in found if one.duration_s is None]
    libraries = {str(entry.get("profiling_name", "")).partition(":")[0] for entry in entries} - {""}
    backend = libraries.pop() if len(libraries) == 1 else None
    if without:
        remedy = "record with TORCH_NCCL_ENABLE_TIMING=1" if backend == "nccl" else None
        remarks.append(Coded.of(TraceCode.NO_DURATIONS, source=source, num=len(without), remedy=remedy))
    else:
        remarks.append(Coded.of(TraceCode.ONLY_DURATIONS, source=source, num=len(found)))
    return RankTrace(
        source=source,
        on_device=backend == "nccl",
        compute=spans.NONE,
        compute_launch_s=np.empty(0),
        collectives=collectives,
        rank=flight_recorder.rank_of(path.name),
        world_size=max((len(ranks) for ranks in members.values()), default=0) or None,
        backend=backend,
        epoch_s=zero * 1e-9 if zero else None,
        num_events=len(entries),
        remarks=tuple(remarks),
    )


def _collective(entry: Mapping[Any, Any], zero: int, members: Mapping[str, tuple[int, ...]]) -> TracedCollective | None:
    """Return the collective of a record, or None if the record lacks its operation."""
    _, _, named = str(entry.get("profiling_name", "")).partition(":")
    if not named:
        return None
    is_message = entry.get("is_p2p") is True
    group = _group(entry)
    ranks = members.get(group)
    op = _names.op(named)
    created = entry.get("time_created_ns")
    called = (created - zero) * 1e-9 if isinstance(created, int) else 0.0
    duration = entry.get("duration_ms")
    seq = entry.get("p2p_seq_id") if is_message else entry.get("collective_seq_id", entry.get("seq_id"))
    sides = [_bytes(entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")) for side in ("input", "output")]
    known = [size for size in sides if size is not None]
    dtypes = entry.get("input_dtypes")
    return TracedCollective(
        op=op,
        place=0,
        start_s=called,
        end_s=called,
        group=f"{group} messages" if is_message else group,
        members=ranks,
        group_size=len(ranks) if ranks else None,
        seq=seq if isinstance(seq, int) else None,
        num_bytes=max(known) if known and op != "barrier" else None,
        dtype=str(dtypes[0]).lower() if isinstance(dtypes, (list, tuple)) and dtypes else None,
        peer=_peer(named, ranks) if is_message else None,
        called_s=called,
        timed=False,
        duration_s=duration * 1e-3 if isinstance(duration, (int, float)) and duration > 0 else None,
    )


def _group(entry: Mapping[Any, Any]) -> str:
    group = entry.get("process_group", entry.get("pg_id", 0))
    return str(group[0] if isinstance(group, (list, tuple)) and group else group)


def _bytes(sizes: Any, dtypes: Any) -> int | None:
    """Return the bytes of tensors with these shapes, or None if a data type is unknown."""
    if not isinstance(sizes, (list, tuple)) or not sizes:
        return None
    kinds = dtypes if isinstance(dtypes, (list, tuple)) else [dtypes]
    total = 0
    for place, shape in enumerate(sizes):
        width = _names.BYTES_OF.get(str(kinds[min(place, len(kinds) - 1)]).lower()) if kinds else None
        if width is None or not _is_shape(shape):
            return None
        elements = 1
        for length in shape:
            elements *= length
        total += elements * width
    return total


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, (list, tuple)) and all(isinstance(one, int) and 0 <= one < 1 << 40 for one in shape)


def _peer(named: str, members: Iterable[int] | None) -> int | None:
    """Return the other rank of `send 0->1` or `recv 1<-0`. The numbers are indices in the group."""
    found = _PEERS.search(named)
    ranks = [*(members or ())]
    if found is None:
        return None
    place = int(found[2])
    return ranks[place] if place < len(ranks) else None
