"""Why is it slow, or why did it fail? Give it all files of a job: traces, logs, topologies, dumps."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

from bench.commands import _job_explain, explain
from bench.core.errors import EXIT_DONE, UsageError
from bench.results import output
from bench.results.table import as_json

SCHEMA = "bench.why/1"
# Records of collectives without compute: they say what failed, and not where a step went.
_READ_AS_LOGS = ("flight-recorder", "inspector")
EXAMPLES = (("linkbench why trace/ train.log nccl-tests.log topo.txt", "what does each file say, on one page?"),)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    explain.arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print what the traces say, then what the logs say. Returns 1 if `explain` would for the logs."""
    from bench.core import plugins
    from bench.logs import step_traces

    traces = [name for name in args.paths if Path(name).exists() and step_traces.formats(Path(name)) - {*_READ_AS_LOGS}]
    logs = [name for name in args.paths if name not in traces]
    pages: list[str] = []
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "files": {"traces": traces, "logs": logs},
        "job": None,
        "explain": None,
    }
    code = EXIT_DONE
    if traces:
        report = _job_explain.report_of([Path(name) for name in traces], args.instance, args.config)
        document["job"] = report.data()
        pages.append(plugins.load("format", args.format).render(report) if args.format != "json" else "")
    if logs:
        of_logs = copy.copy(args)
        of_logs.paths = logs
        try:
            page, code = explain.rendered(of_logs)
        except UsageError as error:
            if not traces:
                raise
            page = f"# {', '.join(logs)}: {error}"
            document["problem"] = str(error)
        else:
            document["explain"] = json.loads(page) if args.format == "json" else None
        pages.append(page)
    if args.format == "json":
        output.emit(as_json(document), args)
    else:
        told = [("a trace", traces), ("a log", logs)]
        head = [f"# {name}: read as {kind}" for kind, names in told for name in names]
        output.emit("\n\n".join(["\n".join(head), *(page.rstrip() for page in pages)]), args)
    return code
