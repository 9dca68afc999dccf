"""nccl-tests as a program that is started: its words, and what it printed as records of ours.

Pipelined cases are its own way: calls back to back on the host's clock, the mean over ranks of each rank's mean.
Isolated ones are `-I 1 -z 3` (since 2.19.2): every call waited for and timed by CUDA events, a barrier between calls
outside of the time, so that the statistics are ours. It measures rows of sizes by a factor or a step; other lists are
measured as part of such a row, and what nobody asked for is left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from bench.core.case import Case
from bench.core.dtypes import DTYPES
from bench.core.errors import UsageError
from bench.core.record import Failure, Flag, Record, Samples, Skip
from bench.core.world import World
from bench.logs.foreign import FAILED, OK, ForeignRow, ForeignRun, read_all
from bench.logs.readers._lines import lines
from bench.logs.readers._nccl_pattern import PROGRAMS
from bench.logs.readers._nccl_reader import NcclTests
from bench.logs.tool import DOCUMENT, PLAIN, Build, Tool

_PERF = {pattern: f"{name}_perf" for name, pattern in PROGRAMS.items() if pattern not in ("alltoallv", "hypercube")}
_REDUCTIONS = ("allreduce", "reducescatter", "reduce")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_BLOCKS = ("allgather", "reducescatter", "alltoall", "gather", "scatter")  # a size is one block of 16 bytes per rank
_OPERATIONS = ("sum", "prod", "min", "max", "avg")
_TYPES = {
    "float32": "float",
    "float16": "half",
    "float64": "double",
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
}
_PLAIN = ("topology", "order", "aggressor", "share_gpu", "require", "schedule")
_MOST_TIMES = 4  # as many sizes as were asked for may a row by a step have
_REDUCED = re.compile(r"Reducing maxBytes to (\d+).*")
_VERSION = re.compile(r"^# nccl-tests version (\S+)", re.MULTILINE)


class NcclTestsTool(Tool):
    """Its programs of collectives, with MPI (a process for each GPU) or without (one process for all of a node)."""

    title = "nccl-tests"
    variable = "BENCH_NCCL_TESTS_PATH"
    transport = "nccl"
    reductions = _REDUCTIONS
    marks = MappingProxyType(
        {"mpi": b"MPI_Init", "json": b"output_file", "graph": b"cudagraph", "samples": b"per_iter_timing"}
    )
    suffix = "_mpi"
    remedy = "it is built from github.com/NVIDIA/nccl-tests by `make MPI=1 MPI_HOME=... NCCL_HOME=...` (docs/tools.md)"

    def program(self, case: Case) -> str:
        """all_reduce_perf, sendrecv_perf, ..."""
        return _PERF.get(case.pattern, "")

    def starts(self, case: Case) -> tuple[Case, ...]:
        """One for each mode."""
        return tuple(replace(case, mode=mode) for mode in case.modes)

    def supports(self, case: Case, world: World) -> str | None:
        """It measures the whole world in linear order, one GPU for each rank, and what NCCL alone combines."""
        if not self.program(case):
            return f"{self.title} has no program for {case.pattern}"
        plain, name = Case(case.pattern), self.program(case)
        for field in _PLAIN:
            if getattr(case, field) != getattr(plain, field):
                return f"{name} knows no {field.replace('_', ' ')}"
        if case.dtype not in _TYPES:
            return f"{name} knows no {case.dtype}"
        if case.pattern in _REDUCTIONS and case.reduce_op not in _OPERATIONS:
            return f"{name} knows no reduction {case.reduce_op}"
        if case.graph and case.mode == "isolated":
            return f"{name} takes no samples (-I) of CUDA graphs (-G): mode: pipelined"
        if row_of(case.sizes) is None:
            return f"{name} measures sizes by a factor or a step: these are no part of such a row"
        return None

    def refuses(self, case: Case, world: World, build: Build) -> str | None:
        """Several nodes need MPI; samples and graphs need a version that has them."""
        name = self.program(case)
        if world.num_nodes > 1 and "mpi" not in build:
            return f"this {name} was built without MPI, by which {world.num_nodes} nodes are started: {self.remedy}"
        if case.mode == "isolated" and "samples" not in build:
            return f"this {name} has no -I (it came with 2.19.2), by which single calls are timed: mode: pipelined"
        if case.graph and "graph" not in build:
            return f"this {name} has no -G (CUDA graphs): a newer one has"
        return None

    def processes(self, world: World, build: Build) -> World:
        """One for each GPU where it has MPI, else one."""
        return world if "mpi" in build else World(1, 1)

    def arguments(self, case: Case, world: World, build: Build = PLAIN) -> list[str]:
        """Sizes, type, operation, root, counts, the check of the data, GPUs of a process, the file of its results."""
        words = [*(row_of(case.sizes) or ()), "-d", _TYPES[case.dtype]]
        if case.pattern in _REDUCTIONS:
            words += ["-o", case.reduce_op]
        if case.pattern in _ROOTED:
            words += ["-r", str(case.root)]
        if case.iterations is not None:
            words += ["-n", str(case.iterations)]
        if case.warmup is not None:
            words += ["-w", str(case.warmup)]
        words += ["-c", "1"]
        if case.graph:
            words += ["-G", "1"]
        if case.mode == "isolated":
            words += ["-I", "1", "-z", "3"]
        if "json" in build:
            words += ["-J", DOCUMENT]
        return [*words, "-g", str(world.num_ranks // self.processes(world, build).num_ranks)]

    def version(self, text: str) -> str | None:
        """`2.19.6`, which it prints since 2.17."""
        found = _VERSION.search(text)
        return found[1] if found else None

    def libraries(self, text: str) -> dict[str, str]:
        """NCCL's, where it tells it."""
        runs = read_all(NcclTests(), lines([text]))
        return {name: value for name, value in (runs[0].settings if runs else ()) if name == "nccl"}

    def says(self, case: Case) -> tuple[str, ...]:
        """What its one figure is."""
        if case.mode == "isolated":
            return ("its samples are CUDA events around each call and its wait (-I 1 -z 3), no barrier in them",)
        return ("its time is the mean over ranks of each rank's mean over calls back to back",)

    def records(self, text: str, case: Case, world: World, document: str = "") -> list[Record]:
        """One of each asked size: measured, or why not. Those of its two placements that the case names."""
        run = _run(text, case, world)
        found = read_all(NcclTests(), lines([document])) if document else []
        rows: Sequence[ForeignRow] = run.rows
        if found and len(found[-1].rows) >= len(rows):
            rows = found[-1].rows  # the same with more digits
        taken = _samples(document) if case.mode == "isolated" else {}
        own = {row.payload_bytes: row for row in reversed(rows) if row.in_place == case.in_place}
        limit = _REDUCED.search(text)
        records: list[Record] = []
        missing: list[int] = []
        for payload, asked in _grouped(case, world, own).items():
            if payload is not None:
                samples = taken.get((payload, case.in_place))
                records.append(_record(own[payload], asked, case, world, samples))
                continue
            for size in asked:
                reason = _why_skipped(size, case, world, limit)
                if reason is None:
                    missing.append(size)
                else:
                    records.append(_empty((size,), case, world, skipped=Skip.uncoded(reason)))
        return [*records, *_failures(run, missing, records, case, world)]


