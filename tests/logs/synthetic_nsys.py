"""Makes SQLite exports of Nsight Systems from a known schedule, with the documented columns and their constraints."""

from __future__ import annotations

import sqlite3
import struct
from dataclasses import dataclass, field
from pathlib import Path

NCCL_DOMAIN, SCHEMA_BASE = 1, 16777216
COMM = (18, "NCCL communicator ID", None)
SIZE = (22, "Message size [bytes]", 8)
# Schemas of NCCL's ranges: entries of (type, name, offset); the first has no offset in real files.
SCHEMAS = {
    "ncclCommInitRankConfig": (2, 24, (COMM, (5, "No. of ranks", 8), (5, "Rank", 12), (5, "CUDA device", 16))),
    "ncclAllReduce": (7, 24, (COMM, SIZE, (16777232, "Reduction operation", 16))),
    "ncclAllGather": (4, 16, (COMM, SIZE)),
    "ncclSend": (10, 24, (COMM, SIZE, (5, "Peer rank", 16))),
    "ncclRecv": (9, 24, (COMM, SIZE, (5, "Peer rank", 16))),
}
_PACKED = {5: "<i", 18: "<Q", 22: "<Q"}
_TABLES = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
    gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
    copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER,
    text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER,
    int64Value INTEGER, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
CREATE TABLE NVTX_PAYLOAD_SCHEMAS (
    domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER, flags INTEGER, numEntries INTEGER,
    payloadSize INTEGER, alignTo INTEGER);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (
    domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT,
    description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (
    globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER NOT NULL, name TEXT);
CREATE TABLE ANALYSIS_DETAILS (
    globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL);
CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
INSERT INTO ENUM_CUDA_MEM_KIND VALUES (0, 'PAGEABLE', 'Pageable'), (1, 'PINNED', 'Pinned'), (2, 'DEVICE', 'Device');
"""


@dataclass
class Export:
    """A file that is being made. Times are nanoseconds on the file's clock. blobs: with payloads of NVTX."""

    path: Path
    blobs: bool = True
    strings: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the tables."""
        self.connection = sqlite3.connect(self.path)
        self.connection.executescript("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;" + _TABLES)
        for number, length, entries in SCHEMAS.values():
            schema = SCHEMA_BASE + number
            self._add("NVTX_PAYLOAD_SCHEMAS", NCCL_DOMAIN, schema, None, 1, None, len(entries), length, None)
            for place, (kind, name, offset) in enumerate(entries):
                row = (NCCL_DOMAIN, schema, place, None, kind, name, None, None, offset)
                self._add("NVTX_PAYLOAD_SCHEMA_ENTRIES", *row)
        self._add("TARGET_INFO_SYSTEM_ENV", 0, "", "Hostname", 0, "node-a")
        self._add("TARGET_INFO_SESSION_START_TIME", 1_700_000_000 * 10**9, "", "")
        self._add("ANALYSIS_DETAILS", 0, 10**9, 5_000, 10**9)
        self._add("META_DATA_EXPORT", "EXPORT_SCHEMA_VERSION", "3.25.0")

    def kernel(self, pid: int, device: int, stream: int, name: str, start: int, end: int, launch: int | None) -> None:
        """Add a kernel. launch: the correlation of the call that launched it."""
        number = self._string(name)
        row = (start, end, device, 1, None, stream, launch, pid << 24, number, number, None, 1, 1, 1, 1, None)
        self._add("CUPTI_ACTIVITY_KIND_KERNEL", *row)

    def call(self, pid: int, name: str, start: int, end: int, correlation: int) -> None:
        """Add a call of CUDA by the process's main thread."""
        row = (start, end, 0, pid << 24 | pid, correlation, self._string(name), 0, None)
        self._add("CUPTI_ACTIVITY_KIND_RUNTIME", *row)

    def copy(
        self, pid: int, device: int, kind: int, memories: tuple[int, int], start: int, end: int, size: int
    ) -> None:
        """Add a copy."""
        self._add("CUPTI_ACTIVITY_KIND_MEMCPY", start, end, device, 1, 7, 0, pid << 24, size, kind, *memories)

    def range(self, pid: int, name: str, start: int, end: int, *payload: int, registered: bool = False) -> None:
        """Add a range of NVTX; payload: the values of its schema. registered: the name is in the table of strings."""
        binary = None
        if payload and self.blobs:
            number, length, entries = SCHEMAS[name]
            values = bytearray(length)
            for (kind, _, offset), value in zip(entries, payload, strict=True):
                struct.pack_into(_PACKED.get(kind, "<q"), values, offset or 0, value)
            header = struct.pack("<IIIIQQ", NCCL_DOMAIN, 0, SCHEMA_BASE + number, 0, length, 32 + length)
            binary = header + bytes(values)
        text, text_id = (None, self._string(name)) if registered else (name, None)
        tid = pid << 24 | pid
        row = (start, end, 59, None, None, None, text, tid, None, text_id, 1, None, None, None, None, binary)
        self._add("NVTX_EVENTS", *row)

    def launched(self, pid: int, device: int, stream: int, name: str, call: int, start: int, end: int) -> None:
        """Add a kernel and its launch, which begins at `call` and takes 1,000 ns."""
        correlation = self.connection.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0] + 1
        self.call(pid, "cudaLaunchKernel_v7000", call, call + 1000, correlation)
        self.kernel(pid, device, stream, name, start, end, correlation)

    def setting(self, table: str, name: str, value: str) -> None:
        """Add a name and its value to a table of them."""
        self._add(table, name, value)

    def device(self, number: int, name: str) -> None:
        """Name a device."""
        self._add("TARGET_INFO_GPU", number, name)

    def run(self, statement: str) -> None:
        """Change the file."""
        self.connection.execute(statement)

    def close(self) -> Path:
        """Write the file."""
        self.connection.commit()
        self.connection.close()
        return self.path

    def _string(self, value: str) -> int:
        if value not in self.strings:
            self.strings[value] = len(self.strings) + 1
            self._add("StringIds", self.strings[value], value)
        return self.strings[value]

    def _add(self, table: str, *values: object) -> None:
        marks = ", ".join("?" * len(values))
        self.connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)


