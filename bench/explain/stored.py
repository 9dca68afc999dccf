"""Collect evidence from stored runs: imported runs as runs of their tools, and runs that this suite measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.core.codes import UNCODED, Coded
from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.record import Flag, Header, Record
from bench.explain.evidence import RunEvidence
from bench.explain.gather import with_references
from bench.explain.log_hints import Hint
from bench.hardware.bounds import bounds_of, moves_host_memory, shares_gpu
from bench.hardware.catalogue import gpu_links, gpu_printed, instance, instances, pcie_as_linked, pcie_bytes_per_s
from bench.hardware.machine import LogMachine
from bench.logs.foreign import FAILED, OK, ForeignRow, ForeignRun, Matrix, MatrixCell, NamedFigure, Remark
from bench.logs.jobs import FIGURES, UNKNOWN
from bench.logs.messages import LogCode
from bench.results.consistency import conflicts
from bench.results.document import Conflict, Summary
from bench.results.summary import summarise

StoredJobs = Sequence[tuple[str, Header, Sequence[Record]]]
_RowKey = tuple[str, str, str, int]  # job, mode, group, payload
_MOST_HOSTS = 4  # at most this many hosts are named
_OF_IMPORTS = ("tool", "source", "line", "status")


def imported(jobs: StoredJobs) -> list[tuple[ForeignRun, Header]]:
    """Return (run, header) for each imported run.

    The run has the rows and matrices of all its jobs. The header is the header of one of these jobs. Raises UsageError
    if a header lacks a key that every import writes.
    """
    found: dict[tuple[str, int], tuple[ForeignRun, Header]] = {}
    for job, header, records in jobs:
        if not header.imported:
            continue
        for name in _OF_IMPORTS:
            if header.imported.get(name) is None:
                raise UsageError(f"the header of job {job} is damaged: imported.{name} is missing")
        key = (str(header.imported["source"]), int(header.imported["line"]))
        run = found[key][0] if key in found else _run(header)
        if "figures" in header.imported:
            run = replace(run, figures=tuple(map(NamedFigure.from_dict, header.imported["figures"])))
        elif "matrix" in header.facts:
            run = replace(run, matrices=(*run.matrices, _matrix(header, records)))
        else:
            rows = (_row(header, record) for record in records if record.reported is not None)
            run = replace(run, rows=(*run.rows, *rows))
        found[key] = (run, header)
    return list(found.values())


def stored_machine(header: Header) -> LogMachine | None:
    """Return the machine that the user named at import; None if the user named no machine.

    If the user named no machine, only the log can show the machine.
    """
    if not header.links or "machine" in header.facts:
        return None
    gpu = instance(header.instance).gpu if header.instance in instances() else None
    how = f"{header.instance or 'the links of its cluster'}, as named when it was imported"
    return LogMachine(header.instance, gpu, NodeLinks.from_dict(header.links), how)


def measured(jobs: StoredJobs) -> Iterator[tuple[str, RunEvidence]]:
    """Yield (name, evidence) for each launch of the suite's own jobs.

    Pairs are left out, because `diagnose` judges them.
    """
    own = [job for job in jobs if not job[1].imported]
    summaries = {}
    for job, header, records in own:
        rows = [record for record in records if record.samples is not None]
        summaries[job] = [(record, summarise(job, header, record)) for record in rows]
    every_row = [row for rows in summaries.values() for _, row in rows]
    contradicting = _contradicting(conflicts({job: header for job, header, _ in own}, every_row))
    for job, header, _ in own:
        world = []
        for record, row in summaries[job]:
            if record.group == "world" and record.contention is None:
                world.append((record, row))
        if world:
            yield job, _own_evidence(header, world, contradicting)


def _run(header: Header) -> ForeignRun:
    """Return the imported run without its rows."""
    imported = header.imported
    gpus = header.facts.get("gpus", "")
    memory = {"memory": header.facts["memory"]} if "memory" in header.facts else {}
    return ForeignRun(
        tool=imported["tool"],
        tool_version=imported.get("tool_version"),
        pattern=None if header.pattern in (FIGURES, UNKNOWN) else header.pattern,
        num_ranks=header.num_ranks,
        num_nodes=header.num_nodes,
        status=imported["status"],
        failure=_failure(imported),
        hosts=tuple(header.nodes),
        gpus=tuple(gpus.split(", ")) if gpus else (),
        remarks=tuple(map(Remark.from_dict, imported.get("remarks") or ())),
        translations=_translations(imported),
        line=imported["line"],
        settings=tuple({**memory, **header.settings, **header.versions}.items()),
    )


def _translations(imported: Mapping[str, Any]) -> tuple[Coded, ...]:
    """Return messages that say which figures the log's reader recomputed, and how.

    Results files of older versions contain the texts of these messages, but no codes.
    """
    texts = imported.get("translations") or ()
    codes = imported.get("translation_codes") or [UNCODED] * len(texts)
    return tuple(Coded(code, {}, text) for code, text in zip(codes, texts, strict=False))


def _failure(imported: Mapping[str, Any]) -> Coded | None:
    """Return why an imported run did not succeed; None if it succeeded.

    Results files of older versions contain no code for the reason.
    """
    if imported.get("failure") is None:
        return None
    return Coded(imported.get("failure_code") or UNCODED, imported.get("failure_facts") or {}, imported["failure"])


def _row(header: Header, record: Record) -> ForeignRow:
    reported = record.reported or {}
    return ForeignRow(
        payload_bytes=record.payload_bytes,
        dtype=header.dtype or None,
        reduce_op=header.reduce_op or None,
        root=header.root,
        in_place=record.in_place,
        time_s=reported.get("mean_s"),
        algbw_bytes_per_s=reported.get("algbw_bytes_per_s"),
        busbw_bytes_per_s=reported.get("busbw_bytes_per_s"),
        num_wrong=record.num_wrong,
        contradicts=Coded.of(LogCode.STORED_AS_CONTRADICTING) if Flag.CONTRADICTS in record.flags else None,
    )


def _matrix(header: Header, records: Sequence[Record]) -> Matrix:
    cells = []
    for record in records:
        src, _, dst = record.group.partition(">")
        if dst:
            reported = record.reported or {}
            value = reported.get("mean_s") or reported.get("algbw_bytes_per_s")
            missing = "waived" if record.skipped else FAILED
            status, size = OK if value is not None else missing, record.payload_bytes or None
            cells.append(MatrixCell(src, dst, value, status, size))
    seconds = any("mean_s" in (record.reported or {}) for record in records)
    return Matrix(
        name=header.facts["matrix"],
        unit="s" if seconds else "bytes_per_s",
        direction=header.direction,
        engine=header.facts.get("engine"),
        cells=tuple(cells),
    )


def _contradicting(found: Sequence[Conflict]) -> frozenset[_RowKey]:
    """Return the keys of all rows that contradict another row.

    If two rows contradict each other, at least one of them is wrong.
    """
    keys = set()
    for conflict in found:
        for row in (conflict.first, conflict.second):
            for job in row["job"].split(" + "):
                keys.add((job, row["mode"], row["group"], row["payload_bytes"]))
    return frozenset(keys)


def _own_evidence(
    header: Header, rows: Sequence[tuple[Record, Summary]], contradicting: frozenset[_RowKey]
) -> RunEvidence:
    """Collect the evidence about a job of this suite."""
    sound, doubtful = [], []
    for record, row in rows:
        if (row.job, row.mode, row.group, row.payload_bytes) in contradicting:
            doubtful.append(row)
        else:
            sound.append((record, row))
    run = ForeignRun(
        tool=f"bench over {header.transport}",
        line=0,
        pattern=header.pattern,
        num_ranks=header.num_ranks,
        num_nodes=header.num_nodes,
        hosts=tuple(header.nodes),
        rows=_own_rows([row for _, row in sound]),
    )
    gpu = instance(header.instance).gpu if header.instance in instances() else _gpu_model(header)
    machine = LogMachine(header.instance, gpu, _links(header), header.instance or _host_names(header))
    shared = any(shares_gpu(header, row.flags) for _, row in rows)
    evidence = RunEvidence(
        run,
        machine,
        run.rows,
        header.num_ranks,
        header.num_nodes,
        modelled=header.modelled,
        transport=header.transport,
        hints=(Hint("shared", "flag shared_gpu in the header or its rows", 1),) if shared else (),
        doubtful=_own_rows(doubtful),
    )
    if not sound:
        return with_references(evidence)
    best, _ = max(sound, key=lambda pair: pair[1].busbw_bytes_per_s or 0.0)
    bound_by = replace(header, links=machine.links.to_dict()) if machine.links else header
    return with_references(replace(evidence, bounds=bounds_of(bound_by, best)))


def _links(header: Header) -> NodeLinks | None:
    """Return the links that the user gave for the run.

    If the user gave no links, return the PCIe links that the GPUs reported, or None if they are unknown.
    """
    if header.links:
        return NodeLinks.from_dict(header.links)
    gpus = _gpus(header)
    links = {pcie_as_linked(gpu) for gpu in gpus}
    models = {gpu_printed(str(gpu.get("name"))) for gpu in gpus}
    if moves_host_memory(header.transport) or len(links) != 1 or len(models) != 1:
        return None
    link, model = links.pop(), models.pop()
    if link is None or model is None:
        return None
    return gpu_links(model, header.ranks_per_node or 1).with_rates({"pcie": pcie_bytes_per_s(*link)})


def _gpu_model(header: Header) -> str | None:
    """Return the GPU model that all nodes reported; None if their GPUs differ."""
    models = {gpu_printed(str(gpu.get("name"))) for gpu in _gpus(header)}
    return models.pop() if len(models) == 1 and not moves_host_memory(header.transport) else None


def _gpus(header: Header) -> list[Mapping[str, Any]]:
    """Return the GPUs of all nodes, as each node reported them."""
    return [gpu for node in header.nodes.values() for gpu in node.get("gpus") or ()]


def _host_names(header: Header) -> str:
    names = ", ".join(list(header.nodes)[:_MOST_HOSTS])
    return f"{names}, ..." if len(header.nodes) > _MOST_HOSTS else names


def _own_rows(rows: Sequence[Summary]) -> tuple[ForeignRow, ...]:
    """Convert summaries to rows.

    Rates come from pipelined operations or, if no row is pipelined, from isolated operations. Times come from isolated
    operations.
    """
    rated = "pipelined" if any(row.mode == "pipelined" for row in rows) else "isolated"
    return tuple(_own_row(row, row.mode == rated) for row in rows)


def _own_row(row: Summary, rated: bool) -> ForeignRow:
    return ForeignRow(
        payload_bytes=row.payload_bytes,
        dtype=row.dtype,
        reduce_op=row.reduce_op,
        root=row.root,
        in_place=row.in_place,
        time_s=row.median_s if row.mode == "isolated" else None,
        algbw_bytes_per_s=row.algbw_bytes_per_s if rated else None,
        num_wrong=row.num_wrong,
        busbw_bytes_per_s=row.busbw_bytes_per_s if rated else None,
    )
