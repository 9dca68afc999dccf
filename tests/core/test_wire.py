"""What ranks send each other arrives as it was, and a message from elsewhere makes nothing run."""

from __future__ import annotations

import json
import os
import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core import seal, wire
from bench.core.codes import Coded
from bench.core.record import Failure, Skip
from bench.core.skips import SkipCode
from bench.core.transport import Timing
from bench.core.world import RankInfo

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner)
        | st.frozensets(st.integers(), max_size=1)
    ),
    max_leaves=20,
)


@given(PLAIN)
@settings(max_examples=200)
def test_plain_values_arrive_with_their_types(value: Any) -> None:
    received = wire.decoded(wire.encoded(value))
    assert received == value
    assert repr(received) == repr(value)


def test_values_of_this_package_arrive() -> None:
    for value in (
        Timing((1e-6, float("inf")), "python"),
        Skip.of(SkipCode.DEVICE_WORK, transport="gloo"),
        Coded.uncoded("text"),
        Failure("text", 3, "h1", "code", {"rank": 3}),
        RankInfo(0, 2, 0, 2, "torchrun", ("h0", 29500)),
        {"nested": [(Timing((), "compiled"), None)]},
    ):
        received = wire.decoded(wire.encoded(value))
        assert received == value and type(received) is type(value)


def test_numbers_and_arrays_of_numpy_arrive() -> None:
    array = np.linspace(0, 1, 7).reshape(1, 7)
    received = wire.decoded(wire.encoded({"a": array, "b": np.float64(0.5), "c": np.int64(3)}))
    assert np.array_equal(received["a"], array) and received["a"].dtype == array.dtype
    assert (received["b"], received["c"]) == (0.5, 3)


def test_what_is_not_data_is_not_sent() -> None:
    for value in (os.system, lambda: None, object(), random.Random(1), np.array([object()])):
        with pytest.raises(TypeError, match="cannot send"):
            wire.encoded(value)


@pytest.mark.parametrize(
    "message",
    [
        pickle.dumps(os.system),
        b"",
        b"[",
        b"[" * 100_000,
        json.dumps({"@": ["class", "os:_wrap_close", {}]}).encode(),
        json.dumps({"@": ["class", "bench.core.wire:os", {}]}).encode(),
        json.dumps({"@": ["class", "bench.core.wire:sys.modules", {}]}).encode(),
        json.dumps({"@": ["class", "bench.core.channel:SingleRankChannel", {}]}).encode(),
        json.dumps({"@": ["class", "bench.core.world:RankInfo", {"rank": 0}]}).encode(),
        json.dumps({"@": ["class", "bench.not_loaded:Thing", {}]}).encode(),
        json.dumps({"@": ["enum", "bench.core.skips:SkipCode", "NO_SUCH"]}).encode(),
        json.dumps({"@": ["enum", "bench.core.errors:signal.Signals", "SIGTERM"]}).encode(),
        json.dumps({"@": ["array", "|O", [1], ""]}).encode(),
        json.dumps({"@": ["call", "os.system", "true"]}).encode(),
        json.dumps({"@": []}).encode(),
        json.dumps({"@": 3}).encode(),
    ],
)
def test_a_message_that_no_rank_sends_is_refused(message: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decoded(message)


@given(st.binary(max_size=200))
def test_bytes_of_anybody_are_refused_or_data(message: bytes) -> None:
    with pytest.raises(seal.SealError):
        seal.unsealed(message, b"secret", b"1/1")


def test_a_seal_holds_for_one_sender_one_message_and_one_run() -> None:
    message = seal.sealed(b"data", b"secret", b"1/7")
    assert seal.unsealed(message, b"secret", b"1/7") == b"data"
    for secret, context in ((b"other", b"1/7"), (b"", b"1/7"), (b"secret", b"2/7"), (b"secret", b"1/8")):
        with pytest.raises(seal.SealError):
            seal.unsealed(message, secret, context)
    with pytest.raises(seal.SealError):
        seal.unsealed(message[:-1] + b"b", b"secret", b"1/7")
