"""Prices: which one is in force, since when, and the remarks on old and missing prices."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.hardware import catalogue
from bench.predict.cost import earlier, given_prices, in_force, priced, since
from bench.predict.messages import PredictRemark, Refusal

P4D = catalogue.instance("p4d.24xlarge")
TODAY = date(2026, 8, 1)


def test_latest_price_has_its_date() -> None:
    found = priced(P4D, TODAY).price
    assert found is not None
    assert (found.usd_per_hour, found.date, found.region) == (21.957642, "2026-07-20", "us-east-1")
    assert since(P4D, found).date == "2025-06-23"


def test_earlier_price() -> None:
    found = priced(P4D, TODAY).price
    before = earlier(P4D, found) if found else None
    assert before is not None
    assert (before.usd_per_hour, before.date) == (32.7726, "2025-03-31")


@pytest.mark.parametrize(
    ("day", "dollars"), [("2025-03-31", 32.7726), ("2025-06-22", 32.7726), ("2025-06-23", 21.957642)]
)
def test_price_is_in_force_from_the_day_it_was_seen(day: str, dollars: float) -> None:
    found = in_force(P4D.prices, date.fromisoformat(day))
    assert found is not None
    assert found.usd_per_hour == dollars


def test_no_price_before_the_first_one_seen() -> None:
    found = priced(P4D, TODAY, on=date(2020, 1, 1))
    assert found.price is None
    assert found.remarks == (Coded.of(PredictRemark.PRICE_UNKNOWN_ON, day="2020-01-01", first="2023-09-18"),)


def test_price_older_than_a_year_has_a_remark() -> None:
    assert not priced(P4D, date(2027, 7, 20)).remarks
    remarks = priced(P4D, date(2027, 7, 21)).remarks
    assert remarks == (Coded.of(PredictRemark.PRICE_OLD, seen="2026-07-20", day="2027-07-21"),)


def test_price_seen_before_and_after_a_day_was_in_force() -> None:
    """Seen on 2023-09-18 and 2025-03-31, so in force on 2025-01-01. Between two different prices it is unknown."""
    assert not priced(P4D, TODAY, on=date(2025, 1, 1)).remarks
    changed = replace(P4D, prices=tuple(each for each in P4D.prices if each.date in ("2023-09-18", "2026-07-20")))
    remarks = priced(changed, TODAY, on=date(2025, 1, 1)).remarks
    assert remarks == (Coded.of(PredictRemark.PRICE_OLD, seen="2023-09-18", day="2025-01-01"),)


def test_missing_price_and_given_price() -> None:
    bare = catalogue.instance("DGX H100")
    found = priced(bare, TODAY)
    assert found.price is None
    assert found.usd_per_s(4) is None
    assert [remark.code for remark in found.remarks] == [PredictRemark.PRICE_UNKNOWN]
    own = priced(bare, TODAY, given={"DGX H100": 36.0})
    assert own.usd_per_s(4) == pytest.approx(36 * 4 / 3600)
    assert own.price is not None
    assert own.price.date == "2026-08-01"


def test_region_without_a_price() -> None:
    assert priced(P4D, TODAY, region="eu-west-1").remarks == (
        Coded.of(PredictRemark.PRICE_UNKNOWN, region="eu-west-1"),
    )


def test_price_options() -> None:
    assert given_prices(["p4d.24xlarge=18.5"], catalogue.instances()) == {"p4d.24xlarge": 18.5}
    assert given_prices(["p4d=18.5"], catalogue.instances()) == {"p4d.24xlarge": 18.5}


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ("p4d.24xlarge", Refusal.PRICE_INVALID),
        ("p4d.24xlarge=x", Refusal.PRICE_NOT_A_NUMBER),
        ("p4d.24xlarge=-3", Refusal.PRICE_OUT_OF_RANGE),
        ("p4d.24xlarge=nan", Refusal.PRICE_OUT_OF_RANGE),
    ],
)
def test_invalid_price_option_is_refused(typed: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        given_prices([typed], catalogue.instances())
    assert caught.value.code == code
    assert caught.value.facts["typed"] == typed
