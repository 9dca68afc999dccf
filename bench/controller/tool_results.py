"""Convert another tool's output to a results file in the format that the ranks of this suite write."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from bench.controller.jobs import Job
from bench.controller.messages import OutcomeCode
from bench.core import plugins
from bench.core.case import Case
from bench.core.case_argv import to_argv
from bench.core.errors import UsageError
from bench.core.pattern import Pattern, traffic_of
from bench.core.record import Failure, Flag, Header, Record
from bench.logs.check import is_by_definition
from bench.logs.foreign import ForeignRow, ForeignRun
from bench.logs.tool import Tool
from bench.probes import versions
from bench.store import jsonl, runs


def store(job: Job, tool: Tool, folder: Path, began: datetime, share_hosts: bool) -> Failure | None:
    """Write the results file of another tool's job.

    Returns a failure if the tool's output cannot be used, and None if it can.

    `share_hosts`: whether other benchmarks may have run on the hosts. If other benchmarks may have run, every row gets
        a flag for this.

    Raises MeasurementError if the file cannot be written.
    """
    output = runs.output_file(folder, job.name)
    text = output.read_text(encoding="utf-8", errors="replace")
    try:
        records = tool.records(text, job.case, job.world, _read_once(runs.document_file(folder, job.name)))
    except UsageError as error:
        return Failure.of(OutcomeCode.TOOL_OUTPUT, tool=tool.title, why=str(error), output=str(output))
    if not records:
        return Failure.of(OutcomeCode.TOOL_NO_RESULT, tool=tool.title, output=str(output))
    writer = jsonl.Writer(runs.results_file(folder, job.name), _header(job, tool, text, began))
    pattern: Pattern = plugins.load("pattern", job.case.pattern).PATTERN
    for record in records:
        if share_hosts:
            record = replace(record, flags=(*record.flags, Flag.SHARED_HOST))
        writer.append(by_definition(record, job.case, pattern))
    return None


def _read_once(file: Path) -> str:
    """Read the text of the file, then delete the file, because nccl-tests writes its whole environment into it.

    The text is '' if there is no file.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        file.unlink()
    except OSError:
        return ""
    return text


def by_definition(record: Record, case: Case, pattern: Pattern) -> Record:
    """Add the bus factor and the traffic, by this suite's definitions, to a record with rates or samples.

    If the tool reports no busbw, busbw is algbw times the bus factor. The record gets a flag if the tool reports a
    busbw that contradicts this suite's definition.
    """
    reported = dict(record.reported or {})
    if record.num_ranks is None or not record.payload_bytes or not (record.samples or "algbw_bytes_per_s" in reported):
        return record
    shape = case.shape(record.num_ranks, record.payload_bytes, record.mode)
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
    if traffic.bus_factor is None:  # one rank moves no data, so there is no bandwidth
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
    case, version, links = job.case, tool.version(text), tool.links(text)
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
        facts={"tool": job.tool, "title": tool.title, **tool.facts(case, text)},
        links=links.to_dict() if links else {},
        launch=job.launch,
        notes=(f"measured by {tool.title}{f' {version}' if version else ''}", *tool.notes(case)),
    )
