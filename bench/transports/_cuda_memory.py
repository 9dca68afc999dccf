"""Allocate buffers on one or several GPUs or in host memory, with guards around every part.

On each GPU, and on the host, a single allocation contains all parts of all sets. An IPC handle of CUDA identifies an
allocation, not an address. Small allocations share one handle. Each allocation is therefore so large that it has a
separate handle. From the handle and the layout, another process can compute the address of every part.
"""

from __future__ import annotations

import contextlib
import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.core.arrays import NUMPY, Difference, Memory
from bench.core.payload import Bytes, Tiled, constant
from bench.core.program import CopyStep, Step
from bench.core.transport import GUARD, Buffers, Which
from bench.transports import _cuda_device
from bench.transports._device import CupyArrays

GUARD_BYTES = 256
ALIGNMENT_BYTES = 4096  # every part begins at a multiple of this size, a page of the host's memory
_WHOLE_BYTES = 2 << 20  # least size of an allocation, because smaller allocations would share a handle
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind
HOST = -1
SIDES: tuple[Which, Which] = ("send", "recv")
_CHUNK_BYTES = 16 << 20  # a multiple of every element's size

Place = int  # the number of a GPU in this process, or HOST
End = tuple[Place, int]  # one end of a copy, with its address


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one buffer: the bytes from `begin` up to `begin + num_bytes`.

    `where`: the GPU whose memory contains these bytes, or the host.
    `start`: the offset of the part in the allocation, relative to the beginning of its buffer set, in bytes.
    """

    side: Which
    begin: int
    num_bytes: int
    where: Place
    start: int


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """The parts of every set.

    `stride`: for each GPU and for the host, the size of one buffer set in bytes.
    """

    parts: tuple[Part, ...]
    stride: dict[Place, int]

    def find(self, side: Which, index: int, offset: int, num_bytes: int) -> tuple[Place, int]:
        """Return which memory contains some bytes of a buffer, and the offset of these bytes in the allocation there.

        All bytes must belong to the same part.
        """
        for part in self.parts:
            if part.side == side and part.begin <= offset and offset + num_bytes <= part.begin + part.num_bytes:
                return part.where, index * self.stride[part.where] + part.start + offset - part.begin
        raise ValueError(f"bytes {offset} to {offset + num_bytes} of the {side} buffer lie in several places")


def layout(
    send_bytes: int, recv_bytes: int, member: int, steps: tuple[Step, ...], device_of: Callable[[int], Place]
) -> BufferLayout:
    """Return the parts of the buffers of one member.

    A copy may specify where its source and its target are: on which GPU, or on the host. If no copy specifies a place
    for some bytes, these bytes are on the member's own GPU.
    """
    parts: list[Part] = []
    stride: dict[Place, int] = {}
    for side, num_bytes in zip(SIDES, (send_bytes, recv_bytes), strict=True):
        for begin, size, on in _cut(num_bytes, _named(steps, member, side)):
            where = device_of(member) if on is _UNNAMED else HOST if on is None else device_of(on)
            start = _up(stride.get(where, 0) + GUARD_BYTES, ALIGNMENT_BYTES)
            parts.append(Part(side, begin, size, where, start))
            stride[where] = start + size + GUARD_BYTES
    return BufferLayout(tuple(parts), {where: _up(num, ALIGNMENT_BYTES) for where, num in stride.items()})


_UNNAMED: Any = object()


def _named(steps: tuple[Step, ...], member: int, side: str) -> Iterable[tuple[int, int, int | None]]:
    """Yield the ranges of this member's buffer whose place a copy specifies, as (begin, bytes, place).

    A place is a GPU or the host.
    """
    for step in steps:
        for copy in step.copies if isinstance(step, CopyStep) else ():
            if side == "send" and copy.source == member:
                yield copy.source_offset, copy.num_bytes, copy.source_on
            if side == "recv" and copy.target == member:
                yield copy.target_offset, copy.num_bytes, copy.target_on


def _cut(num_bytes: int, named: Iterable[tuple[int, int, int | None]]) -> Iterable[tuple[int, int, Any]]:
    """Yield all successive ranges of a buffer.

    Ranges in `named` have a place (a GPU or the host). All other ranges have none. A range that occurs twice in `named`
    is yielded once.
    """
    at = 0
    for begin, size, on in sorted(set(named), key=lambda part: part[0]):
        if begin < at:
            raise ValueError(f"two copies place byte {begin}")
        if begin > at:
            yield at, begin - at, _UNNAMED
        yield begin, size, on
        at = begin + size
    if at < num_bytes:
        yield at, num_bytes - at, _UNNAMED


def _up(num: int, whole: int) -> int:
    return -(-num // whole) * whole


class Allocation(ABC):
    """An allocation. Raises MemoryError if there is not enough memory."""

    pointer: int
    num_bytes: int

    @abstractmethod
    def piece(self, offset: int, num_bytes: int) -> Memory:
        """Return a part of the allocation, for filling and comparing."""


class HostBlock(Allocation):
    """Host memory, pinned or pageable."""

    def __init__(self, runtime: Any, num_bytes: int, pinned: bool) -> None:
        self._runtime, self.num_bytes, self._pinned = runtime, num_bytes, pinned
        self.pointer = 0
        if pinned:
            self.pointer = _allocated(lambda num: runtime.hostAlloc(num, 0), num_bytes)
            self._memory: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(self.pointer))
        else:
            room = np.empty(num_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
            first = -room.ctypes.data % ALIGNMENT_BYTES
            self._memory = room[first : first + num_bytes]
            self.pointer = self._memory.ctypes.data

    def piece(self, offset: int, num_bytes: int) -> Memory:
        """Return a numpy view."""
        return Memory(NUMPY, self._memory[offset : offset + num_bytes])

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter and CUDA may be shutting down
            if self._pinned and self.pointer:
                self._runtime.freeHost(self.pointer)


class DeviceBlock(Allocation):
    """Memory of one GPU.

    The host memory does not come from a pool. If the memory came from a pool, other processes that open the memory
    could access the whole pool.
    """

    def __init__(self, runtime: Any, device: int, num_bytes: int, cupy: Any = None) -> None:
        """Allocate the memory.

        `runtime`: `cupy.cuda.runtime`, or an object with functions of the same names.
        `cupy`: the CuPy module if the GPU shall compare the memory. CuPy then needs a compiler, and the GPU must be
            current. With None, the host compares the memory.
        """
        self._runtime, self.device, self.num_bytes = runtime, device, _up(num_bytes, _WHOLE_BYTES)
        self.pointer = 0
        with _on(self._runtime, device):
            self.pointer = _allocated(self._runtime.malloc, self.num_bytes)
        self._memory: Memory = Staged(NUMPY, _Span(self._runtime, device, self.pointer, self.num_bytes))
        if cupy is not None:
            whole = cupy.cuda.UnownedMemory(self.pointer, self.num_bytes, None, device)
            array = cupy.ndarray((self.num_bytes,), cupy.uint8, cupy.cuda.MemoryPointer(whole, 0))
            self._memory = Memory(CupyArrays(cupy), array)

    def piece(self, offset: int, num_bytes: int) -> Memory:
        """Return a part of the memory. The GPU compares the part. Without kernels, the host compares the part."""
        return self._memory.part(offset, num_bytes)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self.pointer:
                self._runtime.free(self.pointer)


@dataclass(frozen=True, slots=True)
class Staged(Memory):
    """GPU memory (a _Span) whose contents the host writes and compares, one chunk at a time."""

    def write(self, data: Bytes) -> None:
        """Copy to the GPU. When the method returns, the bytes have arrived."""
        self.array.put(np.ascontiguousarray(data))

    def read(self) -> Bytes:
        """Return a copy of the bytes in host memory."""
        data: Bytes = self.array.get()
        return data

    def fill(self, content: Tiled) -> None:
        """Write `content`. When the method returns, the bytes have arrived."""
        for begin, chunk in self._chunks():
            chunk.put(content.after(begin).head(len(chunk)))

    def count_wrong(self, content: Tiled, element_bytes: int) -> Difference:
        """Compare the memory with `content` on the host, with numpy."""
        size = element_bytes if self.num_bytes % element_bytes == 0 else 1
        total = Difference()
        for begin, chunk in self._chunks():
            found = Memory(NUMPY, chunk.get()).count_wrong(content.after(begin), size)
            if found.num_wrong:
                first = total if total.num_wrong else replace(found, first=begin // size + found.first)
                total = replace(first, num_wrong=total.num_wrong + found.num_wrong)
        return total

    def _chunks(self) -> Iterator[tuple[int, Any]]:
        for begin in range(0, self.num_bytes, _CHUNK_BYTES):
            yield begin, self.array[begin : begin + _CHUNK_BYTES]


@dataclass(frozen=True, slots=True)
class _Span:
    """A range of GPU memory, given by its address."""

    runtime: Any
    device: int
    pointer: int
    num_bytes: int

    def __len__(self) -> int:
        return self.num_bytes

    def __getitem__(self, part: slice) -> _Span:
        begin, end, _ = part.indices(self.num_bytes)
        return _Span(self.runtime, self.device, self.pointer + begin, max(0, end - begin))

    def put(self, data: Bytes) -> None:
        """Copy and wait. A copy from pageable memory may return before all bytes have arrived."""
        if self.num_bytes:
            with _on(self.runtime, self.device):
                self.runtime.memcpy(self.pointer, data.ctypes.data, self.num_bytes, _TO_DEVICE)
                self.runtime.deviceSynchronize()

    def get(self) -> Bytes:
        data = np.empty(self.num_bytes, dtype=np.uint8)
        if self.num_bytes:
            with _on(self.runtime, self.device):
                self.runtime.memcpy(data.ctypes.data, self.pointer, self.num_bytes, _TO_HOST)
        return data


@contextlib.contextmanager
def _on(runtime: Any, device: int) -> Iterator[None]:
    """Return a context in which a GPU is CUDA's current device."""
    before = runtime.getDevice()
    runtime.setDevice(device)
    try:
        yield
    finally:
        runtime.setDevice(before)


