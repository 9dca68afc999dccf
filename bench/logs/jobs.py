"""What another tool measured, as jobs of ours: a header and records for each kind of row that its log holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from bench.core.errors import UsageError
from bench.core.pattern import Pattern
from bench.core.record import Header, Record
from bench.hardware import catalogue
from bench.hardware.machine import machine_of
from bench.logs.check import contradictions
from bench.logs.foreign import OK, ForeignRow, ForeignRun, Matrix, Remark
from bench.logs.records import failure_of, of_matrix, of_row, rank_of

# Tools whose ranks need not have a GPU each.
_OF_HOSTS = ("osu", "perftest")
# Patterns of matrices by their direction, where it is neither of the two of bytes over a link.
_OTHER_COPIES = {"local": "local_copy", "calls": "copy_call"}
_MOST_REMARKS = 200  # in a header, of which a run may have many
_MOST_SAID = 10
_MOST_NAME = 60
_VERSION_WORDS = re.compile(r"nccl|rccl|cuda|driver|hip|rocm|mpi|plugin|version", re.I)


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that runs come from: its name as it was given, and its contents' SHA-256."""

    source: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the user says of logs beside what they say themselves: their world where they do not tell it, and the links.

    `instance` and `links` (bytes per second, in place of its figures): what bounds the rows; "" and {}: nothing does.
    """

    num_ranks: int | None = None
    num_nodes: int | None = None
    instance: str = ""
    links: Mapping[str, float] = field(default_factory=dict)

    def of(self, run: ForeignRun) -> ForeignRun:
        """The run with what its log left out of its world. Raises UsageError where its ranks do not divide among as
        many nodes as are told."""
        if run.num_ranks is None and self.num_ranks is not None:
            run = run.with_num_ranks(self.num_ranks)
        if run.num_nodes is not None or self.num_nodes is None:
            return run
        if run.num_ranks is not None and run.num_ranks % self.num_nodes:
            ranks = f"line {run.line}: its {run.num_ranks} ranks do not divide among {self.num_nodes} nodes"
            raise UsageError(f"--num-nodes {self.num_nodes} does not fit the log's run from {ranks}")
        return replace(run, num_nodes=self.num_nodes)


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """One results file to be: its header, and its records as they are asked for."""

    header: Header
    rows: tuple[ForeignRow, ...]
    matrix: Matrix | None
    run: ForeignRun
    pattern: Pattern | None

    def records(self) -> Iterator[Record]:
        """Its rows in their order; last, how a run failed that did not end well."""
        if self.matrix is not None:
            yield from of_matrix(self.header, self.matrix)
        for row in self.rows:
            yield of_row(self.header, row, self.run, self.pattern)
        if self.run.status != OK:
            yield failure_of(self.header, self.run)


class Names:
    """Names of jobs, each given once: a second one gets a number."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def of(self, *words: str) -> str:
        """A file name made of words."""
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(filter(None, words))).strip("-.")[: 2 * _MOST_NAME] or "run"
        number = self._given[name] = self._given.get(name, 0) + 1
        return name if number == 1 else self.of(f"{name}-{number}")


def jobs_of(
    run: ForeignRun, origin: Origin, told: ImportOptions, patterns: Mapping[str, Pattern], names: Names
) -> list[ImportedJob]:
    """A run as one job for each element type, operation, root and placement of its rows, and one for each matrix.

    A run without any row is a job all the same: it says how it failed. Raises UsageError where `told.instance` can not
    have held the ranks.
    """
    stem = PurePath(origin.source).stem[:_MOST_NAME]
    # Other tools' alltoallv sends equal blocks, too.
    pattern = patterns.get("alltoall" if run.pattern == "alltoallv" else run.pattern or "")
    kinds: dict[tuple[str | None, str | None, int | None, bool], list[ForeignRow]] = {}
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
        found.append(ImportedJob(header, tuple(rows), None, run, pattern))
    for matrix in run.matrices:
        header = _matrix_header(names.of(stem, matrix.name[:_MOST_NAME]), run, matrix, origin, told, remarks)
        found.append(ImportedJob(header, (), matrix, run, None))
    return found


