"""Explain where a training job's step time goes, which rank or link causes delays, and what would help."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core.errors import EXIT_DONE, UsageError
from bench.core.option_parsers import demand
from bench.job.messages import CauseCode
from bench.results import output

if TYPE_CHECKING:
    from bench.core.codes import Coded
    from bench.job.model import TracedJob
    from bench.job.network import Network
    from bench.job.page import JobReport
    from bench.job.storage import FeedEvidence
    from bench.results.training_rows import Fed

_RESULTS = Path("results")
EXAMPLES = (
    ("linkbench job explain trace/", "where does the step time go, and what would help?"),
    (
        "linkbench job explain trace/ --instance p5",
        "also compare the exchanges with the bounds of this machine's links",
    ),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand to the parser."""
    words = "traces of the ranks: files, folders, archives"
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=words)
    parser.add_argument("--instance", metavar="NAME", help="the machine; compare the exchanges with its links' bounds")
    parser.add_argument(
        "--run", action="append", default=[], type=Path, metavar="RUN", help="a run of this suite on the same links"
    )
    add_storage_arguments(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="the bench.yaml to read (default: ./bench.yaml)")
    parser.add_argument(
        "--price", type=float, metavar="USD", help="price of a GPU-hour: print what each cause costs; needs --steps"
    )
    parser.add_argument("--steps", type=int, metavar="N", help="steps of the whole training, for --price")
    words = "write one HTML page with a picture and the data"
    parser.add_argument("--html", type=output.writable("--html"), metavar="FILE", help=words)
    words = "draw a bar for each rank (.png, .svg or .pdf)"
    parser.add_argument("--plot", type=output.drawing, metavar="FILE", help=words)
    output.add_output_arguments(parser)


def add_storage_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe the job's storage."""
    words = "a run of `feed` on the job's storage (default: the latest in results/ of one of the job's hosts)"
    parser.add_argument("--feed", type=Path, metavar="RUN", help=words)
    words = "bytes per second that the job reads, such as 2GB/s: compare them with the storage's rate"
    parser.add_argument("--demand", type=demand, metavar="RATE", help=words)


def main(args: argparse.Namespace) -> int:
    """Print the page. Returns EXIT_DONE. Raises UsageError if no file is a trace."""
    from bench.job.page import TrainingPrice

    if (args.price is None) != (args.steps is None):
        raise UsageError("--price needs --steps N, the steps of the whole training, and --steps needs --price")
    if args.price is not None and not (args.price > 0 and args.steps > 0):
        raise UsageError("--price and --steps must be above zero")
    report = report_of(args.paths, args.instance, args.config, args.run, args.feed, args.demand)
    if args.price is not None:
        price = TrainingPrice(args.price, args.steps, report.explained.job.num_ranks)
        report = replace(report, price=price)
    output.show(report, args)
    _write_pictures(report, args)
    return EXIT_DONE


def read_job(paths: Sequence[Path]) -> tuple[TracedJob, list[Coded]]:
    """Return the job that these traces record, and remarks on the trace files.

    Raises UsageError if no file is a trace.
    """
    from bench.job.matching import job_of
    from bench.logs import step_traces

    traces, remarks = step_traces.read(paths)
    if not any(trace.num_events or trace.collectives for trace in traces):
        found = [*remarks, *(remark for trace in traces for remark in trace.remarks)]
        names = " ".join(map(str, paths))
        reasons = "; ".join(remark.text for remark in found[:3]) or f"{names} holds no trace"
        raise UsageError(f"nothing to explain: {reasons}; if these are logs, use linkbench explain {names}")
    return job_of(traces), remarks


def _write_pictures(report: JobReport, args: argparse.Namespace) -> None:
    """Write the page and the figure that the user requested."""
    if args.html is not None:
        from bench.page import job as job_page

        try:
            output.replace_file(args.html, job_page.html(report, args.paths[0].resolve().name).encode())
        except OSError as error:
            raise UsageError(f"--html {args.html} cannot be written: {error.strerror}") from None
    if args.plot is not None:
        if report.explained.step_s is None:
            raise UsageError("--plot draws the parts of steps, and these traces have no step in common")
        from bench.figures import _job, _style

        try:
            _style.write(_job.draw(report), args.plot)
        except OSError as error:
            raise UsageError(f"--plot {args.plot} cannot be written: {error.strerror}") from None


def report_of(
    traces: Sequence[Path],
    instance: str | None,
    config: Path | None,
    evidence_runs: Sequence[Path] = (),
    feed: Path | None = None,
    demand_bytes_per_s: float | None = None,
) -> JobReport:
    """Return the page of a job. Raises UsageError if no file is a trace.

    `instance`: the machine that the user named.
    `feed`: a stored run of the pattern `feed`, which measured the job's storage.
    `demand_bytes_per_s`: the rate at which the job reads its data, in bytes per second.
    """
    from bench.job.explain import explained
    from bench.job.page import JobReport
    from bench.job.storage import with_storage

    job, remarks = read_job(traces)
    found = explained(job, _network(instance, config, evidence_runs, job))
    if any(cause.code == CauseCode.LATE_INPUT for cause in found.causes):  # no other cause needs the storage
        found = with_storage(found, _storage(feed, demand_bytes_per_s, job))
    return JobReport(found, remarks)


def _storage(feed: Path | None, demand_bytes_per_s: float | None, job: TracedJob) -> FeedEvidence | None:
    """Return the measurements of the job's storage, or None if there are none.

    Raises UsageError if the run in `--feed` did not measure the pattern `feed`.
    """
    from bench.job.storage import FeedEvidence, feeds_of_host
    from bench.results import collect

    if feed is not None:
        rows = collect.document(collect.find(str(feed), _RESULTS)).feeds
        if not rows:
            raise UsageError(f"--feed {feed} holds no row of feed: linkbench run feed, or linkbench tune feed")
        return FeedEvidence(str(feed), rows, demand_bytes_per_s)
    hosts = [trace.host for trace in job.traces.values() if trace.host]
    found = feeds_of_host(_stored_feeds(), hosts) if hosts else None
    return found and replace(found, demand_bytes_per_s=demand_bytes_per_s)


def _stored_feeds() -> Iterator[tuple[str, list[str], tuple[Fed, ...]]]:
    """Yield (name, hosts, rows) for each run of the pattern `feed` in results/, the newest run first."""
    from bench.results import collect
    from bench.store import runs

    for folder in reversed(runs.in_order(_RESULTS)):
        try:
            planned = runs.read_plan(folder)["jobs"]
            if any(job["case"][:1] == ["feed"] for job in planned if job.get("case")):
                document = collect.document(folder)
                hosts = [str(rank["host"]) for header in document.headers.values() for rank in header.ranks]
                yield str(folder), hosts, document.feeds
        except UsageError:  # a damaged run gives no evidence
            continue


def _network(
    instance: str | None, config: Path | None, evidence_runs: Sequence[Path], job: TracedJob
) -> Network | None:
    """Return the links that the user named, or None if the user named no machine."""
    if instance is None:
        if evidence_runs:
            raise UsageError("--run needs --instance NAME: the links on which that run was measured")
        return None
    from bench.config import clusters, paths
    from bench.job.network import Network
    from bench.predict import from_args

    site = clusters.load_site(paths.config_file(config))
    found = site.instance(instance)
    return Network(found.name, site.links(found.name, found.gpus), from_args.evidence(evidence_runs), job)
