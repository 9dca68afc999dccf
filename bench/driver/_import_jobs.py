"""What another tool measured, as jobs of ours: a header and records for each kind of row that its log holds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePath

from bench.core.dtypes import DTYPES
from bench.core.foreign import OK, Cell, Matrix, Remark, Row, Run
from bench.core.pattern import MessagePattern, Pattern, Shape, Traffic, traffic_of
from bench.core.record import Failure, Header, Record
from bench.driver._import_check import contradictions
from bench.hardware import catalogue

# Tools whose ranks need not have a GPU each.
_OF_HOSTS = ("osu", "perftest")
# Patterns of matrices by their direction, where it is neither of the two of bytes over a link.
_OTHER_COPIES = {"local": "local_copy", "calls": "copy_call"}
_SUM = "_sum"  # ends a direction whose figure is of both ways together; busbw is of one
_MOST_REMARKS = 200  # in a header, of which a run may have many
_MOST_SAID = 10
_MOST_NAME = 60
_MOST_RANKS_OF_MESSAGES = 8192  # beyond, a pattern's messages are too many to lay out for every size
_MOST_BYTES = 1 << 60
_VERSION_WORDS = re.compile(r"nccl|rccl|cuda|driver|hip|rocm|mpi|plugin|version", re.I)


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that runs come from: its name as it was given, and its contents' SHA-256."""

    source: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Told:
    """What the user says of logs beside what they say themselves: their world where they do not tell it, and the links.

    `instance` and `links` (bytes per second, in place of its figures): what bounds the rows; "" and {}: nothing does.
    """

    num_ranks: int | None = None
    num_nodes: int | None = None
    instance: str = ""
    links: Mapping[str, float] = field(default_factory=dict)

    def of(self, run: Run) -> Run:
        """The run with what its log left out of its world."""
        if run.num_ranks is None and self.num_ranks is not None:
            run = run.with_num_ranks(self.num_ranks)
        return run if run.num_nodes is not None or self.num_nodes is None else replace(run, num_nodes=self.num_nodes)


@dataclass(frozen=True, slots=True)
class Job:
    """One results file to be: its header, and its records as they are asked for."""

    header: Header
    rows: tuple[Row, ...]
    matrix: Matrix | None
    run: Run
    pattern: Pattern | None

    def records(self) -> Iterator[Record]:
        """Its rows in their order; last, how a run failed that did not end well."""
        if self.matrix is not None:
            yield from _of_matrix(self.header, self.matrix)
        for row in self.rows:
            yield _of_row(self.header, row, self.run, self.pattern)
        if self.run.status != OK:
            what = f"{self.run.status}: {self.run.failure or 'its log does not say why'}"
            yield _record(self.header, _mode(self.run), 0, failed=Failure(what))


