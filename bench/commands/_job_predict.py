"""Predict the step time of a recorded training job on another machine, from predicted exchanges and scaled compute."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core.errors import EXIT_DONE, UsageError
from bench.results import output

if TYPE_CHECKING:
    from bench.job.elsewhere import Elsewhere, RecordedSteps

EXAMPLES = (
    ("linkbench job predict trace/ --instance p5 --nodes 2", "how long would the job's steps take on p5?"),
    ("linkbench job predict trace/ --run results/RUN", "the same, for the machine that this run measured"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand to the parser."""
    words = "traces of the ranks: files, folders, archives"
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=words)
    parser.add_argument("--instance", metavar="NAME", help="the machine: see linkbench instances")
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: as many as the ranks need)")
    words = "a run of this suite on the instance; without --instance, its machine is predicted"
    parser.add_argument("--run", action="append", default=[], type=Path, metavar="RUN", help=words)
    words = "compute time on that machine / recorded compute time (default: an interval from the data sheets)"
    parser.add_argument("--compute-factor", type=float, metavar="X", help=words)
    parser.add_argument("--config", type=Path, metavar="FILE", help="the bench.yaml to read (default: ./bench.yaml)")
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the prediction.

    Raises UsageError if the machine is unknown, if the traces have no steps, or if the set of traced ranks is wrong.
    """
    from bench.commands._job_explain import read_job
    from bench.job.elsewhere import RecordedSteps
    from bench.job.elsewhere_page import ElsewherePage

    job, _ = read_job(args.paths)
    recorded = RecordedSteps(job)
    elsewhere = _on_instance(args, recorded) if args.instance else _where_measured(args, recorded)
    output.show(ElsewherePage(elsewhere), args)
    return EXIT_DONE


def _on_instance(args: argparse.Namespace, recorded: RecordedSteps) -> Elsewhere:
    from bench.config import clusters, paths
    from bench.job.elsewhere import on_instance
    from bench.predict import from_args

    rates: dict[tuple[str, str], float] = {}
    evidence = from_args.evidence(args.run, rates)
    site = clusters.load_site(paths.config_file(args.config))
    return on_instance(recorded, site, args.instance, args.nodes, evidence, rates, args.compute_factor)


def _where_measured(args: argparse.Namespace, recorded: RecordedSteps) -> Elsewhere:
    """Return the prediction of the job on the machine that a run measured.

    The prediction uses the times that the run measured.
    """
    from bench.job.elsewhere import Elsewhere, factor_of
    from bench.job.measured_network import measured_network
    from bench.results import collect

    if len(args.run) != 1:
        raise UsageError("name the machine with --instance NAME, or with --run RUN one run that measured it")
    if args.nodes is not None:
        raise UsageError("--nodes needs --instance: with --run alone, linkbench predicts the nodes of the run")
    [path] = args.run
    document = collect.document(path)
    network = measured_network(recorded.job, path.stem, document.headers, document.summaries)
    return Elsewhere(recorded, network, network.num_nodes, factor_of(recorded.gpu, None, args.compute_factor, {}))
