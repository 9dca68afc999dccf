"""As much of CuPy as transports/mpi_cuda.py calls, over host memory that a real MPI really moves.

FAKE_CUPY (words by comma) tells it what to be:
  gpus=N        so many GPUs (2)
  driver        no driver answers
  unreachable   memory that the host can not touch, as a GPU's: a library without CUDA ends in a fault
  hang, wrong   in a process that is no rank: the GPU's stream never ends; what is read back is not what was moved
  no compiler   what takes a kernel of CuPy's own fails
  small         a rank gets no more than 1 MiB at a time
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from typing import Any

import numpy as np

__version__ = "0.fake"
_TOLD = os.environ.get("FAKE_CUPY", "").split(",")
_NUM_GPUS = next((int(word[5:]) for word in _TOLD if word.startswith("gpus=")), 2)
_A_RANK = "PMI_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ
_MOST_BYTES = 1 << 20 if "small" in _TOLD and _A_RANK else 1 << 40


def _odd(what: str) -> bool:
    return what in _TOLD and not _A_RANK


class _Pointer:
    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.ptr = memory.ctypes.data

    def memset_async(self, value: int, size: int) -> None:
        if "unreachable" not in _TOLD:
            self._memory[:size] = value


def _plain(value: Any) -> Any:
    return value._memory if isinstance(value, ndarray) else value


class ndarray:
    """An array on the device: no numpy array, and no buffer to Python."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __len__(self) -> int:
        return len(self._memory)

    def __bool__(self) -> bool:
        return bool(self._memory)

    def __int__(self) -> int:
        return int(self._memory)

    def __getitem__(self, where: Any) -> ndarray:
        return ndarray(self._memory[where])

    def __setitem__(self, where: Any, value: Any) -> None:
        if "no compiler" in _TOLD:
            raise RuntimeError("CuPy failed to load libnvrtc.so.13\nsee the manual")
        if "unreachable" not in _TOLD:
            self._memory[where] = _plain(value)

    def __ne__(self, other: object) -> Any:
        return ndarray(self._memory != _plain(other))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._memory.shape)

    def view(self, dtype: Any) -> ndarray:
        return ndarray(self._memory.view(dtype))

    def reshape(self, *shape: Any) -> ndarray:
        return ndarray(self._memory.reshape(*shape))

    def any(self, *axis: int) -> ndarray:
        return ndarray(self._memory.any(*axis))

    def sum(self) -> ndarray:
        return ndarray(self._memory.sum())

    def argmax(self) -> ndarray:
        return ndarray(self._memory.argmax())

    @property
    def data(self) -> _Pointer:
        return _Pointer(self._memory)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self._memory.shape,
            "typestr": "|u1",
            "version": 3,
            "data": (self._memory.ctypes.data if len(self._memory) else 0, False),
        }

    def set(self, array: Any) -> None:
        assert array.flags.c_contiguous and array.dtype == np.uint8 and array.shape == self._memory.shape
        if "unreachable" not in _TOLD:
            self._memory[:] = array

    def get(self, out: Any = None) -> Any:
        found = self._memory.copy()
        if _odd("wrong"):
            found[-1] ^= 1
        if out is None:
            return found
        out[:] = found
        return out


uint8, int64 = np.uint8, np.int64


def asarray(array: Any) -> ndarray:
    """A copy on the device."""
    return ndarray(np.array(array))


def asnumpy(array: ndarray) -> Any:
    """A copy on the host."""
    return array.get()


def broadcast_to(array: ndarray, shape: tuple[int, ...]) -> ndarray:
    """The same memory again and again."""
    return ndarray(np.broadcast_to(array._memory, shape))


def empty(num_bytes: int, dtype: Any) -> ndarray:
    """Device memory."""
    assert np.dtype(dtype) == np.uint8
    if num_bytes > _MOST_BYTES:
        raise cuda.memory.OutOfMemoryError(f"Out of memory allocating {num_bytes:,} bytes")
    if "unreachable" in _TOLD:
        return ndarray(np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(_no_access(num_bytes))))
    return ndarray(np.empty(num_bytes, np.uint8))


def _no_access(num_bytes: int) -> int:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    return int(libc.mmap(None, num_bytes, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0))


class cuda:
    """cupy.cuda."""

    class memory:
        """cupy.cuda.memory."""

        class OutOfMemoryError(MemoryError):
            """As CuPy's."""

    class runtime:
        """cupy.cuda.runtime."""

        class CUDARuntimeError(RuntimeError):
            """As CuPy's."""

            status = 35  # cudaErrorInsufficientDriver

        @staticmethod
        def getDeviceCount() -> int:
            if "driver" in _TOLD:
                raise cuda.runtime.CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
            return _NUM_GPUS

        @staticmethod
        def getDeviceProperties(index: int) -> dict[str, Any]:
            return {"name": b"Fake GPU", "uuid": bytes([index] * 4), "l2CacheSize": 1 << 20}

        @staticmethod
        def memGetInfo() -> tuple[int, int]:
            return 4 << 30, 8 << 30

        @staticmethod
        def runtimeGetVersion() -> int:
            return 13000

    class Device:
        """cupy.cuda.Device."""

        def __init__(self, index: int) -> None:
            assert 0 <= index < _NUM_GPUS
            self.pci_bus_id = f"0000:0{index}:00.0"

        def use(self) -> None:
            pass

    @staticmethod
    def get_current_stream() -> type[cuda]:
        return cuda

    @staticmethod
    def synchronize() -> None:
        while _odd("hang"):
            time.sleep(1)

    @staticmethod
    def alloc_pinned_memory(num_bytes: int) -> bytearray:
        return bytearray(num_bytes)