class Names:
    """Names of jobs, each given once: a second one gets a number."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def of(self, *words: str) -> str:
        """A file name made of words."""
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(filter(None, words))).strip("-.")[: 2 * _MOST_NAME] or "run"
        number = self._given[name] = self._given.get(name, 0) + 1
        return name if number == 1 else self.of(f"{name}-{number}")


def jobs_of(run: Run, origin: Origin, told: Told, patterns: Mapping[str, Pattern], names: Names) -> list[Job]:
    """A run as one job for each element type, operation, root and placement of its rows, and one for each matrix.

    A run without any row is a job all the same: it says how it failed. Raises UsageError where `told.instance` can not
    have held the ranks.
    """
    stem = PurePath(origin.source).stem[:_MOST_NAME]
    # Other tools' alltoallv sends equal blocks, too.
    pattern = patterns.get("alltoall" if run.pattern == "alltoallv" else run.pattern or "")
    kinds: dict[tuple[str | None, str | None, int | None, bool], list[Row]] = {}
    for row in run.rows:
        kinds.setdefault((row.dtype, row.reduce_op, row.root, row.in_place), []).append(row)
    if not kinds and not run.matrices:
        kinds[None, None, None, False] = []
    several = [len({kind[index] for kind in kinds}) > 1 for index in range(3)]
    remarks = (*run.remarks, *contradictions(run, pattern))
    found = []
    for kind, rows in kinds.items():
        dtype, reduce_op, root, in_place = kind
        words = [str(word) for word, shown in zip(kind[:3], several, strict=True) if shown and word is not None]
        name = names.of(stem, run.pattern or run.tool, *words, "in-place" * in_place)
        header = _header(name, run, origin, told, remarks, dtype=dtype, reduce_op=reduce_op, root=root)
        found.append(Job(header, tuple(rows), None, run, pattern))
    for matrix in run.matrices:
        header = _matrix_header(names.of(stem, matrix.name[:_MOST_NAME]), run, matrix, origin, told, remarks)
        found.append(Job(header, (), matrix, run, None))
    return found


def _per_node(run: Run) -> int | None:
    """Ranks of each node; None where that is unknown, or not the same on all."""
    if not run.num_ranks or not run.num_nodes or run.num_ranks % run.num_nodes:
        return None
    return run.num_ranks // run.num_nodes


def _header(name: str, run: Run, origin: Origin, told: Told, remarks: Sequence[Remark], *, dtype: str | None = None,
            reduce_op: str | None = None, root: int | None = None) -> Header:  # fmt: skip
    per_node = _per_node(run)
    links = catalogue.bounding_links(told.instance, told.links, per_node, run.tool not in _OF_HOSTS)
    return _described(
        name, run, origin, told, remarks, pattern=run.pattern or "unknown", dtype=dtype or "",
        reduce_op=reduce_op or "", root=root, direction=None, topology="world", num_ranks=run.num_ranks,
        num_nodes=run.num_nodes, ranks_per_node=per_node, links=links,
    )  # fmt: skip


def _matrix_header(name: str, run: Run, matrix: Matrix, origin: Origin, told: Told,
                   remarks: Sequence[Remark]) -> Header:  # fmt: skip
    ranks = (_rank(end) for cell in matrix.cells for end in (cell.src, cell.dst))
    num_gpus = max((rank + 1 for rank in ranks if rank is not None), default=1)
    of_host = any(end.startswith("host") for cell in matrix.cells for end in (cell.src, cell.dst))
    pattern = _OTHER_COPIES.get(matrix.direction or "", "host_device" if of_host else "peer_copy")
    links = catalogue.bounding_links(told.instance, told.links, num_gpus, one_per_gpu=True)
    facts = {"matrix": matrix.name} | ({"engine": matrix.engine} if matrix.engine else {})
    return _described(
        name, run, origin, told, remarks, pattern=pattern, dtype="", reduce_op="",
        root=None, direction=matrix.direction, topology="pairs", num_ranks=num_gpus, num_nodes=1,
        ranks_per_node=num_gpus, links=links, facts=facts,
    )  # fmt: skip


def _described(name: str, run: Run, origin: Origin, told: Told, remarks: Sequence[Remark], *,
               facts: Mapping[str, str] | None = None, **special: object) -> Header:  # fmt: skip
    settings = dict(run.settings)
    versions = {name: value for name, value in settings.items() if _VERSION_WORDS.search(name)}
    return Header(
        job=name,
        case=(),
        transport=run.tool,
        clock="",
        modelled=False,
        started="",
        versions=({run.tool: run.tool_version} if run.tool_version else {}) | versions,
        facts={**(facts or {}), **_facts(run)},
        settings={name: value for name, value in settings.items() if name not in versions},
        nodes={host: {} for host in run.hosts},
        instance=told.instance or None,
        notes=(f"imported from {_what(run, origin)}", *run.translations, *_words(remarks)),
        imported={
            "tool": run.tool,
            "tool_version": run.tool_version,
            "source": origin.source,
            "sha256": origin.sha256,
            "line": run.line,
            "status": run.status,
            "failure": run.failure,
            "translations": list(run.translations),
            "remarks": _told(remarks),
        },
        **special,  # type: ignore[arg-type]
    )


def _facts(run: Run) -> dict[str, str]:
    """What tells where the bytes were: the GPUs; that a tool of hosts used their memory."""
    of_gpus = run.tool in _OF_HOSTS and re.search("cuda|rocm|nccl", dict(run.settings).get("library", ""), re.I)
    found = {"gpus": ", ".join(run.gpus), "memory": "device" if of_gpus else ""}
    return {name: value for name, value in found.items() if value}


def _what(run: Run, origin: Origin) -> str:
    version = f" {run.tool_version}" if run.tool_version else ""
    return f"{origin.source} line {run.line}: {run.tool}{version}, {run.status}"


def _words(remarks: Sequence[Remark]) -> list[str]:
    """The first remarks as sentences; all that are kept stand in the header."""
    words = [one.text if one.line is None or one.text.startswith("line ") else f"line {one.line}: {one.text}"
             for one in remarks[:_MOST_SAID]]  # fmt: skip
    left = len(remarks) - len(words)
    return [*words, f"and {left} more remarks"] if left else words


def _told(remarks: Sequence[Remark]) -> list[dict[str, object]]:
    """Remarks as plain data; of very many the first."""
    plain: list[dict[str, object]] = [{"line": one.line, "text": one.text} for one in remarks[:_MOST_REMARKS]]
    left = len(remarks) - len(plain)
    return [*plain, {"line": None, "text": f"and {left} more lines like these"}] if left else plain


def _of_row(header: Header, row: Row, run: Run, pattern: Pattern | None) -> Record:
    mode, size = _mode(run), row.payload_bytes
    if run.size_is_block:
        why = f"line {row.line}: its size, {size} bytes, is one rank's block: give --num-ranks"
        return _record(header, mode, 0, in_place=row.in_place, skipped=why)
    if size is None or not 0 <= size <= _MOST_BYTES:
        return _record(header, mode, 0, failed=Failure(f"line {row.line}: a row whose size can not be told"))
    traffic = _traffic(header, row, pattern)
    reported = _figures(row, traffic, run.tool)
    if not reported:
        return _record(header, mode, size, in_place=row.in_place, skipped=f"line {row.line}: no figure was printed")
    return _record(
        header, mode, size, in_place=row.in_place, reported=reported, traffic=traffic, num_wrong=row.num_wrong,
        verified=None if row.num_wrong is None else row.num_wrong == 0,
    )  # fmt: skip


def _mode(run: Run) -> str:
    """Back to back, unless the tool waits for each call."""
    return "isolated" if dict(run.settings).get("mode") == "isolated" else "pipelined"


def _traffic(header: Header, row: Row, pattern: Pattern | None) -> Traffic | None:
    """The factors by the pattern's own definition; None where the pattern or the number of ranks is unknown."""
    num_ranks, size = header.num_ranks, row.payload_bytes
    if pattern is None or num_ranks is None or size is None:
        return None
    if isinstance(pattern, MessagePattern) and num_ranks > _MOST_RANKS_OF_MESSAGES:
        return None
    even = header.num_nodes if header.ranks_per_node is not None else None
    element = DTYPES[row.dtype].num_bytes if row.dtype in DTYPES else 1
    return _of_shape(pattern, Shape(num_ranks, size, element, row.root or 0), even)


