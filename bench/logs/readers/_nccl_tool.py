"""Run nccl-tests: build its arguments, and convert its output to records.

Pipelined cases use the default mode of nccl-tests. Calls follow each other directly, and the host's clock measures
their time. The printed time is the average of the ranks' mean times. Isolated cases use `-I 1 -z 3` (since 2.19.2). In
isolated cases, CUDA events measure the time of each call, and each call completes before the next call begins. The
measured time does not include the barrier between two calls. The samples of isolated cases follow linkbench's
definition.

nccl-tests measures a series of sizes with a constant factor or step. If the requested sizes do not form such a series,
they are measured as part of a longer series. linkbench leaves out the results of sizes that were not requested.
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
from bench.core.codes import Code, Coded
from bench.core.dtypes import DTYPES
from bench.core.errors import UsageError
from bench.core.log_traits import ComparedStatistic
from bench.core.record import Failure, Flag, Record, Samples, Skip
from bench.core.world import World
from bench.logs.foreign import FAILED, OK, ForeignRow, ForeignRun, read_all
from bench.logs.messages import ToolCode
from bench.logs.readers._lines import lines
from bench.logs.readers._nccl_pattern import PROGRAMS
from bench.logs.readers._nccl_reader import NcclTests
from bench.logs.tool import DOCUMENT, PLAIN, Build, Tool

_PERF = {pattern: f"{name}_perf" for name, pattern in PROGRAMS.items() if pattern not in ("alltoallv", "hypercube")}
_REDUCTIONS = ("allreduce", "reducescatter", "reduce")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
# sizes are divided into one block per rank, of at least 16 bytes
_BLOCKS = ("allgather", "reducescatter", "alltoall", "gather", "scatter")
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
_MOST_TIMES = 4  # a series by a step may have at most this many times the number of requested sizes
_REDUCED = re.compile(r"Reducing maxBytes to (\d+).*")
_VERSION = re.compile(r"^# nccl-tests version (\S+)", re.MULTILINE)


class NcclToolCode(Code):
    """The reasons why nccl-tests cannot measure a case or a size, or did not measure it."""

    SAMPLES_OF_GRAPHS = (
        "no-samples-of-graphs",
        "{program} takes no samples (-I) of CUDA graphs (-G); use mode: pipelined",
    )
    SIZES_NOT_A_ROW = (
        "sizes-not-a-row",
        "{program} measures sizes by a factor or a step; these sizes are not part of such a series",
    )
    BUILT_WITHOUT_MPI = "built-without-mpi", "this {program} was built without MPI, which {nodes} nodes need; {remedy}"
    NO_SAMPLES = "no-samples", "this {program} has no -I (since 2.19.2) to time single calls; use mode: pipelined"
    NO_GRAPHS = "no-graphs", "this {program} has no -G (CUDA graphs); newer versions have it"
    MEMORY_LIMIT = "memory-limit", "{tool}: {printed}"
    BLOCK_TOO_SMALL = "block-too-small", "{tool} sends nothing if each of {ranks} ranks has less than 16 bytes"
    NO_NUMBER = "no-number", "{figures:list} of {size} bytes is not a number"
    NOT_PRINTED = "not-printed", "no row of this size was printed"


class NcclTestsTool(Tool):
    """The programs of nccl-tests.

    A build with MPI runs one process for each GPU. A build without MPI runs one process for all GPUs.
    """

    title = "nccl-tests"
    variable = "BENCH_NCCL_TESTS_PATH"
    transports = ("nccl", "nccl_direct")
    reductions = _REDUCTIONS
    marks = MappingProxyType(
        {"mpi": b"MPI_Init", "json": b"output_file", "graph": b"cudagraph", "samples": b"per_iter_timing"}
    )
    suffix = "_mpi"
    remedy = "build it from github.com/NVIDIA/nccl-tests by `make MPI=1 MPI_HOME=... NCCL_HOME=...` (docs/tools.md)"
    compared = ComparedStatistic(mean="nccl_tests_s")

    def program(self, case: Case) -> str:
        """Return the name of the program, such as all_reduce_perf or sendrecv_perf.

        Return "" if nccl-tests has no program for the pattern.
        """
        return _PERF.get(case.pattern, "")

    def starts(self, case: Case) -> tuple[Case, ...]:
        """Return one case for each mode."""
        return tuple(replace(case, mode=mode) for mode in case.modes)

    def unsupported_reason(self, case: Case, world: World) -> Skip | None:
        """Return the reason why the programs cannot measure a case, or None if the case is supported.

        The programs measure only the whole world in linear order, with one GPU per rank and the operations of NCCL.
        """
        name = self.program(case)
        if not name:
            return Skip.of(ToolCode.NO_PROGRAM, tool=self.title, pattern=case.pattern)
        lacking = next(_unsupported_options(case), None)
        if lacking is not None:
            option, value = lacking
            return Skip.of(ToolCode.OPTION_UNSUPPORTED, tool=name, option=option, value=value)
        if case.graph and case.mode == "isolated":
            return Skip.of(NcclToolCode.SAMPLES_OF_GRAPHS, program=name)
        if row_of(case.sizes) is None:
            return Skip.of(NcclToolCode.SIZES_NOT_A_ROW, program=name)
        return None

    def build_lacks(self, case: Case, world: World, build: Build) -> Skip | None:
        """Return the reason why the build cannot measure a case, or None if the case is supported.

        Several nodes need a build with MPI. Samples and graphs need a sufficiently new version of nccl-tests.
        """
        name = self.program(case)
        if world.num_nodes > 1 and "mpi" not in build:
            code = NcclToolCode.BUILT_WITHOUT_MPI
            return Skip.of(code, program=name, nodes=world.num_nodes, remedy=self.remedy)
        if case.mode == "isolated" and "samples" not in build:
            return Skip.of(NcclToolCode.NO_SAMPLES, program=name)
        if case.graph and "graph" not in build:
            return Skip.of(NcclToolCode.NO_GRAPHS, program=name)
        return None

    def processes(self, world: World, build: Build) -> World:
        """Return the number of processes.

        A build with MPI has one process for each GPU, and a build without MPI has a single process.
        """
        return world if "mpi" in build else World(1, 1)

    def arguments(self, case: Case, world: World, build: Build = PLAIN) -> list[str]:
        """Return the arguments of the program.

        The arguments set sizes, type, operation, root, counts, data check, results file and GPUs.
        """
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
        """Return the version, such as `2.19.6`. nccl-tests prints the version since 2.17.

        Return None if the output contains no version.
        """
        found = _VERSION.search(text)
        return found[1] if found else None

    def libraries(self, text: str) -> dict[str, str]:
        """Return NCCL's version, if it is printed."""
        runs = read_all(NcclTests(), lines([text]))
        return {name: value for name, value in (runs[0].settings if runs else ()) if name == "nccl"}

    def notes(self, case: Case) -> tuple[str, ...]:
        """Return how the figures are defined."""
        if case.mode == "isolated":
            return ("its samples are CUDA events around each call and its wait (-I 1 -z 3), without the barrier",)
        return ("its time is the mean over ranks of each rank's mean over calls back to back",)

    def records(self, text: str, case: Case, world: World, document: str = "") -> list[Record]:
        """Return a record for each requested size.

        The records have either the in-place results or the out-of-place results, as the case requests.

        Each record says whether the size was measured, was skipped or is missing.
        """
        run = _run(text, case, world)
        found = read_all(NcclTests(), lines([document])) if document else []
        rows: Sequence[ForeignRow] = run.rows
        if found and len(found[-1].rows) >= len(rows):
            rows = found[-1].rows  # the same rows with more digits
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
                skip = _skip(size, case, world, limit)
                if skip is None:
                    missing.append(size)
                else:
                    records.append(_empty((size,), case, world, skipped=skip))
        return [*records, *_failures(run, missing, records, case, world)]


