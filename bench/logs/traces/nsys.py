"""Read SQLite exports of Nsight Systems (`nsys export --type sqlite`). One file has all processes of a host.

Tables and columns differ between versions and settings. The reader therefore first lists the file's tables and columns.
The trace consists of the kernels, copies and calls of CUDA (CUPTI_ACTIVITY_KIND_*). NVTX ranges of NCCL, of torch
(`emit_nvtx`) and of the program are also read. Each process that ran kernels is a rank. If a process ran collectives on
several devices, each of these devices is a rank. Times are in nanoseconds on one clock for the whole file.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.codes import Coded
from bench.core.spans import Spans
from bench.core.step_trace import Direction, HostWait, RankTrace, TracedCollective, TracedCopy, WaitKind
from bench.logs.trace_messages import TraceCode
from bench.logs.traces import _host_ranges, _names, _nccl_ranges, _open
from bench.logs.traces._host_ranges import HostRange
from bench.logs.traces._nccl_ranges import NcclCall
from bench.logs.traces._sqlite import ERRORS, MAGIC, UNKNOWN, Database

_Integers = NDArray[np.int64]
_KERNEL, _MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSET, _GRAPH = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_RUNTIME, _NVTX = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_NAME_COLUMNS = ("shortName", "demangledName", "mangledName")
_PROCESS_MASK = ~0xFFFFFF  # all bits of a globalTid except the thread's bits
_UTC_NS = 10**18  # larger timestamps count from 1970 (`--ts-normalize`)
_RANGES = (59, 60, 70, 71)  # event types of NVTX: push/pop and start/end ranges
_NUM_NAMES = 4096  # millions of ranges have few names
_STEP = re.compile(r"^(ProfilerStep\s*#?|(train(ing)?[ _-]?)?(step|iteration|iter)[ _:#=-]*)\s*\d+\b", re.IGNORECASE)
_OF_TORCH = re.compile(r", (seq|op_id|sizes|input_op_ids) = .*$", re.DOTALL)
_VERSION = re.compile(r"(_ptsz|_ptds)?(_v\d+)*$")  # cudaLaunchKernel_v7000
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
# Labels in the tables ENUM_CUDA_* of the file; the numbers are for files without these tables.
_COPY_KINDS = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer"}
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device"}
_DIRECTIONS = {
    "Host-to-Device": Direction.H2D,
    "Device-to-Host": Direction.D2H,
    "Device-to-Device": Direction.D2D,
    "Peer-to-Peer": Direction.P2P,
    "Unified Host-to-Device": Direction.H2D,
    "Unified Device-to-Host": Direction.D2H,
}


class NsightSystems:
    """Reads an SQLite export of Nsight Systems."""

    name = "nsys"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Check whether the file is an SQLite database."""
        return head.startswith(MAGIC)

    def read(self, path: Path) -> Iterator[RankTrace]:
        """Yield the ranks of the file. Raises OSError.

        Raises NoTraceError if the file is not an export of nsys, or if it contains no kernel.
        """
        source = str(path)
        with _open.unpacked(path) as file:
            try:
                database = Database(file)
            except ERRORS as error:
                remark = Coded.of(TraceCode.UNREADABLE, source=source, error=str(error))
                raise _open.NoTraceError(remark) from None
            with closing(database):
                yield from _Export(source, database).traces()


READER = NsightSystems()


