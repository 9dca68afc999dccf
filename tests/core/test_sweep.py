"""Message sizes: how they are typed, rounded and thinned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.errors import UsageError
from bench.core.sweep import DEFAULT_SIZES, format_sizes, geometric, parse_sizes, round_blocks, round_elements, thin

SIZES = st.sets(st.integers(1, 1 << 40), min_size=1, max_size=20).map(lambda sizes: tuple(sorted(sizes)))


def test_a_range_multiplies_by_its_factor_up_to_its_end() -> None:
    assert parse_sizes("8:64:2") == (8, 16, 32, 64)
    assert parse_sizes("8:100:4") == (8, 32, 100), "the end belongs to the range"
    assert parse_sizes("1K:1K") == (1024,)


def test_the_default_factor_is_two() -> None:
    assert parse_sizes("1K:4K") == (1024, 2048, 4096)


def test_a_list_is_sorted_without_duplicates() -> None:
    assert parse_sizes("1M,8,1K,8") == (8, 1024, 1 << 20)


def test_the_default_goes_from_8_bytes_to_16_mebibytes() -> None:
    assert (parse_sizes(DEFAULT_SIZES)[0], parse_sizes(DEFAULT_SIZES)[-1]) == (8, 16 << 20)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("1G:1M", ".1M. .*.1G."),
        ("8:1M:1", "factor '1'"),
        ("8:1M:x", "factor 'x'"),
        ("8:1M:-2", "factor '-2'"),
        ("8:1M:2:2", "4 parts"),
        ("-1", "size '-1'"),
        ("8Q", "size '8Q'"),
        ("8,,16", "size ''"),
        ("", "size ''"),
        (":", "size ''"),
        ("0:8", "zero"),
    ],
)
def test_invalid_sizes_are_refused(text: str, fact: str) -> None:
    with pytest.raises(UsageError, match=fact):
        parse_sizes(text)


@given(SIZES)
def test_printed_sizes_read_back_exactly(sizes: tuple[int, ...]) -> None:
    assert parse_sizes(format_sizes(sizes)) == sizes


@given(st.integers(1, 1000), st.integers(1, 1 << 30), st.integers(2, 10))
def test_a_printed_range_reads_back_exactly(begin: int, more: int, factor: int) -> None:
    sizes = geometric(begin, begin + more, factor)
    assert parse_sizes(format_sizes(sizes)) == sizes


def test_a_range_of_three_or_more_prints_as_a_range() -> None:
    assert format_sizes((8, 16, 32)) == "8:32:2"
    assert format_sizes((8, 16)) == "8,16"


@given(SIZES, st.integers(0, 30))
def test_thinning_keeps_the_ends_the_order_and_no_more_than_asked(sizes: tuple[int, ...], most: int) -> None:
    kept = thin(sizes, most)
    assert (kept[0], kept[-1]) == (sizes[0], sizes[-1])
    assert list(kept) == sorted(set(kept)) and set(kept) <= set(sizes)
    assert len(kept) == min(len(sizes), max(most, 2))


@pytest.mark.parametrize(("requested", "element", "payload"), [(8, 4, 8), (9, 4, 8), (3, 4, 4), (1, 16, 16), (7, 1, 7)])
def test_one_buffer_is_whole_elements_and_at_least_one(requested: int, element: int, payload: int) -> None:
    assert round_elements(requested, element) == payload


@pytest.mark.parametrize(
    ("requested", "num_ranks", "payload"),
    [(8, 2, 32), (32, 2, 32), (100, 2, 96), (1 << 20, 3, 1048560), (1 << 30, 8, 1 << 30), (1, 64, 1024)],
)
def test_blocks_are_multiples_of_16_bytes_and_never_empty(requested: int, num_ranks: int, payload: int) -> None:
    assert round_blocks(requested, num_ranks) == payload
