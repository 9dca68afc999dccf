"""Run nvbandwidth: build its arguments, and convert its matrices to records.

One process copies between all GPUs that it sees. A start measures one size. A sample consists of 16 copies, which are
all queued before the first copy begins. CUDA events measure the time of the sample, and the printed rate is the median
of the samples. These tables are used:

    host_device   one-way, d2h   host_to_device_memcpy_ce, device_to_host_memcpy_ce
                  all at once    host_to_all_..., all_to_host_...
                  two-way        both `..._bidirectional_...`
    peer_copy     one-way        device_to_device_memcpy_{write,read}_{ce,sm}
                  two-way        device_to_device_bidirectional_memcpy_...
    local_copy                   device_local_copy

In a two-way test of host_device, nvbandwidth prints the rate of only one direction, while the other direction is busy.
A second test measures the other direction. The reader uses the slower of the two rates, as linkbench's own rows do. In
two-way tests of peer_copy since v0.6, the reader uses the slower direction. Before v0.6, the reader uses half of the
printed sum for copies by kernels. For copies by the copy engine, the reader ignores the results of versions before
v0.6. For local_copy, nvbandwidth counts each copied byte once, but linkbench counts the byte twice, as read and as
written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from bench.core.case import Case
from bench.core.codes import Code
from bench.core.errors import UsageError
from bench.core.log_traits import ComparedStatistic
from bench.core.record import Failure, Record, Skip
from bench.core.world import World
from bench.logs.foreign import OK, ForeignRun, Matrix, MatrixCell, read_all
from bench.logs.messages import LogCode, ToolCode
from bench.logs.readers._lines import lines
from bench.logs.readers._nvb_reader import Nvbandwidth
from bench.logs.records import failure_code
from bench.logs.tool import PLAIN, Build, Tool

_MIB = 1 << 20
_ALL_AT_ONCE = "groups of 1"
_ONE_BY_ONE = "single ranks"
_PAIRS = ("world", "directed single pairs", "single pairs")
_PLAIN = ("order", "aggressor", "share_gpu", "memory", "schedule")
_Ends = tuple[str, str]  # the sender and receiver of a cell


class NvbToolCode(Code):
    """The reasons why nvbandwidth cannot measure a case or a group, or did not measure it."""

    ONE_NODE = "one-node", "{tool} is one process on one node; use nodes: 1"
    NOT_ISOLATED = "not-isolated", "{tool} copies back to back; use mode: pipelined"
    NOT_WHOLE_MIB = "not-whole-mib", "{tool} copies whole MiB"
    ONE_PROCESS = "one-process", "{tool} is one process with the memory of both GPUs; use via: process"
    ONE_PAIR = "one-pair", "{tool} copies between one pair at a time, not in topology {topology}"
    COPY_ENGINE_ONLY = "copy-engine-only", "{tool} copies inside a GPU, and with the host, by copy engine only"
    NO_SUCH_KERNEL = "no-such-kernel", "{tool} has no such kernel: omit --engine chase and --sms"
    EACH_GPU = "each-gpu", "{tool} prints each GPU's own figure; use topology: {topologies}"
    ONE_DIRECTION = (
        "one-direction",
        "{tool} {version} prints one direction of a two-way copy between GPUs; v0.6 prints both",
    )
    NO_FIGURE_OF_GROUP = (
        "no-figure-of-group",
        "{tool} printed no figure of {group} in {tests:list}: does it see all GPUs?",
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """A group of ranks in linkbench's results: the group's name and, for a pair, the two ranks."""

    group: str
    num_ranks: int
    src: int | None = None
    dst: int | None = None


class NvbandwidthTool(Tool):
    """The program nvbandwidth. One process of this program uses all GPUs of a node."""

    title = "nvbandwidth"
    variable = "BENCH_NVBANDWIDTH_PATH"
    transports = ("cuda_copy",)
    clock = "device"
    marks = MappingProxyType({"json": b"Print output in json format"})
    compared = ComparedStatistic(rate_is_median=True)
    remedy = "build it from github.com/NVIDIA/nvbandwidth by `cmake . && make` (docs/tools.md)"

    def program(self, case: Case) -> str:
        """Return "nvbandwidth" for patterns of copies, else ""."""
        return "nvbandwidth" if case.pattern in ("host_device", "local_copy", "peer_copy") else ""

    def starts(self, case: Case) -> tuple[Case, ...]:
        """Return one case for each size.

        If a case has the mode `both`, its mode becomes `pipelined`, because nvbandwidth has no other mode.
        """
        mode = "pipelined" if case.mode == "both" else case.mode
        return tuple(replace(case, mode=mode, sizes=(size,)) for size in case.sizes)

    def unsupported_reason(self, case: Case, world: World) -> Skip | None:
        """Return the reason why the program cannot measure a case, or None if the case is supported.

        The program measures only back-to-back copies on one node. The sizes are whole MiB, the memory is pinned, and
        one process uses both GPUs.
        """
        if not self.program(case):
            return Skip.of(ToolCode.NO_PROGRAM, tool=self.title, pattern=case.pattern)
        if world.num_nodes > 1:
            return self._skip(NvbToolCode.ONE_NODE)
        if case.mode == "isolated":
            return self._skip(NvbToolCode.NOT_ISOLATED)
        if any(size % _MIB for size in case.sizes):
            return self._skip(NvbToolCode.NOT_WHOLE_MIB)
        plain = Case(case.pattern)
        for name in _PLAIN:
            if getattr(case, name) != getattr(plain, name):
                option = name.replace("_", " ")
                return self._skip(ToolCode.OPTION_UNSUPPORTED, option=option, value=getattr(case, name))
        return self._unsupported_pattern(case, world)

    def _unsupported_pattern(self, case: Case, world: World) -> Skip | None:
        if case.engine == "chase" or case.sms:
            return self._skip(NvbToolCode.NO_SUCH_KERNEL)
        if case.pattern == "peer_copy":
            if case.via != "process":
                return self._skip(NvbToolCode.ONE_PROCESS)
            if case.topology not in _PAIRS:
                return self._skip(NvbToolCode.ONE_PAIR, topology=case.topology)
            return None
        if case.pattern != "peer_copy" and case.engine == "sm":
            return self._skip(NvbToolCode.COPY_ENGINE_ONLY)
        alone = world.num_ranks == 1 and case.topology == "world"
        if alone or case.topology == _ONE_BY_ONE or (case.topology == _ALL_AT_ONCE and case.pattern == "host_device"):
            return None
        topologies = repr(_ONE_BY_ONE) + f" or {_ALL_AT_ONCE!r}" * (case.pattern == "host_device")
        return self._skip(NvbToolCode.EACH_GPU, topologies=topologies)

    def _skip(self, code: Code, **facts: Any) -> Skip:
        return Skip.of(code, tool=self.title, **facts)

    def processes(self, world: World, build: Build) -> World:
        """Return a world of one process."""
        return World(1, 1)

    def arguments(self, case: Case, world: World, build: Build = PLAIN) -> list[str]:
        """Return the arguments: the tests, the size of a buffer in MiB, the number of samples, and JSON as output."""
        words = ["-t", *_tests(case), "-b", str(case.sizes[0] // _MIB)]
        if case.iterations is not None:
            words += ["-i", str(case.iterations)]
        return words + ["-j"] * ("json" in build)

    def version(self, text: str) -> str | None:
        """Return the version, such as `v0.8`, or None if the program did not print its version."""
        return next((run.tool_version for run in read_all(Nvbandwidth(), lines([text]))), None)

    def libraries(self, text: str) -> dict[str, str]:
        """Return the versions of CUDA and of the driver."""
        runs = read_all(Nvbandwidth(), lines([text]))
        return dict(runs[0].settings) if runs else {}

    def notes(self, case: Case) -> tuple[str, ...]:
        """Return how the values were converted to linkbench's definitions."""
        found = ["its rate is the median of its samples, each of 16 copies behind a gate"]
        if case.direction == "two-way":
            found.append(
                "two-way: it prints each direction while the other direction is busy; the slower direction is used"
            )
        if case.pattern == "local_copy":
            found.append("it counts copied bytes; busbw is twice that, because each byte is read and written")
        if case.engine == "sm":
            found.append("its kernels copy a little less than the size; its rate is of the bytes that they copied")
        return tuple(found)

    def records(self, text: str, case: Case, world: World, document: str = "") -> list[Record]:
        """Return a record for each of linkbench's groups.

        The record says whether the group was measured, waived or failed.
        """
        runs = read_all(Nvbandwidth(), lines([text]))
        if len(runs) != 1:
            raise UsageError(f"{len(runs)} runs of nvbandwidth, not one: its banner or its tables are missing")
        run = runs[0]
        tables = {matrix.name: matrix for matrix in run.matrices if matrix.unit == "bytes_per_s"}
        _check_gpus(case, world, run.matrices)
        rate = _rates(case, tables)
        records = [_record(place, rate(place), run, case, world) for place in _places(case, world)]
        if run.status != OK and not any(record.failed for record in records):
            place = _Place("world", world.num_ranks)
            records.append(_empty(place, case, world, failed=_failure(run, f"{self.title}, {run.status}: ")))
        return records


