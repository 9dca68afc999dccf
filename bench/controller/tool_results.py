"""What another tool printed becomes a results file of the run, as ranks of ours would have written it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from bench.controller.jobs import Job
from bench.core import plugins
from bench.core.case import Case, to_argv
from bench.core.dtypes import dtype_of
from bench.core.errors import UsageError
from bench.core.pattern import Pattern, Shape, traffic_of
from bench.core.record import Flag, Header, Record
from bench.logs.check import is_by_definition
from bench.logs.foreign import ForeignRow, ForeignRun
from bench.logs.tool import Tool
from bench.probes import versions
from bench.store import jsonl, runs


def keep(job: Job, tool: Tool, folder: Path, began: datetime) -> str | None:
    """Write the results file of a job that another tool ran. Returns what is wrong with its output; None when nothing.

    Raises MeasurementError when the file can not be written.
    """
    output = runs.output_file(folder, job.name)
    text = output.read_text(encoding="utf-8", errors="replace")
    try:
        records = tool.records(text, job.case, job.world, _taken(runs.document_file(folder, job.name)))
    except UsageError as error:
        return f"{tool.title}: {error}; its output is in {output}"
    if not records:
        return f"{tool.title} ended without a result of a size that was asked for; its output is in {output}"
    writer = jsonl.Writer(runs.results_file(folder, job.name), _header(job, tool, text, began))
    pattern: Pattern = plugins.load("pattern", job.case.pattern).PATTERN
    for record in records:
        writer.append(by_definition(record, job.case, pattern))
    return None


def _taken(file: Path) -> str:
    """What the tool wrote; '' where it did not. It is not kept: nccl-tests puts its whole environment there."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        file.unlink()
    except OSError:
        return ""
    return text


def by_definition(record: Record, case: Case, pattern: Pattern) -> Record:
    """A record with the factors of our own definitions, where it tells rates or samples; one against them is flagged.

    A bandwidth that the tool does not tell is size / time, and that times the factor.
    """
    reported = dict(record.reported or {})
    if record.num_ranks is None or not record.payload_bytes or not (record.samples or "algbw_bytes_per_s" in reported):
        return record
    shape = Shape(
        record.num_ranks,
        record.payload_bytes,
        dtype_of(case.dtype).num_bytes,
        case.root,
        record.mode,
        case.direction,
        case.window,
        case.matrix,
        case.access,
        case.via,
    )
    traffic = traffic_of(pattern, shape, record.num_nodes)
    record = replace(
        record,
        bus_factor=traffic.bus_factor,
        rank_bytes=traffic.rank_bytes,
        node_bytes=traffic.node_bytes,
        min_steps=traffic.min_steps,
    )
    if record.samples:
        return record
    algbw, busbw = reported["algbw_bytes_per_s"], reported.get("busbw_bytes_per_s")
    if traffic.bus_factor is None:  # one rank: nothing moves, which is no bandwidth of 0
        return replace(record, reported={k: v for k, v in reported.items() if k != "busbw_bytes_per_s"})
    if busbw is None:
        return replace(record, reported=reported | {"busbw_bytes_per_s": algbw * traffic.bus_factor})
    row = ForeignRow(record.payload_bytes, algbw_bytes_per_s=algbw, busbw_bytes_per_s=busbw)
    agrees = is_by_definition(row, ForeignRun("", pattern=case.pattern, num_ranks=record.num_ranks), pattern)
    return (
        record
        if agrees or Flag.CONTRADICTS in record.flags
        else replace(record, flags=(*record.flags, Flag.CONTRADICTS))
    )


def _header(job: Job, tool: Tool, text: str, began: datetime) -> Header:
    case, version = job.case, tool.version(text)
    known = tool.libraries(text) | ({job.tool: version} if version else {})
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    return Header(
        job=job.name,
        case=tuple(to_argv(case)),
        pattern=case.pattern,
        transport=job.tool,
        dtype=case.dtype,
        reduce_op=case.reduce_op if case.pattern in tool.reductions else "",
        root=case.root if pattern.rooted else None,
        direction=pattern.way(case.direction) or None,
        topology=pattern.topology_of(case.topology),
        num_ranks=job.world.num_ranks,
        num_nodes=job.world.num_nodes,
        ranks_per_node=job.world.ranks_per_node,
        clock=tool.clock,
        modelled=False,
        started=began.isoformat(timespec="seconds"),
        argv=job.command,
        versions={**versions.versions(), **known},
        facts={"tool": job.tool, "title": tool.title},
        launch=job.launch,
        notes=(f"measured by {tool.title}{f' {version}' if version else ''}", *tool.notes(case)),
    )
