"""Runs of our own store as `explain` looks at them: what was imported as the foreign run it was, what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.core.codes import UNCODED, Coded
from bench.core.links import NodeLinks
from bench.core.record import Flag, Header, Record
from bench.explain.evidence import RunEvidence, with_references
from bench.explain.log_evidence import Hint
from bench.hardware.bounds import bounds_of, moves_host_memory, shares_gpu
from bench.hardware.catalogue import gpu_links, gpu_printed, instance, instances, pcie_as_linked, pcie_bytes_per_s
from bench.hardware.machine import LogMachine
from bench.logs.foreign import FAILED, OK, ForeignRow, ForeignRun, Matrix, MatrixCell, Remark
from bench.logs.messages import LogCode
from bench.results.consistency import conflicts
from bench.results.document import Conflict, Summary
from bench.results.summary import summarise

Told = Sequence[tuple[str, Header, Sequence[Record]]]


def imported(told: Told) -> list[tuple[ForeignRun, Header]]:
    """The runs that other tools' logs gave, each once, with the rows and matrices of all its jobs; one job's header."""
    found: dict[tuple[str, int], tuple[ForeignRun, Header]] = {}
    for _, header, records in told:
        if not header.imported:
            continue
        key = (str(header.imported["source"]), int(header.imported["line"]))
        run = found[key][0] if key in found else _run(header)
        if "matrix" in header.facts:
            run = replace(run, matrices=(*run.matrices, _matrix(header, records)))
        else:
            rows = (_row(header, record) for record in records if record.reported is not None)
            run = replace(run, rows=(*run.rows, *rows))
        found[key] = (run, header)
    return list(found.values())


def machine_told(header: Header) -> LogMachine | None:
    """The machine whose links bound the run, as it was named when it was measured or imported; None where it was not,
    and the log's own words tell what there is to know."""
    if not header.links or "machine" in header.facts:
        return None
    gpu = instance(header.instance).gpu if header.instance in instances() else None
    how = f"{header.instance or 'the links of its cluster'}, as named when it was imported"
    return LogMachine(header.instance, gpu, NodeLinks.from_dict(header.links), how)


def _run(header: Header) -> ForeignRun:
    told = header.imported
    remarks = tuple(map(Remark.from_dict, told["remarks"]))
    gpus = header.facts.get("gpus", "")
    return ForeignRun(
        tool=told["tool"],
        tool_version=told["tool_version"],
        pattern=header.pattern,
        num_ranks=header.num_ranks,
        num_nodes=header.num_nodes,
        status=told["status"],
        failure=_failure(told),
        hosts=tuple(header.nodes),
        gpus=tuple(gpus.split(", ")) if gpus else (),
        remarks=remarks,
        line=told["line"],
        settings=tuple({**header.settings, **header.versions}.items()),
    )


def _failure(told: Mapping[str, Any]) -> Coded | None:
    """Why an imported run did not end well; files of older versions hold no code."""
    if told["failure"] is None:
        return None
    return Coded(told.get("failure_code") or UNCODED, told.get("failure_facts") or {}, told["failure"])


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
            status = OK if value is not None else "waived" if record.skipped else FAILED
            cells.append(MatrixCell(src, dst, value, status))
    seconds = any("mean_s" in (record.reported or {}) for record in records)
    return Matrix(
        name=header.facts["matrix"],
        unit="s" if seconds else "bytes_per_s",
        direction=header.direction,
        engine=header.facts.get("engine"),
        cells=tuple(cells),
    )


def measured(told: Told) -> Iterator[tuple[str, RunEvidence]]:
    """Our own jobs over whole groups by name, each launch by itself; pairs are `bench diagnose`'s."""
    own = [each for each in told if not each[1].imported]
    summaries = {
        job: [(record, summarise(job, header, record)) for record in records if record.samples is not None]
        for job, header, records in own
    }
    every = [row for rows in summaries.values() for _, row in rows]
    bad = _contradicting(conflicts({job: header for job, header, _ in own}, every))
    for job, header, _ in own:
        rows = summaries[job]
        whole = [(record, row) for record, row in rows if record.group == "world" and record.contention is None]
        if whole:
            yield job, _seen(header, whole, bad)


def _contradicting(found: Sequence[Conflict]) -> frozenset[tuple[str, str, str, int]]:
    """The rows of which two can not both be right, by job, mode, group and payload."""
    return frozenset(
        (job, row["mode"], row["group"], row["payload_bytes"])
        for conflict in found
        for row in (conflict.first, conflict.second)
        for job in row["job"].split(" + ")
    )


def _seen(
    header: Header, every: Sequence[tuple[Record, Summary]], bad: frozenset[tuple[str, str, str, int]] = frozenset()
) -> RunEvidence:
    rows = [pair for pair in every if (pair[1].job, pair[1].mode, pair[1].group, pair[1].payload_bytes) not in bad]
    left_out = [row for _, row in every if row not in [kept for _, kept in rows]]
    run = ForeignRun(
        tool=f"bench over {header.transport}",
        line=0,
        pattern=header.pattern,
        num_ranks=header.num_ranks,
        num_nodes=header.num_nodes,
        hosts=tuple(header.nodes),
        rows=_own_rows([row for _, row in rows]),
    )
    gpu = instance(header.instance).gpu if header.instance in instances() else _gpu(header)
    machine = LogMachine(header.instance, gpu, _links(header), header.instance or _hosts(header))
    shared = any(shares_gpu(header, row.flags) for _, row in every)
    seen = RunEvidence(
        run,
        machine,
        run.rows,
        header.num_ranks,
        header.num_nodes,
        modelled=header.modelled,
        own=True,
        hints=(Hint("shared", "the header or its rows say shared_gpu", 1),) if shared else (),
        doubtful=_own_rows(left_out),
    )
    if not rows:
        return with_references(seen)
    best = max(rows, key=lambda pair: pair[1].busbw_bytes_per_s or 0.0)
    bound_by = replace(header, links=machine.links.to_dict()) if machine.links else header
    return with_references(replace(seen, bounds=bounds_of(bound_by, best[0])))


def _links(header: Header) -> NodeLinks | None:
    """The links that the run was told, else the PCIe links that its GPUs said of themselves."""
    if header.links:
        return NodeLinks.from_dict(header.links)
    gpus = [gpu for node in header.nodes.values() for gpu in node.get("gpus") or ()]
    linked = {pcie_as_linked(gpu) for gpu in gpus}
    models = {gpu_printed(str(gpu.get("name"))) for gpu in gpus}
    if moves_host_memory(header.transport) or len(linked) != 1 or len(models) != 1:
        return None
    link, model = linked.pop(), models.pop()
    if link is None or model is None:
        return None
    return gpu_links(model, header.ranks_per_node or 1).with_rates({"pcie": pcie_bytes_per_s(*link)})


def _gpu(header: Header) -> str | None:
    """The model of all GPUs that the nodes tell of, if it is one."""
    gpus = [gpu for node in header.nodes.values() for gpu in node.get("gpus") or ()]
    models = {gpu_printed(str(gpu.get("name"))) for gpu in gpus}
    return models.pop() if len(models) == 1 and not moves_host_memory(header.transport) else None


def _hosts(header: Header) -> str:
    return f"{', '.join(list(header.nodes)[:4])}{', ...' if len(header.nodes) > 4 else ''}"


def _own_rows(rows: Sequence[Summary]) -> tuple[ForeignRow, ...]:
    """Rates of pipelined operations where there are such, times of isolated ones."""
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
