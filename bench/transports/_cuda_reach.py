"""Where the ends of a rank's copies lie, and whether it reaches them: on its own GPU, on another one of its process, in
the memory of another process, or in its host's."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

from bench.core.channel import Channel
from bench.core.program import Copy, CopyStep, Group, Step
from bench.core.transport import Buffers, Which
from bench.core.world import RankInfo
from bench.transports import _cuda_device, _cuda_ipc
from bench.transports._cuda_memory import HOST, CudaBuffers

End = tuple[int, int]  # the number of a GPU in this process, or HOST; and the address


class Reach:
    """What this rank knows of the others' GPUs and memory."""

    def __init__(self, cupy: Any, place: RankInfo, device: _cuda_device.CudaDevice, channel: Channel) -> None:
        """All ranks tell each other which GPU is theirs."""
        self._cupy, self._runtime, self._device, self._channel = cupy, cupy.cuda.runtime, device, channel
        self._rank, self._host = place.rank, socket.gethostname()
        self.owners: list[_cuda_device.Owner] = channel.share((self._host, device.bus, device.uuid))
        self.num_sharers = self.owners.count(self.owners[place.rank])  # ranks on this rank's GPU, itself among them
        self._opened = _cuda_ipc.IpcMappings(self._runtime)
        self._offered: CudaBuffers | None = None  # alive as long as another rank may reach it
        self._unseen = ""  # why memory that buffers asked for is not where they asked for it

    def close(self) -> None:
        """Reach into no other rank's memory any longer."""
        self._opened.close()

    def forget(self) -> None:
        """No other rank reaches into this one's memory any longer: all of them have closed."""
        self._offered = None

    def forgive(self) -> None:
        """New buffers ask for new places."""
        self._unseen = ""

    def device_of(self, group: Group, member: int) -> int:
        """The GPU of a member as CUDA numbers it in this process; one that it does not see is told by `share`."""
        rank = group.ranks[member]
        if rank == self._rank:
            return self._device.index
        for index in range(int(self._runtime.getDeviceCount())):
            seen = _cuda_device.describe(self._cupy, index)
            if (self._host, seen.bus, seen.uuid) == self.owners[rank]:
                return index
        self._unseen = (
            f"rank {self._rank} does not see the GPU of rank {rank} ({self.owners[rank][1]} of "
            f"{self.owners[rank][0]}): give all ranks of a host the same CUDA_VISIBLE_DEVICES, or leave "
            "--via process out"
        )
        return self._device.index

    def share(self, buffers: Buffers | None, group: Group, steps: tuple[Step, ...]) -> str | None:
        """Handles of all buffers to all ranks; those that this rank's copies name are opened.

        Returns why they can not be, in words.
        """
        self._opened.close()
        mine = None
        if isinstance(buffers, CudaBuffers) and len(group.ranks) > 1:
            mine = _cuda_ipc.offer(self._runtime, buffers, self._device.index, self._host)
        offers: list[_cuda_ipc.Offer | None] = self._channel.share(mine)
        self._offered = buffers if mine is not None else None  # type: ignore[assignment]
        if not isinstance(buffers, CudaBuffers):
            return None
        if self._unseen:
            return self._unseen
        for copy in copies_of(steps):
            for rank in (group.ranks[copy.source], group.ranks[copy.target]):
                if rank != self._rank:
                    reason = self._opened.open(rank, offers[rank], self._host)
                    if reason is not None:
                        return reason
        return None

    def no_kernel_to(self, buffers: Buffers | None, group: Group, steps: tuple[Step, ...]) -> str | None:
        """Why a kernel of this GPU can not reach the other GPU of this process; None where it can."""
        if not isinstance(buffers, CudaBuffers):
            return None
        for copy in copies_of(steps):
            for place in self._places(group, buffers, copy):
                if not self._reaches(place):
                    return (
                        f"GPU {self._device.index} does not reach the memory of GPU {place}, so no kernel of it can "
                        "copy there: --engine ce goes through the host"
                    )
        return None

    def is_staged(self, group: Group, buffers: CudaBuffers, copy: Copy) -> bool:
        """Between two GPUs of this process that do not reach each other?"""
        return any(place != HOST and not self._reaches(place) for place in self._places(group, buffers, copy))

    def end(
        self, group: Group, buffers: CudaBuffers, side: Which, index: int, member: int, offset: int, num_bytes: int
    ) -> End:
        """One end of a copy; memory of another process counts as this rank's own GPU's: what opened it is this GPU, and
        CUDA knows by the address where it lies."""
        rank = group.ranks[member]
        if rank == self._rank:
            return buffers.address(side, index, offset, num_bytes)
        return self._device.index, self._opened.address(rank, side, index, offset, num_bytes)

    def _reaches(self, other: int) -> bool:
        return other == self._device.index or _cuda_device.enable_peer(self._runtime, self._device.index, other)

    def _places(self, group: Group, buffers: CudaBuffers, copy: Copy) -> Iterable[int]:
        """Where the ends of a copy lie that are in buffers of this rank."""
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
    """All copies of some steps."""
    return [copy for step in steps if isinstance(step, CopyStep) for copy in step.copies]