def _tests(case: Case) -> tuple[str, ...]:
    """Return the names of the tests that measure a case."""
    if case.pattern == "local_copy":
        return ("device_local_copy",)
    two_way = case.direction == "two-way"
    if case.pattern == "peer_copy":
        return (f"device_to_device_{'bidirectional_' * two_way}memcpy_{case.access}_{case.engine}",)
    every = case.topology == _ALL_AT_ONCE
    names = ("host_to_all", "all_to_host") if every else ("host_to_device", "device_to_host")
    chosen = names if two_way else names[1:] if case.direction == "d2h" else names[:1]
    return tuple(f"{name}_{'bidirectional_' * two_way}memcpy_ce" for name in chosen)


def _places(case: Case, world: World) -> list[_Place]:
    """Return the groups of a case, with the names that core/topology.py defines."""
    ranks = range(world.num_ranks)
    if case.pattern != "peer_copy":
        word = {"world": "world", _ALL_AT_ONCE: "group{}", _ONE_BY_ONE: "rank{}"}[case.topology]
        return [_Place(word.format(rank), 1) for rank in ranks]
    pairs = [(a, b) for a in ranks for b in ranks if a < b]
    if case.topology != "single pairs":
        pairs += [(b, a) for a, b in pairs]
    return [_Place(f"{a}-{b}", 2, a, b) for a, b in pairs]


