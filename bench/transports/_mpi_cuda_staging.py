"""Compare messages from device memory with messages that are staged through host memory, before the first row.

The time of a message is half the time of a ping-pong. Each time is the shortest of several measurements. A staged
message is copied to pinned host memory, sent, and copied to the receiver's device memory. If messages from device
memory are not faster than staged messages, the library itself stages messages. If messages from device memory are
faster, the library may still stage these messages, in overlapping pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from bench.core.units import format_bytes, format_duration
from bench.transports._mpi_cuda_memory import RankGpu

NUM_BYTES = 64 << 20
_TIMES, _TAG = 4, 8
_GAIN = 0.9  # a time above this share of the staged time is no clear gain, because only a few messages are timed


def partner(hosts: Sequence[str]) -> int | None:
    """Return the rank with which rank 0 exchanges messages: the first rank on another host, or rank 1 on a single host.

    Return None if there is only one rank.
    """
    elsewhere = next((rank for rank, host in enumerate(hosts) if host != hosts[0]), None)
    return elsewhere if elsewhere is not None or len(hosts) < 2 else 1


def room(gpu: RankGpu, num_bytes: int) -> tuple[Any, Any] | None:
    """Return device memory and pinned host memory for a message, or None if the allocation fails."""
    try:
        device = gpu.empty(num_bytes)
        device.data.memset_async(1, num_bytes)
        gpu.finish()
        return device, gpu.pinned(num_bytes)
    except (MemoryError, RuntimeError):  # CUDA's own errors are RuntimeErrors
        return None


def compare(world: Any, byte: Any, gpu: RankGpu, other: int, memory: tuple[Any, Any]) -> tuple[float, float]:
    """Return the seconds of two messages between rank 0 and `other`.

    The first message is sent from device memory. The second message is staged through host memory. Ranks other than 0
    and `other` return 0 for both messages.
    """
    me = world.Get_rank()
    if me not in (0, other):
        return 0.0, 0.0
    peer, (device, host) = other - me, memory

    def direct(send: bool) -> None:
        (world.Send if send else world.Recv)([device, byte], peer, _TAG)

    def staged(send: bool) -> None:
        if send:
            device.get(out=host)
            world.Send([host, byte], peer, _TAG)
        else:
            world.Recv([host, byte], peer, _TAG)
            device.set(host)
            gpu.finish()

    return _message_s(direct, me == 0), _message_s(staged, me == 0)


def _message_s(move: Callable[[bool], None], first: bool) -> float:
    best_s = float("inf")
    for _ in range(_TIMES):
        begin = perf_counter()
        move(first)
        move(not first)
        best_s = min(best_s, (perf_counter() - begin) / 2)
    return best_s


def describe(device_s: float, staged_s: float, other: int, hosts: Sequence[str], num_bytes: int) -> tuple[str, str]:
    """Return two texts about the comparison: a fact for the header, and a note."""
    where = "on one host" if hosts[other] == hosts[0] else "between two hosts"
    took = (
        f"{format_bytes(num_bytes)} of GPU memory from rank 0 to rank {other} ({where}) took "
        f"{format_duration(device_s)}, staged through the host {format_duration(staged_s)}"
    )
    if device_s < _GAIN * staged_s:
        return "faster than staging through the host", (
            f"{took}: GPU-direct is in use, unless the library overlaps staged pieces"
        )
    return "not faster than staging through the host", (f"{took}: GPU-direct is not in use")
