"""Read a file of prices: spot prices, reserved prices or the user's own costs, and the power of a node.

p4d.24xlarge: 11.57                  # dollars per hour of one node
g6e.48xlarge:
  usd_per_hour: 18.2
  terms: reserved for 3 years        # shown beside the price
  source: our contract of May
  date: 2026-05-04
  watts: 4300                        # of one node, measured; used by --usd-per-kwh
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

from bench.config import yaml_file
from bench.config.schema import Either, Key, NamedEntries, Section, Value
from bench.core.errors import UsageError
from bench.hardware.catalogue import Price, full_name
from bench.predict.messages import Refusal

_MOST = 1e6


@dataclass(frozen=True, slots=True)
class FiledPrice:
    """One entry of a price file. `watts`: the power of one node, None if it is unknown."""

    usd_per_hour: float
    terms: str = ""
    source: str = ""
    date: str | None = None
    watts: float | None = None


def load_prices(path: Path, known: Sequence[str], today: date) -> tuple[dict[str, Price], dict[str, float]]:
    """Return the prices and the watts of the file, by instance type.

    A price without a date has the date `today`. Raises UsageError with file, line and column for the first mistake.
    """
    file = yaml_file.load(path)
    content = NamedEntries(partial(_known, known=known), Either(_ENTRY, Value(_only_price)))
    content.check_keys(file, ())
    found: Mapping[str, FiledPrice] = content.read(file, ())
    prices, watts = {}, {}
    for name, entry in found.items():
        source = ", ".join(filter(None, (entry.terms, entry.source))) or path.name
        prices[name] = Price(entry.usd_per_hour, entry.terms, entry.date or today.isoformat(), source, True)
        if entry.watts is not None:
            watts[name] = entry.watts
    return prices, watts


def _known(name: str, known: Sequence[str]) -> str:
    return full_name(name, known)


def _only_price(typed: str) -> FiledPrice:
    return FiledPrice(_above_zero(typed))


def _above_zero(typed: str) -> float:
    try:
        number = float(typed)
    except ValueError:
        number = 0.0
    if not 0 < number < _MOST:
        raise UsageError.of(Refusal.AMOUNT_INVALID, typed=typed)
    return number


def _day(typed: str) -> str:
    try:
        return date.fromisoformat(typed).isoformat()
    except ValueError:
        raise UsageError.of(Refusal.DAY_INVALID, typed=typed) from None


_ENTRY = Section(
    {
        "usd_per_hour": Key(Value(_above_zero), required=True),
        "terms": Key(Value(str)),
        "source": Key(Value(str)),
        "date": Key(Value(_day)),
        "watts": Key(Value(_above_zero)),
    },
    FiledPrice,
)