def training(path: Path, *, num_ranks: int = 2, blobs: bool = True) -> Export:
    """Return a job of two steps on one host, not yet closed: rank r is 1,000,000 ns late at each exchange for r > 0.

    A step takes 10 ms: 1 ms for data, a copy of 4 KiB, forward and backward kernels, an allreduce of 1 MiB that ends at
    8 ms on all ranks, and a synchronisation until 9 ms.
    """
    export = Export(path, blobs)
    for rank in range(num_ranks):
        pid = 100 + rank
        export.device(rank, "NVIDIA H100")
        export.range(pid, "ncclCommInitRankConfig", 6_000, 7_000, 0xABC, num_ranks, rank, rank)
        for step in range(2):
            begin = 1_000_000 + step * 10_000_000
            export.range(pid, f"step {step}", begin, begin + 10_000_000, registered=step == 0)
            export.range(pid, "data_loading", begin, begin + 1_000_000)
            export.copy(pid, rank, 1, (1, 2), begin + 1_000_000, begin + 1_100_000, 4096)
            export.range(pid, "forward", begin + 1_000_000, begin + 3_000_000)
            export.launched(pid, rank, 7, "sm90_gemm", begin + 1_100_000, begin + 1_200_000, begin + 3_000_000)
            export.range(pid, "backward", begin + 3_000_000, begin + 7_000_000)
            late = 1_000_000 if rank else 0
            export.launched(pid, rank, 7, "sm90_wgrad", begin + 3_100_000, begin + 3_200_000, begin + 5_000_000 + late)
            called = begin + 5_000_000 + late
            export.range(pid, "ncclAllReduce", called, called + 50_000, 0xABC, 1 << 20, 0)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            export.launched(pid, rank, 20, name, called + 10_000, called + 100_000, begin + 8_000_000)
            export.call(pid, "cudaStreamSynchronize_v3020", begin + 7_000_000, begin + 9_000_000, 10_000 + step)
            export.range(pid, "optimizer", begin + 9_000_000, begin + 10_000_000)
    return export
