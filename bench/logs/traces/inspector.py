"""Read the JSON records of Inspector, NCCL's profiler plug-in. Inspector writes a record for each finished collective.

A record has the communicator, the sequence number, the bytes, and the duration of the kernel. The duration includes
waits. A record has the time at which the kernel ran only if `NCCL_INSPECTOR_DUMP_VERBOSE=1` was set. NCCL numbers the
collectives of a communicator separately for each operation. Each operation of a communicator therefore counts as a
group. Inspector drops records silently. Gaps in the sequence numbers show the number of dropped records.
"""

from __future__ import annotations

import codecs
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.core import spans
from bench.core.codes import Coded
from bench.core.step_trace import RankTrace, TracedCollective
from bench.logs.archives import ArchiveError
from bench.logs.readers._document import JsonCollector, listing, mapping
from bench.logs.readers.nccl_inspector import InspectorRecord, record_of
from bench.logs.trace_messages import TraceCode
from bench.logs.traces import _names, _open, _sequence

_KINDS = (b'"coll_perf"', b'"p2p_perf"')
_MOST_CHARACTERS = 64 << 20
_MESSAGES = frozenset({"send", "recv"})
_VERBOSE = "record with NCCL_INSPECTOR_DUMP_VERBOSE=1"


class _Finished(NamedTuple):
    """A record, and its times in microseconds of the Unix clock. A time is None if the record does not state it."""

    record: InspectorRecord
    process: tuple[str, int]
    dumped: int | None
    called: int | None
    start: int | None
    end: int | None


class Inspector:
    """Reads the records of NCCL's Inspector."""

    name = "inspector"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Check whether the file begins with a record."""
        return head.lstrip().startswith(b"{") and any(kind in head for kind in _KINDS) and b'"n_ranks"' in head

    def read(self, path: Path) -> Iterator[RankTrace]:
        """Yield a rank for each process in the file. Raises OSError, or NoTraceError if no record is complete."""
        remarks: list[Coded] = []
        found: list[_Finished] = []
        try:
            for document in _documents(_lines(_open.pieces(path))):
                finished = _finished(document)
                if finished is not None:
                    found.append(finished)
        except ArchiveError as damage:
            code = TraceCode.CUT if damage.is_cut else TraceCode.DAMAGED
            remarks.append(Coded.of(code, source=str(path), num=len(found)))
        if not found:
            raise _open.NoTraceError(remarks[0] if remarks else Coded.of(TraceCode.NO_COLLECTIVES, source=str(path)))
        zero = min((time for one in found for time in (one.called, one.start, one.dumped) if time), default=0)
        for records in _ranks(found):
            yield _trace(str(path), records, zero, remarks)


READER = Inspector()


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + decode(piece)).split("\n")
        yield from lines
        rest = "" if len(rest) > _MOST_CHARACTERS else rest
    yield rest


def _documents(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects. An object may span several lines. Other text and damaged objects are skipped."""
    collector: JsonCollector | None = None
    for line in lines:
        text = line.strip()
        if collector is None and text.startswith("{") and text.endswith(("}", "},")):
            try:
                document = json.loads(text.rstrip(","))
            except (ValueError, RecursionError):
                continue
            yield document
        elif collector is not None or text == "{":
            collector = JsonCollector(0) if collector is None else collector
            if collector.feed(text):
                if (read := collector.read()) is not None:
                    yield read
                collector = None


def _finished(document: dict[str, Any]) -> _Finished | None:
    """Return a record with its times, or None if the record is incomplete."""
    record = record_of(document, 0) if "coll_perf" in document or "p2p_perf" in document else ""
    if isinstance(record, str):
        return None
    metadata = mapping(document.get("metadata")) or document
    times = mapping(mapping(document.get("p2p_perf" if record.is_send else "coll_perf")).get("event_trace_ts"))
    kernels = [mapping(kernel) for kernel in listing(times.get("kernel_events"))]
    starts = [time for kernel in kernels if (time := _time(kernel.get("kernel_start_ts")))]
    ends = [time for kernel in kernels if (time := _time(kernel.get("kernel_stop_ts")))]
    called = _time(times.get("p2p_start_ts" if record.is_send else "coll_start_ts"))
    pid = metadata.get("pid")
    process = (record.host, pid if isinstance(pid, int) else 0)
    start, end = min(starts, default=None), max(ends, default=None)
    if start is None or end is None or end < start:
        start = end = None
    return _Finished(record, process, _time(metadata.get("dump_timestamp_us")), called, start, end)


def _time(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 62 else None


def _ranks(found: Sequence[_Finished]) -> Iterator[list[_Finished]]:
    """Yield the records of each rank. If a process has several ranks, its records are grouped by rank number."""
    processes: dict[tuple[str, int], list[_Finished]] = defaultdict(list)
    for one in found:
        processes[one.process].append(one)
    for _, records in sorted(processes.items()):
        numbers: dict[tuple[str, int], set[int]] = defaultdict(set)
        by_rank: dict[int, list[_Finished]] = defaultdict(list)
        for one in records:
            numbers[one.record.group[:2]].add(one.record.rank)
            by_rank[one.record.rank].append(one)
        if max(len(ranks) for ranks in numbers.values()) > 1:
            yield from (own for _, own in sorted(by_rank.items()))
        else:
            yield records


def _trace(source: str, records: Sequence[_Finished], zero: int, remarks: Sequence[Coded]) -> RankTrace:
    """Return the trace of one rank. The rank of the trace is the rank's number in the largest communicator."""
    largest = max(records, key=lambda one: one.record.group[1]).record
    world_size = largest.group[1]
    collectives, num_lost = _sequence.ordered(_collective(one, zero, world_size) for one in records)
    own = [*remarks, *_sequence.lost(source, num_lost, len(records))]
    if without := [one for one in collectives if not one.timed]:
        own.append(Coded.of(TraceCode.ONLY_DURATIONS, source=source, num=len(without), remedy=_VERBOSE))
    return RankTrace(
        source=source,
        on_device=True,
        compute=spans.NONE,
        compute_launch_s=np.empty(0),
        collectives=collectives,
        rank=largest.rank,
        world_size=world_size,
        host=largest.host or None,
        backend="nccl",
        epoch_s=zero * 1e-6 if zero else None,
        num_events=len(records),
        facts=_facts(records),
        remarks=tuple(own),
    )


def _facts(records: Sequence[_Finished]) -> Mapping[str, object]:
    """Return facts on how the durations were measured."""
    sources = sorted({one.record.timing for one in records} - {""})
    return {"timing": sources} if sources else {}


def _collective(one: _Finished, zero: int, world_size: int) -> TracedCollective:
    communicator, num_ranks, operation = one.record.group
    op = _names.op(operation)
    timed = one.start is not None and one.end is not None
    start, end = (one.start, one.end) if timed else (one.dumped, one.dumped)
    called = None if one.called is None else (one.called - zero) * 1e-6
    return TracedCollective(
        op=op,
        place=0,
        start_s=((start or zero) - zero) * 1e-6,
        end_s=((end or zero) - zero) * 1e-6,
        group=f"{communicator} {'messages' if one.record.is_send else operation}".strip(),
        group_size=num_ranks,
        seq=one.record.seq,
        num_bytes=one.record.operation.payload,
        peer=one.record.peer if op in _MESSAGES and num_ranks == world_size else None,
        called_s=called,
        launch_s=called,
        timed=timed,
        duration_s=None if timed else one.record.operation.seconds,
    )
