"""Allocate buffers in host memory. Time calls of libraries whose operations complete on the host."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from bench.core.arrays import NUMPY, Memory
from bench.core.payload import Bytes
from bench.core.transport import GUARD, Buffers, Compiled, Timing, Which

GUARD_BYTES = 64


class HostBuffers(Buffers):
    """Buffer sets in one block of host memory. Each set has a send buffer and a receive buffer.

    Every buffer begins at a multiple of `alignment_bytes`, which is a power of two of at least GUARD_BYTES. Every page
    of the block is written before its first use. If pages were never written, they would all map to the same zero page,
    and a loop could run up to twice as fast.
    """

    def __init__(self, send_bytes: int, recv_bytes: int, num_sets: int, alignment_bytes: int = GUARD_BYTES) -> None:
        self.send_bytes, self.recv_bytes, self.num_sets = send_bytes, recv_bytes, num_sets
        send_room, recv_room = room(send_bytes, alignment_bytes), room(recv_bytes, alignment_bytes)
        self._stride = send_room + recv_room
        block = np.empty(self._stride * num_sets + alignment_bytes, dtype=np.uint8)
        start = -block.ctypes.data % alignment_bytes
        self._block = block[start : start + self._stride * num_sets]
        self._block.fill(GUARD)
        self._start = {"send": alignment_bytes, "recv": send_room + alignment_bytes}

    def view(self, which: Which, index: int) -> Bytes:
        """Return the memory itself, for the library."""
        start = index * self._stride + self._start[which]
        return self._block[start : start + (self.send_bytes if which == "send" else self.recv_bytes)]

    def address(self, which: Which, index: int) -> int:
        """Return the address of the memory that `view` returns."""
        return int(self.view(which, index).ctypes.data)

    def memory(self, which: Which, index: int) -> tuple[Memory]:
        """Return a whole buffer of set `index`."""
        return (Memory(NUMPY, self.view(which, index)),)

    def guards(self, index: int) -> list[Memory]:
        """Return the memory between and around the buffers of a set."""
        block = self._block[index * self._stride : (index + 1) * self._stride]
        send, recv = self._start["send"], self._start["recv"]
        pieces = (block[:send], block[send + self.send_bytes : recv], block[recv + self.recv_bytes :])
        return [Memory(NUMPY, piece) for piece in pieces]

    def write(self, which: Which, index: int, data: Any) -> None:
        """Write a whole buffer of set `index`.

        The method does as little as possible, because it runs between two timed messages.
        """
        self.view(which, index)[:] = data

    def read(self, which: Which, index: int, begin: int = 0, num_bytes: int | None = None) -> Bytes:
        """Return a view of one buffer of set `index`."""
        return self.view(which, index)[begin : None if num_bytes is None else begin + num_bytes]


def room(num_bytes: int, alignment_bytes: int) -> int:
    """Return the bytes that a buffer needs, with guards on both sides and padding up to the next aligned address."""
    return alignment_bytes + -(-(num_bytes + GUARD_BYTES) // alignment_bytes) * alignment_bytes


def time_each(sync: Callable[[], None], compiled: Compiled | None, num_calls: int) -> Timing:
    """Take one sample per call, with a synchronisation before each call.

    If a rank is idle (`compiled` is None), it only takes part in the synchronisation.
    """
    if compiled is None:
        for _ in range(num_calls):
            sync()
        return Timing((), "python")
    calls, num_sets, clock = compiled.calls, len(compiled.calls), perf_counter_ns
    took = [0] * num_calls
    index = compiled.next_set
    for sample in range(num_calls):
        if compiled.refill is not None:
            compiled.refill(index)
        call = calls[index]
        sync()
        begin = clock()
        call()
        took[sample] = clock() - begin
        compiled.last_set = index
        index = (index + 1) % num_sets
    compiled.next_set = index
    return Timing(tuple(ns * 1e-9 for ns in took), "python")


def time_batch(sync: Callable[[], None], compiled: Compiled | None, num_calls: int) -> Timing:
    """Synchronise once, then take one sample of `num_calls` back-to-back calls, in seconds per call."""
    if compiled is None:
        sync()
        return Timing((), "python")
    num_sets = len(compiled.calls)
    order = [(compiled.next_set + k) % num_sets for k in range(num_calls)]
    if compiled.refill is not None:
        for index in order:
            compiled.refill(index)
    batch = [compiled.calls[index] for index in order]
    sync()
    begin = perf_counter_ns()
    for call in batch:
        call()
    took = perf_counter_ns() - begin
    compiled.last_set = order[-1]
    compiled.next_set = (order[-1] + 1) % num_sets
    return Timing((took * 1e-9 / num_calls,), "python")