def _check_gpus(case: Case, world: World, matrices: Sequence[Matrix]) -> None:
    """Raise UsageError if nvbandwidth copied to more GPUs at the same time than there are ranks in the world."""
    seen = max((len(matrix.cells) for matrix in matrices), default=0)
    if case.topology == _ALL_AT_ONCE and seen > world.num_ranks:
        raise UsageError(
            f"it copied to {seen} GPUs at once, not to {world.num_ranks}; set CUDA_VISIBLE_DEVICES to the ranks' GPUs"
        )


def _rates(case: Case, tables: Mapping[str, Matrix]) -> Callable[[_Place], MatrixCell | None]:
    """Return a function that maps a group to a cell.

    The cell has the bytes per second of the slower direction. For a group that is in no table, the returned function
    returns None.
    """
    found: dict[_Ends, MatrixCell] = {}
    for name in _tests(case):
        parts = _parts(name, tables)
        for cells in zip(*(table.cells for table, _ in parts), strict=False):
            worst = _slower([_scaled(cell, factor) for cell, (_, factor) in zip(cells, parts, strict=True)])
            ends = _ends(case, name, cells[0])
            found[ends] = _slower([found[ends], worst]) if ends in found else worst
        if not parts:
            # one of two tests was waived or lost, and the other test shows only one direction
            return lambda place: None
    return lambda place: found.get(_ends_of(place))


def _parts(name: str, tables: Mapping[str, Matrix]) -> list[tuple[Matrix, float]]:
    """Return (table, factor) for each table of a test. The rate of one direction is the printed rate times `factor`."""
    verb = "read" if "_read_" in name else "write"
    both = [tables[part] for part in (f"{name}_{verb}1", f"{name}_{verb}2") if part in tables]
    if len(both) == 2:
        return [(part, 1.0) for part in both]
    table = tables.get(name)
    if table is None:
        return []
    if table.direction == "bidirectional_sum":
        return [(table, 0.5)]
    one_of_two = name.startswith("device_to_device_bidirectional")
    return [] if one_of_two else [(table, 1.0)]


