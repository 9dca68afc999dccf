"""Both slow-downs from blocks of three kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.core.record import OverlapSamples, Samples
from bench.results import overlap, summary
from bench.store import jsonl

Make = Callable[..., Any]


def sides(num_blocks: int = 25, factor: float = 1.3, product_factor: float = 1.1, not_covered: int = 0) -> Any:
    """(samples, overlap): each block is 4 % slower than the one before, which no factor may show."""
    drift = [1 + 0.04 * k for k in range(num_blocks) for _ in range(2)]
    noise = [1 + 1e-3 * (k * 7 % 11) for k in range(2 * num_blocks)]
    calls = [1e-3 * a * b for a, b in zip(drift, noise, strict=True)]
    products = [2e-4 * a * b for a, b in zip(drift, noise[::-1], strict=True)]
    told = OverlapSamples(
        "bfloat16", 1024, 20, 5, 2, calls, products, [product_factor * one for one in products], not_covered
    )
    return Samples([factor * one for one in calls]), told


def test_the_factors_are_of_neighbouring_blocks(a_header: Make, a_record: Make) -> None:
    samples, told = sides()
    (found,) = overlap.of_record("job", a_header(pattern="overlap"), a_record(samples=samples, overlap=told))
    assert found.factor == pytest.approx(1.3) and found.product_factor == pytest.approx(1.1)
    assert found.factor_low == pytest.approx(1.3) and found.product_factor_high == pytest.approx(1.1)
    assert (found.num_blocks, found.interval_over, found.num_not_covered) == (25, "blocks", 0)
    assert found.product_flops_per_s == pytest.approx(2 * 1024**3 / found.product_alone_s)


def test_few_blocks_have_no_interval(a_header: Make, a_record: Make) -> None:
    samples, told = sides(4, not_covered=3)
    header = a_header(pattern="overlap", case=("overlap", "--transport", "mpi"))
    document = summary.document([("job", header, [a_record(samples=samples, overlap=told)])])
    assert document.overlaps[0].factor_low is None and document.overlaps[0].interval_over is None
    assert document.overlaps[0].num_not_covered == 3


def test_rows_without_products_or_with_wrong_data_have_none(a_header: Make, a_record: Make) -> None:
    samples, told = sides()
    assert overlap.of_record("job", a_header(), a_record()) == []
    assert overlap.of_record("job", a_header(), a_record(samples=samples, overlap=told, verified=False)) == []
    broken = replace(told, product_s=[0.0] * 50)
    assert overlap.of_record("job", a_header(), a_record(samples=samples, overlap=broken)) == []


def test_three_launches_have_an_interval_over_launches(a_header: Make, a_record: Make) -> None:
    each = []
    for factor in (1.2, 1.25, 1.3):
        samples, told = sides(factor=factor)
        each += overlap.of_record("job", a_header(pattern="overlap"), a_record(samples=samples, overlap=told))
    (found,) = overlap.overlaps(each)
    assert (found.num_launches, found.interval_over, found.num_blocks) == (3, "launches", 75)
    assert found.factor == pytest.approx(1.25)
    assert found.factor_low is not None and found.factor_low < 1.2


def test_a_file_keeps_all_four_kinds(tmp_path: Any, a_header: Make, a_record: Make) -> None:
    samples, told = sides()
    writer = jsonl.Writer(tmp_path / "o.jsonl", a_header())
    writer.append(a_record(samples=samples, overlap=told))
    (record,) = jsonl.read(tmp_path / "o.jsonl").attempts[0].records
    assert record.overlap is not None and record.overlap.order == 1024
    assert list(record.overlap.product_s) == pytest.approx(list(told.product_s), abs=1e-10)
    assert list(record.overlap.alone_s) == pytest.approx(list(told.alone_s), abs=1e-10)
