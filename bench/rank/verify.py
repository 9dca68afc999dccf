"""Verify data: poison buffers before a call, and compare their contents exactly after the call.

Each row has three checks (docs/metrics.md). The first check is a call before the timed calls. The second check examines
the output of the last timed call. The third check is one more call with other data. The guards and the unused parts of
the receive buffer must still contain their poison after the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.core.arrays import Difference
from bench.core.dtypes import Dtype
from bench.core.pattern import Pattern, Shape
from bench.core.payload import CopyData, ReduceData, Tiled, constant, poison
from bench.core.products import ProductData
from bench.core.program import Expected, Group, Multiplied, Reduced
from bench.core.record import WrongCode, WrongData
from bench.core.transport import Buffers

_FULL_BELOW_BYTES = 1 << 30
_SAMPLED_EDGE_BYTES = 4096
_CHUNK_BYTES = 16 << 20  # a multiple of every element size
_SAMPLED_STRIDE = 100  # from 1 GiB on, only every hundredth 4 KiB page and both ends are compared

_Data = CopyData | ReduceData | ProductData


@dataclass(frozen=True, slots=True)
class Wrong:
    """The number of wrong elements on this rank, and a description of the first wrong element.

    `sampled`: whether only a part of the data was compared.
    """

    num_wrong: int
    first: WrongData | None = None
    sampled: bool = False


class Verifier:
    """Fills and checks the buffers of one member of one group for one size."""

    def __init__(
        self,
        pattern: Pattern,
        shape: Shape,
        group: Group,
        member: int,
        dtype: Dtype,
        reduce_op: str,
        in_place: bool,
        seed: int,
    ) -> None:
        self._group, self._member, self._dtype = group, member, dtype
        self._reduce_op = reduce_op if pattern.reduces else None
        self._in_place, self._seed = in_place, seed
        self._send_bytes, self._recv_bytes = pattern.buffers(shape, member)
        self._expected: tuple[Expected, ...] = pattern.expected(shape, member)
        self._poison = constant(poison(dtype))
        self._own_offset = _own_block(pattern, shape, member) if in_place else 0

    def prepare(self, buffers: Buffers, index: int, variation: int) -> None:
        """Fill the send buffer of set `index` with the data of this variation. Fill the receive buffer with poison."""
        data = self._data(variation)
        if isinstance(data, ProductData):
            self._put_factors(buffers, index, data)
            return
        sent = data.sent(self._member)
        if not self._in_place:
            buffers.fill("send", index, 0, self._send_bytes, sent)
        self._reset(buffers, index, sent)

    def refill(self, buffers: Buffers, variation: int) -> Callable[[int], None]:
        """Return a function that refills buffer set `index` after an in-place call has overwritten its data."""
        data = self._data(variation)
        assert not isinstance(data, ProductData)  # a matrix product does not change its factors
        sent = data.sent(self._member)
        return lambda index: self._reset(buffers, index, sent)

    def check(self, buffers: Buffers, index: int, variation: int) -> Wrong:
        """Compare the receive buffer of a set with the expected data.

        If the receive buffer is wrong, or if this member receives nothing, also compare the send buffer with the sent
        data. A rank whose own send buffer is wrong is the cause of wrong data on other ranks. An in-place call
        overwrites its send buffer. For such a call, the check therefore cannot tell which rank caused wrong data.
        """
        if not buffers.guards_intact(index):
            return Wrong(1, WrongData.of(WrongCode.GUARD, rank=self._rank))
        data = self._data(variation)
        num_wrong, num_compared = 0, 0
        first: WrongData | None = None
        for region in self._expected:
            for begin, end in self._parts(buffers, region):
                num_compared += end - begin
                found = self._wrong_in(buffers, index, region, begin, end - begin, data)
                num_wrong += found.num_wrong
                if found.num_wrong and first is None:
                    first = self._described(found, region.offset_bytes + begin)
        if not self._in_place:
            num_stray = sum(
                buffers.count_wrong("recv", index, begin, end - begin, self._poison, 1).num_wrong
                for begin, end in _gaps(self._expected, self._recv_bytes)
            )
            num_wrong += num_stray
            if num_stray and first is None:
                first = WrongData.of(WrongCode.STRAY, rank=self._rank)
        if num_wrong or not self._expected:
            sent = self._wrong_sent(buffers, index, data)
            num_wrong, first = max(num_wrong, sent.num_wrong), sent.first or first
        return Wrong(num_wrong, first, num_compared < sum(region.num_bytes for region in self._expected))

    def _wrong_sent(self, buffers: Buffers, index: int, data: _Data) -> Wrong:
        """Compare the send buffer with this member's data."""
        if self._in_place or not self._send_bytes or isinstance(data, ProductData):
            return Wrong(0)
        size, sent = self._dtype.num_bytes, data.sent(self._member)
        parts = _pieces(self._send_bytes, size) if buffers.on_host("send") else [(0, self._send_bytes)]
        for begin, end in parts:
            found = buffers.count_wrong("send", index, begin, end - begin, sent.after(begin), size)
            if found.num_wrong:
                return Wrong(found.num_wrong, self._described(found, begin, WrongCode.SENT))
        return Wrong(0)

    @property
    def _rank(self) -> int:
        return self._group.ranks[self._member]

    def _data(self, variation: int) -> _Data:
        seed = self._seed * 1009 + variation
        multiplied = next((region for region in self._expected if isinstance(region, Multiplied)), None)
        if multiplied is not None:
            return ProductData(self._dtype, multiplied.order, self._rank, seed)
        if self._reduce_op is not None:
            return ReduceData(self._dtype, self._reduce_op, self._group.ranks, seed)
        return CopyData(self._dtype, self._group.ranks, seed)

    def _put_factors(self, buffers: Buffers, index: int, data: ProductData) -> None:
        """Write the two factors of a product, and fill the memory of the result with poison."""
        num_bytes = self._send_bytes // len(data.factors)
        for k, factor in enumerate(data.factors):
            buffers.fill("send", index, k * num_bytes, num_bytes, factor)
        buffers.fill("recv", index, 0, buffers.recv_bytes, self._poison)

    def _reset(self, buffers: Buffers, index: int, sent: Tiled) -> None:
        """Fill the receive buffer with poison. For an in-place call, also write this member's data into the buffer."""
        begin, num_bytes = (self._own_offset, self._send_bytes) if self._in_place else (0, 0)
        buffers.fill("recv", index, 0, begin, self._poison)
        buffers.fill("recv", index, begin, num_bytes, sent)
        end = begin + num_bytes
        buffers.fill("recv", index, end, buffers.recv_bytes - end, self._poison)

    def _parts(self, buffers: Buffers, region: Expected) -> list[tuple[int, int]]:
        """Return which parts of a region to compare.

        On a GPU, the whole region is compared. On a CPU, only samples of a large region are compared.
        """
        if buffers.on_host("recv"):
            return _pieces(region.num_bytes, self._dtype.num_bytes)
        return [(0, region.num_bytes)] if region.num_bytes else []

    def _wrong_in(
        self, buffers: Buffers, index: int, region: Expected, begin: int, num_bytes: int, data: _Data
    ) -> Difference:
        at = region.offset_bytes + begin
        if isinstance(data, ReduceData) and not data.exact:
            return self._outside_tolerance(buffers, index, at, num_bytes, data, region.source_offset + begin)
        want = _expected_data(region, data).after(begin)
        return buffers.count_wrong("recv", index, at, num_bytes, want, self._dtype.num_bytes)

    def _outside_tolerance(
        self, buffers: Buffers, index: int, at: int, num_bytes: int, data: ReduceData, source_offset: int
    ) -> Difference:
        """Count the averages that are wrong, and find the first wrong average.

        An average may differ from the expected value within a tolerance. The host therefore compares the averages, one
        chunk at a time.
        """
        size, total = self._dtype.num_bytes, Difference()
        for done in range(0, num_bytes, _CHUNK_BYTES):
            got = buffers.read("recv", index, at + done, min(_CHUNK_BYTES, num_bytes - done))
            bad = data.beyond(got, source_offset + done)
            if not bad.any():
                continue
            element = int(np.argmax(bad))
            raw = bytes(got[element * size : (element + 1) * size])
            want = bytes(data.reduced(source_offset + done + element * size).head(size))
            found = Difference(int(np.count_nonzero(bad)), done // size + element, raw, want)
            total = replace(total, num_wrong=total.num_wrong + found.num_wrong) if total.num_wrong else found
        return total

    def _described(self, found: Difference, offset_bytes: int, code: WrongCode = WrongCode.ELEMENT) -> WrongData:
        element = offset_bytes // len(found.got) + found.first
        got, expected = f"0x{found.got.hex()}", f"0x{found.want.hex()}"
        return WrongData.of(code, rank=self._rank, element=element, got=got, expected=expected)


def _expected_data(region: Expected, data: _Data) -> Tiled:
    """Return the data that a region must contain after the call."""
    if isinstance(region, Multiplied):
        assert isinstance(data, ProductData)
        return data.product
    if isinstance(region, Reduced):
        assert isinstance(data, ReduceData)
        return data.reduced(region.source_offset)
    assert not isinstance(data, ProductData)
    return data.sent(region.source, region.source_offset)


def _gaps(regions: Sequence[Expected], num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each range of bytes that no region covers."""
    at = 0
    for region in sorted(regions, key=lambda region: region.offset_bytes):
        if region.offset_bytes > at:
            yield at, region.offset_bytes
        at = max(at, region.offset_bytes + region.num_bytes)
    if at < num_bytes:
        yield at, num_bytes


def _own_block(pattern: Pattern, shape: Shape, member: int) -> int:
    """Return, in bytes, the offset of this member's data in the single buffer of an in-place call.

    The offset is 0 except for allgather.
    """
    send_bytes, recv_bytes = pattern.buffers(shape, member)
    return member * send_bytes if recv_bytes > send_bytes else 0


def _pieces(num_bytes: int, element_bytes: int) -> list[tuple[int, int]]:
    """Return the begin and the end, in bytes, of each part of a region to compare.

    Below 1 GiB, the whole region is compared. In a larger region, only the first page, the last page and every
    hundredth page are compared.
    """
    if num_bytes < _FULL_BELOW_BYTES:
        return [(0, num_bytes)] if num_bytes else []
    page = _SAMPLED_EDGE_BYTES
    last = (num_bytes // page) * page
    starts = {0, last - page, *range(0, last, page * _SAMPLED_STRIDE)}
    return [(start, start + page) for start in sorted(starts)] + ([(last, num_bytes)] if last < num_bytes else [])
