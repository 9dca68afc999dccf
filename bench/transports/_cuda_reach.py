"""Find the source and target of a copy.

The source or target may be on this rank's GPU, on another GPU of this process, on a GPU of another process, or on the
host. CUDA IPC gives access to the memory of other processes. Each rank offers a handle of its own allocation, and opens
the handles that other ranks offer.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.core.channel import Channel
from bench.core.codes import Code
from bench.core.errors import first_line
from bench.core.program import Copy, CopyStep, Group, Step
from bench.core.record import Skip
from bench.core.transport import Buffers, Which
from bench.core.world import RankInfo
from bench.transports import _cuda_device
from bench.transports._cuda_memory import HOST, BufferLayout, CudaBuffers, End

_LAZY_PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess
_PROCESS = "--via process needs one process only"


class CopyRefusal(Code):
    """The reasons why the transport cuda_copy cannot run a step."""

    NO_PRODUCTS = "copy-no-products", "cuda_copy only copies: it has no matrix products"
    NO_MESSAGES = "copy-no-messages", "cuda_copy has only one-sided copies, no messages: use nccl or mpi_cuda"
    HOST_BY_KERNEL = (
        "copy-host-by-kernel",
        "kernels reach only pinned memory of the host: omit --memory pageable or --engine",
    )
    SMS_OF_ENGINE = "copy-sms-of-engine", "only kernels run on SMs: add --engine sm, or omit --sms"
    NO_KERNELS = "copy-no-kernels", "CuPy cannot compile kernels here ({error})"
    NO_PEER_ACCESS = (
        "copy-no-peer-access",
        "GPU {gpu} cannot access the memory of GPU {other}, so its kernels cannot copy there: use --engine ce, which "
        "goes through the host",
    )
    GPU_NOT_VISIBLE = (
        "copy-gpu-not-visible",
        "rank {rank} does not see the GPU of rank {other} ({bus} of {host}): give all ranks of a host the same "
        "CUDA_VISIBLE_DEVICES, or omit --via process",
    )
    OTHER_HOST = "copy-other-host", "rank {rank} is on another host: copies cannot reach its GPU memory"
    NOT_SHAREABLE = "copy-not-shareable", f"rank {{rank}} cannot share its GPU memory ({{why}}); {_PROCESS}"
    NOT_REACHABLE = "copy-not-reachable", f"the GPU memory of rank {{rank}} cannot be opened ({{error}}); {_PROCESS}"
    PID_NAMESPACES = (
        "copy-pid-namespaces",
        "the GPU memory of rank {rank} cannot be opened ({error}): its container has process numbers of its own. Start "
        f"the containers with --pid=host --ipc=host; {_PROCESS}",
    )


def _process_numbers() -> str:
    """Return the identity of this process's PID namespace.

    Return an empty text if the kernel does not report the namespace.
    """
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Offer:
    """A description of one rank's buffers. The rank sends this description to other ranks.

    `handle`: the handle of the rank's GPU allocation.
    `why_none`: why there is no handle.
    `pid_namespace`: the rank's PID namespace. CUDA opens a handle only if the offering process has a PID in the
        namespace of the opening process.
    """

    layout: BufferLayout
    device: int
    host: str
    handle: bytes | None = None
    why_none: str = ""
    pid_namespace: str = field(default_factory=_process_numbers)


def offer(runtime: Any, buffers: CudaBuffers, device: int, host: str) -> Offer:
    """Return this rank's buffers in a form that another process can open."""
    block = buffers.blocks.get(device)
    if block is None:
        return Offer(buffers.layout, device, host, why_none="its buffers are not on its GPU")
    try:
        return Offer(buffers.layout, device, host, bytes(runtime.ipcGetMemHandle(block.pointer)))
    except RuntimeError as error:
        return Offer(buffers.layout, device, host, why_none=f"its driver gives no handle: {first_line(error)}")


