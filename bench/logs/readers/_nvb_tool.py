"""nvbandwidth as a program that is started: its words, and its matrices as records of ours.

One process copies between all GPUs that it sees, one size at a start: 16 copies behind a gate, timed by CUDA events,
the median of its samples. What is read from a table, and from which:

    host_device   one-way, d2h   host_to_device_memcpy_ce, device_to_host_memcpy_ce; all GPUs at once: host_to_all_...,
                                 all_to_host_...
    host_device   two-way        the same with `bidirectional`: each tells one direction while the other is busy, so
                                 both are run and the slower is taken, since ours ends with the later
    peer_copy     one-way        device_to_device_memcpy_{write,read}_{ce,sm}
    peer_copy     two-way        device_to_device_bidirectional_memcpy_...: the slower of both directions (v0.6 on);
                                 half of their sum (SM, before); no figure by copy engine before v0.6
    local_copy                   device_local_copy: bytes copied; ours counts them as read and as written
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from bench.core.case import Case
from bench.core.errors import UsageError
from bench.core.record import Failure, Record, Skip
from bench.core.world import World
from bench.logs.foreign import OK, ForeignRun, Matrix, MatrixCell, read_all
from bench.logs.readers._lines import lines
from bench.logs.readers._nvb_reader import Nvbandwidth
from bench.logs.tool import PLAIN, Build, Tool

_MIB = 1 << 20
_ALL_AT_ONCE = "groups of 1"
_ONE_BY_ONE = "single ranks"
_PAIRS = ("world", "directed single pairs", "single pairs")
_PLAIN = ("order", "aggressor", "share_gpu", "memory", "schedule")
_Ends = tuple[str, str]  # of a cell: who sends, who receives


@dataclass(frozen=True, slots=True)
class _Place:
    """A group of ours: its name, and its pair where it has one."""

    group: str
    num_ranks: int
    src: int | None = None
    dst: int | None = None


class NvbandwidthTool(Tool):
    """One process for all GPUs of a node."""

    title = "nvbandwidth"
    variable = "BENCH_NVBANDWIDTH_PATH"
    transport = "cuda_copy"
    clock = "device"
    marks = MappingProxyType({"json": b"Print output in json format"})
    remedy = "it is built from github.com/NVIDIA/nvbandwidth by `cmake . && make` (docs/tools.md)"

    def program(self, case: Case) -> str:
        """nvbandwidth, of copies."""
        return "nvbandwidth" if case.pattern in ("host_device", "local_copy", "peer_copy") else ""

    def starts(self, case: Case) -> tuple[Case, ...]:
        """One for each size; of both modes the one that it has."""
        mode = "pipelined" if case.mode == "both" else case.mode
        return tuple(replace(case, mode=mode, sizes=(size,)) for size in case.sizes)

    def supports(self, case: Case, world: World) -> str | None:
        """One node, pinned memory, whole MiB, back to back, both GPUs' memory in one process."""
        if not self.program(case):
            return f"{self.title} has no test of {case.pattern}"
        if world.num_nodes > 1:
            return f"{self.title} is one process on one node: nodes: 1"
        if case.mode == "isolated":
            return f"{self.title} copies back to back: mode: pipelined"
        if any(size % _MIB for size in case.sizes):
            return f"{self.title} copies whole MiB"
        plain = Case(case.pattern)
        for field in _PLAIN:
            if getattr(case, field) != getattr(plain, field):
                return f"{self.title} knows no {field.replace('_', ' ')} {getattr(case, field)}"
        return self._why_not_of_pattern(case, world)

    def _why_not_of_pattern(self, case: Case, world: World) -> str | None:
        if case.pattern == "peer_copy":
            if case.via != "process":
                return f"{self.title} is one process, which holds the memory of both GPUs: via: process"
            known = case.topology in _PAIRS
            return None if known else f"{self.title} copies between one pair at a time, not topology {case.topology}"
        if case.pattern == "local_copy" and case.engine == "sm":
            return f"{self.title} copies inside a GPU by copy engine only"
        alone = world.num_ranks == 1 and case.topology == "world"
        if alone or case.topology == _ONE_BY_ONE or (case.topology == _ALL_AT_ONCE and case.pattern == "host_device"):
            return None
        others = f" or {_ALL_AT_ONCE!r}" * (case.pattern == "host_device")
        return f"{self.title} tells each GPU's own figure: topology: {_ONE_BY_ONE!r}{others}"

    def processes(self, world: World, build: Build) -> World:
        """One."""
        return World(1, 1)

    def arguments(self, case: Case, world: World, build: Build = PLAIN) -> list[str]:
        """Tests, MiB of a buffer, samples, JSON."""
        words = ["-t", *_tests(case), "-b", str(case.sizes[0] // _MIB)]
        if case.iterations is not None:
            words += ["-i", str(case.iterations)]
        return words + ["-j"] * ("json" in build)

    def version(self, text: str) -> str | None:
        """`v0.8`."""
        return next((run.tool_version for run in read_all(Nvbandwidth(), lines([text]))), None)

    def libraries(self, text: str) -> dict[str, str]:
        """CUDA's and the driver's."""
        runs = read_all(Nvbandwidth(), lines([text]))
        return dict(runs[0].settings) if runs else {}

    def says(self, case: Case) -> tuple[str, ...]:
        """How its figures became ours."""
        told = ["its rate is the median of its samples, each of 16 copies behind a gate"]
        if case.direction == "two-way":
            told.append("two-way: it tells each direction while the other is busy; the slower one is taken")
        if case.pattern == "local_copy":
            told.append("it counts bytes copied: busbw is twice that, each byte is read and written")
        if case.engine == "sm":
            told.append("its kernels copy a little less than the size, and its rate is of what they copied")
        return tuple(told)

    def records(self, text: str, case: Case, world: World, document: str = "") -> list[Record]:
        """One of each group of ours: measured, waived or failed."""
        runs = read_all(Nvbandwidth(), lines([text]))
        if len(runs) != 1:
            raise UsageError(f"{len(runs)} runs of nvbandwidth, not one: no banner and no table of it was printed")
        run = runs[0]
        tables = {matrix.name: matrix for matrix in run.matrices if matrix.unit == "bytes_per_s"}
        _check_gpus(case, world, run.matrices)
        rate = _rates(case, tables)
        records = [_record(place, rate(place), run, case, world) for place in _places(case, world)]
        if run.status != OK and not any(record.failed for record in records):
            why = Failure(f"{self.title}, {run.status}: {run.failure}")
            records.append(_empty(_Place("world", world.num_ranks), case, world, failed=why))
        return records


def _tests(case: Case) -> tuple[str, ...]:
    """Which of its tests measure a case."""
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
    """The groups of ours, named as core/topology.py names them."""
    ranks = range(world.num_ranks)
    if case.pattern != "peer_copy":
        word = {"world": "world", _ALL_AT_ONCE: "group{}", _ONE_BY_ONE: "rank{}"}[case.topology]
        return [_Place(word.format(rank), 1) for rank in ranks]
    pairs = [(a, b) for a in ranks for b in ranks if a < b]
    if case.topology != "single pairs":
        pairs += [(b, a) for a, b in pairs]
    return [_Place(f"{a}-{b}", 2, a, b) for a, b in pairs]


def _check_gpus(case: Case, world: World, matrices: Sequence[Matrix]) -> None:
    """All at once are all that it sees. UsageError where these are not the ranks' GPUs."""
    seen = max((len(matrix.cells) for matrix in matrices), default=0)
    if case.topology == _ALL_AT_ONCE and seen > world.num_ranks:
        raise UsageError(
            f"it copied to {seen} GPUs at once, {world.num_ranks} were asked for: let CUDA_VISIBLE_DEVICES name those"
        )


def _rates(case: Case, tables: Mapping[str, Matrix]) -> Callable[[_Place], MatrixCell | None]:
    """From a group to its cell, in bytes per second of the slowest direction; None where no table has it."""
    found: dict[_Ends, MatrixCell] = {}
    for name in _tests(case):
        parts = _parts(name, tables)
        for cells in zip(*(table.cells for table, _ in parts), strict=False):
            worst = _slower([_scaled(cell, factor) for cell, (_, factor) in zip(cells, parts, strict=True)])
            ends = _ends(case, name, cells[0])
            found[ends] = _slower([found[ends], worst]) if ends in found else worst
        if not parts:
            return lambda place: None  # of two tests one was waived or lost: the other says only half
    return lambda place: found.get(_ends_of(place))


def _parts(name: str, tables: Mapping[str, Matrix]) -> list[tuple[Matrix, float]]:
    """The tables of a test that tell its directions, each with the factor to one direction's rate."""
    verb = "read" if "_read_" in name else "write"
    both = [tables[each] for each in (f"{name}_{verb}1", f"{name}_{verb}2") if each in tables]
    if len(both) == 2:
        return [(each, 1.0) for each in both]
    table = tables.get(name)
    if table is None:
        return []
    if table.direction == "bidirectional_sum":
        return [(table, 0.5)]
    one_of_two = name.startswith("device_to_device_bidirectional")
    return [] if one_of_two else [(table, 1.0)]


def _ends(case: Case, name: str, cell: MatrixCell) -> _Ends:
    """Sender and receiver of a cell. A GPU alone is both, and of two-way copies each stands for the pair.

    The first of two directions runs from column to row, whichever verb the test has (_nvb_tests.py); the pair of the
    same two GPUs is read from the other cell.
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
    """The one without a figure, else the slowest."""
    return min(cells, key=lambda cell: -1.0 if cell.value is None else cell.value)


def _record(place: _Place, cell: MatrixCell | None, run: ForeignRun, case: Case, world: World) -> Record:
    title = NvbandwidthTool.title
    if cell is None:
        return _without(place, run, case, world)
    if cell.status == "waived":
        why = f"{title}: {cell.src} and {cell.dst} do not reach each other (N/A)"
        return _empty(place, case, world, skipped=Skip.uncoded(why))
    if cell.status != OK or not cell.value:
        return _empty(place, case, world, failed=Failure(f"{title}: {cell.src} to {cell.dst}: {cell.status}"))
    told = {"algbw_bytes_per_s": cell.value}
    # It compares what arrived, and gives the run up where that is wrong.
    verified = True if run.status == OK else None
    return _empty(place, case, world, reported=told, verified=verified, num_wrong=0 if verified else None, cache="hot")


def _without(place: _Place, run: ForeignRun, case: Case, world: World) -> Record:
    """A group of which there is no figure: why?"""
    title, tests = NvbandwidthTool.title, _tests(case)
    waived = [one.text for one in run.remarks if "was waived" in one.text and one.text.startswith(tests)]
    if waived:
        return _empty(place, case, world, skipped=Skip.uncoded(f"{title}: {waived[0]}"))
    if any("bidirectional" in name and name in {matrix.name for matrix in run.matrices} for name in tests):
        why = f"{title} {run.tool_version or ''} tells one direction of a two-way copy between GPUs: v0.6 tells both"
        return _empty(place, case, world, skipped=Skip.uncoded(why))
    why = run.failure or f"it printed no figure of {place.group} in {', '.join(tests)}: does it see so many GPUs?"
    return _empty(place, case, world, failed=Failure(f"{title}: {why}"))


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
