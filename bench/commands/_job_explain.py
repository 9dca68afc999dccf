"""Say where the steps of a training job went, which rank or link it was, and what would help."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core.errors import EXIT_DONE, UsageError
from bench.results import output

if TYPE_CHECKING:
    from bench.core.codes import Coded
    from bench.job.model import TracedJob
    from bench.job.network import Network
    from bench.job.page import JobReport

EXAMPLES = (
    ("linkbench job explain trace/", "where did the step go, and what would help?"),
    ("linkbench job explain trace/ --instance p5", "the same, beside what the links of this machine give alone"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand to the parser."""
    words = "traces of the ranks: files, folders, archives"
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=words)
    parser.add_argument("--instance", metavar="NAME", help="the machine: bounds of its links beside the exchanges")
    parser.add_argument(
        "--run", action="append", default=[], type=Path, metavar="RUN", help="a run of this suite on the same links"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the bench.yaml to read (default: ./bench.yaml)")
    parser.add_argument(
        "--price", type=float, metavar="USD", help="of one GPU-hour: what each cause costs; with --steps"
    )
    parser.add_argument("--steps", type=int, metavar="N", help="steps of the whole training, for --price")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one HTML page with a picture and the data")
    words = "draw a bar for each rank (.png, .svg or .pdf)"
    parser.add_argument("--plot", type=output.drawing, metavar="FILE", help=words)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the page. Returns EXIT_DONE; raises UsageError if no file is a trace."""
    from bench.job.page import TrainingPrice

    if (args.price is None) != (args.steps is None):
        raise UsageError("--price needs --steps N, the steps of the whole training, and --steps needs --price")
    if args.price is not None and not (args.price > 0 and args.steps > 0):
        raise UsageError("--price and --steps must be above zero")
    report = report_of(args.paths, args.instance, args.config, args.run)
    if args.price is not None:
        price = TrainingPrice(args.price, args.steps, report.explained.job.num_ranks)
        report = replace(report, price=price)
    output.show(report, args)
    _write_pictures(report, args)
    return EXIT_DONE


def read_job(paths: Sequence[Path]) -> tuple[TracedJob, list[Coded]]:
    """Return the job whose traces these files hold, and remarks on files. Raises UsageError if no file is a trace."""
    from bench.job.align import job_of
    from bench.logs import step_traces

    traces, remarks = step_traces.read(paths)
    if not any(trace.num_events or trace.collectives for trace in traces):
        found = [*remarks, *(remark for trace in traces for remark in trace.remarks)]
        reasons = "; ".join(remark.text for remark in found[:3]) or "the folder holds no trace"
        raise UsageError(f"nothing to explain: {reasons}")
    return job_of(traces), remarks


def _write_pictures(report: JobReport, args: argparse.Namespace) -> None:
    """Write the page and the figure that were asked for."""
    if args.html is not None:
        from bench.page import job as job_page

        try:
            output.replace_file(args.html, job_page.html(report, str(args.paths[0])).encode())
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
    traces: Sequence[Path], instance: str | None, config: Path | None, evidence_runs: Sequence[Path] = ()
) -> JobReport:
    """Return the page of a job. instance: the machine that the user named. Raises UsageError if no file is a trace."""
    from bench.job.explain import explained
    from bench.job.page import JobReport

    job, remarks = read_job(traces)
    return JobReport(explained(job, _network(instance, config, evidence_runs, job)), remarks)


def _network(
    instance: str | None, config: Path | None, evidence_runs: Sequence[Path], job: TracedJob
) -> Network | None:
    """Return the links that the user named; None if they named none."""
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
