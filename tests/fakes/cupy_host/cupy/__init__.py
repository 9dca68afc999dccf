"""CuPy without a GPU: host memory in the place of a GPU's, a thread in the place of each stream.

Laid on PYTHONPATH in front of (or without) the real one. Streams carry out their work in order and nobody else waits
for them, so a gate really holds what is behind it. A GPU's memory is a shared file, which other processes can open by
its handle. What goes wrong is asked for by variables:

    FAKE_CUDA_GPUS=2             how many there are; "no-driver" and 0 fail as CUDA does
    FAKE_CUDA_MEMORY=1000000     bytes of each GPU
    FAKE_CUDA_PEERS=0            no GPU reaches another one
    FAKE_CUDA_IPC=0              no handles for other processes
    FAKE_CUDA_DROPS=1            every copy leaves its last byte out
    FAKE_CUDA_NVRTC=0            no kernel can be compiled
    FAKE_CUDA_STAGES=1           copies from and to the host wait for what is before them in their stream
    FAKE_CUDA_BLIND=1            a kernel that runs does not see what the host writes
    FAKE_CUDA_BLOCKS=2           blocks of 512 threads that fit on an SM
    FAKE_CUDA_REGISTER=0         no host memory can be registered
    FAKE_CUDA_LINK=25e6,25e6,11e6,25e6   events tell the times of a link with these bytes per second to and from the
                                 GPU, alone and while the other way is busy
    FAKE_CUDA_COPY_S=0.01        every copy takes this long at least
    FAKE_CUDA_STRICT=1           a process that ends with memory of another process open has exit code 99
    FAKE_CUDA_LOG=FILE           a line for each copy: what was called, between which GPUs
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy import int64, uint8

from . import cuda

__all__ = ["RawKernel", "asarray", "asnumpy", "broadcast_to", "cuda", "int64", "ndarray", "uint8"]
__version__ = "14.2.0"


class _Array(np.ndarray[Any, Any]):
    """numpy's, with the address where CuPy's has it."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


def ndarray(shape: tuple[int, ...], dtype: Any, memptr: Any) -> Any:
    """A view of a GPU's memory."""
    return cuda.runtime.view(memptr.ptr, int(np.prod(shape))).view(dtype).view(_Array)


def asarray(data: Any) -> Any:
    """A copy, as if to a GPU."""
    return np.array(data).view(_Array)


def asnumpy(array: Any) -> Any:
    """A copy, as if from a GPU."""
    return np.array(array)


def broadcast_to(array: Any, shape: tuple[int, ...]) -> Any:
    """A view of an array that repeats it."""
    return np.broadcast_to(array, shape, subok=True)


class RawKernel:
    """The kernels of ours, by name, as the source says what they do."""

    def __init__(self, code: str, name: str, options: tuple[str, ...] = ()) -> None:
        assert f"{name}(" in code and 'extern "C" __global__' in code
        self.code, self.name = code, name
        self.kernel = SimpleNamespace(ptr=1)

    def compile(self) -> None:
        """Nothing to do, unless the compiler is told to be missing."""
        if os.environ.get("FAKE_CUDA_NVRTC") == "0":
            raise RuntimeError("libnvrtc.so was not found")

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, stream: Any) -> None:
        """On a stream, in its order."""
        self.compile()
        assert all(isinstance(one, np.uint64) for one in args), "our kernels take numbers of 64 bits"
        cuda.runtime.launch(self.name, grid, block, tuple(map(int, args)), stream.ptr)