def _allocated(allocate: Callable[[int], int], num_bytes: int) -> int:
    try:
        return allocate(num_bytes)
    except RuntimeError as error:
        if getattr(error, "status", None) != _cuda_device.OUT_OF_MEMORY:
            raise
        raise MemoryError(str(error)) from None


class CudaBuffers(Buffers):
    """The buffer sets of one rank, arranged as a BufferLayout describes. A set has a send buffer and a receive buffer.

    Every page is written before its first use.
    """

    def __init__(
        self,
        send_bytes: int,
        recv_bytes: int,
        num_sets: int,
        where: BufferLayout,
        allocate: Callable[[Place, int], Allocation],
    ) -> None:
        """Allocate the buffers.

        The function `allocate(place, bytes)` makes one allocation.
        """
        self.send_bytes, self.recv_bytes, self.num_sets, self.layout = send_bytes, recv_bytes, num_sets, where
        self.blocks = {place: allocate(place, max(1, stride * num_sets)) for place, stride in where.stride.items()}
        for block in self.blocks.values():
            block.piece(0, block.num_bytes).fill(constant(GUARD))

    def address(self, side: Which, index: int, offset: int, num_bytes: int) -> tuple[Place, int]:
        """Return where some bytes of a buffer are: the GPU or host, and the address.

        `index` is the number of the buffer set.
        """
        where, at = self.layout.find(side, index, offset, num_bytes)
        return where, self.blocks[where].pointer + at

    def pointer(self, side: Which, index: int) -> int:
        """Return the address of a buffer that lies completely in one GPU's memory or on the host.

        Return 0 if it has no bytes.
        """
        num_bytes = self.send_bytes if side == "send" else self.recv_bytes
        return self.address(side, index, 0, num_bytes)[1] if num_bytes else 0

    def memory(self, which: Which, index: int) -> list[Memory]:
        """Return the memory of all parts of a buffer, in order."""
        return [self.blocks[part.where].piece(at, part.num_bytes) for part, at in self._parts(which, index)]

    def guards(self, index: int) -> list[Memory]:
        """Return the guard bytes before and after each part of a buffer set."""
        return [
            self.blocks[part.where].piece(begin, GUARD_BYTES)
            for side in SIDES
            for part, at in self._parts(side, index)
            for begin in (at - GUARD_BYTES, at + part.num_bytes)
        ]

    def _parts(self, side: Which, index: int) -> list[tuple[Part, int]]:
        return [
            (part, index * self.layout.stride[part.where] + part.start)
            for part in self.layout.parts
            if part.side == side
        ]
