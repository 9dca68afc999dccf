"""Choose prices in dollars. Each price has a region and a date.

The catalogue has on-demand list prices of whole instances per hour, without storage, traffic and discounts. A price
that the user gives may include all costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.plugins import nearest
from bench.hardware.catalogue import Instance, Price, full_name
from bench.predict.messages import PredictRemark, Refusal

OLD_AFTER_DAYS = 365
GIVEN = "given for this comparison"


@dataclass(frozen=True, slots=True)
class Priced:
    """The price of one instance, and remarks on the price. An unknown price is None.

    `energy_usd_per_hour`: the cost of the energy of one node, which is not part of the price.
    """

    price: Price | None
    remarks: tuple[Coded, ...] = ()
    energy_usd_per_hour: float = 0.0

    def usd_per_s(self, num_nodes: int) -> float | None:
        """Return the cost of `num_nodes` instances in dollars per second, or None if the price is unknown."""
        if self.price is None:
            return None
        return (self.price.usd_per_hour + self.energy_usd_per_hour) * num_nodes / 3600


@dataclass(frozen=True, slots=True)
class Energy:
    """The cost of energy that the user pays in addition to the price of a machine.

    `usd_per_kwh`: the price of energy, which includes cooling if the user pays for cooling.
    `watts`: the measured power of one node by instance type.
    """

    usd_per_kwh: float
    watts: Mapping[str, float]

    def added(self, found: Priced, instance: str) -> Priced:
        """Add the energy of one node to the price, or a remark if the node's power is unknown."""
        watts = self.watts.get(instance)
        if watts is None:
            return replace(found, remarks=(*found.remarks, Coded.of(PredictRemark.ENERGY_UNKNOWN)))
        return replace(found, energy_usd_per_hour=watts / 1000 * self.usd_per_kwh)


def priced(
    found: Instance,
    today: date,
    region: str | None = None,
    on: date | None = None,
    given: Mapping[str, float | Price] | None = None,
) -> Priced:
    """Return the price to use.

    A price in `given` has priority. If `given` has no price, the price of `region` on the day `on` is used. If no day
    is given, the latest price of `region` is used.
    """
    if given and found.name in given:
        stated = given[found.name]
        if isinstance(stated, Price):  # from a price file, with its terms and date
            return Priced(stated, tuple(_remarks(stated, on or today, seen_again=False)))
        return Priced(Price(stated, "", today.isoformat(), GIVEN, True))
    known = [price for price in found.prices if region in (None, price.region)]
    if not known:
        return Priced(None, (Coded.of(PredictRemark.PRICE_UNKNOWN, region=region),))
    price = known[-1] if on is None else in_force(known, on)
    if price is None:
        return Priced(None, (Coded.of(PredictRemark.PRICE_UNKNOWN_ON, day=str(on), first=known[0].date),))
    return Priced(price, tuple(_remarks(price, on or today, _seen_again(known, price, on))))


def in_force(prices: Sequence[Price], on: date) -> Price | None:
    """Return the last price that was seen on a day or earlier, or None if all prices are later or undated."""
    seen = [price for price in prices if price.date is not None and price.date <= on.isoformat()]
    return max(seen, key=lambda price: price.date or "", default=None)


def _seen_again(known: Sequence[Price], price: Price, on: date | None) -> bool:
    """Check whether `price` was still valid on the day `on`.

    The price was still valid if the next known price after this day is equal to `price`.
    """
    if on is None:
        return False
    later = [each for each in known if each.date is not None and each.date > on.isoformat()]
    following = min(later, key=lambda each: each.date or "", default=None)
    return following is not None and following.usd_per_hour == price.usd_per_hour


def check_region(region: str | None, known: Sequence[Instance]) -> None:
    """Raise UsageError if no price of this region is known. The error suggests the nearest name."""
    regions = sorted({price.region for instance in known for price in instance.prices if price.region})
    if region is not None and region not in regions:
        raise UsageError.of(Refusal.REGION_UNKNOWN, region=region, hint=nearest(region, regions))


def earlier(found: Instance, price: Price) -> Price | None:
    """Return the last earlier price in the same region that differs from `price`.

    The date of the result is the day on which this price was last seen.
    """
    before = [
        each
        for each in found.prices
        if each.region == price.region
        and (each.date or "") < (price.date or "")
        and each.usd_per_hour != price.usd_per_hour
    ]
    return before[-1] if before else None


def since(found: Instance, price: Price) -> Price:
    """Return `price` with the earliest date of the period in which this price has not changed."""
    first = price
    for each in reversed(found.prices):
        if each.region == price.region:
            if each.usd_per_hour != price.usd_per_hour:
                break
            first = each
    return replace(price, date=first.date)


def _remarks(price: Price, day: date, seen_again: bool) -> list[Coded]:
    remarks = []
    if price.date is None:
        remarks.append(Coded.of(PredictRemark.PRICE_UNDATED))
    elif not seen_again and (day - date.fromisoformat(price.date)).days > OLD_AFTER_DAYS:
        remarks.append(Coded.of(PredictRemark.PRICE_OLD, seen=price.date, day=str(day)))
    if not price.verified:
        remarks.append(Coded.of(PredictRemark.PRICE_UNVERIFIED))
    return remarks


def given_prices(options: Sequence[str], known: Sequence[str]) -> dict[str, float]:
    """Return the prices that the user gave in options such as `p4d.24xlarge=18.5`, by instance type.

    Raises UsageError for an invalid option.
    """
    found = {}
    for typed in options:
        name, equals, value = typed.rpartition("=")
        if not equals:
            raise UsageError.of(Refusal.PRICE_INVALID, typed=typed)
        try:
            number = float(value)
        except ValueError:
            raise UsageError.of(Refusal.PRICE_NOT_A_NUMBER, typed=typed, value=value) from None
        if not 0 < number < 1e6:
            raise UsageError.of(Refusal.PRICE_OUT_OF_RANGE, typed=typed)
        found[full_name(name, known)] = number
    return found
