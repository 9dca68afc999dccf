"""Host lists as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core import hostlist
from bench.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n3", "n3"),
        ("n[1-3,7],m0", "n1 n2 n3 n7 m0"),
        ("n[08-10]", "n08 n09 n10"),
        ("10.0.0.1,b", "10.0.0.1 b"),
        ("r[1-2]n[0-1]-ib", "r1n0-ib r1n1-ib r2n0-ib r2n1-ib"),
        ("n[099-101]", "n099 n100 n101"),
    ],
)
def test_ranges_are_expanded(text: str, names: str) -> None:
    assert hostlist.expand(text) == tuple(names.split())


def test_a_thousand_hosts_are_one_range() -> None:
    hosts = hostlist.expand("h[0-1023]")
    assert (len(hosts), len(set(hosts)), hosts[-1]) == (1024, 1024, "h1023")


@pytest.mark.parametrize("text", ["", "n[1-3", "n1]", "a,,b", "a,", ",a", "a b", "n[]", "[3]"])
def test_an_invalid_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="host list"):
        hostlist.expand(text)


@pytest.mark.parametrize("text", ["n[3-1]", "n[1-]", "n[1,,2]", "n[-1]"])
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="range"):
        hostlist.expand(text)


@pytest.mark.parametrize("text", ["n[0-999999999999]", "n[0-99]m[0-99]k[0-99]", "a[0-40000],b[0-40000]"])
def test_a_mistyped_range_does_not_fill_the_memory(text: str) -> None:
    with pytest.raises(UsageError, match="65536"):
        hostlist.expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("h0 h1 h2", "h[0-2]"),
        ("a", "a"),
        ("n1 n2 n3 n7 m0", "n[1-3,7],m0"),
        ("10.0.0.1 10.0.0.2", "10.0.0.1,10.0.0.2"),
        ("n08 n09 n10", "n[08-09],n10"),
        ("h9 h10 h8", "h[9-10,8]"),
        ("x y", "x,y"),
        ("", ""),
    ],
)
def test_names_are_compressed(names: str, text: str) -> None:
    assert hostlist.compress(names.split()) == text


@given(st.lists(st.from_regex(r"[a-c]{0,2}-?[0-9]{0,3}[a-b]?[0-9]{1,3}", fullmatch=True), min_size=1, max_size=30))
def test_a_compressed_list_expands_to_the_same_names(names: list[str]) -> None:
    assert list(hostlist.expand(hostlist.compress(names))) == names
