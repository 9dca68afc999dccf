"""Options of `linkbench select` for a whole training run: its length and limits, prices, failures and energy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core.errors import UsageError
from bench.core.units import parse_duration
from bench.hardware.catalogue import Price
from bench.predict import workload_file
from bench.predict.cost import Energy, given_prices
from bench.predict.goodput import PUBLISHED_NODE_MTBF_S, Goodput
from bench.predict.messages import Refusal
from bench.predict.price_file import load_prices
from bench.predict.whole_run import RunLimits

if TYPE_CHECKING:
    from bench.predict.workload import Workload

_DAY_S = 86400.0
_RESTART_S = 600.0  # for scheduling, loading the checkpoint and the first steps; a guess
_MOST_USD = 1e12
# Options that need another option. Maps an attribute to the attribute that it needs.
_NEEDS = {
    "checkpoint_every": "checkpoint",
    "restart": "checkpoint",
    "node_mtbf": "checkpoint",
    "usd_per_kwh": "prices",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--samples", type=_length("--samples"), metavar="N", help="samples of the whole run, such as 300M"
    )
    length.add_argument("--tokens", type=_length("--tokens"), metavar="N", help="tokens of the whole run, such as 15T")
    length.add_argument("--epochs", type=_length("--epochs"), metavar="N", help="epochs of the whole run (default 1)")
    parser.add_argument("--budget", type=_dollars("--budget"), metavar="USD", help="the most the whole run may cost")
    parser.add_argument(
        "--deadline", type=_span("--deadline"), metavar="TIME", help="the longest that the whole run may take: 12h, 3d"
    )
    words = "your prices, spot or reserved (docs/selection.md); --price replaces one of them"
    parser.add_argument("--prices", type=Path, metavar="FILE", help=words)
    words = "time to write one checkpoint; also counts failures and checkpoints"
    parser.add_argument("--checkpoint", type=_span("--checkpoint"), metavar="TIME", help=words)
    words = "working time between two checkpoints (default: Young's interval)"
    parser.add_argument("--checkpoint-every", type=_span("--checkpoint-every"), metavar="TIME", help=words)
    words = "time from a failure until the job trains again (default 10m, a guess)"
    parser.add_argument("--restart", type=_span("--restart"), metavar="TIME", help=words)
    words = "mean time between failures of one node (default 264d, from Llama 3's report)"
    parser.add_argument("--node-mtbf", type=_span("--node-mtbf"), metavar="TIME", help=words)
    words = "price of energy, added for machines with `watts` in the file of --prices"
    parser.add_argument("--usd-per-kwh", type=_dollars("--usd-per-kwh"), metavar="USD", help=words)
    parser.add_argument("--wide", action="store_true", help="also print the parts of the step and all remarks")


def check(args: argparse.Namespace) -> None:
    """Raise UsageError if the user gives an option without a second option that the first option needs."""
    for attribute, needed in _NEEDS.items():
        if getattr(args, attribute) is not None and getattr(args, needed) is None:
            raise UsageError.of(Refusal.OPTION_ALONE, option=_option(attribute), needed=_option(needed))


def prices_of(
    args: argparse.Namespace, known: list[str], today: date
) -> tuple[dict[str, float | Price], dict[str, float]]:
    """Return the user's prices and the power of a node in watts, each by instance type.

    `--price` overrides the prices file.
    """
    prices: dict[str, float | Price] = {}
    watts: dict[str, float] = {}
    if args.prices is not None:
        filed, watts = load_prices(args.prices, known, today)
        prices.update(filed)
    prices.update(given_prices(args.price, known))
    return prices, watts


def goodput_of(args: argparse.Namespace) -> Goodput | None:
    """Return the model of failures and checkpoints.

    Return None if the user does not give the time for writing a checkpoint (--checkpoint).
    """
    if args.checkpoint is None:
        return None
    return Goodput(
        node_mtbf_s=args.node_mtbf or PUBLISHED_NODE_MTBF_S,
        checkpoint_s=args.checkpoint,
        restart_s=args.restart or _RESTART_S,
        every_s=args.checkpoint_every,
    )


def energy_of(args: argparse.Namespace, watts: dict[str, float]) -> Energy | None:
    """Return the energy price and the node power of each instance type in watts.

    Return None if the user gives no energy price.
    """
    return None if args.usd_per_kwh is None else Energy(args.usd_per_kwh, watts)


def limits_of(args: argparse.Namespace, workload: Workload) -> RunLimits:
    """Return the length and the limits of the run. Raises UsageError if a required figure is unknown."""
    samples: float | None = workload.epoch_samples
    if args.samples is not None:
        samples = args.samples
    elif args.tokens is not None:
        if workload.model.tokens is None:
            raise UsageError.of(Refusal.TOKENS_UNKNOWN, workload=workload.name)
        samples = args.tokens / workload.model.tokens
    elif args.epochs is not None:
        if workload.epoch_samples is None:
            raise UsageError.of(Refusal.EPOCH_UNKNOWN, workload=workload.name)
        samples = args.epochs * workload.epoch_samples
    for attribute in ("budget", "deadline"):
        if samples is None and getattr(args, attribute) is not None:
            raise UsageError.of(Refusal.LENGTH_UNKNOWN, option=_option(attribute))
    return RunLimits(samples, args.budget, args.deadline, args.tokens)


def _option(attribute: str) -> str:
    return "--" + attribute.replace("_", "-")


def _span(option: str) -> Callable[[str], float]:
    """Return a parser of durations that also accepts a number of days, such as `3d`."""

    def parse(typed: str) -> float:
        number, day = typed.strip().removesuffix("d"), typed.strip().endswith("d")
        try:
            return _DAY_S * parse_duration(number) if day else parse_duration(typed)
        except UsageError:
            raise UsageError.of(Refusal.SPAN_INVALID, option=option, typed=typed) from None

    return parse


def _length(option: str) -> Callable[[str], float]:
    def parse(typed: str) -> float:
        try:
            return workload_file.count(typed)
        except UsageError:
            raise UsageError.of(Refusal.LENGTH_INVALID, option=option, typed=typed) from None

    return parse


def _dollars(option: str) -> Callable[[str], float]:
    def parse(typed: str) -> float:
        try:
            number = float(typed)
        except ValueError:
            number = 0.0
        if not 0 < number < _MOST_USD:
            raise UsageError.of(Refusal.DOLLARS_INVALID, option=option, typed=typed)
        return number

    return parse
