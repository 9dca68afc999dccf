"""Measure the machine without the communication library, and the overhead of library calls that communicate nothing.

The calibration has these values:

`memcpy`: the rate of one rank's copies while all ranks copy, as [[bytes, bytes per second], ...]. Each rank takes its
    best of 5 runs, and the result is the lowest rate of all ranks.
`message_s`: the shortest time of an 8-byte message between ranks 0 and 1 (half the time of a ping-pong).
`software_s`: the time of the pattern's smallest operation without communication. The operation is a collective of one
    rank, or a message to MPI_PROC_NULL. Each rank takes its best of 5 batches, and the result is the longest of these
    times. Every measured time includes this overhead, which is never subtracted.
`enqueue_s`: the host's time to issue the pattern's smallest collective, only if a device measures the times. Each rank
    takes its best of 5 batches, and the result is the longest of these times. If calls run faster than the host issues
    them, the device waits for the host.
`sync_skew_p50_s`, `sync_skew_p99_s`, `sync_skew_max_s`: the median, the 99 % quantile and the maximum of the skew.
    The skew is the time from the first to the last rank that leaves the synchronisation before an isolated call. If
    hosts have different clocks, the clocks are compared before and after these readings.
`sync_skew_bound_s`: the largest error of a measured skew. This error is 0 if all ranks read one clock.
`clocks`: offset and drift of each host's clock from rank 0's clock (rank/clocks.py).

The values `memcpy` and `message_s` are not limits of the measured rows. If a message stays in a cache, it can be faster
than a copy through memory. Between ranks that share memory, a library may exchange data without messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

from bench.core.pattern import Pattern, Shape
from bench.core.program import Collective, Exchange, Group, Message, Step
from bench.core.transport import Reduction, Transport
from bench.core.world import World
from bench.rank.clocks import Clocks
from bench.results import stats

_COPY_BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
_COPY_REPEATS = 5
_COPY_LEAST_S = 20e-6  # shorter copies are repeated, so that reading the clock takes a small share of the time
_SOFTWARE_BYTES, _SOFTWARE_BATCHES, _SOFTWARE_CALLS = 8, 5, 50
_SKEWS, _SLOW_SYNC_S, _SKEWS_WHEN_SLOW, _SKEWS_PER_BEAT = 400, 50e-6, 40, 4
_MESSAGES, _SYNCHRONISATION = "calibrating: messages", "calibrating: synchronisation"
# The rounds of pings: (number of pieces, pings per piece).
_PING_BYTES, _PINGS, _QUICK_S = 8, ((5, 2), (1, 200)), 1e-3


def calibrate(
    transport: Transport, world: World, pattern: Pattern, clocks: Clocks, beat: Callable[[str], None]
) -> dict[str, Any]:
    """Return the calibration on rank 0, and an empty mapping on other ranks. All ranks take part.

    The function calls `beat` when a new part begins, and regularly during long parts. Regular calls prevent a timeout:
    on a busy machine with more ranks than CPUs, ten synchronisations may take very long.
    """
    beat("calibrating: copies")
    copied = transport.channel.gather([_copy_rate(transport, num_bytes) for num_bytes in _COPY_BYTES])
    beat(_MESSAGES)
    found: dict[str, Any] = {"message_s": _message_s(transport, world, lambda: beat(_MESSAGES))}
    beat("calibrating: calls")
    found |= {
        "software_s": _software_s(transport, world, pattern),
        "enqueue_s": _enqueue_s(transport, world, pattern),
    }
    beat(_SYNCHRONISATION)
    found |= _skew(transport, world, clocks, lambda: beat(_SYNCHRONISATION))
    if copied is None:
        return {}
    slowest = [min(rates) for rates in zip(*copied, strict=True)]
    memcpy = [[num_bytes, round(rate)] for num_bytes, rate in zip(_COPY_BYTES, slowest, strict=True)]
    found["clocks"] = clocks.offsets() or None
    return {"memcpy": memcpy, **{name: value for name, value in found.items() if value is not None}}


def _copy_rate(transport: Transport, num_bytes: int) -> float:
    """Return the copy rate of this rank while all ranks copy, in bytes per second."""
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    transport.sync()
    best_s, repeats = float("inf"), 1
    for _ in range(_COPY_REPEATS):
        begin = perf_counter()
        for _ in range(repeats):
            np.copyto(target, source)
        took_s = (perf_counter() - begin) / repeats
        best_s = min(best_s, took_s)
        repeats = max(1, int(_COPY_LEAST_S / took_s))
    return num_bytes / best_s


def _message_s(transport: Transport, world: World, beat: Callable[[], None]) -> float | None:
    if world.num_ranks < 2 or not transport.carries_messages:
        return None
    pair = Group("calibration", (0, 1))
    there, back = (Message(1, _PING_BYTES),), (Message(0, _PING_BYTES),)
    steps: dict[int, tuple[Step, ...]] = {
        0: (Exchange(sends=there), Exchange(recvs=there)),
        1: (Exchange(recvs=back), Exchange(sends=back)),
    }
    rank, compiled = transport.place.rank, None
    if rank in steps:
        buffers = transport.allocate(_PING_BYTES, _PING_BYTES, 1)
        compiled = transport.compile(steps[rank], pair, buffers, Reduction("uint8", "sum"), False)
    message_s = None
    # the first, short round is the warm-up; its result is used if ranks share a CPU
    for pieces, pings in _PINGS:
        slower_s: list[float] = []
        for _ in range(pieces):
            beat()
            gathered = transport.channel.gather(transport.time_each(compiled, pings).seconds)
            if gathered is not None:
                slower_s += map(max, zip(gathered[0], gathered[1], strict=True))
        if slower_s:
            message_s = float(min(slower_s)) / 2
        if transport.channel.broadcast(message_s is not None and message_s > _QUICK_S):
            break
    return message_s


def _software_s(transport: Transport, world: World, pattern: Pattern) -> float | None:
    """Return the duration of one operation that sends nothing to other ranks, in seconds.

    Return None if the library offers no such operation for this pattern.
    """
    rank, num_ranks = transport.place.rank, max(world.num_ranks, 2)
    shape = Shape(num_ranks, _SOFTWARE_BYTES * num_ranks)
    steps = pattern.steps(shape, 0) if pattern.needs(shape) is None else ()
    per = 1
    if steps and isinstance(steps[0], Collective):
        if not transport.calls_alone:
            return None
        transport.open_groups(tuple(Group(f"rank {own}", (own,)) for own in range(world.num_ranks)))
        group, steps = Group("alone", (rank,)), (_of_one_rank(steps[0].op),)
        send_bytes = recv_bytes = _SOFTWARE_BYTES
    elif steps and isinstance(steps[0], Exchange) and transport.nobody is not None:
        group, per = Group("nobody else", (rank,) + (transport.nobody,) * (num_ranks - 1)), pattern.operations(shape)
        send_bytes, recv_bytes = pattern.buffers(shape, 0)
    else:
        return None
    in_place = transport.must_be_in_place(steps)
    buffers = transport.allocate(send_bytes, recv_bytes, 1)
    compiled = transport.compile(steps, group, buffers, Reduction("uint8", "max"), in_place)
    batches = [transport.time_batch(compiled, _SOFTWARE_CALLS).seconds[0] / per for _ in range(_SOFTWARE_BATCHES)]
    if compiled.release:
        compiled.release()
    slowest: float = max(transport.channel.share(min(batches)))
    return slowest


def _enqueue_s(transport: Transport, world: World, pattern: Pattern) -> float | None:
    """Return how long the host takes to issue one operation, in seconds. All ranks get the result.

    Return None if the host's clock measures the times, or if the operation cannot be issued.

    The calls of a batch do not wait for each other, so the result does not depend on the number of ranks.
    """
    if transport.clock != "device" or pattern.topology_of("world") != "world":
        return None
    blank, rank = Shape(world.num_ranks, 0), transport.place.rank
    shape = replace(blank, payload_bytes=pattern.payload(_SOFTWARE_BYTES * world.num_ranks, blank))
    if pattern.needs(shape) is not None:
        return None
    steps = pattern.steps(shape, rank)
    in_place = transport.must_be_in_place(steps)
    reduction = Reduction("float32", "sum")
    lacks = [transport.unsupported_reason(step, reduction, in_place) for step in steps]
    alone = not all(isinstance(step, Collective) for step in steps)  # the stream gate delays the GPU's work
    if any(transport.channel.share(alone or any(lacks))):
        return None
    send_bytes, recv_bytes = pattern.buffers(shape, rank)
    if in_place:
        send_bytes, recv_bytes = 0, max(send_bytes, recv_bytes)
    buffers = transport.allocate(send_bytes, recv_bytes, 1, steps)
    group = Group("world", tuple(range(world.num_ranks)))
    compiled = transport.compile(steps, group, buffers, reduction, in_place)
    batches = [transport.time_batch(compiled, _SOFTWARE_CALLS) for _ in range(_SOFTWARE_BATCHES)]
    if compiled.release:
        compiled.release()
    least_s = transport.channel.share(min((s for batch in batches for s in batch.enqueue_s), default=None))
    return None if None in least_s else float(max(least_s))


def _of_one_rank(operation: str) -> Collective:
    """Return a collective with the smallest size, for a group that has only one rank."""
    num_bytes = 0 if operation == "barrier" else _SOFTWARE_BYTES
    return Collective(operation, num_bytes, num_bytes, 0, (num_bytes,), (num_bytes,))


def _skew(transport: Transport, world: World, clocks: Clocks, beat: Callable[[], None]) -> dict[str, float]:
    """Return the median, the 99 % quantile and the maximum of the start skew in seconds, on rank 0.

    The skew is the time from the moment when the first rank leaves a synchronisation until the last rank leaves it.
    """
    if world.num_ranks == 1 or transport.clock != "host" or transport.sync_method == "none":
        return {}
    if clocks.several:
        clocks.compare()
    began = perf_counter()
    transport.before_each()
    slow = transport.channel.broadcast(perf_counter() - began > _SLOW_SYNC_S)
    left = []
    for number in range(_SKEWS_WHEN_SLOW if slow else _SKEWS):
        if slow and number % _SKEWS_PER_BEAT == 0:
            beat()
        transport.before_each()
        left.append(perf_counter_ns())
    if clocks.several:
        clocks.compare()
    gathered = transport.channel.gather(left)
    if gathered is None:
        return {}
    times, bounds_s = _on_one_clock(gathered, clocks)
    skews = [max(left_at) - min(left_at) for left_at in zip(*times, strict=True)]
    found = {
        "sync_skew_p50_s": float(np.median(skews)),
        "sync_skew_max_s": max(skews),
        "sync_skew_bound_s": sum(sorted(bounds_s)[-2:]),
    }
    if len(skews) >= stats.least_samples(0.99):
        found["sync_skew_p99_s"] = float(np.quantile(skews, 0.99, method="inverted_cdf"))
    return found


def _on_one_clock(gathered: list[list[int]], clocks: Clocks) -> tuple[list[list[float]], list[float]]:
    """Convert each rank's clock readings to the clock of rank 0.

    Return the converted readings, and the largest conversion error of each rank. Results are in seconds since rank 0's
    first reading. `gathered` is in nanoseconds.
    """
    begin = gathered[0][0]
    times, bounds_s = [], []
    for rank, readings in enumerate(gathered):
        clock = clocks.of(rank)
        if not clock.offsets:
            times.append([(reading - begin) * 1e-9 for reading in readings])
            bounds_s.append(0.0)
            continue
        found = [clock.to_reference(reading * 1e-9) for reading in readings]
        times.append([time_s - begin * 1e-9 for time_s, _ in found])
        bounds_s.append(max(bound_s for _, bound_s in found))
    return times, bounds_s
