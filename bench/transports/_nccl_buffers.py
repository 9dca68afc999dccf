"""Buffers in the memory of one GPU, as torch's tensors."""

from __future__ import annotations

from typing import Any, Literal

from bench.core.transport import Buffers

_GUARD_BYTES, _GUARD = 256, 0xC3  # 256 keeps every buffer aligned as cudaMalloc aligns it


class DeviceBuffers(Buffers):
    """Sets of buffers in one allocation on the GPU, written before use, with guard bytes around each."""

    def __init__(self, torch: Any, device: Any, send_bytes: int, recv_bytes: int, num_sets: int) -> None:
        """Raises MemoryError in one sentence when the GPU has not enough; what torch had set aside is given back."""
        self._torch = torch
        self.send_bytes, self.recv_bytes, self.num_sets = send_bytes, recv_bytes, num_sets
        send_room, recv_room = _room(send_bytes), _room(recv_bytes)
        self._stride = send_room + recv_room
        self._start = {"send": _GUARD_BYTES, "recv": send_room + _GUARD_BYTES}
        self._block = _filled(torch, device, self._stride * num_sets)

    def view(self, which: Literal["send", "recv"], index: int) -> Any:
        """The device memory itself, as a uint8 tensor."""
        start = index * self._stride + self._start[which]
        return self._block[start : start + (self.send_bytes if which == "send" else self.recv_bytes)]

    def write(self, which: Literal["send", "recv"], index: int, data: Any) -> None:
        """Copy a whole buffer's bytes to the device."""
        target = self.view(which, index)
        if isinstance(data, int):
            target.fill_(data)
        else:
            target.copy_(self._torch.from_numpy(data))

    def read(self, which: Literal["send", "recv"], index: int) -> Any:
        """A host copy of a whole buffer of set `index`."""
        return self.view(which, index).cpu().numpy()

    def guards_intact(self, index: int) -> bool:
        """Are all bytes around both buffers of a set unchanged?"""
        block = self._block[index * self._stride : (index + 1) * self._stride]
        send, recv = self._start["send"], self._start["recv"]
        outside = (slice(0, send), slice(send + self.send_bytes, recv), slice(recv + self.recv_bytes, self._stride))
        return all(bool((block[where] == _GUARD).all()) for where in outside)


def _filled(torch: Any, device: Any, num_bytes: int) -> Any:
    for last in (False, True):
        try:
            return torch.full((num_bytes,), _GUARD, dtype=torch.uint8, device=device)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()  # sizes before this one may hold it in pieces
            if last:
                free, total = torch.cuda.mem_get_info(device)
                raise MemoryError(
                    f"{device} has no room for {num_bytes >> 20} MiB: {free >> 20} of {total >> 20} MiB are free"
                ) from None
    raise AssertionError


def _room(num_bytes: int) -> int:
    return _GUARD_BYTES + -(-num_bytes // _GUARD_BYTES) * _GUARD_BYTES + _GUARD_BYTES
