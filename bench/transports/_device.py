"""Allocate buffers in GPU memory, which torch or CuPy fills and compares on the GPU.

    arrays = TorchArrays(torch, device)            # or CupyArrays(cupy)
    buffers = DeviceBuffers(GuardedBlock(arrays, send_bytes, num_sets), GuardedBlock(arrays, recv_bytes, num_sets))
    buffers.view("send", k)                        # the uint8 array of set k, for the library

A buffer that lies in several memories, such as partly on the host, needs its own subclass of `core/transport.Buffers`.
The subclass returns the pieces of the buffer from `memory` and `guards`. The methods that fill and compare buffers then
work without changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.core.arrays import Arrays, Memory
from bench.core.errors import first_line
from bench.core.payload import Bytes, constant
from bench.core.transport import GUARD, Buffers, Which

_ALIGNMENT_BYTES = 256  # the alignment of cudaMalloc


class TorchArrays(Arrays):
    """Tensors on one device, on torch's current stream.

    `allocate`: a function that allocates bytes in place of torch's allocator.
    """

    def __init__(self, torch: Any, device: Any, allocate: Callable[[int], Any] | None = None) -> None:
        super().__init__()
        self._torch, self._device, self._allocate = torch, device, allocate
        self.on_host = False

    def empty(self, num_bytes: int) -> Any:
        if self._allocate is not None:
            return self._allocate(num_bytes)
        try:
            return self._torch.empty(num_bytes, dtype=self._torch.uint8, device=self._device)
        except self._torch.cuda.OutOfMemoryError as error:
            raise MemoryError(first_line(error)) from None

    def upload(self, data: Bytes) -> Any:
        return self._torch.from_numpy(data).to(self._device)

    def download(self, array: Any) -> Bytes:
        host: Bytes = array.cpu().numpy()
        return host

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def words(self, array: Any) -> Any:
        return array.view(self._torch.int64)

    def repeated(self, array: Any, rows: int) -> Any:
        return array.expand(rows, -1)

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def first(self, flags: Any) -> int:
        return int(flags.view(self._torch.uint8).argmax())  # torch has no argmax of bool


class CupyArrays(Arrays):
    """Arrays on CuPy's current device, which CuPy's current stream writes and reads."""

    def __init__(self, cupy: Any) -> None:
        super().__init__()
        self._cupy = cupy
        self.on_host = False

    def empty(self, num_bytes: int) -> Any:
        return self._cupy.empty(num_bytes, dtype=self._cupy.uint8)  # CuPy's OutOfMemoryError is a MemoryError

    def upload(self, data: Bytes) -> Any:
        return self._cupy.asarray(data)

    def download(self, array: Any) -> Bytes:
        host: Bytes = self._cupy.asnumpy(array)
        return host

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def words(self, array: Any) -> Any:
        return array.view(self._cupy.int64)

    def repeated(self, array: Any, rows: int) -> Any:
        return self._cupy.broadcast_to(array, (rows, len(array)))

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def first(self, flags: Any) -> int:
        return int(flags.view(self._cupy.uint8).argmax())


def compares(cupy: Any) -> bool:
    """Check whether CuPy can fill and compare buffers. To compile its kernels, CuPy needs CUDA's headers."""
    try:
        arrays = CupyArrays(cupy)
        memory = Memory(arrays, arrays.empty(_ALIGNMENT_BYTES))
        memory.fill(constant(GUARD))
        return memory.count_wrong(constant(GUARD), 1).num_wrong == 0
    except Exception:  # CuPy raises many exception types; the host then compares
        return False


class GuardedBlock:
    """One allocation that contains `num` buffers of `num_bytes` bytes each, with guard bytes around each buffer.

    Every page is written.
    """

    def __init__(self, arrays: Arrays, num_bytes: int, num: int) -> None:
        """Allocate the block. Raises MemoryError if there is not enough memory."""
        self.num_bytes, self.num = num_bytes, num
        self._arrays = arrays
        self._stride = _ALIGNMENT_BYTES + -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.array = arrays.empty(self._stride * num + _ALIGNMENT_BYTES)  # the whole allocation
        Memory(arrays, self.array).fill(constant(GUARD))

    def offset(self, index: int) -> int:
        """Return the offset of buffer `index` in `array`."""
        return index * self._stride + _ALIGNMENT_BYTES

    def view(self, index: int) -> Any:
        """Return buffer `index` as an array of uint8."""
        return self.array[self.offset(index) : self.offset(index) + self.num_bytes]

    def memory(self, index: int) -> Memory:
        """Return buffer `index`."""
        return Memory(self._arrays, self.view(index))

    def guards(self, index: int) -> tuple[Memory, Memory]:
        """Return the bytes before and after buffer `index`."""
        begin, end = self.offset(index), self.offset(index) + self.num_bytes
        after = (index + 1) * self._stride + _ALIGNMENT_BYTES
        return (
            Memory(self._arrays, self.array[begin - _ALIGNMENT_BYTES : begin]),
            Memory(self._arrays, self.array[end:after]),
        )


class DeviceBuffers(Buffers):
    """Sets of buffers. One block contains all send buffers, and another block contains all receive buffers."""

    def __init__(self, send: GuardedBlock, recv: GuardedBlock) -> None:
        self._blocks = {"send": send, "recv": recv}
        self.send_bytes, self.recv_bytes, self.num_sets = send.num_bytes, recv.num_bytes, send.num

    def view(self, which: Which, index: int) -> Any:
        """Return the memory as a uint8 array, for the library."""
        return self._blocks[which].view(index)

    def memory(self, which: Which, index: int) -> tuple[Memory]:
        """Return a whole buffer of set `index`."""
        return (self._blocks[which].memory(index),)

    def guards(self, index: int) -> list[Memory]:
        """Return the bytes before and after both buffers of a set."""
        return [piece for block in self._blocks.values() for piece in block.guards(index)]
