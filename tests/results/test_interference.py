"""The factor from blocks that took turns, its interval, and aggressors that did not send."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.core.record import Contention, Header, Record, Samples
from bench.results import summary
from bench.results.compared_rows import Interference

Make = Callable[..., Any]


def found(a_header: Make, a_record: Make, blocks: Sequence[tuple[float, float]], **more: Any) -> Interference:
    """Of one launch whose blocks of two samples took (alone, disturbed) seconds."""
    told = run(a_header, a_record, blocks, **more)
    (one,) = summary.document([told]).interferences
    return one


def run(
    a_header: Make, a_record: Make, blocks: Sequence[tuple[float, float]], launch: int = 1, **more: Any
) -> tuple[str, Header, list[Record]]:
    job = "job" if launch == 1 else f"job-launch{launch}"
    given: dict[str, Any] = {
        "aggressor": "alltoall",
        "aggressor_bytes": 4 << 20,
        "num_aggressors": 2,
        "samples_per_block": 2,
        "alone_s": [seconds for alone, _ in blocks for seconds in (alone, alone)],
        "rates_bytes_per_s": [5e9] * len(blocks),
        "rate_alone_bytes_per_s": 10e9,
        "busy": [0.99] * len(blocks),
    }
    samples = Samples([seconds for _, disturbed in blocks for seconds in (disturbed, disturbed)])
    record = a_record(samples=samples, contention=Contention(**(given | more)), group="victims")
    return job, a_header(job=job, launch=launch), [record]


def test_the_factor_is_of_neighbours_so_that_a_drift_cancels(a_header: Make, a_record: Make) -> None:
    # The machine becomes ten times slower meanwhile; within every pair the disturbed block takes 1.5 times as long.
    one = found(a_header, a_record, [(1e-3 * 1.3**k, 1.5e-3 * 1.3**k) for k in range(9)])
    assert one.factor == pytest.approx(1.5)
    assert one.factor_low == pytest.approx(1.5)
    assert one.factor_high == pytest.approx(1.5)
    assert (one.num_blocks, one.interval_over, one.num_launches) == (9, "blocks", 1)
    assert one.alone_s == pytest.approx(1e-3 * 1.3**4) and one.disturbed_s == pytest.approx(1.5e-3 * 1.3**4)


def test_the_interval_holds_the_truth_as_often_as_it_says(a_header: Make, a_record: Make) -> None:
    draw = random.Random(1)
    held = 0
    for _ in range(200):
        blocks = [(draw.lognormvariate(0, 0.1), 2 * draw.lognormvariate(0, 0.1)) for _ in range(21)]
        one = found(a_header, a_record, blocks)
        held += one.factor_low is not None and one.factor_high is not None and one.factor_low <= 2 <= one.factor_high
    assert 184 <= held <= 200  # 95 % of 200 is 190


def test_five_blocks_have_a_factor_and_no_interval(a_header: Make, a_record: Make) -> None:
    one = found(a_header, a_record, [(1.0, 2.0)] * 5)
    assert (one.factor, one.factor_low, one.factor_high, one.interval_over) == (2.0, None, None, None)


def test_over_launches_the_interval_is_of_their_factors(a_header: Make, a_record: Make) -> None:
    told = [run(a_header, a_record, [(1.0, factor)] * 9, launch=k + 1) for k, factor in enumerate((1.9, 2.0, 2.1))]
    (one,) = summary.document(told).interferences
    assert (one.factor, one.num_launches, one.num_blocks, one.interval_over) == (2.0, 3, 27, "launches")
    assert one.factor_low is not None and one.factor_high is not None
    assert 1.7 < one.factor_low < 1.9 and 2.1 < one.factor_high < 2.3


def test_aggressors_that_hardly_sent_are_counted(a_header: Make, a_record: Make) -> None:
    blocks = [(1.0, 1.0)] * 9
    assert found(a_header, a_record, blocks, busy=[0.3] * 2 + [0.99] * 7).num_blocks_not_covered == 2
    assert found(a_header, a_record, blocks, rates_bytes_per_s=[1e6] * 3 + [5e9] * 6).num_blocks_not_covered == 3
    assert found(a_header, a_record, blocks).num_blocks_not_covered == 0


def test_wrong_data_have_no_factor(a_header: Make, a_record: Make) -> None:
    job, header, (record,) = run(a_header, a_record, [(1.0, 2.0)] * 9)
    assert summary.document([(job, header, [replace(record, verified=False, num_wrong=1)])]).interferences == ()
