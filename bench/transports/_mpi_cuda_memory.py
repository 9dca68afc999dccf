"""Manage one rank's GPU and the buffers on this GPU through CuPy.

Only CuPy's current stream is used. MPI does not know CUDA streams, so each write waits until the stream is idle.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.core.arrays import Memory
from bench.core.errors import RefusedError, first_line
from bench.core.payload import Bytes, Tiled, constant
from bench.core.transport import GUARD, Buffers, Which
from bench.core.world import RankInfo
from bench.transports import _host
from bench.transports._cuda_device import WITHOUT_DRIVER
from bench.transports._device import CupyArrays

_ALIGNMENT_BYTES = 256  # the alignment of memory from cudaMalloc
_RESERVE_BYTES = 1 << 30  # reserved for the library and the driver


class RankGpu:
    """The GPU of this rank. The constructor makes this GPU the current device of CuPy."""

    def __init__(self, cupy: Any, place: RankInfo, shared: bool) -> None:
        """Choose the GPU of the local rank, or the only visible GPU.

        Raises RefusedError if there is no GPU for this rank.

        `shared`: whether ranks may share GPUs. If ranks share GPUs, the GPU is the local rank modulo the number of
            GPUs.
        """
        self._cupy, self._runtime, self.arrays = cupy, cupy.cuda.runtime, CupyArrays(cupy)
        num_gpus = self._count(place.rank)
        if 1 < num_gpus < place.local_size and not shared:
            raise RefusedError(
                f"{place.local_size} ranks on this host need a GPU each, CUDA shows {num_gpus}: "
                "start fewer ranks per node, or use --transport mpi"
            )
        self.index = place.local_rank % num_gpus
        try:
            cupy.cuda.Device(self.index).use()
            cupy.empty(1, dtype=np.uint8)  # MPI libraries search for a CUDA context in MPI_Init
            self._about: dict[str, Any] = dict(self._runtime.getDeviceProperties(self.index))
        except self._runtime.CUDARuntimeError as error:
            raise RefusedError(f"rank {place.rank} cannot use GPU {self.index} ({first_line(error)})") from None
        self._compiles(place.rank)
        # Partitions of one GPU (MIG) share its bus address, but not its UUID.
        identity = self._about.get("uuid")
        uuid = identity.hex() if isinstance(identity, bytes) else str(identity or "")
        self.name = f"{cupy.cuda.Device(self.index).pci_bus_id} {uuid}".strip()

    def _compiles(self, rank: int) -> None:
        """Raise RefusedError if CuPy cannot compile a kernel for this GPU.

        CuPy needs kernels to fill and compare memory. Without this check, a missing compiler would become visible only
        as a failure of the first row.
        """
        try:
            Memory(self.arrays, self.arrays.empty(64)).fill(constant(GUARD))
            self.finish()
        except MemoryError:
            raise RefusedError(f"GPU {self.index} of rank {rank} has no free memory: end what uses it") from None
        except Exception as error:
            raise RefusedError(
                f"CuPy of rank {rank} cannot compile for GPU {self.index} ({first_line(error)}): "
                "install CUDA's compiler, pip install 'cupy-cuda13x[ctk]'"
            ) from None

    def _count(self, rank: int) -> int:
        try:
            num_gpus, why = int(self._runtime.getDeviceCount()), "CUDA shows none"
        except self._runtime.CUDARuntimeError as error:
            num_gpus, why = 0, first_line(error)
            if error.status in WITHOUT_DRIVER:
                raise RefusedError(
                    f"rank {rank} found no NVIDIA driver for this CuPy ({why}): install or update the driver, "
                    "or use --transport mpi"
                ) from None
        if num_gpus == 0:
            raise RefusedError(f"rank {rank} has no GPU ({why}): set CUDA_VISIBLE_DEVICES, or use --transport mpi")
        return num_gpus

    def facts(self) -> dict[str, str]:
        """Return the facts about this GPU for the header."""
        model = self._about.get("name", b"")
        runtime = int(self._runtime.runtimeGetVersion())
        return {
            "memory": "device",
            "gpu": model.decode(errors="replace") if isinstance(model, bytes) else str(model),
            "cupy": str(self._cupy.__version__),
            "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
        }

    def available_bytes(self, num_sharing: int) -> int:
        """Return the bytes that this rank's buffers may use on a GPU that `num_sharing` ranks share."""
        free = int(self._runtime.memGetInfo()[0]) // num_sharing
        return max(free - _RESERVE_BYTES, free // 2)

    def cache_bytes(self) -> int | None:
        """Return the size of the GPU's L2 cache in bytes. Return None if the size is unknown."""
        return int(self._about.get("l2CacheSize", 0)) or None

    def finish(self) -> None:
        """Wait until the current stream is idle."""
        self._cupy.cuda.get_current_stream().synchronize()

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, alignment_bytes: int) -> MpiCudaBuffers:
        """Return buffers on this GPU.

        Raises MemoryError if there is too little memory, or if the CUDA runtime reports another error.
        """
        try:
            return MpiCudaBuffers(self, send_bytes, recv_bytes, num_sets, max(alignment_bytes, _ALIGNMENT_BYTES))
        except self._runtime.CUDARuntimeError as error:
            raise MemoryError(first_line(error)) from None

    def empty(self, num_bytes: int) -> Any:
        """Return device memory as a CuPy array of bytes."""
        return self.arrays.empty(num_bytes)

    def pinned(self, num_bytes: int) -> Any:
        """Return pinned host memory as a numpy array of bytes."""
        return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(num_bytes), np.uint8, num_bytes)


