"""Dollars: what a step, a million samples, an epoch and waiting cost, each with the price's region and date.

On-demand list prices of whole instances, per hour, for the time of training alone: no storage, no traffic, no discount
that the user did not give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from bench.core.errors import UsageError
from bench.core.plugins import nearest
from bench.hardware.catalogue import Instance, Price

OLD_AFTER_DAYS = 365
GIVEN = "given for this comparison"


@dataclass(frozen=True, slots=True)
class Priced:
    """The price of one instance, and remarks on it. `price` None: none is known."""

    price: Price | None
    remarks: tuple[str, ...] = ()

    def usd_per_s(self, num_nodes: int) -> float | None:
        """Of so many instances; None: unknown."""
        return None if self.price is None else self.price.usd_per_hour * num_nodes / 3600


def priced(
    found: Instance,
    today: date,
    region: str | None = None,
    on: date | None = None,
    given: Mapping[str, float] | None = None,
) -> Priced:
    """The price to reckon with: the one `given`, else the latest of `region`, or the one in force `on` a day."""
    if given and found.name in given:
        return Priced(Price(given[found.name], "", today.isoformat(), GIVEN, True))
    known = [each for each in found.prices if region in (None, each.region)]
    if not known:
        where = f" in {region}" if region else ""
        return Priced(None, (f"no price is known{where}: give one by --price INSTANCE=USD_PER_HOUR",))
    price = known[-1] if on is None else in_force(known, on)
    if price is None:
        return Priced(None, (f"no price of {on} is known, the first is of {known[0].date}",))
    return Priced(price, tuple(_remarks(price, on or today, _seen_again(known, price, on))))


def in_force(prices: Sequence[Price], on: date) -> Price | None:
    """The last price that was seen on that day or before; None: all are later, or undated."""
    seen = [price for price in prices if price.date is not None and price.date <= on.isoformat()]
    return max(seen, key=lambda price: price.date or "", default=None)


def _seen_again(known: Sequence[Price], price: Price, on: date | None) -> bool:
    """Is the next sighting after that day the same price, so that it held between the two?"""
    later = [] if on is None else [each for each in known if each.date is not None and each.date > on.isoformat()]
    following = min(later, key=lambda each: each.date or "", default=None)
    return following is not None and following.usd_per_hour == price.usd_per_hour


def check_region(region: str | None, known: Sequence[Instance]) -> None:
    """UsageError, with the nearest name, for a region of which no price is known at all."""
    regions = sorted({price.region for each in known for price in each.prices if price.region})
    if region is not None and region not in regions:
        raise UsageError(f"no price of a region {region!r} is known{nearest(region, regions)}")


def earlier(found: Instance, price: Price) -> Price | None:
    """The last price of the same region that was another one; with the day on which it was last seen."""
    before = [
        each
        for each in found.prices
        if each.region == price.region
        and (each.date or "") < (price.date or "")
        and each.usd_per_hour != price.usd_per_hour
    ]
    return before[-1] if before else None


def since(found: Instance, price: Price) -> Price:
    """The first sighting of the price without a change since: `price` with that date."""
    first = price
    for each in reversed(found.prices):
        if each.region == price.region:
            if each.usd_per_hour != price.usd_per_hour:
                break
            first = each
    return replace(price, date=first.date)


def _remarks(price: Price, today: date, seen_again: bool) -> list[str]:
    said = []
    if price.date is None:
        said.append("its price has no date")
    elif not seen_again and (today - date.fromisoformat(price.date)).days > OLD_AFTER_DAYS:
        said.append(f"its price was seen on {price.date}, more than a year before {today}: check it")
    if not price.verified:
        said.append("its price was not read in a source (unverified)")
    return said


def given_prices(words: Sequence[str], known: Sequence[str]) -> dict[str, float]:
    """`p4d.24xlarge=18.5` of a command line, by instance. UsageError for anything else."""
    found = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        if not equals or name not in known:
            hint = nearest(name or word, list(known)) if equals else ""
            raise UsageError(f"--price {word!r} is not INSTANCE=USD_PER_HOUR with a known instance{hint}")
        try:
            number = float(text)
        except ValueError:
            raise UsageError(f"--price {word!r}: {text!r} is no number of dollars per hour") from None
        if not 0 < number < 1e6:
            raise UsageError(f"--price {word!r} must be above zero dollars per hour")
        found[name] = number
    return found
