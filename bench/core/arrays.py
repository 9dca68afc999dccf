"""Fill and compare bytes in arrays of numpy, torch or CuPy, in place and without a second array of the same size.

The content of a buffer repeats after a few MiB (core/payload.py: Tiled). One period of the content is copied to the
buffer's device. On the device, each chunk of the buffer is compared with this period. Only counts and the first wrong
element are copied back to the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.core.payload import Bytes, Tiled

# Bytes that are compared at once. On a device, the comparison of a chunk has an overhead of some microseconds. The
# flags of the comparison take an eighth of these bytes.
CHUNK_BYTES = 64 << 20
_WORD_BYTES = 8
_MOST_HEADS = 4


class Arrays(ABC):
    """The operations in which numpy, torch and CuPy differ. Arrays are contiguous, one-dimensional and of uint8.

    In all three libraries, slices, `reshape`, `!=`, `any` and `sum` work in the same way, so the code uses them
    directly.
    """

    on_host: bool  # does the CPU compare the arrays?

    def __init__(self) -> None:
        self._heads: dict[tuple[int, ...], tuple[Bytes, Any]] = {}

    def head(self, content: Tiled, num_bytes: int) -> Any:
        """Return the first `num_bytes` of `content`, on this device.

        The last results are cached, because the same bytes are needed for every buffer set.
        """
        key = (id(content.period), content.offset % content.row_bytes, content.salt, content.mask, num_bytes)
        if key not in self._heads:
            while len(self._heads) >= _MOST_HEADS:
                self._heads.pop(next(iter(self._heads)))
            # The period is kept, because its id in the key is unique only while the period exists.
            self._heads[key] = content.period, self.upload(content.head(num_bytes))
        return self._heads[key][1]

    @abstractmethod
    def empty(self, num_bytes: int) -> Any:
        """Allocate `num_bytes` of memory, aligned to at least 16 bytes. Raises MemoryError."""

    @abstractmethod
    def upload(self, data: Bytes) -> Any:
        """Return an array on this device that has the bytes of a numpy array.

        If the array is already in this device's memory, the result may be the array itself.
        """

    @abstractmethod
    def download(self, array: Any) -> Bytes:
        """Return the bytes as a numpy array. The result may be a view of the same memory."""

    @abstractmethod
    def address(self, array: Any) -> int:
        """Return the address of an array's first byte."""

    @abstractmethod
    def words(self, array: Any) -> Any:
        """Return a view of the array as 8-byte integers. The array's address and size must be multiples of 8."""

    @abstractmethod
    def repeated(self, array: Any, rows: int) -> Any:
        """Return a two-dimensional view with `rows` rows. Each row is this array, and nothing is copied."""

    @abstractmethod
    def copy(self, target: Any, source: Any) -> None:
        """Copy between arrays of the same library and shape."""

    @abstractmethod
    def first(self, flags: Any) -> int:
        """Return the index of the first true flag (at least one must be set)."""


class NumpyArrays(Arrays):
    """Operations on numpy arrays in host memory."""

    on_host = True

    def empty(self, num_bytes: int) -> Bytes:
        """Allocate uninitialised memory."""
        return np.empty(num_bytes, dtype=np.uint8)

    def upload(self, data: Bytes) -> Bytes:
        """Return the array itself."""
        return data

    def download(self, array: Any) -> Bytes:
        """Return a view of the array's memory."""
        return np.asarray(array)

    def address(self, array: Any) -> int:
        """Return the address of the first byte."""
        return int(array.ctypes.data)

    def words(self, array: Any) -> Any:
        """Return a view of the array as 8-byte integers."""
        return array.view(np.int64)

    def repeated(self, array: Any, rows: int) -> Any:
        """Return a two-dimensional view of `rows` rows, all at the same memory address.

        The stride between rows is 0.
        """
        return np.broadcast_to(array, (rows, len(array)))

    def copy(self, target: Any, source: Any) -> None:
        """Assign the elements."""
        target[...] = source

    def first(self, flags: Any) -> int:
        """Return the index of the first true flag."""
        return int(flags.argmax())


NUMPY = NumpyArrays()


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between memory and its expected content.

    The fields are the number of wrong elements and, for the first wrong element, its index, its bytes and the expected
    bytes.
    """

    num_wrong: int = 0
    first: int = 0
    got: bytes = b""
    want: bytes = b""


@dataclass(frozen=True, slots=True)
class Memory:
    """A region of memory: an array, and the operations for arrays of the same library."""

    arrays: Arrays
    array: Any

    @property
    def num_bytes(self) -> int:
        """The size of this memory in bytes."""
        return len(self.array)

    def part(self, begin: int, num_bytes: int) -> Memory:
        """Return the part of this memory that begins at byte `begin` and has `num_bytes` bytes."""
        return replace(self, array=self.array[begin : begin + num_bytes])

    def write(self, data: Bytes) -> None:
        """Write the bytes of a numpy array of the same size."""
        if len(data):
            self.arrays.copy(self.array, self.arrays.upload(data))

    def read(self) -> Bytes:
        """Return the bytes as a numpy array: a view of host memory, or a copy of device memory."""
        return self.arrays.download(self.array)

    def fill(self, content: Tiled) -> None:
        """Write `content`. A device writes in stream order, possibly after this call has returned."""
        for _, here, want in self._laid_against(content):
            self.arrays.copy(*self._widest(here, want))

    def count_wrong(self, content: Tiled, element_bytes: int) -> Difference:
        """Count the elements that differ from `content` in any bit.

        If the memory is not a whole number of elements, count bytes instead.
        """
        size = element_bytes if self.num_bytes % element_bytes == 0 else 1
        num_wrong, first = 0, -1
        for begin, here, want in self._laid_against(content):
            wide_here, wide_want = self._widest(here, want)
            if not bool((wide_here != wide_want).any()):
                continue
            bad = (here.reshape(want.shape) != want).reshape(-1, size).any(1)
            num_wrong += int(bad.sum())
            first = first if first >= 0 else begin // size + self.arrays.first(bad)
        if not num_wrong:
            return Difference()
        at = first * size
        got = bytes(self.part(at, size).read())
        return Difference(num_wrong, first, got, bytes(content.after(at).head(size)))

    def _laid_against(self, content: Tiled) -> Iterator[tuple[int, Any, Any]]:
        """Yield (offset, content, expected content) for each chunk of this memory. Both contents are tables."""
        if not self.num_bytes:
            return
        row = min(self.num_bytes, content.row_bytes)
        head = self.arrays.head(content, row)
        whole, rows = self.num_bytes // row * row, max(1, CHUNK_BYTES // row)
        for begin in range(0, whole, rows * row):
            end = min(begin + rows * row, whole)
            yield begin, self.array[begin:end], self.arrays.repeated(head, (end - begin) // row)
        if whole < self.num_bytes:
            rest = self.num_bytes - whole
            yield whole, self.array[whole:], self.arrays.repeated(head[:rest], 1)

    def _widest(self, here: Any, want: Any) -> tuple[Any, Any]:
        """Return the actual and the expected content as tables of the same shape.

        If both addresses and the row's size are multiples of 8, the elements are 8-byte words. Otherwise they are
        bytes.
        """
        rows, row = want.shape
        aligned = row % _WORD_BYTES == 0 and self.arrays.address(here) % _WORD_BYTES == 0
        if not aligned or self.arrays.address(want) % _WORD_BYTES:
            return here.reshape(rows, row), want
        words = self.arrays.words
        return words(here).reshape(rows, row // _WORD_BYTES), self.arrays.repeated(words(want[0]), rows)
