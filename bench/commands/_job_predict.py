"""Predict the steps of a recorded training job on another machine: its exchanges there, its compute scaled."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.core.errors import EXIT_DONE, UsageError
from bench.results import output

EXAMPLES = (("linkbench job predict trace/ --instance p5 --nodes 2", "how long would its steps take there?"),)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand to the parser."""
    words = "traces of the ranks: files, folders, archives"
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=words)
    parser.add_argument("--instance", required=True, metavar="NAME", help="the machine: see linkbench instances")
    parser.add_argument("--nodes", type=int, metavar="N", help="how many of them (default: as many as the ranks need)")
    parser.add_argument(
        "--run", action="append", default=[], type=Path, metavar="RUN", help="a run of this suite as evidence"
    )
    words = "seconds of compute there / recorded ones (default: an interval from the GPUs' data sheets)"
    parser.add_argument("--compute-factor", type=float, metavar="X", help=words)
    parser.add_argument("--config", type=Path, metavar="FILE", help="the bench.yaml to read (default: ./bench.yaml)")
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the prediction. Raises UsageError for unknown machines and for traces without steps or other ranks."""
    from bench.commands._job_explain import read_job
    from bench.config import clusters, paths
    from bench.job.elsewhere import Elsewhere, factor_of
    from bench.job.network import Network
    from bench.predict import from_args

    job, _ = read_job(args.paths)
    if job.missing:
        raise UsageError(f"{len(job.missing)} of {job.num_ranks} ranks have no trace: a prediction needs all of them")
    if not job.num_steps:
        raise UsageError("the ranks recorded no step in common: there is nothing to predict")
    found = clusters.load_site(paths.config_file(args.config)).instance(args.instance)
    nodes = args.nodes or -(-job.num_ranks // found.gpus)
    if nodes < 1 or nodes * found.gpus < job.num_ranks or job.num_ranks % nodes:
        raise UsageError(
            f"{job.num_ranks} ranks do not fit evenly on {nodes} nodes of {found.name} ({found.gpus} GPUs each)"
        )
    per_node = job.num_ranks // nodes
    site = clusters.load_site(paths.config_file(args.config))
    links, evidence = site.links(found.name, per_node), from_args.evidence(args.run)
    network = Network(found.name, links, evidence, job, per_node)
    output.show(Elsewhere(job, network, nodes, factor_of(job, found.gpu, args.compute_factor)), args)
    return EXIT_DONE