def _bounding(
    run: ForeignRun, told: ImportOptions, per_node: int | None
) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """The links that bound the rows: those that were named, else the ports of the GPUs that the log names. Of the
    latter a fact says how they are known."""
    if told.instance or told.links or run.tool in _OF_HOSTS:
        return catalogue.bounding_links(told.instance, told.links, per_node, run.tool not in _OF_HOSTS), {}
    machine = machine_of(None, run.gpus, run.hosts, per_node)
    return (machine.links.to_dict(), {"machine": machine.how}) if machine.links else ({}, {})


def _per_node(run: ForeignRun) -> int | None:
    """Ranks of each node; None where that is unknown, or not the same on all."""
    if not run.num_ranks or not run.num_nodes or run.num_ranks % run.num_nodes:
        return None
    return run.num_ranks // run.num_nodes


def _header(
    name: str,
    run: ForeignRun,
    origin: Origin,
    told: ImportOptions,
    remarks: Sequence[Remark],
    *,
    dtype: str | None = None,
    reduce_op: str | None = None,
    root: int | None = None,
) -> Header:
    per_node = _per_node(run)
    links, machine = _bounding(run, told, per_node)
    return _described(
        name,
        run,
        origin,
        told,
        remarks,
        pattern=run.pattern or "unknown",
        dtype=dtype or "",
        reduce_op=reduce_op or "",
        root=root,
        direction=None,
        topology="world",
        num_ranks=run.num_ranks,
        num_nodes=run.num_nodes,
        ranks_per_node=per_node,
        links=links,
        facts=machine,
    )


def _matrix_header(
    name: str, run: ForeignRun, matrix: Matrix, origin: Origin, told: ImportOptions, remarks: Sequence[Remark]
) -> Header:
    ranks = (rank_of(end) for cell in matrix.cells for end in (cell.src, cell.dst))
    num_gpus = max((rank + 1 for rank in ranks if rank is not None), default=1)
    of_host = any(end.startswith("host") for cell in matrix.cells for end in (cell.src, cell.dst))
    pattern = _OTHER_COPIES.get(matrix.direction or "", "host_device" if of_host else "peer_copy")
    links, machine = _bounding(run, told, num_gpus)
    facts = {"matrix": matrix.name, **({"engine": matrix.engine} if matrix.engine else {}), **machine}
    return _described(
        name,
        run,
        origin,
        told,
        remarks,
        pattern=pattern,
        dtype="",
        reduce_op="",
        root=None,
        direction=matrix.direction,
        topology="pairs",
        num_ranks=num_gpus,
        num_nodes=1,
        ranks_per_node=num_gpus,
        links=links,
        facts=facts,
    )


def _described(
    name: str,
    run: ForeignRun,
    origin: Origin,
    told: ImportOptions,
    remarks: Sequence[Remark],
    *,
    facts: Mapping[str, str] | None = None,
    **special: object,
) -> Header:
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
            "asked_bytes": list(run.asked_bytes) or None,
            "translations": list(run.translations),
            "remarks": _told(remarks),
        },
        **special,  # type: ignore[arg-type]
    )


def _facts(run: ForeignRun) -> dict[str, str]:
    """What tells where the bytes were: the GPUs; that a tool of hosts used their memory."""
    of_gpus = run.tool in _OF_HOSTS and re.search("cuda|rocm|nccl", dict(run.settings).get("library", ""), re.I)
    found = {"gpus": ", ".join(run.gpus), "memory": "device" if of_gpus else ""}
    return {name: value for name, value in found.items() if value}


def _what(run: ForeignRun, origin: Origin) -> str:
    version = f" {run.tool_version}" if run.tool_version else ""
    return f"{origin.source} line {run.line}: {run.tool}{version}, {run.status}"


def _words(remarks: Sequence[Remark]) -> list[str]:
    """The first remarks as sentences; all that are kept stand in the header."""
    words = [
        one.text if one.line is None or one.text.startswith("line ") else f"line {one.line}: {one.text}"
        for one in remarks[:_MOST_SAID]
    ]
    left = len(remarks) - len(words)
    return [*words, f"and {left} more remarks"] if left else words


def _told(remarks: Sequence[Remark]) -> list[dict[str, object]]:
    """Remarks as plain data; of very many the first."""
    plain: list[dict[str, object]] = [{"line": one.line, "text": one.text} for one in remarks[:_MOST_REMARKS]]
    left = len(remarks) - len(plain)
    return [*plain, {"line": None, "text": f"and {left} more lines like these"}] if left else plain
