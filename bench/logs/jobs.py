"""Convert another tool's runs to linkbench jobs: a header, and records for each type of row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.log_traits import log_traits
from bench.core.pattern import Pattern
from bench.core.record import Header, Record
from bench.hardware import catalogue
from bench.hardware.catalogue import Instance
from bench.hardware.machine import machine_of
from bench.logs.check import contradictions
from bench.logs.foreign import OK, ForeignRow, ForeignRun, Matrix, NamedFigure, Remark
from bench.logs.messages import LogCode
from bench.logs.records import failure_of, of_figure, of_matrix, of_row, rank_of

UNKNOWN = "unknown"  # the pattern of rows without a stated operation
FIGURES = "figures"  # the pattern of a job with figures outside rows and matrices.
# Patterns of matrices by their direction, if no byte crosses a link.
_OTHER_COPIES = {"local": "local_copy", "calls": "copy_call"}
_MOST_REMARKS = 200  # remarks that a header stores, at most
_MOST_NOTES = 10
_MOST_FIGURES = 10_000
_MOST_NAME = 60
_VERSION_WORDS = re.compile(r"nccl|rccl|cuda|driver|hip|rocm|mpi|plugin|version", re.I)


@dataclass(frozen=True, slots=True)
class Origin:
    """The file from which a run was read: its name as the user gave it, and its SHA-256."""

    source: str
    sha256: str


_USUAL_GPUS = 8  # GPUs of a node with many NICs; 16 or 32 NICs are two or four for each GPU


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Facts that the user adds to logs: missing numbers of ranks and nodes, and the links.

    `instance`: the instance type whose links bound the rows, or "".
    `links`: rates in bytes per second that replace the rates of the instance type, or {}.
    """

    num_ranks: int | None = None
    num_nodes: int | None = None
    instance: str = ""
    links: Mapping[str, float] = field(default_factory=dict)
    own: Instance | None = None  # the instance type of this name if the site defined it
    nics: tuple[int, float] | None = None  # the NICs of a node: their number, and the bytes per second of each NIC
    gpus_per_node: int | None = None

    def of_node(self, links: NodeLinks | None, ranks_per_node: int | None) -> NodeLinks | None:
        """Return the links of a node, changed by the user's options. Return None if the links are unknown."""
        if self.nics is None and self.gpus_per_node is None:
            return links
        num, rate = self.nics or (None, None)
        if links is None and num is None:
            return None
        found = links or NodeLinks("", ranks_per_node or 1, "host")
        gpus = self.gpus_per_node or max(found.gpus, ranks_per_node or 1, min(num or 1, _USUAL_GPUS))
        if num is None or rate is None:
            return replace(found, gpus=gpus)
        return replace(found.with_rates({"nic": rate}), num_nics=num, gpus=gpus)

    def applied(self, run: ForeignRun) -> ForeignRun:
        """Add the numbers of ranks and nodes that are missing in the log of a run.

        Raises UsageError if the ranks cannot be divided evenly among the nodes.
        """
        if run.num_ranks is None and self.num_ranks is not None:
            run = run.with_num_ranks(self.num_ranks)
        if run.num_nodes is not None or self.num_nodes is None:
            return run
        if run.num_ranks is not None and run.num_ranks % self.num_nodes:
            raise UsageError(
                f"--num-nodes {self.num_nodes} does not fit the run from line {run.line}: its {run.num_ranks} ranks "
                f"cannot be divided evenly among {self.num_nodes} nodes"
            )
        return replace(run, num_nodes=self.num_nodes)


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """One results file to write: its header and its records. A record is built only when it is requested."""

    header: Header
    rows: tuple[ForeignRow, ...]
    matrix: Matrix | None
    run: ForeignRun
    pattern: Pattern | None
    figures: tuple[NamedFigure, ...] = ()

    def records(self) -> Iterator[Record]:
        """Yield the records in order. If the run did not succeed, the last record describes the failure."""
        if self.matrix is not None:
            yield from of_matrix(self.header, self.matrix)
        for row in self.rows:
            yield of_row(self.header, row, self.run, self.pattern)
        for figure in self.figures:
            record = of_figure(self.header, figure)
            if record is not None:
                yield record
        if self.run.status != OK:
            yield failure_of(self.header, self.run)


