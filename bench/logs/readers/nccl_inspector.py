"""Read NCCL Inspector (NCCL's profiler plug-in): one JSON object for each collective or send that a rank finished.

According to the plug-in's source (plugins/profiler/inspector), times are in microseconds, and GB/s are 1e9 bytes per
second. The size in a record is the size of one rank's buffer. For all-gather and reduce-scatter, this buffer holds one
block. The algbw is S / time. The time of a rank includes the wait for later ranks, so this time is an upper bound on
the time of the operation. A job repeats each operation thousands of times. A file contains the records of one rank or
of several ranks. A row is made for each size. The reader takes the record of the slowest rank from each operation. The
row is made from the record with the median time. If the number of records is even, the row is made from the slower of
the two middle records. The row's time and rates are thus from a single record.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRow, ForeignRun, Line, Reader
from bench.logs.messages import LogCode
from bench.logs.readers._document import JsonCollector, figure, mapping
from bench.logs.readers._figures_run import FiguresRun
from bench.logs.readers._run_notes import RunNotes

_FIRST_KEY = re.compile(r'\{?\s*"(header|coll_perf|p2p_perf)"\s*:\s*\{')
_RECORD = re.compile(r'\{.{1,4000}"(?:coll|p2p)_perf"\s*:\s*\{')
_PATTERNS = {
    "AllReduce": "allreduce",
    "AllGather": "allgather",
    "ReduceScatter": "reducescatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
_BLOCKS = ("AllGather", "AllGatherV", "ReduceScatter")  # the size is the block of one rank
_MOST_RUNS, _MOST_OPERATIONS = 200, 100_000
_AGREES = 0.02  # algbw is computed from the exact time; the printed time is rounded to microseconds
_MOST_BYTES = 1 << 60


class InspectorCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_BOUND = (
        "no-bound-inspector",
        "the times are from a running job: they include waits for late ranks and other traffic on the links",
    )
    SLOWEST_RANK = (
        "inspector-slowest-rank",
        "a row is one size: the median over {num_operations:n operation}, each by its slowest rank in this "
        "file, which has {num_recorded} of {num_ranks} ranks",
    )
    SENDS = "inspector-sends", "a row is one size: the median over {num_operations:n record} of all pairs"
    NOT_RATED = (
        "inspector-not-rated",
        "this version computes no rates for {operation}; the times of this operation are kept",
    )
    DOCUMENT_CUT = "document-cut", "this record is cut or damaged and was left out"
    RECORD_UNREADABLE = "record-unreadable", "this record lacks its {what} and was left out"
    NO_TIME = "inspector-no-time", "linkbench leaves out {num:n record} without a time"
    RECORDS_LEFT_OUT = "records-left-out", "{num:n record} left out: the first {most:,} operations are kept"


class _Operation(NamedTuple):
    """The record of the rank that was slowest in one operation."""

    seconds: float
    algbw: float | None  # bytes per second; None if the plug-in has no rule for the operation
    busbw: float | None
    payload: int
    line: int
    contradicts: Coded | None


@dataclass(frozen=True, slots=True)
class InspectorRecord:
    """The contents of one JSON object."""

    group: tuple[str, int, str]  # the communicator, its number of ranks, and the operation
    is_send: bool
    rank: int
    seq: int
    peer: int | None
    size: int
    timing: str
    operation: _Operation
    header: dict[str, Any]
    host: str


class InspectorRun(FiguresRun):
    """The records of one operation in one communicator."""

    def __init__(self, record: InspectorRecord) -> None:
        super().__init__(record.operation.line)
        communicator, num_ranks, operation = record.group
        nodes = record.header.get("nnodes")
        self.facts["num_ranks"] = num_ranks
        self.facts["pattern"] = None if record.is_send else _PATTERNS.get(operation)
        if isinstance(nodes, int) and 0 < nodes <= num_ranks:
            self.facts["num_nodes"] = nodes
        self.settings["operation"] = operation
        if communicator:
            self.settings["communicator"] = communicator[:100]
        name = record.header.get("comm_name")
        if isinstance(name, str) and name not in ("", "unknown"):
            self.settings["communicator_name"] = name[:100]
        self._is_send = record.is_send
        self._ranks: set[int] = set()
        # key: rank, peer and sequence number; a replayed graph repeats the numbers
        self._times: Counter[tuple[int, int | None, int]] = Counter()
        self._operations: dict[tuple[int, ...], tuple[int, _Operation]] = {}
        self._timings: dict[str, None] = {}

    def take(self, line: int, text: str) -> None:
        """Ignore the line, because the reader uses only whole records."""

    def take_record(self, record: InspectorRecord, *, has_room: bool) -> bool:
        """Add a record. Return False if the record is left out, because it would exceed the limit on operations."""
        counted = record.rank, record.peer, record.seq
        key: tuple[int, ...] = (record.seq, self._times[counted], record.size)
        if self._is_send:
            key = (*key, record.rank, -1 if record.peer is None else record.peer)
        known = self._operations.get(key)
        if known is None and not has_room:
            return False
        self._times[counted] += 1
        self._ranks.add(record.rank)
        self.hosts[record.host] = None
        self._timings[record.timing] = None
        if known is None or known[1].seconds < record.operation.seconds:
            self._operations[key] = record.size, record.operation
        return True

    @property
    def num_operations(self) -> int:
        """The number of operations whose records are kept."""
        return len(self._operations)

    def close(self) -> None:
        """Build the rows, and add notes on the meaning of a row."""
        self.hosts.pop("", None)
        timings = [timing for timing in self._timings if timing]
        if timings:
            self.settings["timing"] = ", ".join(timings)
        by_size: dict[int, list[_Operation]] = {}
        for size, operation in self._operations.values():
            by_size.setdefault(size, []).append(operation)
        for _, operations in sorted(by_size.items()):
            operations.sort(key=lambda operation: operation.seconds)
            middle = operations[len(operations) // 2]
            self.add_row(
                ForeignRow(
                    middle.payload,
                    time_s=middle.seconds,
                    algbw_bytes_per_s=middle.algbw,
                    busbw_bytes_per_s=middle.busbw,
                    min_s=operations[0].seconds,
                    max_s=operations[-1].seconds,
                    num_iterations=len(operations),
                    line=middle.line,
                    contradicts=middle.contradicts,
                )
            )
        if self._is_send:
            self.translate(InspectorCode.SENDS, num_operations=self.num_operations)
        else:
            self.translate(
                InspectorCode.SLOWEST_RANK,
                num_operations=self.num_operations,
                num_recorded=len(self._ranks),
                num_ranks=self.facts["num_ranks"],
            )
        if all(operation.algbw is None for _, operation in self._operations.values()):
            self.translate(InspectorCode.NOT_RATED, operation=self.settings["operation"])


class NcclInspector(Reader):
    """Reads a file with the records of all communicators of a rank. Each operation of a communicator is a run."""

    tool = "nccl_inspector"
    traits = LogTraits(of_running_job=True, without_bound=Coded.of(InspectorCode.NO_BOUND))
    hints = ('"header"', '"coll_perf"', '"p2p_perf"')

    def __init__(self) -> None:
        self._document: JsonCollector | None = None
        self._first_key = ""
        self._line = 0  # the line of the first record
        self._runs: dict[tuple[str, int, str], InspectorRun] = {}
        self._notes = RunNotes()
        self._num_operations = self._num_left_out = self._num_without_time = 0

    def begins(self, text: str) -> bool:
        """Check whether the line is a record, or the first key of a record that is printed over several lines."""
        text = text.strip()
        if text[:1] not in ("{", '"'):
            return False
        if _RECORD.match(text):
            return True
        return not text.endswith("}") and _FIRST_KEY.match(text) is not None

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Runs are yielded only at the end of the file."""
        text = line.text.strip()
        first = _FIRST_KEY.match(text)
        is_whole = _RECORD.match(text) is not None
        if self._document is not None and (is_whole or (first and first[1] == self._first_key)):
            self._notes.lose(self._document.line, InspectorCode.DOCUMENT_CUT)
            self._document = None
        if self._document is None:
            if not is_whole and not first:
                return
            self._document = JsonCollector(line.number)
            self._line = self._line or line.number
            self._first_key = first[1] if first else ""
        if text and self._document.feed(text):
            self._end_document()
        yield from ()

    def finish(self) -> Iterator[ForeignRun]:
        """Yield the runs of the file."""
        if self._document is not None:
            self._notes.lose(self._document.line, InspectorCode.DOCUMENT_CUT)
            self._document = None
        if self._num_without_time:
            note = self._notes.remark if self._runs else self._notes.lose
            note(None, InspectorCode.NO_TIME, num=self._num_without_time)
        if self._num_left_out:
            most = _MOST_OPERATIONS
            self._notes.lose(None, InspectorCode.RECORDS_LEFT_OUT, num=self._num_left_out, most=most)
        runs, self._runs = list(self._runs.values()), {}
        notes, self._notes = self._notes, RunNotes()
        self._num_operations = self._num_left_out = self._num_without_time = 0
        if not runs and notes.cuts:
            yield ForeignRun(
                self.tool, status=notes.status(), failure=notes.failure(), remarks=notes.all_remarks(), line=self._line
            )
        for run in runs:
            if run is runs[0]:  # losses in a file are reported only once
                run.remarks, run.cuts = notes.remarks, notes.cuts
            yield run.run(self.tool)

    def _end_document(self) -> None:
        collector, self._document = self._document, None
        document = None if collector is None else collector.read()
        if collector is None:
            return
        if document is None:
            self._notes.lose(collector.line, InspectorCode.DOCUMENT_CUT)
        elif "coll_perf" in document or "p2p_perf" in document:
            self._take(document, collector.line)

    def _take(self, document: dict[str, Any], line: int) -> None:
        record = record_of(document, line)
        if isinstance(record, str):
            self._notes.lose(line, InspectorCode.RECORD_UNREADABLE, what=record)
            return
        if record.operation.seconds <= 0:
            self._num_without_time += 1
            return
        run = self._runs.get(record.group)
        if run is None and len(self._runs) < _MOST_RUNS and self._num_operations < _MOST_OPERATIONS:
            run = self._runs[record.group] = InspectorRun(record)
        if run is None:
            self._num_left_out += 1
            return
        before = run.num_operations
        if run.take_record(record, has_room=self._num_operations < _MOST_OPERATIONS):
            self._num_operations += run.num_operations - before
        else:
            self._num_left_out += 1


