"""Explain why a job is slow or failed, from all of its files: traces, logs, topologies, dumps."""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.commands import _job_explain, doctor, explain
from bench.core.errors import EXIT_DONE, UsageError
from bench.core.wrapping import wrapped
from bench.results import output
from bench.results.table import as_json

SCHEMA = "bench.why/1"
# Records of collectives without compute. They show what failed, but not where a step's time goes.
_READ_AS_LOGS = ("flight-recorder", "inspector")
_LOG_SUFFIXES = (".log", ".txt", ".out", ".err")
EXAMPLES = (
    ("linkbench why trace/ train.log nccl-tests.log topo.txt", "what do these files say about the job, on one page?"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    explain.arguments(parser)
    _job_explain.add_storage_arguments(parser)


@dataclass
class _Pages:
    """The files by kind (traces, logs, machines), and the pages that were printed about them.

    `code`: the exit code, which the worst verdict determines.
    """

    traces: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    machines: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)  # file -> why it was not read
    pages: list[str] = field(default_factory=list)
    code: int = EXIT_DONE

    def add(self, page: str, code: int) -> None:
        """Add a page. `code` is its exit code."""
        self.pages.append(page.rstrip())
        self.code = max(self.code, code)


def main(args: argparse.Namespace) -> int:
    """Print the page of the job in the traces, then the pages of the logs, then the pages of the machines.

    Returns 1 if `explain` or `doctor` would return 1 for one of the files. Raises UsageError if no file can be read.
    """
    found = _Pages()
    is_json = args.format == "json"
    document: dict[str, Any] = {"schema": SCHEMA, "files": {}, "job": None, "explain": None, "machines": []}
    others = _explain_traces(args, found, document)
    for name in others:
        try:
            explain.rendered(_of(args, [name]))
        except UsageError as error:
            if name not in found.traces and not _explain_machine(args, name, found, document):
                found.unread[name] = str(error)
        else:
            found.logs.append(name)
    if found.logs:
        page, code = explain.rendered(_of(args, found.logs))
        document["explain"] = json.loads(page) if is_json else None
        found.add(page, code)
    if not found.pages:
        raise UsageError("; ".join(dict.fromkeys(found.unread.values())))
    if is_json:
        document["files"] = {"traces": found.traces, "logs": found.logs, "machines": found.machines}
        document["unread"] = [{"file": name, "why": why} for name, why in found.unread.items()]
        output.emit(as_json(document), args)
    else:
        head = [part for line in _files(found) for part in wrapped(line, output.page_width(args), "#   ")]
        output.emit("\n\n".join([*found.pages, "\n".join(head)]), args)
    return found.code


def _explain_traces(args: argparse.Namespace, found: _Pages, document: dict[str, Any]) -> list[str]:
    """Explain all traces together, as one job. Returns the names of the files that may be logs."""
    from bench.core import plugins
    from bench.logs import step_traces

    names = [str(name) for name in args.paths]
    traces = [name for name in names if Path(name).exists() and step_traces.formats(Path(name)) - {*_READ_AS_LOGS}]
    if not traces:
        return names
    archives = [name for name in traces if step_traces.formats(Path(name)) == {"archive"}]  # these may also hold logs
    try:
        report = _job_explain.report_of(
            [Path(name) for name in traces], args.instance, args.config, (), args.feed, args.demand
        )
    except UsageError as error:
        broken = [name for name in traces if name not in archives]
        found.unread.update(dict.fromkeys(broken, str(error)))
        return [name for name in names if name not in broken]
    read = [trace.source for trace in report.explained.job.traces.values()]
    without = [name for name in archives if not any(source.startswith(f"{name}:") for source in read)]
    found.traces = [name for name in traces if name not in without]
    document["job"] = report.data()
    rendered = plugins.load("format", args.format).render(report, output.page_width(args))
    found.add(rendered if args.format != "json" else "", EXIT_DONE)
    return [*(name for name in names if name not in traces), *_logs_in(traces), *archives]


def _logs_in(folders: Sequence[str]) -> Iterator[str]:
    """Yield the logs in folders of traces. `job record` lets NCCL write some logs there."""
    for folder in map(Path, folders):
        if folder.is_dir():
            logs = (path for path in folder.rglob("*") if path.suffix in _LOG_SUFFIXES and path.is_file())
            yield from map(str, sorted(logs))


def _explain_machine(args: argparse.Namespace, name: str, found: _Pages, document: dict[str, Any]) -> bool:
    """Explain a machine from the output of nvidia-smi, lspci or NCCL.

    Returns whether the file is an output of one of these programs.
    """
    try:
        page, code = doctor.recorded_page(Path(name), args.instance, args)
    except UsageError:
        return False
    found.machines.append(name)
    if args.format == "json":
        document["machines"].append(json.loads(page))
    found.add(page, code)
    return True


def _of(args: argparse.Namespace, names: Sequence[str]) -> argparse.Namespace:
    of_logs = copy.copy(args)
    of_logs.paths = [*names]
    return of_logs


def _files(found: _Pages) -> Iterator[str]:
    """Yield one line for each file, which says how the file was read or why it was not read.

    These lines follow the pages.
    """
    for kind, names in (("a trace", found.traces), ("a log", found.logs), ("a machine", found.machines)):
        yield from (f"# {name}: read as {kind}" for name in names)
    yield from (f"# {name}: not read: {why}" for name, why in found.unread.items())
