"""Buffers that lie on one GPU, on another, in the host's memory, or partly here and there; guards around every part.

All parts of all sets that lie in one place are one allocation: CUDA's handles for other processes name allocations, not
addresses, and small allocations share one. The layout alone is enough for another process to find a part again.
"""

from __future__ import annotations

import contextlib
import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bench.core.program import Copies, Step
from bench.core.transport import Buffers
from bench.transports import _cuda_device

GUARD, GUARD_BYTES = 0xC3, 256
ALIGNMENT_BYTES = 4096  # of every part: a whole page of the host's memory
_WHOLE_BYTES = 2 << 20  # allocations of whole 2 MiB share nothing with others when another process opens them
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind
_HOST = -1

Side = Literal["send", "recv"]
Bytes = npt.NDArray[np.uint8]
Place = int  # the number of a GPU, or _HOST


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [`begin`, `begin + num_bytes`) of one buffer, in place `where` at `start` of each set's share there."""

    side: Side
    begin: int
    num_bytes: int
    where: Place
    start: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of every set lie. `stride`: bytes of one set in each place."""

    parts: tuple[Part, ...]
    stride: dict[Place, int]

    def find(self, side: Side, index: int, offset: int, num_bytes: int) -> tuple[Place, int]:
        """(place, offset in its allocation) of bytes of a buffer of set `index`, which must lie in one part."""
        for part in self.parts:
            if part.side == side and part.begin <= offset and offset + num_bytes <= part.begin + part.num_bytes:
                return part.where, index * self.stride[part.where] + part.start + offset - part.begin
        raise ValueError(f"bytes {offset} to {offset + num_bytes} of the {side} buffer lie in several places")


def layout(send_bytes: int, recv_bytes: int, member: int, steps: tuple[Step, ...],
           device_of: Callable[[int], Place]) -> Layout:  # fmt: skip
    """Parts as the copies of one member name them; all other bytes lie on the member's own GPU."""
    parts: list[Part] = []
    stride: dict[Place, int] = {}
    for side, num_bytes in (("send", send_bytes), ("recv", recv_bytes)):
        for begin, size, on in _cut(num_bytes, _named(steps, member, side)):
            where = device_of(member) if on is _UNNAMED else _HOST if on is None else device_of(on)
            start = _up(stride.get(where, 0) + GUARD_BYTES, ALIGNMENT_BYTES)
            parts.append(Part(side, begin, size, where, start))  # type: ignore[arg-type]
            stride[where] = start + size + GUARD_BYTES
    return Layout(tuple(parts), {where: _up(num, ALIGNMENT_BYTES) for where, num in stride.items()})


_UNNAMED: Any = object()


def _named(steps: tuple[Step, ...], member: int, side: str) -> Iterable[tuple[int, int, int | None]]:
    """(begin, bytes, on) of each stretch of this member's buffer that a copy says the place of."""
    for step in steps:
        for copy in step.copies if isinstance(step, Copies) else ():
            if side == "send" and copy.source == member:
                yield copy.source_offset, copy.num_bytes, copy.source_on
            if side == "recv" and copy.target == member:
                yield copy.target_offset, copy.num_bytes, copy.target_on


def _cut(num_bytes: int, named: Iterable[tuple[int, int, int | None]]) -> Iterable[tuple[int, int, Any]]:
    """The whole buffer, in order: named stretches, and what lies between them. One named twice is one."""
    at = 0
    for begin, size, on in sorted(set(named), key=lambda one: one[0]):
        if begin < at:
            raise ValueError(f"two copies say of byte {begin} where it lies")
        if begin > at:
            yield at, begin - at, _UNNAMED
        yield begin, size, on
        at = begin + size
    if at < num_bytes:
        yield at, num_bytes - at, _UNNAMED