def record_of(document: dict[str, Any], line: int) -> InspectorRecord | str:
    """Return the record, or the name of a field that the record lacks.

    Some exporters write the fields of `header` and `metadata` at the top level of the document.
    """
    header = mapping(document.get("header")) or document
    metadata = mapping(document.get("metadata")) or document
    is_send = "coll_perf" not in document
    prefix = "p2p" if is_send else "coll"
    perf = mapping(document.get(f"{prefix}_perf"))
    operation = perf.get(prefix)
    size = _whole(perf.get(f"{prefix}_msg_size_bytes"))
    micros = figure(perf.get(f"{prefix}_exec_time_us"))
    seq, rank, num_ranks = _whole(perf.get(f"{prefix}_sn")), _whole(header.get("rank")), _whole(header.get("n_ranks"))
    if not isinstance(operation, str) or not operation or seq is None:
        return "operation"
    if rank is None or not num_ranks:
        return "rank"
    if size is None or micros is None:
        return "size or time"
    rates = []
    for name in ("algobw", "busbw"):
        rate = figure(perf.get(f"{prefix}_{name}_gbs"))
        rates.append(rate * 1e9 if rate is not None and rate > 0 else None)
    seconds = micros * 1e-6
    payload, agrees = _payload(operation, size, num_ranks, seconds, rates[0])
    contradicts = None if agrees else Coded.of(LogCode.NOT_SIZE_BY_TIME)
    timing, host, communicator = perf.get(f"{prefix}_timing_source"), metadata.get("hostname"), header.get("id")
    return InspectorRecord(
        group=(communicator if isinstance(communicator, str) else "", num_ranks, operation[:60]),
        is_send=is_send,
        rank=rank,
        seq=seq,
        peer=_whole(perf.get("p2p_peer")),
        size=size,
        timing=timing[:60] if isinstance(timing, str) else "",
        operation=_Operation(seconds, rates[0], rates[1], payload, line, contradicts),
        header=header,
        host=host[:255] if isinstance(host, str) else "",
    )


def _payload(operation: str, size: int, num_ranks: int, seconds: float, algbw: float | None) -> tuple[int, bool]:
    """Return the payload S of a record, and whether the record's algbw equals S / time.

    For all-gather and reduce-scatter, most versions print the bytes of one block as the size, but some versions print
    S.
    """
    payload = size * num_ranks if operation in _BLOCKS else size
    if algbw is None or seconds <= 0:
        return payload, True
    slack = _AGREES + 1e-6 / seconds
    for candidate in dict.fromkeys((payload, size)):
        if abs(algbw * seconds - candidate) <= slack * candidate:
            return candidate, True
    return payload, False


def _whole(value: object) -> int | None:
    """Return the value if it is a JSON integer within bounds, else None."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_BYTES:
        return value
    return None


READER = NcclInspector
