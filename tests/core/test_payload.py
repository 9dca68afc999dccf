"""Payload data: what makes wrong bytes visible."""

from __future__ import annotations

import numpy as np
import pytest

from bench.core.dtypes import DTYPES, REDUCE_OPS, undefined_reduction
from bench.core.payload import PERIOD, CopyData, ReduceData, poison


@pytest.mark.parametrize("dtype", [name for name, dtype in DTYPES.items() if dtype.kind == "float"])
def test_floats_to_copy_are_finite(dtype: str) -> None:
    if dtype.startswith("float8"):
        return  # numpy has no such type; the cleared exponent bit is what is tested below
    raw = CopyData(DTYPES[dtype], (0, 1), 3).sent(1).head(80_000)
    values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else raw.view(dtype)
    assert np.isfinite(values).all()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_small_floats_to_copy_have_the_top_exponent_bit_clear(dtype: str) -> None:
    assert not (CopyData(DTYPES[dtype], (0, 1), 3).sent(1).head(8000) & 0x40).any()


def test_a_slice_is_the_same_bytes_as_in_the_whole() -> None:
    data = CopyData(DTYPES["int8"], (4, 7), 1)
    whole = data.sent(1).head(100_000)
    assert (data.sent(1, 777).head(5000) == whole[777:5777]).all()


def test_ranks_seeds_and_positions_differ() -> None:
    data = CopyData(DTYPES["int64"], (4, 7), 1)
    other = CopyData(DTYPES["int64"], (4, 7), 2)
    assert (data.sent(0).head(800) != data.sent(1).head(800)).mean() > 0.9
    assert (data.sent(0).head(800) != other.sent(0).head(800)).mean() > 0.9
    assert (data.sent(0).head(800) != data.sent(0, 16).head(800)).mean() > 0.9


def test_the_period_divides_no_block_that_could_be_swapped() -> None:
    assert all(PERIOD % divisor for divisor in range(2, 400))


@pytest.mark.parametrize("reduce_op", REDUCE_OPS)
def test_expected_reductions_have_many_values_and_never_the_poison(reduce_op: str) -> None:
    for name, dtype in DTYPES.items():
        if undefined_reduction(dtype, reduce_op):
            continue
        total = ReduceData(dtype, reduce_op, tuple(range(16)), 1).reduced().head(dtype.num_bytes * 4096)
        elements = total.reshape(-1, dtype.num_bytes)
        assert len(np.unique(elements, axis=0)) > 4, name
        assert (elements != poison(dtype)).any(axis=1).mean() > 0.9, name


@pytest.mark.parametrize("num_ranks", [2, 7, 300, 5000])
def test_sums_of_every_float_type_stay_inside_the_significand(num_ranks: int) -> None:
    for name, dtype in DTYPES.items():
        if dtype.kind != "float" or undefined_reduction(dtype, "sum"):
            continue
        rule = ReduceData(dtype, "sum", tuple(range(num_ranks)), 1)._rule
        largest = int(np.abs(rule._scale).max()) * int(rule._weight.sum())
        assert 0 < largest <= 2**dtype.precision, name