class IpcMappings:
    """The allocations of other ranks that this process has opened."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._found: dict[int, tuple[Offer, int]] = {}

    def open(self, rank: int, other: Offer | None, host: str) -> Skip | None:
        """Open the buffers of a rank. Return None, or the reason why the buffers cannot be opened."""
        if rank in self._found:
            return None
        if other is None or other.host != host:
            return Skip.of(CopyRefusal.OTHER_HOST, rank=rank)
        if other.handle is None:
            return Skip.of(CopyRefusal.NOT_SHAREABLE, rank=rank, why=other.why_none)
        try:
            pointer = int(self._runtime.ipcOpenMemHandle(other.handle, _LAZY_PEER_ACCESS))
        except RuntimeError as error:
            apart = other.pid_namespace != _process_numbers()
            code = CopyRefusal.PID_NAMESPACES if apart else CopyRefusal.NOT_REACHABLE
            return Skip.of(code, rank=rank, error=first_line(error))
        self._found[rank] = (other, pointer)
        return None

    def address(self, rank: int, side: Which, index: int, offset: int, num_bytes: int) -> int:
        """Return the address, in this process, of a range of bytes in another rank's buffer.

        This process must have opened the rank's buffers.
        """
        other, pointer = self._found[rank]
        return pointer + other.layout.find(side, index, offset, num_bytes)[1]

    def close(self) -> None:
        """Close all open allocations."""
        for _, pointer in self._found.values():
            with contextlib.suppress(RuntimeError):  # the process that owns the allocation may have ended
                self._runtime.ipcCloseMemHandle(pointer)
        self._found.clear()


class Reach:
    """Describes how this rank can access the GPUs and the memory of other ranks."""

    def __init__(self, cupy: Any, place: RankInfo, device: _cuda_device.CudaDevice, channel: Channel) -> None:
        """Find out which GPU each rank has, on all ranks."""
        self._cupy, self._runtime, self._device, self._channel = cupy, cupy.cuda.runtime, device, channel
        self._rank, self._host = place.rank, socket.gethostname()
        self.owners: list[_cuda_device.Owner] = channel.share((self._host, device.bus, device.uuid))
        self.num_sharers = self.owners.count(self.owners[place.rank])  # ranks on this rank's GPU, including this rank
        self._opened = IpcMappings(self._runtime)
        self._offered: CudaBuffers | None = None  # kept while another rank may access it
        self._not_visible: Skip | None = None  # why a buffer is not on the GPU that its copies name

    def close(self) -> None:
        """Close all mappings of other ranks' memory."""
        self._opened.close()

    def forget(self) -> None:
        """Release this rank's buffers.

        Call this method only after all other ranks have closed their mappings of these buffers.
        """
        self._offered = None

    def reset(self) -> None:
        """Forget earlier placement errors before new buffers are allocated."""
        self._not_visible = None

    def device_of(self, group: Group, member: int) -> int:
        """Return the number of a member's GPU in this process.

        If this process does not see the GPU, `share` later reports the problem.
        """
        rank = group.ranks[member]
        if rank == self._rank:
            return self._device.index
        for index in range(int(self._runtime.getDeviceCount())):
            seen = _cuda_device.describe(self._cupy, index)
            if (self._host, seen.bus, seen.uuid) == self.owners[rank]:
                return index
        host, bus, _ = self.owners[rank]
        self._not_visible = Skip.of(CopyRefusal.GPU_NOT_VISIBLE, rank=self._rank, other=rank, bus=bus, host=host)
        return self._device.index

    def share(self, buffers: Buffers | None, group: Group, steps: tuple[Step, ...]) -> Skip | None:
        """Exchange the handles of all ranks' buffers. Open the buffers that this rank's copies use.

        Return the reason if a buffer cannot be opened. Otherwise, return None.
        """
        self._opened.close()
        mine = None
        if isinstance(buffers, CudaBuffers) and len(group.ranks) > 1:
            mine = offer(self._runtime, buffers, self._device.index, self._host)
        offers: list[Offer | None] = self._channel.share(mine)
        self._offered = buffers if mine is not None else None  # type: ignore[assignment]
        if not isinstance(buffers, CudaBuffers):
            return None
        if self._not_visible is not None:
            return self._not_visible
        for copy in copies_of(steps):
            for rank in (group.ranks[copy.source], group.ranks[copy.target]):
                if rank != self._rank:
                    skip = self._opened.open(rank, offers[rank], self._host)
                    if skip is not None:
                        return skip
        return None

    def kernel_refusal(self, buffers: Buffers | None, group: Group, steps: tuple[Step, ...]) -> Skip | None:
        """Return why a kernel on this GPU cannot access a GPU that the steps' copies use.

        Return None if the kernel can access all these GPUs.
        """
        if not isinstance(buffers, CudaBuffers):
            return None
        for copy in copies_of(steps):
            for place in self._places(group, buffers, copy):
                if place != HOST and not self._reaches(place):
                    return Skip.of(CopyRefusal.NO_PEER_ACCESS, gpu=self._device.index, other=place)
        return None

    def is_staged(self, group: Group, buffers: CudaBuffers, copy: Copy) -> bool:
        """Check whether a copy goes between two GPUs of this process that have no peer access."""
        return any(place != HOST and not self._reaches(place) for place in self._places(group, buffers, copy))

    def end(
        self, group: Group, buffers: CudaBuffers, side: Which, index: int, member: int, offset: int, num_bytes: int
    ) -> End:
        """Return the source or target of a copy as (GPU, address).

        If the memory belongs to another process, the result names this rank's own GPU. From the address, CUDA knows
        which GPU owns the memory.
        """
        rank = group.ranks[member]
        if rank == self._rank:
            return buffers.address(side, index, offset, num_bytes)
        return self._device.index, self._opened.address(rank, side, index, offset, num_bytes)

    def _reaches(self, other: int) -> bool:
        return other == self._device.index or _cuda_device.enable_peer(self._runtime, self._device.index, other)

    def _places(self, group: Group, buffers: CudaBuffers, copy: Copy) -> Iterable[int]:
        """Return where a copy's source and target are: the numbers of GPUs, or HOST.

        The result omits a source or target that is in another rank's buffers.
        """
        ends: tuple[tuple[Which, int, int], ...] = (
            ("send", copy.source, copy.source_offset),
            ("recv", copy.target, copy.target_offset),
        )
        return [
            buffers.layout.find(side, 0, offset, copy.num_bytes)[0]
            for side, member, offset in ends
            if group.ranks[member] == self._rank
        ]


def copies_of(steps: tuple[Step, ...]) -> list[Copy]:
    """Return all copies that these steps contain."""
    return [copy for step in steps if isinstance(step, CopyStep) for copy in step.copies]
