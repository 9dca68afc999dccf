"""Add the options that `run`, `plan`, `doctor` and `diagnose` share, and build a plan request from these options."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.controller.plan import PlanRequest
from bench.core.errors import UsageError
from bench.core.units import option_duration


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a scenario and a cluster.

    Also add the options that override settings of the scenario.
    """
    parser.add_argument(
        "scenario", nargs="?", default="main", help="name of a file in scenarios/, or a path (default main)"
    )
    parser.add_argument("--cluster", default="local", help="entry of bench.yaml (default local)")
    parser.add_argument(
        "--config", type=Path, default=None, metavar="FILE", help="bench.yaml to read (default ./bench.yaml)"
    )
    parser.add_argument("--model", action="store_true", help="model the cluster's links instead of measuring")
    parser.add_argument(
        "--budget", metavar="TIME", help="time budget of a launch, such as 30s or 2m (default: the scenario's)"
    )
    parser.add_argument("--tool-path", type=Path, metavar="DIR", help="folder of programs for a scenario's `tools:`")
    parser.add_argument(
        "--launches",
        metavar="N",
        help="launches of each job (default: the scenario's); run also takes auto: as many as a comparison needs",
    )


def request(args: argparse.Namespace) -> PlanRequest:
    """Return the plan request of parsed arguments. Raises UsageError that names the option."""
    return PlanRequest(
        args.scenario,
        args.cluster,
        args.config,
        args.model,
        None if args.budget is None else option_duration("--budget", args.budget),
        None if args.launches is None else _launches(args.launches),
        args.tool_path,
    )


def _launches(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--launches {text!r} must be a whole number of 1 or more")
    return int(text)
