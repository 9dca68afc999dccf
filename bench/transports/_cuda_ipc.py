"""Memory of one process's GPU in the address space of another: what each rank offers, and what it has opened."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from bench.core.errors import first_line
from bench.core.transport import Which
from bench.transports._cuda_memory import BufferLayout, CudaBuffers

_LAZY_PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rank tells the others of its buffers. `handle`: of its GPU's allocation; `reason`: why there is none."""

    layout: BufferLayout
    device: int
    host: str
    handle: bytes | None = None
    reason: str = ""


def offer(runtime: Any, buffers: CudaBuffers, device: int, host: str) -> Offer:
    """This rank's buffers, as another process can open them."""
    block = buffers.blocks.get(device)
    if block is None:
        return Offer(buffers.layout, device, host, reason="its buffers are not on its GPU")
    try:
        return Offer(buffers.layout, device, host, bytes(runtime.ipcGetMemHandle(block.pointer)))
    except RuntimeError as error:
        return Offer(buffers.layout, device, host, reason=f"its driver gives no handle of it ({first_line(error)})")


class IpcMappings:
    """Allocations of other ranks that this process reaches now."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._found: dict[int, tuple[Offer, int]] = {}

    def open(self, rank: int, other: Offer | None, host: str) -> str | None:
        """Reach the buffers of a rank; or why not, in words."""
        if rank in self._found:
            return None
        whose = f"the GPU memory of rank {rank} can not be reached from another process"
        if other is None or other.host != host:
            return f"{whose}: it is on another host"
        if other.handle is None:
            return f"{whose}: {other.reason}; --via process needs one process only"
        try:
            pointer = int(self._runtime.ipcOpenMemHandle(other.handle, _LAZY_PEER_ACCESS))
        except RuntimeError as error:
            return f"{whose} ({first_line(error)}); --via process needs one process only"
        self._found[rank] = (other, pointer)
        return None

    def address(self, rank: int, side: Which, index: int, offset: int, num_bytes: int) -> int:
        """Where bytes of an opened rank's buffer lie in this process's address space."""
        other, pointer = self._found[rank]
        return pointer + other.layout.find(side, index, offset, num_bytes)[1]

    def close(self) -> None:
        """Reach none of them any longer."""
        for _, pointer in self._found.values():
            with contextlib.suppress(RuntimeError):  # its owner may have ended
                self._runtime.ipcCloseMemHandle(pointer)
        self._found.clear()