class MpiCudaBuffers(Buffers):
    """Buffer sets in one block of GPU memory, with guard bytes around each buffer.

    Each set has a send buffer and a receive buffer. The constructor writes all bytes of the block.
    """

    def __init__(self, gpu: RankGpu, send_bytes: int, recv_bytes: int, num_sets: int, alignment_bytes: int) -> None:
        self._gpu = gpu
        self.send_bytes, self.recv_bytes, self.num_sets = send_bytes, recv_bytes, num_sets
        send_room, recv_room = _host.room(send_bytes, alignment_bytes), _host.room(recv_bytes, alignment_bytes)
        self._stride = send_room + recv_room
        whole = gpu.empty(self._stride * num_sets + alignment_bytes)
        first = -int(whole.data.ptr) % alignment_bytes
        self._block = whole[first : first + self._stride * num_sets]
        self._address = int(whole.data.ptr) + first
        whole.data.memset_async(GUARD, self._stride * num_sets + alignment_bytes)
        gpu.finish()
        self._start = {"send": alignment_bytes, "recv": send_room + alignment_bytes}

    def view(self, which: Which, index: int) -> Any:
        """Return a buffer of set `index` as device memory, for mpi4py."""
        start = index * self._stride + self._start[which]
        return self._block[start : start + self._num_bytes(which)]

    def address(self, which: Which, index: int) -> int:
        """Return the address of a buffer of set `index`, for the compiled loop."""
        return self._address + index * self._stride + self._start[which]

    def memory(self, which: Which, index: int) -> tuple[Memory]:
        """Return a whole buffer of set `index`."""
        return (Memory(self._gpu.arrays, self.view(which, index)),)

    def guards(self, index: int) -> list[Memory]:
        """Return the memory between and around the buffers of a set."""
        first = index * self._stride
        send, recv = first + self._start["send"], first + self._start["recv"]
        ends = ((first, send), (send + self.send_bytes, recv), (recv + self.recv_bytes, first + self._stride))
        return [Memory(self._gpu.arrays, self._block[begin:end]) for begin, end in ends]

    def write(self, which: Which, index: int, data: Bytes | int) -> None:
        """Write a whole buffer, and wait until the GPU has received the bytes."""
        super().write(which, index, data)
        self._gpu.finish()

    def fill(self, which: Which, index: int, begin: int, num_bytes: int, content: Tiled) -> None:
        """Fill a part of a buffer, and wait until the GPU has written the bytes."""
        super().fill(which, index, begin, num_bytes, content)
        self._gpu.finish()
