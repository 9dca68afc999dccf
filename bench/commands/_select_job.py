"""`linkbench select --job`: rank machines for a recorded training job."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bench.commands import _select_run
from bench.core.errors import EXIT_DONE, UsageError
from bench.predict.cost import check_region
from bench.predict.predict import EfficiencyEvidence
from bench.results import output

if TYPE_CHECKING:
    from bench.config.site import InstanceTypes

# Options of `select` that apply only to a workload file. Maps the attribute to the option.
_ONLY_WORKLOADS = {
    "set": "--set",
    "gpus": "--gpus",
    "explain": "--explain",
    "plot": "--plot",
    "samples": "--samples",
    "tokens": "--tokens",
    "epochs": "--epochs",
    "budget": "--budget",
    "deadline": "--deadline",
    "checkpoint": "--checkpoint",
    "usd_per_kwh": "--usd-per-kwh",
    "wide": "--wide",
}


def main(
    args: argparse.Namespace, site: InstanceTypes, evidence: EfficiencyEvidence, rates: dict[tuple[str, str], float]
) -> int:
    """Print the ranked machines.

    Raises UsageError if the traces are unusable, or if an option needs a workload file.
    """
    from bench.commands._job_explain import read_job
    from bench.job.elsewhere import RecordedSteps
    from bench.job.selection import JobQuestion, select_for_job
    from bench.job.selection_page import JobSelectPage

    for name, option in _ONLY_WORKLOADS.items():
        if getattr(args, name):
            raise UsageError(f"{option} needs --workload: it does not apply to a recorded job")
    job, _ = read_job([args.job])
    named = site.instances if args.instances == "all" else [each.strip() for each in args.instances.split(",")]
    names = [site.instance(name).name for name in dict.fromkeys(named)]
    check_region(args.region, [site.instance(name) for name in site.instances])
    today = datetime.now(UTC).date()
    prices, _ = _select_run.prices_of(args, list(site.instances), today)
    question = JobQuestion(
        recorded=RecordedSteps(job),
        evidence=evidence,
        rates=rates,
        today=today,
        region=args.region,
        price_on=args.price_date,
        prices=prices,
    )
    wanted = [(name, nodes) for name in names for nodes in args.nodes or (None,)]
    output.show(JobSelectPage(select_for_job(question, site, wanted, args.by), str(args.job)), args)
    return EXIT_DONE
