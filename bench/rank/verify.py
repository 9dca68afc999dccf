"""Is every byte what it must be? Poisoned buffers before, an exact comparison after.

Three checks per row (docs/metrics.md): one call before timing, the output that the last *timed* call left, and a fresh
call with other data afterwards. Bytes that the operation must not touch (guards, and parts of the receive buffer that
nothing is sent to) must still hold their poison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.core.dtypes import Dtype
from bench.core.pattern import Pattern, Shape
from bench.core.payload import CopyData, ReduceData, differing, poison
from bench.core.products import ProductData
from bench.core.program import Copied, Expected, Group, Multiplied, Reduced
from bench.core.transport import Buffers

_FULL_BELOW_BYTES = 1 << 30
_SAMPLED_EDGE_BYTES = 4096
_SAMPLED_STRIDE = 100  # beyond 1 GiB every hundredth 4 KiB page is compared: 1 % and all edges

_Data = CopyData | ReduceData | ProductData


@dataclass(frozen=True, slots=True)
class Wrong:
    """How many elements were wrong on this rank, and the first of them in words."""

    num_wrong: int
    first: str = ""


class Verifier:
    """Fills and checks the buffers of one member of one group for one size."""

    def __init__(self, pattern: Pattern, shape: Shape, group: Group, member: int, dtype: Dtype, reduce_op: str,
                 in_place: bool, seed: int) -> None:  # fmt: skip
        self._group, self._member, self._dtype = group, member, dtype
        self._reduce_op = reduce_op if pattern.reduces else None
        self._in_place, self._seed = in_place, seed
        self._send_bytes, self._recv_bytes = pattern.buffers(shape, member)
        self._expected: tuple[Expected, ...] = pattern.expected(shape, member)
        self._own_offset = _own_block(pattern, shape, member) if in_place else 0

    def prepare(self, buffers: Buffers, index: int, variation: int) -> None:
        """Put this variation's data into the send buffer of a set, and poison into its receive buffer."""
        data = self._data(variation)
        sent = self._sent(data)
        if not self._in_place:
            buffers.write("send", index, sent)
        buffers.write("recv", index, self._before(sent, buffers.recv_bytes))

    def refill(self, buffers: Buffers, variation: int) -> Any:
        """For in-place calls: a function of a set's index that puts back what the call before changed."""
        whole = self._before(self._sent(self._data(variation)), buffers.recv_bytes)
        return lambda index: buffers.write("recv", index, whole)

    def check(self, buffers: Buffers, index: int, variation: int) -> Wrong:
        """Compare a set's receive buffer with what must be there."""
        if not buffers.guards_intact(index):
            return Wrong(1, f"bytes outside the buffers of rank {self._rank} were overwritten")
        got = np.asarray(buffers.read("recv", index))[: self._recv_bytes]
        data = self._data(variation)
        untouched = np.ones(len(got), dtype=bool)
        num_wrong, first = 0, ""
        for region in self._expected:
            untouched[region.offset_bytes : region.offset_bytes + region.num_bytes] = False
            for begin, end in _pieces(region.num_bytes, self._dtype.num_bytes):
                here = got[region.offset_bytes + begin : region.offset_bytes + end]
                bad = self._wrong_in(region, begin, here, data)
                if bad.any():
                    num_wrong += int(np.count_nonzero(bad))
                    first = first or self._describe(region, begin, here, bad, data)
        if not self._in_place and (got[untouched] != poison(self._dtype)).any():
            num_wrong += int(np.count_nonzero(got[untouched] != poison(self._dtype)))
            first = first or f"rank {self._rank} received bytes where nothing was sent to"
        return Wrong(num_wrong, first)

    @property
    def _rank(self) -> int:
        return self._group.ranks[self._member]

    def _sent(self, data: _Data) -> Any:
        if isinstance(data, ProductData):
            return data.sent(self._send_bytes)
        return data.sent(self._member, 0, self._send_bytes)

    def _data(self, variation: int) -> _Data:
        seed = self._seed * 1009 + variation
        multiplied = next((region for region in self._expected if isinstance(region, Multiplied)), None)
        if multiplied is not None:
            return ProductData(self._dtype, multiplied.order, self._rank, seed)
        if self._reduce_op is not None:
            return ReduceData(self._dtype, self._reduce_op, self._group.ranks, seed)
        return CopyData(self._dtype, self._group.ranks, seed)

    def _before(self, sent: Any, num_bytes: int) -> Any:
        whole = np.full(num_bytes, poison(self._dtype), dtype=np.uint8)
        if self._in_place:
            whole[self._own_offset : self._own_offset + len(sent)] = sent
        return whole

    def _wrong_in(self, region: Expected, begin: int, got: Any, data: _Data) -> Any:
        if isinstance(data, ReduceData):
            return data.wrong(got, region.source_offset + begin)
        return differing(got, self._want(region, begin, len(got), data), self._dtype)

    def _want(self, region: Expected, begin: int, num_bytes: int, data: _Data) -> Any:
        if isinstance(data, ProductData):
            return data.product.part(begin, num_bytes)
        if isinstance(region, Reduced):
            assert isinstance(data, ReduceData)
            return data.reduced(region.source_offset + begin, num_bytes)
        assert isinstance(region, Copied) and isinstance(data, CopyData)
        return data.sent(region.source, region.source_offset + begin, num_bytes)

    def _describe(self, region: Expected, begin: int, got: Any, bad: Any, data: _Data) -> str:
        element = int(np.argmax(bad))
        size = self._dtype.num_bytes if len(bad) * self._dtype.num_bytes == len(got) else 1
        where = slice(element * size, (element + 1) * size)
        want = self._want(region, begin, len(got), data)
        index = (region.offset_bytes + begin) // size + element
        return (
            f"rank {self._rank}, element {index}: got 0x{bytes(got[where]).hex()}, "
            f"expected 0x{bytes(want[where]).hex()}"
        )


def _own_block(pattern: Pattern, shape: Shape, member: int) -> int:
    """Where in the one buffer of an in-place call this member's own data lies (allgather: its block; else 0)."""
    send_bytes, recv_bytes = pattern.buffers(shape, member)
    return member * send_bytes if recv_bytes > send_bytes else 0


def _pieces(num_bytes: int, element_bytes: int) -> list[tuple[int, int]]:
    """The parts of a region to compare: all of it below 1 GiB, else both edges and every hundredth page."""
    if num_bytes < _FULL_BELOW_BYTES:
        return [(0, num_bytes)] if num_bytes else []
    page = _SAMPLED_EDGE_BYTES
    last = (num_bytes // page) * page
    starts = {0, last - page, *range(0, last, page * _SAMPLED_STRIDE)}
    return [(start, start + page) for start in sorted(starts)] + ([(last, num_bytes)] if last < num_bytes else [])