class Names:
    """Makes unique names for jobs: a repeated name gets a number."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def of(self, *words: str) -> str:
        """Return a unique file name made of these words."""
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(filter(None, words))).strip("-.")[: 2 * _MOST_NAME] or "run"
        number = self._given[name] = self._given.get(name, 0) + 1
        return name if number == 1 else self.of(f"{name}-{number}")


def jobs_of(
    run: ForeignRun, origin: Origin, options: ImportOptions, patterns: Mapping[str, Pattern], names: Names
) -> list[ImportedJob]:
    """Return the jobs of a run.

    All rows with the same element type, operation, root and placement form one job. Each matrix forms a job, and all
    named figures of a run together form one job. A run without results becomes a job whose only record is the failure.
    Raises UsageError if the instance type in `options` is impossible for this number of ranks.
    """
    stem = PurePath(origin.source).stem[:_MOST_NAME]
    # In other tools, alltoallv sends equal blocks, like alltoall.
    pattern = patterns.get("alltoall" if run.pattern == "alltoallv" else run.pattern or "")
    kinds: dict[tuple[str | None, str | None, int | None, bool], list[ForeignRow]] = {}
    for row in run.rows:
        kinds.setdefault((row.dtype, row.reduce_op, row.root, row.in_place), []).append(row)
    if not kinds and not run.matrices and not run.figures:
        kinds[None, None, None, False] = []
    several = [len({kind[index] for kind in kinds}) > 1 for index in range(3)]
    remarks = (*run.remarks, *contradictions(run, pattern))
    found = []
    for kind, rows in kinds.items():
        dtype, reduce_op, root, in_place = kind
        words = [str(word) for word, differs in zip(kind[:3], several, strict=True) if differs and word is not None]
        name = names.of(stem, run.pattern or run.tool, *words, "in-place" * in_place)
        header = _rows_header(name, run, origin, options, remarks, dtype=dtype, reduce_op=reduce_op, root=root)
        found.append(ImportedJob(header, tuple(rows), None, run, pattern))
    for matrix in run.matrices:
        header = _matrix_header(names.of(stem, matrix.name[:_MOST_NAME]), run, matrix, origin, options, remarks)
        found.append(ImportedJob(header, (), matrix, run, None))
    if run.figures:
        header = _figures_header(names.of(stem, run.tool, "figures"), run, origin, options, remarks)
        found.append(ImportedJob(header, (), None, run, None, run.figures))
    return found


def _bounding(
    run: ForeignRun, options: ImportOptions, per_node: int | None
) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """Return the links from which the bounds of the rows are computed, and a fact about these links.

    If the user named no links, the bounds use the ports of the GPUs that the log lists. Operations in the log of a
    running job have no bounds, because their times include other work of the job.
    """
    if log_traits(run.tool).of_running_job:
        return {}, {}
    of_hosts = log_traits(run.tool).host_memory
    if options.own is not None:
        return options.own.links.with_rates(dict(options.links)).to_dict(), {}
    if options.instance or options.links or of_hosts:
        return catalogue.bounding_links(options.instance, options.links, per_node, not of_hosts), {}
    machine = machine_of(None, run.gpus, run.hosts, per_node)
    links = options.of_node(machine.links, per_node)
    return (links.to_dict(), {"machine": machine.how}) if links else ({}, {})


def _per_node(run: ForeignRun) -> int | None:
    """Return the number of ranks on each node. Return None if this number is unknown or differs between nodes."""
    if not run.num_ranks or not run.num_nodes or run.num_ranks % run.num_nodes:
        return None
    return run.num_ranks // run.num_nodes


def _rows_header(
    name: str,
    run: ForeignRun,
    origin: Origin,
    options: ImportOptions,
    remarks: Sequence[Remark],
    *,
    dtype: str | None,
    reduce_op: str | None,
    root: int | None,
) -> Header:
    per_node = _per_node(run)
    links, machine = _bounding(run, options, per_node)
    return _header(
        name,
        run,
        origin,
        options,
        remarks,
        pattern=run.pattern or UNKNOWN,
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
    name: str, run: ForeignRun, matrix: Matrix, origin: Origin, options: ImportOptions, remarks: Sequence[Remark]
) -> Header:
    ends = {end for cell in matrix.cells for end in (cell.src, cell.dst)}
    ranks = [rank for end in ends if (rank := rank_of(end)) is not None]
    num_gpus = max(ranks, default=0) + 1
    of_host = any(end.startswith("host") for end in ends)
    pattern = _OTHER_COPIES.get(matrix.direction or "", "host_device" if of_host else "peer_copy")
    links, machine = _bounding(run, options, num_gpus)
    facts = {"matrix": matrix.name, **({"engine": matrix.engine} if matrix.engine else {}), **machine}
    return _header(
        name,
        run,
        origin,
        options,
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


def _figures_header(
    name: str, run: ForeignRun, origin: Origin, options: ImportOptions, remarks: Sequence[Remark]
) -> Header:
    """Return the header of a job that consists of named figures.

    The header contains all figures. The job has records only for rates, times and failed tests.
    """
    header = _header(
        name,
        run,
        origin,
        options,
        remarks,
        pattern=FIGURES,
        dtype="",
        reduce_op="",
        root=None,
        direction=None,
        topology="world",
        num_ranks=run.num_ranks,
        num_nodes=run.num_nodes,
        ranks_per_node=_per_node(run),
        links={},
        facts={},
    )
    kept = run.figures[:_MOST_FIGURES]
    others = [figure.words for figure in kept if figure.unit not in ("bytes_per_s", "s")]
    shown = tuple(others[:_MOST_NOTES])
    imported = {**header.imported, "figures": [figure.to_dict() for figure in kept]}
    return replace(header, notes=(*header.notes, *shown), imported=imported)


def _header(
    name: str,
    run: ForeignRun,
    origin: Origin,
    options: ImportOptions,
    remarks: Sequence[Remark],
    *,
    facts: Mapping[str, str],
    **special: Any,
) -> Header:
    settings = dict(run.settings)
    versions = {name: value for name, value in settings.items() if _VERSION_WORDS.search(name)}
    version = f" {run.tool_version}" if run.tool_version else ""
    return Header(
        job=name,
        case=(),
        transport=run.tool,
        clock="",
        modelled=False,
        started="",
        versions=({run.tool: run.tool_version} if run.tool_version else {}) | versions,
        facts={**facts, **_facts(run)},
        settings={name: value for name, value in settings.items() if name not in versions},
        nodes={host: {} for host in run.hosts},
        instance=options.instance or None,
        notes=(
            f"imported from {origin.source} line {run.line}: {run.tool}{version}, {run.status}",
            *(translation.text for translation in run.translations),
            *_notes(remarks),
        ),
        imported=_imported(run, origin, remarks),
        **special,
    )


def _imported(run: ForeignRun, origin: Origin, remarks: Sequence[Remark]) -> dict[str, Any]:
    """Return the origin of the rows, as core/record.py describes it (IMPORTED_KEYS)."""
    failure = run.failure
    return {
        "tool": run.tool,
        "tool_version": run.tool_version,
        "source": origin.source,
        "sha256": origin.sha256,
        "line": run.line,
        "status": run.status,
        "failure": failure.text if failure else None,
        "failure_code": str(failure.code) if failure else None,
        "failure_facts": dict(failure.facts) if failure else {},
        "asked_bytes": list(run.asked_bytes) or None,
        "translations": [translation.text for translation in run.translations],
        "translation_codes": [str(translation.code) for translation in run.translations],
        "remarks": [remark.to_dict() for remark in _first(remarks, _MOST_REMARKS)],
    }


def _facts(run: ForeignRun) -> dict[str, str]:
    """Return facts about a run's buffers.

    `gpus`: the names of the GPUs.
    `memory`: "device" if the tool uses host memory by default, but used GPU memory in this run.
    """
    of_gpus = log_traits(run.tool).host_memory and dict(run.settings).get("memory") == "device"
    found = {"gpus": ", ".join(run.gpus), "memory": "device" if of_gpus else ""}
    return {name: value for name, value in found.items() if value}


def _notes(remarks: Sequence[Remark]) -> list[str]:
    """Return the first remarks as sentences. The header stores more remarks."""
    return [remark.words for remark in _first(remarks, _MOST_NOTES)]


def _first(remarks: Sequence[Remark], most: int) -> list[Remark]:
    """Return the first remarks, and a remark with the number of omitted remarks."""
    kept = list(remarks[:most])
    if len(remarks) > most:
        kept.append(Remark.of(None, LogCode.MORE_REMARKS, num=len(remarks) - most))
    return kept