def row_of(sizes: Sequence[int]) -> tuple[str, ...] | None:
    """-b, -e and -f or -i of the shortest row that holds all sizes; None where none does that is not far longer."""
    first, last = sizes[0], sizes[-1]
    if len(sizes) == 1:
        return "-b", str(first), "-e", str(last), "-f", "2"
    if first == 0:
        return None  # 0 times a factor is 0: its loop would not end
    ends = ("-b", str(first), "-e", str(last))
    smallest = min(b / a for a, b in pairwise(sizes))
    for root in range(1, 9):
        factor = round(smallest ** (1 / root))
        row = list(_powers(first, last, factor)) if factor > 1 else []
        if set(sizes) <= set(row):
            return *ends, "-f", str(factor)
    step = reduce(math.gcd, (size - first for size in sizes[1:]))
    return (*ends, "-i", str(step)) if (last - first) // step < _MOST_TIMES * len(sizes) else None


def _powers(first: int, last: int, factor: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= factor


def _grouped(case: Case, world: World, own: Collection[int | None]) -> dict[int | None, tuple[int, ...]]:
    """The asked sizes by the row that measured them, None for those that no row did.

    Of operations on blocks it rounds every rank's part down to 16 bytes, before December 2024 (29f4114) to elements.
    """
    element = DTYPES[case.dtype].num_bytes
    found: dict[int | None, tuple[int, ...]] = {}
    for size in case.sizes:
        ways = [part * world.num_ranks for part in (16, element)] if case.pattern in _BLOCKS else [element]
        rounded = (size // way * way for way in ways)
        payload = next((one for one in rounded if one and one in own), None)
        found[payload] = (*found.get(payload, ()), size)
    return found


def _run(text: str, case: Case, world: World) -> ForeignRun:
    """The one run of the text. UsageError where it is none, or is not the one that was asked for."""
    runs = read_all(NcclTests(), lines([text]))
    if not runs:
        raise UsageError("this is no output of nccl-tests: no line of it is a banner, a row or a failure")
    run = runs[0]
    if len(runs) > 1 or (run.num_ranks is not None and run.num_ranks != world.num_ranks):
        raise UsageError(
            f"{len(runs)} run{'s' * (len(runs) > 1)} of {run.num_ranks or 'an unknown number of'} ranks, not one of "
            f"{world.num_ranks}: its processes did not find each other (is it built with the MPI whose mpirun it is?)"
        )
    types = {row.dtype for row in run.rows}
    if types and case.dtype not in types:
        raise UsageError(f"it measured {', '.join(map(str, types))}, not {case.dtype}: this build does not know it")
    operations = {row.reduce_op for row in run.rows} - {None}
    if case.pattern in _REDUCTIONS and operations and case.reduce_op not in operations:
        raise UsageError(f"it reduced by {', '.join(map(str, operations))}, not by {case.reduce_op}")
    return run


def _record(row: ForeignRow, asked: tuple[int, ...], case: Case, world: World, samples: Samples | None) -> Record:
    """A row: its samples where it has some, else its own figures; what is no number is a failure."""
    assert row.payload_bytes is not None
    figures = {
        "mean_s": row.time_s,
        "algbw_bytes_per_s": row.algbw_bytes_per_s,
        "busbw_bytes_per_s": row.busbw_bytes_per_s,
    }
    told = {name: value for name, value in figures.items() if value is not None}
    if row.unreadable or not row.time_s:
        lost = ", ".join(row.unreadable) or "time"
        return _empty(asked, case, world, failed=Failure(f"{lost} of {row.payload_bytes} bytes is no number"))
    return replace(
        _empty(asked, case, world, skipped=Skip.uncoded("")),
        payload_bytes=row.payload_bytes,
        skipped=None,
        samples=samples,
        reported=None if samples else told,
        num_wrong=row.num_wrong,
        verified=None if row.num_wrong is None else row.num_wrong == 0,
        flags=(Flag.CONTRADICTS,) if row.contradicts else (),
    )


def _empty(asked: tuple[int, ...], case: Case, world: World, **held: Any) -> Record:
    # What of its buffers a cache held is not known: it rotates within its largest size.
    return Record(
        mode=case.mode,
        requested_bytes=asked,
        payload_bytes=asked[0] if asked else 0,
        in_place=case.in_place,
        num_ranks=world.num_ranks,
        num_nodes=world.num_nodes,
        **held,
    )


def _why_skipped(size: int, case: Case, world: World, limit: re.Match[str] | None) -> str | None:
    """Why a size has no row though nothing failed."""
    if limit is not None and size > int(limit[1]):
        return f"{NcclTestsTool.title}: {limit[0].strip()}"
    if case.pattern in _BLOCKS and size < 16 * world.num_ranks:
        return f"{NcclTestsTool.title} sends nothing of less than 16 bytes for each of {world.num_ranks} ranks"
    return None


def _failures(
    run: ForeignRun, missing: Sequence[int], records: Sequence[Record], case: Case, world: World
) -> list[Record]:
    """A record of what went wrong, where no row says it."""
    if run.status == OK and not missing:
        return []
    told = any(record.verified is False or record.failed is not None for record in records)
    if told and not missing and run.status == FAILED:
        return []
    why = run.failure or "no row of it was printed"
    return [_empty(tuple(missing), case, world, failed=Failure(f"{NcclTestsTool.title}, {run.status}: {why}"))]


def _samples(document: str) -> Mapping[tuple[int, bool], Samples]:
    """The seconds of each call, by size and placement; of what is not whole none.

    `times_us[i]` is the largest over processes of call i, `per_process_max_times_us` [process][call] all of them.
    """
    try:
        results = json.loads(document)["results"]
        return {
            (result["size"], in_place): _seconds(result[f"{key}_per_iter"])
            for result in results
            for key, in_place in (("out_of_place", False), ("in_place", True))
            if result.get(f"{key}_per_iter")
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _seconds(told: Mapping[str, Any]) -> Samples:
    """Raises ValueError for what are no times."""
    times = [float(time_us) / 1e6 for time_us in told["times_us"]]
    by_rank = [[float(time_us) / 1e6 for time_us in own] for own in told.get("per_process_max_times_us") or ()]
    if not times or not all(0 < one < math.inf for one in times) or any(len(own) != len(times) for own in by_rank):
        raise ValueError("no times")
    return Samples(seconds=times, by_rank=tuple(by_rank), loop="compiled")
