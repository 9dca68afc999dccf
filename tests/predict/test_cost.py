"""Dollars and dates: which price holds, since when, and what is said of an old or a missing one."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from bench.core.errors import UsageError
from bench.hardware import catalogue
from bench.predict.cost import earlier, given_prices, in_force, priced, since

P4D = catalogue.instance("p4d.24xlarge")
TODAY = date(2026, 8, 1)


def test_the_latest_price_with_its_date() -> None:
    found = priced(P4D, TODAY).price
    assert found is not None
    assert (found.usd_per_hour, found.date, found.region) == (21.957642, "2026-07-20", "us-east-1")
    assert since(P4D, found).date == "2025-06-23"


def test_the_price_before_it_was_half_as_much_again() -> None:
    found = priced(P4D, TODAY).price
    before = earlier(P4D, found) if found else None
    assert before is not None
    assert (before.usd_per_hour, before.date) == (32.7726, "2025-03-31")


@pytest.mark.parametrize(
    ("day", "dollars"), [("2025-03-31", 32.7726), ("2025-06-22", 32.7726), ("2025-06-23", 21.957642)]
)
def test_a_price_holds_from_the_day_it_was_seen(day: str, dollars: float) -> None:
    found = in_force(P4D.prices, date.fromisoformat(day))
    assert found is not None
    assert found.usd_per_hour == dollars


def test_before_the_first_sighting_there_is_none() -> None:
    found = priced(P4D, TODAY, on=date(2020, 1, 1))
    assert found.price is None
    assert "the first is of 2023-09-18" in found.remarks[0]


def test_a_price_of_more_than_a_year_is_said_to_be_old() -> None:
    assert not priced(P4D, date(2027, 7, 20)).remarks
    [told] = priced(P4D, date(2027, 7, 21)).remarks
    assert told.startswith("its price was seen on 2026-07-20, more than a year before 2027-07-21")


def test_a_price_seen_before_and_after_a_day_held_on_it() -> None:
    """Seen on 2023-09-18 and on 2025-03-31: the same on 2025-01-01; what came between two prices, nobody knows."""
    assert not priced(P4D, TODAY, on=date(2025, 1, 1)).remarks
    changed = replace(P4D, prices=tuple(each for each in P4D.prices if each.date in ("2023-09-18", "2026-07-20")))
    [told] = priced(changed, TODAY, on=date(2025, 1, 1)).remarks
    assert told.startswith("its price was seen on 2023-09-18, more than a year before 2025-01-01")


def test_no_price_and_prices_of_ones_own() -> None:
    bare = catalogue.instance("DGX H100")
    found = priced(bare, TODAY)
    assert found.price is None
    assert found.usd_per_s(4) is None
    assert "--price INSTANCE=USD_PER_HOUR" in found.remarks[0]
    own = priced(bare, TODAY, given={"DGX H100": 36.0})
    assert own.usd_per_s(4) == pytest.approx(36 * 4 / 3600)
    assert own.price is not None
    assert own.price.date == "2026-08-01"


def test_a_region_without_a_price() -> None:
    assert "in eu-west-1" in priced(P4D, TODAY, region="eu-west-1").remarks[0]


def test_prices_of_a_command_line() -> None:
    assert given_prices(["p4d.24xlarge=18.5"], catalogue.instances()) == {"p4d.24xlarge": 18.5}


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("p4d=1", "did you mean 'p4d.24xlarge'"),
        ("p4d.24xlarge", "is not INSTANCE"),
        ("p4d.24xlarge=x", "is no number"),
        ("p4d.24xlarge=-3", "above zero"),
        ("p4d.24xlarge=nan", "above zero"),
    ],
)
def test_a_price_that_is_none_is_refused(word: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        given_prices([word], catalogue.instances())
