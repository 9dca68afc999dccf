"""Bytes in an array of numpy, torch or CuPy: filled and compared where they lie, without a second array of their size.

What a buffer must hold repeats after a few MiB (core/payload.py: Tiled). One period is brought to where the buffer is
and laid against it, row by row, in chunks; only counts and the first wrong element come back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.core.payload import Bytes, Tiled

CHUNK_BYTES = 64 << 20  # compared at once: each step of a device costs microseconds, and the flags take an eighth of it
_WORD_BYTES = 8
_MOST_HEADS = 4


class Arrays(ABC):
    """The operations in which numpy, torch and CuPy differ. Arrays are contiguous, one-dimensional and of uint8.

    What these arrays have in common is used directly: slices, `reshape`, `!=`, `any`, `sum`.
    """

    on_host: bool  # does the CPU compare them?

    def __init__(self) -> None:
        self._heads: dict[tuple[int, ...], tuple[Bytes, Any]] = {}

    def head(self, content: Tiled, num_bytes: int) -> Any:
        """The first bytes of `content`, brought here. The last few stay: sets of buffers are filled with the same."""
        key = (id(content.period), content.offset % content.row_bytes, content.salt, content.mask, num_bytes)
        if key not in self._heads:
            while len(self._heads) >= _MOST_HEADS:
                self._heads.pop(next(iter(self._heads)))
            self._heads[key] = content.period, self.upload(content.head(num_bytes))  # the period keeps its id
        return self._heads[key][1]

    @abstractmethod
    def empty(self, num_bytes: int) -> Any:
        """New memory, aligned to 16 bytes or more. Raises MemoryError."""

    @abstractmethod
    def upload(self, data: Bytes) -> Any:
        """The bytes of a numpy array; it may be that array."""

    @abstractmethod
    def download(self, array: Any) -> Bytes:
        """The bytes as a numpy array; it may be that memory."""

    @abstractmethod
    def address(self, array: Any) -> int:
        """Where an array begins."""

    @abstractmethod
    def words(self, array: Any) -> Any:
        """The same memory as 8-byte integers. Its address and size are multiples of 8."""

    @abstractmethod
    def repeated(self, array: Any, rows: int) -> Any:
        """An array as every row of a table, without a copy of it."""

    @abstractmethod
    def copy(self, target: Any, source: Any) -> None:
        """Between arrays of one kind and shape."""

    @abstractmethod
    def first(self, flags: Any) -> int:
        """The index of the first true one of some flags, one of which is true."""


class NumpyArrays(Arrays):
    """Host memory."""

    on_host = True

    def empty(self, num_bytes: int) -> Bytes:
        """Not yet written."""
        return np.empty(num_bytes, dtype=np.uint8)

    def upload(self, data: Bytes) -> Bytes:
        """The array itself."""
        return data

    def download(self, array: Any) -> Bytes:
        """That memory."""
        return np.asarray(array)

    def address(self, array: Any) -> int:
        """Of the first byte."""
        return int(array.ctypes.data)

    def words(self, array: Any) -> Any:
        """Another view."""
        return array.view(np.int64)

    def repeated(self, array: Any, rows: int) -> Any:
        """A view with a stride of 0."""
        return np.broadcast_to(array, (rows, len(array)))

    def copy(self, target: Any, source: Any) -> None:
        """An assignment."""
        target[...] = source

    def first(self, flags: Any) -> int:
        """Flags are bool."""
        return int(flags.argmax())


NUMPY = NumpyArrays()


@dataclass(frozen=True, slots=True)
class Difference:
    """How many elements are not what they must be; of the first one its index, what was there and what must be."""

    num_wrong: int = 0
    first: int = 0
    got: bytes = b""
    want: bytes = b""


@dataclass(frozen=True, slots=True)
class Memory:
    """A piece of memory, as an array of its kind."""

    arrays: Arrays
    array: Any

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return len(self.array)

    def part(self, begin: int, num_bytes: int) -> Memory:
        """`num_bytes` of it from byte `begin` on."""
        return replace(self, array=self.array[begin : begin + num_bytes])

    def write(self, data: Bytes) -> None:
        """Put the bytes of a numpy array of its size into it."""
        if len(data):
            self.arrays.copy(self.array, self.arrays.upload(data))

    def read(self) -> Bytes:
        """Its bytes as a numpy array: that memory itself where the host can see it."""
        return self.arrays.download(self.array)

    def fill(self, content: Tiled) -> None:
        """Write what `content` says. A device does it in the order of its stream: it may not be done on return."""
        for _, here, want in self._laid_against(content):
            self.arrays.copy(*self._widest(here, want))

    def count_wrong(self, content: Tiled, element_bytes: int) -> Difference:
        """Where it differs from `content` in any bit. Elements of single bytes where it holds no whole ones."""
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
        """(offset, a piece of this memory, a table of what must be in it), piece by piece."""
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
        """Both as tables of one shape, of words where they lie so that they can be."""
        rows, row = want.shape
        aligned = row % _WORD_BYTES == 0 and self.arrays.address(here) % _WORD_BYTES == 0
        if not aligned or self.arrays.address(want) % _WORD_BYTES:
            return here.reshape(rows, row), want
        words = self.arrays.words
        return words(here).reshape(rows, row // _WORD_BYTES), self.arrays.repeated(words(want[0]), rows)
