"""What another tool printed becomes a results file of the run, as ranks of ours would have written it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from bench.core.case import to_argv
from bench.core.errors import UsageError
from bench.core.record import Header
from bench.core.tool import Tool
from bench.driver.jobs import Job
from bench.probes import versions
from bench.store import jsonl, runs


def keep(job: Job, tool: Tool, folder: Path, began: datetime) -> str | None:
    """Write the results file of a job that another tool ran. Returns what is wrong with its output; None when nothing.

    Raises MeasurementError when the file can not be written.
    """
    output = runs.output_file(folder, job.name)
    text = output.read_text(encoding="utf-8", errors="replace")
    try:
        records = tool.records(text, job.case, job.world)
    except UsageError as error:
        return f"{tool.title}: {error}; its output is in {output}"
    if not records:
        return f"{tool.title} ended without a result of a size that was asked for; its output is in {output}"
    writer = jsonl.Writer(runs.results_file(folder, job.name), _header(job, tool, text, began))
    for record in records:
        writer.append(record)
    return None


def _header(job: Job, tool: Tool, text: str, began: datetime) -> Header:
    case, version = job.case, tool.version(text)
    known = {job.tool: version} if version else {}
    return Header(
        job=job.name,
        case=tuple(to_argv(case)),
        pattern=case.pattern,
        transport=job.tool,
        dtype=case.dtype,
        reduce_op=case.reduce_op if case.pattern in tool.reductions else "",
        root=None,
        direction=None,
        topology=case.topology,
        num_ranks=job.world.num_ranks,
        num_nodes=job.world.num_nodes,
        ranks_per_node=job.world.ranks_per_node,
        clock="host",
        modelled=False,
        started=began.isoformat(timespec="seconds"),
        argv=job.command,
        versions={**versions.versions(), **known},
        facts={"tool": job.tool, "title": tool.title},
        launch=job.launch,
        notes=(f"measured by {tool.title}{f' {version}' if version else ''}",),
    )