def _up(num: int, whole: int) -> int:
    return -(-num // whole) * whole


class Block(ABC):
    """One allocation. Raises MemoryError where there is not enough."""

    pointer: int
    num_bytes: int

    @abstractmethod
    def fill(self, offset: int, num_bytes: int, byte: int) -> None:
        """Write one byte everywhere, and have it there."""

    @abstractmethod
    def write(self, offset: int, data: Bytes) -> None:
        """Put bytes there, and have them there."""

    @abstractmethod
    def read(self, offset: int, num_bytes: int) -> Bytes:
        """The bytes, as a copy or a view."""


class DeviceBlock(Block):
    """Memory of one GPU."""

    def __init__(self, runtime: Any, device: int, num_bytes: int) -> None:
        self._runtime, self.device, self.num_bytes = runtime, device, _up(num_bytes, _WHOLE_BYTES)
        self.pointer = 0
        with self._on():
            self.pointer = _allocated(runtime.malloc, self.num_bytes)

    @contextlib.contextmanager
    def _on(self) -> Any:
        before = self._runtime.getDevice()
        if before == self.device:
            yield
            return
        self._runtime.setDevice(self.device)
        try:
            yield
        finally:
            self._runtime.setDevice(before)

    def fill(self, offset: int, num_bytes: int, byte: int) -> None:
        """Through the stream that all others do not wait for: so it is waited for here."""
        with self._on():
            self._runtime.memset(self.pointer + offset, byte, num_bytes)
            self._runtime.deviceSynchronize()

    def write(self, offset: int, data: Bytes) -> None:
        """A copy from pageable memory may return when the last bytes are only staged."""
        with self._on():
            self._runtime.memcpy(self.pointer + offset, data.ctypes.data, data.nbytes, _TO_DEVICE)
            self._runtime.deviceSynchronize()

    def read(self, offset: int, num_bytes: int) -> Bytes:
        """A copy."""
        data = np.empty(num_bytes, dtype=np.uint8)
        with self._on():
            self._runtime.memcpy(data.ctypes.data, self.pointer + offset, num_bytes, _TO_HOST)
        return data

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending, and CUDA with it
            if self.pointer:
                self._runtime.free(self.pointer)


class HostBlock(Block):
    """Memory of the host, pinned or as the system pages it."""

    def __init__(self, runtime: Any, num_bytes: int, pinned: bool) -> None:
        self._runtime, self.num_bytes, self._pinned = runtime, num_bytes, pinned
        if pinned:
            self.pointer = _allocated(lambda num: runtime.hostAlloc(num, 0), num_bytes)
            self._memory: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(self.pointer))
        else:
            room = np.empty(num_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
            first = -room.ctypes.data % ALIGNMENT_BYTES
            self._memory = room[first : first + num_bytes]
            self.pointer = self._memory.ctypes.data

    def fill(self, offset: int, num_bytes: int, byte: int) -> None:
        """At once."""
        self._memory[offset : offset + num_bytes] = byte

    def write(self, offset: int, data: Bytes) -> None:
        """At once."""
        self._memory[offset : offset + len(data)] = data

    def read(self, offset: int, num_bytes: int) -> Bytes:
        """A view."""
        return self._memory[offset : offset + num_bytes]

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self._pinned and self.pointer:
                self._runtime.freeHost(self.pointer)


def _allocated(allocate: Callable[[int], int], num_bytes: int) -> int:
    try:
        return allocate(num_bytes)
    except RuntimeError as error:
        if getattr(error, "status", None) != _cuda_device.OUT_OF_MEMORY:
            raise
        raise MemoryError(str(error)) from None


class CudaBuffers(Buffers):
    """Sets of a send and a receive buffer, laid out as `layout` says; every page is written before use."""

    def __init__(self, send_bytes: int, recv_bytes: int, num_sets: int, where: Layout,
                 allocate: Callable[[Place, int], Block]) -> None:  # fmt: skip
        """`allocate(place, bytes)` makes one allocation."""
        self.send_bytes, self.recv_bytes, self.num_sets, self.layout = send_bytes, recv_bytes, num_sets, where
        self.blocks = {place: allocate(place, max(1, stride * num_sets)) for place, stride in where.stride.items()}
        for block in self.blocks.values():
            block.fill(0, block.num_bytes, GUARD)

    def address(self, side: Side, index: int, offset: int, num_bytes: int) -> tuple[Place, int]:
        """(place, address) of bytes of a buffer of set `index`."""
        where, at = self.layout.find(side, index, offset, num_bytes)
        return where, self.blocks[where].pointer + at

    def write(self, which: Side, index: int, data: Any) -> None:
        """Part by part, wherever each lies. A number fills the buffer."""
        for part, at in self._parts(which, index):
            if isinstance(data, int):
                self.blocks[part.where].fill(at, part.num_bytes, data)
            else:
                piece = np.ascontiguousarray(data[part.begin : part.begin + part.num_bytes])
                self.blocks[part.where].write(at, piece)

    def read(self, which: Side, index: int) -> Bytes:
        """A whole buffer, brought together in the host's memory."""
        pieces = [self.blocks[part.where].read(at, part.num_bytes) for part, at in self._parts(which, index)]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, dtype=np.uint8), *pieces])

    def guards_intact(self, index: int) -> bool:
        """Are the bytes before and after every part unchanged?"""
        return all(
            (self.blocks[part.where].read(begin, GUARD_BYTES) == GUARD).all()
            for side in ("send", "recv")
            for part, at in self._parts(side, index)
            for begin in (at - GUARD_BYTES, at + part.num_bytes)
        )

    def _parts(self, side: Side, index: int) -> list[tuple[Part, int]]:
        return [
            (part, index * self.layout.stride[part.where] + part.start)
            for part in self.layout.parts
            if part.side == side
        ]


HOST: Place = _HOST