def _ends(case: Case, name: str, cell: MatrixCell) -> _Ends:
    """Return the sender and receiver of a cell. If the cell has only one GPU, this GPU is both sender and receiver.

    In a two-way test, the first direction is from the column's GPU to the row's GPU. The order of the directions is the
    same for writes and for reads (_nvb_tests.py). For two GPUs a and b, cell (b, a) has the opposite direction of cell
    (a, b).
    """
    if case.pattern != "peer_copy":
        gpu = cell.dst if cell.dst.startswith("gpu") else cell.src
        return gpu, gpu
    return cell.src, cell.dst


def _ends_of(place: _Place) -> _Ends:
    if place.src is not None:
        return f"gpu{place.src}", f"gpu{place.dst}"
    rank = "0" if place.group == "world" else place.group.removeprefix("rank").removeprefix("group")
    return f"gpu{rank}", f"gpu{rank}"


def _scaled(cell: MatrixCell, factor: float) -> MatrixCell:
    return cell if cell.value is None else replace(cell, value=cell.value * factor)


def _slower(cells: Sequence[MatrixCell]) -> MatrixCell:
    """Return the slowest cell. If one of the cells has no value, return this cell."""
    return min(cells, key=lambda cell: -1.0 if cell.value is None else cell.value)


def _record(place: _Place, cell: MatrixCell | None, run: ForeignRun, case: Case, world: World) -> Record:
    if cell is None:
        return _without(place, run, case, world)
    if cell.status == "waived":
        skip = Skip.of(LogCode.PATH_WAIVED, src=cell.src, dst=cell.dst, tool=NvbandwidthTool.title)
        return _empty(place, case, world, skipped=skip)
    if cell.status != OK or not cell.value:
        failure = Failure.of(failure_code(cell), src=cell.src, dst=cell.dst)
        return _empty(place, case, world, failed=failure)
    reported = {"algbw_bytes_per_s": cell.value}
    # nvbandwidth compares the copied data, and ends the run if they are wrong.
    verified, num_wrong = (True, 0) if run.status == OK else (None, None)
    return _empty(place, case, world, reported=reported, verified=verified, num_wrong=num_wrong, cache="hot")


def _without(place: _Place, run: ForeignRun, case: Case, world: World) -> Record:
    """Return the record of a group without a result.

    A result is missing if the test was waived, if it failed, or if this version does not print it.
    """
    title, tests = NvbandwidthTool.title, _tests(case)
    for remark in run.remarks:
        if remark.code == LogCode.WAIVED and remark.facts["test"] in tests:
            skip = Skip(remark.code, remark.facts, f"{title}: {remark.text}")
            return _empty(place, case, world, skipped=skip)
    printed = {matrix.name for matrix in run.matrices}
    if any("bidirectional" in name and name in printed for name in tests):
        skip = Skip.of(NvbToolCode.ONE_DIRECTION, tool=title, version=run.tool_version or "")
        return _empty(place, case, world, skipped=skip)
    if run.failure is not None:
        return _empty(place, case, world, failed=_failure(run, f"{title}: "))
    failure = Failure.of(NvbToolCode.NO_FIGURE_OF_GROUP, tool=title, group=place.group, tests=list(tests))
    return _empty(place, case, world, failed=failure)


def _failure(run: ForeignRun, introduction: str) -> Failure:
    """Return the failure of the whole run. `introduction`: text in front of the failure's text."""
    why = run.failure
    assert why is not None
    return Failure(f"{introduction}{why.text}", code=why.code, facts=why.facts)


def _empty(place: _Place, case: Case, world: World, **held: Any) -> Record:
    return Record(
        mode="pipelined",
        requested_bytes=case.sizes,
        payload_bytes=case.sizes[0],
        num_ranks=place.num_ranks,
        num_nodes=1,
        group=place.group,
        src=place.src,
        dst=place.dst,
        **held,
    )
