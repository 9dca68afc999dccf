"""Filling and comparing memory where it lies: numpy and torch against a definition that knows nothing of periods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core import arrays as module
from bench.core.arrays import NUMPY, Arrays, Memory
from bench.core.payload import Tiled, constant
from bench.core.transport import Buffers, Which
from bench.transports._device import TorchArrays

torch: Any = pytest.importorskip("torch")
KINDS: dict[str, Arrays] = {"numpy": NUMPY, "torch": TorchArrays(torch, "cpu")}
kinds = pytest.mark.parametrize("kind", KINDS)
contents = st.builds(
    Tiled,
    st.integers(1, 500).map(lambda words: np.random.default_rng(words).integers(0, 256, 8 * words, dtype=np.uint8)),
    st.integers(0, 10_000),
    st.integers(0, 2**64 - 1),
    st.sampled_from([2**64 - 1, 0xBFFFBFFFBFFFBFFF]),
) | st.builds(
    Tiled,
    st.integers(1, 999).map(lambda num: np.random.default_rng(num).integers(0, 256, num, dtype=np.uint8)),
    st.integers(0, 10_000),
)


def by_definition(content: Tiled, num_bytes: int) -> Any:
    """Byte by byte."""
    at = content.offset + np.arange(num_bytes)
    shift = (8 * (at % 8)).astype(np.uint64)
    key = (np.uint64(content.salt) >> shift).astype(np.uint8)
    kept = (np.uint64(content.mask) >> shift).astype(np.uint8)
    return (content.period[at % len(content.period)] ^ key) & kept


def a_memory(kind: str, num_bytes: int, offset: int) -> Memory:
    """Bytes of zero that begin `offset` bytes behind an aligned address."""
    block = Memory(KINDS[kind], KINDS[kind].empty(offset + num_bytes))
    block.write(np.zeros(offset + num_bytes, np.uint8))
    return block.part(offset, num_bytes)


@kinds
@settings(max_examples=60)
@given(contents, st.integers(0, 40_000), st.integers(0, 9), st.sampled_from([4096, 64 << 20]))
def test_filled_memory_holds_the_content(kind: str, content: Tiled, num_bytes: int, offset: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", chunk)
        memory = a_memory(kind, num_bytes, offset)
        memory.fill(content)
        assert (memory.read() == by_definition(content, num_bytes)).all()
        assert memory.count_wrong(content, 1).num_wrong == 0


@kinds
@settings(max_examples=60)
@given(
    contents,
    st.integers(1, 2000),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(0, 9),
    st.lists(st.integers(0), min_size=1, max_size=5),
)
def test_wrong_elements_are_counted_and_the_first_is_shown(
    kind: str, content: Tiled, num: int, size: int, offset: int, places: Sequence[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", 4096)
        right = by_definition(content, num * size)
        bad = right.copy()
        for place in set(place % (num * size) for place in places):
            bad[place] ^= 0x20
        memory = a_memory(kind, num * size, offset)
        memory.write(bad)
        found = memory.count_wrong(content, size)
        differ = (bad != right).reshape(num, size).any(axis=1)
        first = int(np.argmax(differ))
        assert (found.num_wrong, found.first) == (int(differ.sum()), first)
        assert (found.got, found.want) == tuple(bytes(raw.reshape(num, size)[first]) for raw in (bad, right))


@kinds
def test_bytes_of_no_whole_elements_are_counted_singly(kind: str) -> None:
    memory = a_memory(kind, 7, 0)
    assert memory.count_wrong(constant(0), 4).num_wrong == 0
    assert memory.count_wrong(constant(1), 4).num_wrong == 7


class Split(Buffers):
    """A buffer of which half is numpy's and half torch's, as copies between host and GPU have them."""

    num_sets, send_bytes, recv_bytes = 1, 0, 32

    def __init__(self) -> None:
        self._halves = [a_memory(kind, 16, 0) for kind in KINDS]

    def memory(self, which: Which, index: int) -> list[Memory]:
        return self._halves if which == "recv" else []

    def guards(self, index: int) -> list[Memory]:
        return []


def test_a_buffer_of_two_pieces_is_filled_read_and_compared_as_one() -> None:
    buffers, content = Split(), Tiled(np.arange(100, dtype=np.uint8))
    buffers.fill("recv", 0, 4, 24, content)
    assert list(buffers.read("recv", 0)) == [0] * 4 + list(range(24)) + [0] * 4
    assert buffers.count_wrong("recv", 0, 4, 24, content, 4).num_wrong == 0
    assert buffers.count_wrong("recv", 0, 0, 32, content, 4).num_wrong == 8
    odd = np.arange(32, dtype=np.uint8)
    odd[[20, 25]] = 0
    buffers.write("recv", 0, odd)
    found = buffers.count_wrong("recv", 0, 0, 32, content, 4)
    assert (found.num_wrong, found.first, found.got.hex()) == (2, 5, "00151617")
    assert len(buffers.read("send", 0)) == 0 and buffers.on_host("recv") and buffers.guards_intact(0)
    buffers.write("recv", 0, 5)
    assert set(buffers.read("recv", 0)) == {5}
