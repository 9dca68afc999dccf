"""Matrices whose product is known: is it the product, in every type, and would a wrong one be seen?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.dtypes import DTYPES
from bench.core.products import MOST, PERIOD, SUM, TYPES, ProductData, vectors
from bench.core.sweep import TILE, order_of


def values(content: Any, order: int, dtype: str) -> Any:
    """A matrix as float64."""
    raw = content.head(order * order * DTYPES[dtype].num_bytes)
    if dtype == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(order, order)
    return raw.view(dtype).astype(np.float64).reshape(order, order)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("order", [64, 192])
def test_the_product_is_exact_in_every_type(dtype: str, order: int) -> None:
    data = ProductData(DTYPES[dtype], order, 3, 7)
    first, second = (values(factor, order, dtype) for factor in data.factors)
    assert np.array_equal(first @ second, values(data.product, order, dtype))
    assert np.all(first != 0) and np.all(second != 0)


@settings(max_examples=30)
@given(tiles=st.integers(1, 40), rank=st.integers(0, 5000), seed=st.integers(0, 1 << 40))
def test_every_order_rank_and_seed_has_its_product_and_no_partial_sum_leaves_float32(
    tiles: int, rank: int, seed: int
) -> None:
    order = tiles * TILE
    _, s, t, _ = vectors(order, rank, seed)
    terms = s * np.resize(t, order)
    assert terms.sum() == SUM and np.abs(s).min() >= 1 and np.abs(s).max() <= MOST
    for stride in (1, 2, 8, 16, 64):  # neighbours together, and lanes that take every n-th
        walks = [np.cumsum(terms[lane::stride]) for lane in range(stride)]
        assert max(np.abs(walk).max() for walk in walks) * MOST * MOST < 1 << 23


def test_the_elements_fill_the_significand_of_bfloat16() -> None:
    first = values(ProductData(DTYPES["bfloat16"], 512, 0, 1).factors[0], 512, "bfloat16")
    odd = np.abs(first).astype(np.int64)
    odd = odd[odd % 2 == 1]
    assert (odd > 127).any()  # eight bits from the first to the last
    assert len(np.unique(np.abs(first))) > 60 and 0.4 < (first < 0).mean() < 0.6


def test_errors_of_a_kernel_give_other_numbers() -> None:
    order = 256
    data = ProductData(DTYPES["float32"], order, 0, 1)
    first, second = (values(factor, order, "float32") for factor in data.factors)
    right = first @ second

    def wrong(product: Any) -> float:
        return float((product != right).mean())

    tile = slice(64, 128)
    left_out = np.delete(first, np.r_[tile], axis=1) @ np.delete(second, np.r_[tile], axis=0)
    assert wrong(left_out) == 1.0
    twice = right + first[:, tile] @ second[tile]
    assert wrong(twice) == 1.0
    assert wrong(np.roll(first, 1, axis=1) @ second) == 1.0
    assert wrong(first.T @ second) > 0.9 and wrong(first @ second.T) > 0.9
    swapped = right.copy()
    swapped[:64], swapped[64:128] = right[64:128], right[:64]
    assert wrong(swapped) > 0.4
    assert PERIOD % 2 and TILE % PERIOD


def test_other_ranks_and_other_calls_have_other_matrices() -> None:
    some = [ProductData(DTYPES["float32"], 64, rank, seed).product.head(4096) for rank in (0, 1) for seed in (1, 2)]
    assert all(not np.array_equal(a, b) for k, a in enumerate(some) for b in some[:k])


@given(num_bytes=st.integers(1, 1 << 34), element_bytes=st.sampled_from([1, 2, 4, 8]))
def test_an_order_is_the_largest_multiple_of_a_tile_that_fits(num_bytes: int, element_bytes: int) -> None:
    order = order_of(num_bytes, element_bytes)
    assert order % TILE == 0 and order >= TILE
    assert order == TILE or order**2 * element_bytes <= num_bytes
    assert (order + TILE) ** 2 * element_bytes > num_bytes
    assert order_of(order**2 * element_bytes, element_bytes) == order