@lru_cache(maxsize=4096)
def _of_shape(pattern: Pattern, shape: Shape, num_nodes: int | None) -> Traffic:
    return traffic_of(pattern, shape, num_nodes)


def _figures(row: Row, traffic: Traffic | None, tool: str) -> dict[str, float]:
    """What was printed; a bandwidth that was not, by our definition: size / time, and times the factor.

    OSU's least and largest are of the ranks' means; other tools' of their samples.
    """
    seconds, algbw, busbw = map(_finite, (row.time_s, row.algbw_bytes_per_s, row.busbw_bytes_per_s))
    if algbw is None and seconds and row.payload_bytes:
        algbw = row.payload_bytes / seconds
    if busbw is None and algbw is not None and traffic is not None and traffic.bus_factor is not None:
        busbw = algbw * traffic.bus_factor
    least, largest = ("least_mean_s", "largest_mean_s") if tool == "osu" else ("min_s", "max_s")
    figures = {
        "mean_s": seconds, least: _finite(row.min_s), largest: _finite(row.max_s),
        "num_samples": row.num_iterations, "algbw_bytes_per_s": algbw, "busbw_bytes_per_s": busbw,
    }  # fmt: skip
    if seconds is None and algbw is None and busbw is None:
        return {}
    return {name: value for name, value in figures.items() if value is not None}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _of_matrix(header: Header, matrix: Matrix) -> Iterator[Record]:
    """A record for each cell; what a tool waived is skipped, with the reason."""
    mode = "isolated" if matrix.unit == "s" else "pipelined"
    factor = 0.5 if (matrix.direction or "").endswith(_SUM) else 1.0
    size = matrix.payload_bytes or 0
    for cell in matrix.cells:
        value, place = _finite(cell.value), _Place.of(cell)
        if cell.status == "waived":
            yield _record(
                header, mode, size, place=place, skipped=f"waived by {header.transport}: {cell.src} to {cell.dst}"
            )
        elif cell.status != OK or value is None:
            yield _record(header, mode, size, place=place, failed=Failure(f"{cell.src} to {cell.dst}: {cell.status}"))
        elif matrix.unit == "s":
            yield _record(header, mode, size, place=place, reported={"mean_s": value})
        else:
            rates = {"algbw_bytes_per_s": value, "busbw_bytes_per_s": value * factor}
            traffic = Traffic(factor, size * factor, None, 1)
            yield _record(header, mode, size, place=place, reported=rates, traffic=traffic)


@dataclass(frozen=True, slots=True)
class _Place:
    """Between which two ends: ranks are GPUs, the host is none."""

    group: str
    src: int | None
    dst: int | None
    num_ranks: int

    @classmethod
    def of(cls, cell: Cell) -> _Place:
        ends = {end for end in (_rank(cell.src), _rank(cell.dst)) if end is not None}
        return cls(f"{cell.src}>{cell.dst}", _rank(cell.src), _rank(cell.dst), max(len(ends), 1))


def _rank(end: str) -> int | None:
    """3 of "gpu3"; None of the host."""
    digits = re.fullmatch(r"gpu(\d{1,6})", end)
    return int(digits[1]) if digits else None


def _record(header: Header, mode: str, size: int, *, place: _Place | None = None, in_place: bool = False,
            traffic: Traffic | None = None, reported: Mapping[str, float] | None = None, skipped: str | None = None,
            failed: Failure | None = None, num_wrong: int | None = None,
            verified: bool | None = None) -> Record:  # fmt: skip
    return Record(
        mode=mode,
        requested_bytes=(size,),
        payload_bytes=size,
        num_ranks=place.num_ranks if place else header.num_ranks,
        num_nodes=header.num_nodes,
        group=place.group if place else "world",
        src=place.src if place else None,
        dst=place.dst if place else None,
        in_place=in_place,
        bus_factor=traffic.bus_factor if traffic else None,
        rank_bytes=traffic.rank_bytes if traffic else None,
        node_bytes=traffic.node_bytes if traffic else None,
        min_steps=traffic.min_steps if traffic else 1,
        verified=verified,
        num_wrong=num_wrong,
        reported=reported,
        skipped=skipped,
        failed=failed,
    )