def _unsupported_options(case: Case) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of each case option that the programs do not support."""
    plain = Case(case.pattern)
    for name in _PLAIN:
        if getattr(case, name) != getattr(plain, name):
            yield name.replace("_", " "), getattr(case, name)
    if case.dtype not in _TYPES:
        yield "dtype", case.dtype
    if case.pattern in _REDUCTIONS and case.reduce_op not in _OPERATIONS:
        yield "reduction", case.reduce_op


def row_of(sizes: Sequence[int]) -> tuple[str, ...] | None:
    """Return the options of a series that contains all sizes: -b, -e, and -f or -i.

    Return None if such a series has far more sizes than the user requested.
    """
    first, last = sizes[0], sizes[-1]
    if len(sizes) == 1:
        return "-b", str(first), "-e", str(last), "-f", "2"
    if first == 0:
        return None  # the loop of nccl-tests would not end, because 0 times a factor is 0
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
    """Map the size of each row to the requested sizes that nccl-tests rounded to this size.

    The key None maps to the requested sizes without a row. nccl-tests rounds requested sizes down. For a pattern with
    blocks, nccl-tests rounds the block of each rank down to a multiple of 16 bytes. Before December 2024 (29f4114),
    nccl-tests rounded the block down to a whole number of elements.
    """
    element = DTYPES[case.dtype].num_bytes
    found: dict[int | None, tuple[int, ...]] = {}
    for size in case.sizes:
        ways = [part * world.num_ranks for part in (16, element)] if case.pattern in _BLOCKS else [element]
        payload = None
        for way in ways:
            rounded = size // way * way
            if payload is None and rounded and rounded in own:
                payload = rounded
        found[payload] = (*found.get(payload, ()), size)
    return found


def _run(text: str, case: Case, world: World) -> ForeignRun:
    """Return the run in the text.

    Raises UsageError if the text does not contain exactly one run, or if this run differs from the requested run.
    """
    runs = read_all(NcclTests(), lines([text]))
    if not runs:
        raise UsageError("this is not output of nccl-tests: it has no banner, row or failure")
    run = runs[0]
    if len(runs) > 1 or (run.num_ranks is not None and run.num_ranks != world.num_ranks):
        raise UsageError(
            f"{len(runs)} run{'s' * (len(runs) > 1)} of {run.num_ranks or 'an unknown number of'} ranks, not one of "
            f"{world.num_ranks}: its processes did not find each other (was it built with the MPI of this mpirun?)"
        )
    types = {row.dtype for row in run.rows}
    if types and case.dtype not in types:
        raise UsageError(f"it measured {', '.join(map(str, types))}, not {case.dtype}: this build lacks that type")
    operations = {row.reduce_op for row in run.rows} - {None}
    if case.pattern in _REDUCTIONS and operations and case.reduce_op not in operations:
        raise UsageError(f"it reduced by {', '.join(map(str, operations))}, not by {case.reduce_op}")
    return run


def _record(row: ForeignRow, asked: tuple[int, ...], case: Case, world: World, samples: Samples | None) -> Record:
    """Convert a row to a record. The record has the samples of the row.

    If the row has no samples, the record has the values that the row states.

    If a value is not a number, the record is a failure.
    """
    assert row.payload_bytes is not None
    figures = {
        "mean_s": row.time_s,
        "algbw_bytes_per_s": row.algbw_bytes_per_s,
        "busbw_bytes_per_s": row.busbw_bytes_per_s,
    }
    if row.unreadable or not row.time_s:
        lost = list(row.unreadable) or ["time"]
        failure = Failure.of(NcclToolCode.NO_NUMBER, figures=lost, size=row.payload_bytes)
        return _empty(asked, case, world, failed=failure)
    return replace(
        _empty(asked, case, world, skipped=Skip.uncoded("")),
        payload_bytes=row.payload_bytes,
        skipped=None,
        samples=samples,
        reported=None if samples else {name: value for name, value in figures.items() if value is not None},
        num_wrong=row.num_wrong,
        verified=None if row.num_wrong is None else row.num_wrong == 0,
        flags=(Flag.CONTRADICTS,) if row.contradicts else (),
    )


def _empty(asked: tuple[int, ...], case: Case, world: World, **held: Any) -> Record:
    # The state of the cache is unknown: nccl-tests rotates its buffers within its largest size.
    return Record(
        mode=case.mode,
        requested_bytes=asked,
        payload_bytes=asked[0] if asked else 0,
        in_place=case.in_place,
        num_ranks=world.num_ranks,
        num_nodes=world.num_nodes,
        **held,
    )


def _skip(size: int, case: Case, world: World, limit: re.Match[str] | None) -> Skip | None:
    """Return the reason why a size has no row in a successful run, or None if no reason is known."""
    if limit is not None and size > int(limit[1]):
        return Skip.of(NcclToolCode.MEMORY_LIMIT, tool=NcclTestsTool.title, printed=limit[0].strip())
    if case.pattern in _BLOCKS and size < 16 * world.num_ranks:
        return Skip.of(NcclToolCode.BLOCK_TOO_SMALL, tool=NcclTestsTool.title, ranks=world.num_ranks)
    return None


def _failures(
    run: ForeignRun, missing: Sequence[int], records: Sequence[Record], case: Case, world: World
) -> list[Record]:
    """Return a list with a record of the run's failure. The list is empty if a row already shows the failure."""
    if run.status == OK and not missing:
        return []
    seen = any(record.verified is False or record.failed is not None for record in records)
    if seen and not missing and run.status == FAILED:
        return []
    why = run.failure or Coded.of(NcclToolCode.NOT_PRINTED)
    failure = Failure(f"{NcclTestsTool.title}, {run.status}: {why.text}", code=why.code, facts=why.facts)
    return [_empty(tuple(missing), case, world, failed=failure)]


def _samples(document: str) -> Mapping[tuple[int, bool], Samples]:
    """Return the seconds of each call, by size and placement. Return an empty mapping if the document is damaged.

    In the document, `times_us[i]` is the largest time of call i over all processes. `per_process_max_times_us` has the
    times of each process.
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


def _seconds(printed: Mapping[str, Any]) -> Samples:
    """Convert the samples of one size from microseconds to seconds.

    Raises ValueError if a sample is not a valid time.
    """
    times = [float(time_us) / 1e6 for time_us in printed["times_us"]]
    by_rank = [[float(time_us) / 1e6 for time_us in own] for own in printed.get("per_process_max_times_us") or ()]
    if not times or not all(0 < time < math.inf for time in times) or any(len(own) != len(times) for own in by_rank):
        raise ValueError("no times")
    return Samples(seconds=times, by_rank=tuple(by_rank), loop="compiled")