class _Export:
    """One file."""

    def __init__(self, source: str, database: Database) -> None:
        self._source, self._database = source, database
        if not _is_export(database):
            raise _open.NoTraceError(Coded.of(TraceCode.NOT_NSYS, source=source))
        self._zero = self._first_time()
        self._environment = self._variables()

    def traces(self) -> Iterator[RankTrace]:
        """Yield the ranks, in the order of their devices."""
        places = self._places()
        if not places and (error := self._database.error):
            raise _open.NoTraceError(Coded.of(TraceCode.UNREADABLE, source=self._source, error=error))
        if not places:
            raise _open.NoTraceError(Coded.of(TraceCode.NO_KERNELS, source=self._source))
        is_only_one = len(places) == 1
        for process, devices in places:
            yield _Rank(self._source, self._database, process, devices, self._zero).trace(
                host=self._text("TARGET_INFO_SYSTEM_ENV", "Hostname"),
                device_name=self._device_name(devices[0]),
                epoch_s=self._epoch_s(),
                rank=self._number(_RANK_VARIABLES, _names.rank_in_name(self._source)) if is_only_one else None,
                world_size=self._number(_SIZE_VARIABLES, None) if is_only_one else None,
                version=self._text("META_DATA_EXPORT", "EXPORT_SCHEMA_VERSION"),
            )

    def _places(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return (process, devices) of each rank."""
        database = self._database
        if not database.has(_KERNEL, "start", "end"):
            return []
        found: dict[int, set[int]] = defaultdict(set)
        exchanging: dict[int, set[int]] = defaultdict(set)
        names = _kernel_names(database)
        name = database.first_column(_KERNEL, *_NAME_COLUMNS) or "start"
        kernels = database.integers(_KERNEL, ("globalPid", "deviceId", name), "1 GROUP BY 1, 2, 3")
        for process, device, number in kernels.tolist():
            found[process].add(device)
            if _names.COLLECTIVE_KERNEL.search(names.get(number, "")):
                exchanging[process].add(device)
        places: list[tuple[int, tuple[int, ...]]] = []
        for process, devices in found.items():
            if len(exchanging[process]) > 1 or process == UNKNOWN:
                places += [(process, (device,)) for device in devices]
            else:
                places.append((process, tuple(sorted(devices))))
        return sorted(places, key=lambda place: (place[1], place[0]))

    def _first_time(self) -> int:
        firsts = []
        for table in (_KERNEL, _MEMCPY, _RUNTIME, _NVTX):
            if self._database.has(table, "start"):
                query = f'SELECT MIN(CAST("start" AS INTEGER)) FROM "{table}"'
                firsts += [first for (first,) in self._database.rows(query)]
        return min((first for first in firsts if isinstance(first, int)), default=0)

    def _epoch_s(self) -> float | None:
        """Return the Unix time that corresponds to time 0 of the file.

        The file states the start of the capture on its own clock and on the Unix clock.
        """
        if self._zero > _UTC_NS:
            return self._zero * 1e-9
        utc = self._database.integers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
        begin = self._database.integers("ANALYSIS_DETAILS", ("startTime",))
        if not len(utc) or utc[0, 0] <= 0:
            return None
        started = int(begin[0, 0]) if len(begin) and begin[0, 0] != UNKNOWN else 0
        return (int(utc[0, 0]) + self._zero - started) * 1e-9

    def _text(self, table: str, name: str) -> str | None:
        """Return the value for `name` from a table with the columns name and value."""
        if not self._database.has(table, "name", "value"):
            return None
        found = self._database.rows(f'SELECT CAST(value AS TEXT) FROM "{table}" WHERE name = ?', name)
        return next((value for (value,) in found if value), None)

    def _device_name(self, device: int) -> str | None:
        for table, key in (("TARGET_INFO_GPU", "id"), ("TARGET_INFO_CUDA_DEVICE", "cudaId")):
            if self._database.has(table, key, "name"):
                found = self._database.rows(f'SELECT CAST(name AS TEXT) FROM "{table}" WHERE "{key}" = ?', device)
                if name := next((name for (name,) in found if name), None):
                    return str(name)
        return None

    def _variables(self) -> dict[str, str]:
        """Return the environment of the command that nsys started."""
        if not self._database.has("META_DATA_CAPTURE", "name", "value"):
            return {}
        query = "SELECT CAST(value AS TEXT) FROM META_DATA_CAPTURE WHERE name LIKE 'PROCESS_0:ENVIRONMENT_VARIABLE'"
        pairs = (str(value).partition("=") for (value,) in self._database.rows(query))
        return {name: value.strip('"') for name, _, value in pairs}

    def _number(self, variables: Iterable[str], otherwise: int | None) -> int | None:
        found = (self._environment.get(variable, "") for variable in variables)
        return next((int(value) for value in found if value.isdigit() and len(value) < 10), otherwise)


class _Rank:
    """The events of one rank."""

    def __init__(self, source: str, database: Database, process: int, devices: tuple[int, ...], zero: int) -> None:
        self._source, self._database, self._zero = source, database, zero
        self._process, self._devices = process, devices
        self._num_events = 0
        self._remarks: list[Coded] = []
        self._calls = self._read_calls()
        self._launches = self._by_correlation()
        self._ranges = self._read_ranges()
        self._communicators = _nccl_ranges.communicators(self._ranges)

    def trace(self, *, rank: int | None, world_size: int | None, version: str | None, **facts: Any) -> RankTrace:
        """Return the trace.

        The rank and the world size are known if the export contains the creation of a communicator of all ranks.
        """
        compute, exchange, names = self._kernels()
        launch_ns = self._launch(compute[:, 2])[:, 1]
        unknown = int((launch_ns == UNKNOWN).sum())
        if unknown > len(compute) // 10:
            self._remark(TraceCode.UNMATCHED_LAUNCHES, num=unknown)
        if len(self._devices) > 1:
            self._remark(TraceCode.SEVERAL_DEVICES, num=len(self._devices))
        collectives = self._collectives(exchange, names)
        without = [one for one in collectives if one.num_bytes is None and one.op != "barrier"]
        if not collectives:
            self._remark(TraceCode.NO_COLLECTIVES)
        elif without:
            stated = any(_nccl_ranges.SIZE in one.args for one in self._ranges)
            remedy = None if stated else "export with `--include-blobs=true`"
            self._remark(TraceCode.NO_SIZES, num=len(without), remedy=remedy)
        largest = max(self._communicators.values(), default=None)
        if largest is not None:
            world_size, rank = largest
        steps = self._steps()
        main = _host_ranges.main_thread(self._ranges)
        copies = self._copies()
        if self._database.error:
            self._remark(TraceCode.DATABASE_DAMAGED, error=self._database.error)
        return RankTrace(
            source=self._source,
            on_device=True,
            compute=self._spans(compute[:, :2]),
            compute_launch_s=np.where(launch_ns == UNKNOWN, np.nan, (launch_ns - self._zero) * 1e-9),
            collectives=collectives,
            copies=copies,
            waits=self._waits(),
            phases={phase: union * 1e-9 for phase, union in _host_ranges.phases(self._ranges, main).items()},
            steps=tuple((one.start * 1e-9, one.end * 1e-9) for one in steps),
            step_names=tuple(one.name for one in steps),
            rank=rank,
            world_size=world_size,
            backend="nccl" if collectives else None,
            num_events=self._num_events,
            facts={"schema": version, "devices": self._devices},
            remarks=tuple(self._remarks),
            **facts,
        )

    def _remark(self, code: TraceCode, **facts: Any) -> None:
        self._remarks.append(Coded.of(code, source=self._source, **facts))

    def _time(self, nanoseconds: int) -> float:
        return (nanoseconds - self._zero) * 1e-9

    def _spans(self, pairs: _Integers) -> Spans:
        found: Spans = np.multiply(pairs - self._zero, 1e-9, dtype=np.float64)
        return found

    def _read(self, table: str, columns: Sequence[str], condition: str) -> _Integers:
        """Return the events of a table, sorted by start. The first two columns are `start` and `end`."""
        if not self._database.has(table, "start", "end"):
            return np.empty((0, len(columns)), dtype=np.int64)
        found = self._database.integers(table, columns, f'{condition} AND "end" >= "start"')
        self._num_events += len(found)
        ordered: _Integers = found[np.argsort(found[:, 0], kind="stable")]
        return ordered

    def _of_host(self, table: str) -> str:
        """Return the SQL condition that selects events of the process's threads."""
        if self._process == UNKNOWN or not self._database.has(table, "globalTid"):
            return "1"
        return f'("globalTid" & {_PROCESS_MASK}) = {self._process & _PROCESS_MASK}'

    def _read_calls(self) -> _Integers:
        """Return (start, end, correlation, thread, name) of each CUDA call."""
        columns = ("start", "end", "correlationId", "globalTid", "nameId")
        return self._read(_RUNTIME, columns, self._of_host(_RUNTIME))

    def _by_correlation(self) -> _Integers:
        """Return (correlation, start, thread) of each CUDA call, sorted by correlation number."""
        calls = self._calls[self._calls[:, 2] != UNKNOWN][:, [2, 0, 3]]
        ordered: _Integers = calls[np.argsort(calls[:, 0], kind="stable")]
        return ordered

    def _launch(self, correlations: _Integers) -> _Integers:
        """Return, for each correlation number, (correlation, start, thread) of the launch.

        A launch that was not recorded has the values UNKNOWN.
        """
        places = np.searchsorted(self._launches[:, 0], correlations)
        known = places < len(self._launches)
        found = np.full((len(correlations), 3), UNKNOWN, dtype=np.int64)
        found[known] = self._launches[places[known]]
        found[found[:, 0] != correlations] = UNKNOWN
        return found

    def _kernels(self) -> tuple[_Integers, _Integers, Mapping[int, str]]:
        """Return the compute kernels and the communication kernels: (start, end, correlation, name, stream)."""
        name = self._database.first_column(_KERNEL, *_NAME_COLUMNS) or "no name"
        columns = ("start", "end", "correlationId", name, "streamId")
        kernels = self._read(_KERNEL, columns, self._of_device(_KERNEL))
        names = _kernel_names(self._database)
        numbers = [number for number, text in names.items() if _names.COLLECTIVE_KERNEL.search(text)]
        exchanges = np.isin(kernels[:, 3], numbers)
        graphs = self._read(_GRAPH, columns[:3], self._of_device(_GRAPH))
        if len(graphs):
            self._remark(TraceCode.WHOLE_GRAPHS, num=len(graphs))
        fills = self._read(_MEMSET, columns[:3], self._of_device(_MEMSET))
        work = np.concatenate((kernels[~exchanges][:, :3], graphs, fills))
        return work[np.argsort(work[:, 0], kind="stable")], kernels[exchanges], names

    def _of_device(self, table: str) -> str:
        """Return the SQL condition that selects events of the rank's devices."""
        process, device = (self._database.integer(table, column) for column in ("globalPid", "deviceId"))
        return f"{process} = {self._process} AND {device} IN ({', '.join(map(str, self._devices))})"

    def _collectives(self, kernels: _Integers, names: Mapping[int, str]) -> tuple[TracedCollective, ...]:
        """Return the collectives, in the order of their launches."""
        launches = self._launch(kernels[:, 2])
        order = np.argsort(np.where(launches[:, 1] == UNKNOWN, kernels[:, 0], launches[:, 1]), kind="stable")
        of_nccl = _nccl_ranges.NcclCalls(_nccl_ranges.calls_of_kernels(self._ranges))
        of_torch = _nccl_ranges.NcclCalls(_nccl_ranges.calls_of_torch(self._ranges))
        found = []
        for kernel, (_, launch, thread) in zip(kernels[order].tolist(), launches[order].tolist(), strict=True):
            called = of_nccl.at(thread, launch - self._zero), of_torch.at(thread, launch - self._zero)
            found.append((kernel, launch, *called))
        num_kernels = Counter(id(call) for _, _, call, _ in found)
        usual = _usual_ops((names.get(kernel[3], ""), call) for kernel, _, _, call in found)
        places: dict[str, int] = defaultdict(int)
        collectives = []
        for (start, end, _, name, stream), launch, call, torch_call in found:
            op = _op(torch_call) or usual.get(names.get(name, "")) or _names.op(names.get(name, ""))
            calls = call.calls if call is not None else ()
            stated = {one.args.get(_nccl_ranges.COMMUNICATOR) for one in calls}
            communicator = stated.pop() if len(stated) == 1 else None
            size, _ = self._communicators.get(-1 if communicator is None else communicator, (None, None))
            group = "" if communicator is None else f"{communicator:016x}"
            begun = [one.start for one in (*calls, *(torch_call.calls if torch_call is not None else ()))]
            collectives.append(
                TracedCollective(
                    op=op,
                    place=places[group],
                    start_s=self._time(start),
                    end_s=self._time(end),
                    group=group,
                    group_size=size,
                    num_bytes=_nccl_ranges.payload(op, calls, size) if num_kernels[id(call)] == 1 else None,
                    called_s=min(begun) * 1e-9 if begun else None,
                    launch_s=None if launch == UNKNOWN else self._time(launch),
                    lane=str(stream),
                )
            )
            places[group] += 1
        return tuple(collectives)

    def _copies(self) -> tuple[TracedCopy, ...]:
        columns = ("start", "end", "correlationId", "bytes", "copyKind", "srcKind", "dstKind")
        rows = self._read(_MEMCPY, columns, self._of_device(_MEMCPY))
        launches = self._launch(rows[:, 2])[:, 1].tolist()
        kinds = self._labels("ENUM_CUDA_MEMCPY_OPER", _COPY_KINDS)
        memories = self._labels("ENUM_CUDA_MEM_KIND", _MEMORY_KINDS)
        found = []
        for (start, end, _, size, kind, source, target), launch in zip(rows.tolist(), launches, strict=True):
            direction = _DIRECTIONS.get(kinds.get(kind, ""))
            if direction is None:
                continue
            memory = memories.get(source if direction is Direction.H2D else target)
            is_pinned = {"Pinned": True, "Pageable": False}.get(memory or "")
            found.append(
                TracedCopy(
                    direction=direction,
                    start_s=self._time(start),
                    end_s=self._time(end),
                    num_bytes=None if size < 0 else size,
                    pinned=is_pinned,
                    launch_s=None if launch == UNKNOWN else self._time(launch),
                )
            )
        return tuple(found)

    def _labels(self, table: str, otherwise: Mapping[int, str]) -> Mapping[int, str]:
        if not self._database.has(table, "id", "label"):
            return otherwise
        return dict(self._database.rows(f'SELECT id, label FROM "{table}"')) or otherwise

    def _waits(self) -> tuple[HostWait, ...]:
        """Return the CUDA calls in which the host waits.

        Also return the operators that wait for a value from the device.
        """
        kinds = {}
        for number, name in _texts(self._database, _RUNTIME, "nameId").items():
            name = _VERSION.sub("", name)
            if _names.SYNC.match(name):
                kinds[number] = (WaitKind.SYNC, name)
            elif _names.ALLOCATOR.match(name):
                kinds[number] = (WaitKind.ALLOCATOR, name)
        waits = self._calls[np.isin(self._calls[:, 4], [*kinds])]
        found = [
            HostWait(kinds[name][0], self._time(start), self._time(end), kinds[name][1])
            for start, end, _, _, name in waits.tolist()
        ]
        items = [one for one in self._ranges if one.name in _names.ITEM]
        found += [HostWait(WaitKind.ITEM, one.start * 1e-9, one.end * 1e-9, one.name) for one in items]
        return tuple(found)

    def _steps(self) -> list[HostRange]:
        """Return the ranges whose names mark a step, from the thread with the most steps.

        Ranges inside another step are left out.
        """
        by_thread: dict[Any, list[HostRange]] = defaultdict(list)
        for one in self._ranges:
            own = by_thread[one.thread]
            if _is_step(one.name) and not (own and one.end <= own[-1].end):
                own.append(one)
        return max(by_thread.values(), key=len, default=[])

    def _read_ranges(self) -> list[HostRange]:
        """Return the NVTX ranges in sorted order. Times are in nanoseconds since the file's time 0.

        Operators inside other operators are left out.
        """
        database = self._database
        if not database.has(_NVTX, "start", "end"):
            return []
        text, join = ('n."text"' if database.has(_NVTX, "text") else "NULL"), ""
        if database.has(_NVTX, "textId") and database.has("StringIds", "id", "value"):
            text, join = f"COALESCE({text}, s.value)", 'LEFT JOIN StringIds s ON s.id = n."textId"'
        payloads = [f'n."{name}"' if database.has(_NVTX, name) else "NULL" for name in ("binaryData", "jsonText")]
        kinds = f'n."eventType" IN {_RANGES} AND ' if database.has(_NVTX, "eventType") else ""
        times = 'CAST(n."start" AS INTEGER), CAST(n."end" AS INTEGER)'
        query = (
            f"SELECT {times}, {database.integer(_NVTX, 'globalTid')}, CAST({text} AS TEXT), {', '.join(payloads)} "
            f'FROM "{_NVTX}" n {join} WHERE {kinds}{self._of_host(_NVTX)} AND n."end" >= n."start" '
            f'ORDER BY n."start", n."end" DESC'
        )
        schemas = _nccl_ranges.schemas(database)
        inside: dict[int, int] = {}
        found = []
        for start, end, thread, name, binary, as_json in database.rows(query):
            self._num_events += 1
            name = _OF_TORCH.sub("", name or "")
            if name.startswith("aten::"):
                if start < inside.get(thread, start) and name not in _names.ITEM:
                    continue
                inside[thread] = max(end, inside.get(thread, end))
            args = _nccl_ranges.stated(binary, as_json, schemas) if _nccl_ranges.is_call(name) else {}
            found.append(HostRange(start - self._zero, end - self._zero, thread, name, args))
        return found


@lru_cache(maxsize=_NUM_NAMES)
def _is_step(name: str) -> bool:
    return _STEP.match(name) is not None


def _is_export(database: Database) -> bool:
    """Check whether the file is an export. An export contains only those tables that have events."""
    if database.has(_KERNEL, "start", "end") or database.has(_RUNTIME, "start", "end"):
        return True
    return "StringIds" in database.columns and bool({"TARGET_INFO_SYSTEM_ENV", _NVTX} & set(database.columns))


def _op(call: NcclCall | None) -> str | None:
    """Return the operation that torch called, or None if unknown."""
    op = "" if call is None else _names.op(call.calls[0].name)
    return op if op in _names.KNOWN_OPS else None


def _usual_ops(kernels: Iterable[tuple[str, NcclCall | None]]) -> dict[str, str]:
    """Return the operation of each kernel that torch uses for only one operation, by the kernel's name.

    For example, SendRecv may map to alltoall. If the launch of a kernel was not recorded, the kernel's operation is
    taken from this map.
    """
    ops: dict[str, set[str]] = defaultdict(set)
    for name, call in kernels:
        if (op := _op(call)) is not None:
            ops[name].add(op)
    return {name: found.pop() for name, found in ops.items() if len(found) == 1}


def _texts(database: Database, table: str, column: str) -> dict[int, str]:
    """Map each number in a column of a table to the text that the number means."""
    if not database.has(table, column) or not database.has("StringIds", "id", "value"):
        return {}
    query = f'SELECT id, CAST(value AS TEXT) FROM StringIds WHERE id IN (SELECT DISTINCT "{column}" FROM "{table}")'
    return {number: text for number, text in database.rows(query) if isinstance(number, int) and text}


def _kernel_names(database: Database) -> dict[int, str]:
    name = database.first_column(_KERNEL, *_NAME_COLUMNS)
    return _texts(database, _KERNEL, name) if name else {}
