"""Element types and which reductions have a meaning for them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bench.core.dtypes import ALIASES, DTYPES, REDUCE_OPS, dtype_of, undefined_reduction
from bench.core.errors import UsageError
from bench.core.skips import SkipCode

BITWISE = {"band", "bor", "bxor"}


@pytest.mark.parametrize("name", DTYPES)
def test_the_bits_in_a_name_are_its_bytes(name: str) -> None:
    found = re.search(r"\d+", name)
    assert found is not None
    assert DTYPES[name].num_bytes * 8 == int(found[0])


@pytest.mark.parametrize("name", [name for name in DTYPES if hasattr(np, name)])
def test_numpy_agrees_about_size_kind_and_precision(name: str) -> None:
    theirs, ours = np.dtype(name), DTYPES[name]
    assert theirs.itemsize == ours.num_bytes
    assert {"f": "float", "i": "int", "u": "uint", "c": "complex"}[theirs.kind] == ours.kind
    assert ours.precision == (np.finfo(theirs).nmant + 1 if theirs.kind in "fc" else 0)


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_the_names_of_nccl_tests_are_understood(alias: str, name: str) -> None:
    assert dtype_of(alias) is DTYPES[name]


def test_an_unknown_type_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match=r"'flaot32'.*'float32'"):
        dtype_of("flaot32")


def test_floats_and_integers_reduce_by_sum_prod_min_and_max() -> None:
    for name in ("float64", "float32", "float16", "bfloat16", "int32", "uint8"):
        for op in ("sum", "prod", "min", "max"):
            assert undefined_reduction(DTYPES[name], op) is None


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("float32", BITWISE),
        ("bfloat16", BITWISE),
        ("int32", {"avg"}),
        ("uint64", {"avg"}),
        ("complex64", set(REDUCE_OPS) - {"sum"}),
        ("float8_e4m3fn", set(REDUCE_OPS)),
    ],
)
def test_reductions_without_a_meaning_are_refused(name: str, ops: set[str]) -> None:
    refused = {op: skip for op in REDUCE_OPS if (skip := undefined_reduction(DTYPES[name], op)) is not None}
    assert set(refused) == ops
    for op, skip in refused.items():
        assert skip.facts["dtype"] == name
        assert (skip.code == SkipCode.INTEGERS_ONLY) is (op in BITWISE)
