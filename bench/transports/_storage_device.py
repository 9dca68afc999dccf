"""Deliver the records of a data set to a GPU.

Records are read into host memory, and the copy transport copies the records to the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.core.payload import Bytes
from bench.core.program import Copy, CopyStep, Group
from bench.core.transport import Buffers, Options, Reduction, Transport
from bench.core.world import RankInfo
from bench.datasets.gpu_files import GpuMemory


class GpuResults:
    """The receive buffer on a GPU. Files are read directly into this buffer, without a copy in host memory."""

    def __init__(self, buffers: Any) -> None:
        (self._memory,) = buffers.memory("recv", 0)
        self.memory = GpuMemory(buffers.pointer("recv", 0), buffers.recv_bytes)

    def fill(self, value: int) -> None:
        """Overwrite the whole buffer with one byte."""
        self._memory.write(np.full(len(self.memory), value, np.uint8))

    def read(self) -> Bytes:
        """Return a copy in host memory."""
        data: Bytes = self._memory.read()
        return data


class DeviceTarget:
    """This rank's GPU. Raises RefusedError or NotInstalledError if the copy transport cannot be opened."""

    def __init__(self, place: RankInfo, options: Options) -> None:
        from bench.transports import _cuda_device
        from bench.transports.cuda_copy import CudaCopy

        index = _cuda_device.choose(_cuda_device.load_cupy(), place, options.share_gpu)
        # The ranks copy independently: each is a world of its own.
        self._copier: Transport = CudaCopy(RankInfo(0, 1, index, 1, place.launcher), options)
        self._alone = Group("alone", (0,))

    def facts(self) -> dict[str, str]:
        """Return the GPU."""
        found = self._copier.facts()
        return {key: found[key] for key in ("gpu", "gpu_pci_bus")}

    def allocate(self, num_bytes: int) -> Buffers:
        """Allocate host memory for the reads, and the same number of bytes on the GPU.

        The host memory is pinned or pageable, as the case requests.
        """
        return self._copier.allocate(num_bytes, num_bytes, 1, self._steps(num_bytes))

    def host_memory(self, buffers: Buffers) -> Bytes:
        """Return the host memory into which records are read."""
        (memory,) = buffers.memory("send", 0)
        return memory.read()

    def copy_of(self, buffers: Buffers) -> tuple[Callable[[], Any], Callable[[], None] | None]:
        """Return two functions.

        The first function copies all data to the GPU and waits for the end of the copy. The second function releases
        the resources of the copy.
        """
        compiled = self._copier.compile(
            self._steps(buffers.send_bytes), self._alone, buffers, Reduction("uint8", "sum"), False
        )
        copy = compiled.calls[0]

        def run() -> None:
            copy()
            self._copier.finish()
            self._copier.sync()

        return run, compiled.release

    def close(self) -> None:
        """Close the copy transport."""
        self._copier.close()

    def _steps(self, num_bytes: int) -> tuple[CopyStep, ...]:
        return (CopyStep((Copy(0, 0, num_bytes, None, 0),)),)
