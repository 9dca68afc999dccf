"""A record is exactly one thing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.core.record import Failure, Record, Samples, Skip


def test_a_record_of_one_kind_is_accepted(a_record: Callable[..., Record]) -> None:
    assert a_record().samples is not None
    assert a_record(skipped=Skip.uncoded("no GPU")).samples is None
    assert a_record(reported={"median_s": 1e-6}).reported == {"median_s": 1e-6}
    assert a_record(failed=Failure("rank 1 died", rank=1)).failed == Failure("rank 1 died", rank=1)


def test_a_record_of_two_kinds_or_of_none_is_refused(a_record: Callable[..., Record]) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        a_record(samples=Samples((1e-6,)), skipped=Skip.uncoded("no GPU"))
    with pytest.raises(ValueError, match="exactly one"):
        a_record(samples=None)
