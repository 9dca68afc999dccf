"""The checks of the lines of a results file."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bench.core.record import Record
from bench.store import line_schema

RECORD: dict[str, Any] = {
    "mode": "isolated",
    "requested_bytes": [8],
    "payload_bytes": 8,
    "num_ranks": 2,
    "num_nodes": 1,
    "bus_factor": 1.0,
    "verified": True,
    "flags": [],
    "samples": {"seconds": [1e-6], "calls_per_sample": 1, "loop": "python"},
}
NUMBERS = st.one_of(
    st.integers(), st.integers(-2, 2), st.floats(), st.sampled_from([1 << 63, -1, 1 << 1001, 0.0, -0.0])
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.sampled_from(["isolated", "world"]),
    st.lists(NUMBERS, max_size=2),
    st.fixed_dictionaries({"seconds": st.lists(NUMBERS, max_size=2), "calls_per_sample": NUMBERS, "loop": st.text()}),
)
CHANGES = st.dictionaries(
    st.sampled_from([*RECORD, "src", "rank_bytes", "a key of a later version"]), VALUES, max_size=2
)


@given(st.lists(st.tuples(CHANGES, st.sampled_from([None, *RECORD])), max_size=8))
def test_lines_like_earlier_lines_are_checked_as_carefully(changed: list[tuple[dict[str, Any], str | None]]) -> None:
    check = line_schema.of.__wrapped__(Record)
    for changes, left_out in [({}, None), *changed]:
        line = {key: value for key, value in (RECORD | changes).items() if key != left_out}
        first_time = line_schema.of.__wrapped__(Record)
        assert check(line) == first_time(line)
        assert check(line) == first_time(line)


def test_a_number_of_a_known_form_must_be_in_range() -> None:
    check = line_schema.of.__wrapped__(Record)
    assert check(RECORD) is None
    assert check({**RECORD, "bus_factor": 2.5}) is None
    assert check({**RECORD, "bus_factor": float("nan")}) is not None
    assert check({**RECORD, "payload_bytes": -1}) == (".payload_bytes", "int from 0 to 2^63", -1)
    assert check({**RECORD, "payload_bytes": 1 << 63}) == (".payload_bytes", "int from 0 to 2^63", 1 << 63)
