"""What this machine can do without the library: the ceilings that host results are shown against.

`memcpy`: [[bytes, bytes per second], ...], one rank's copy rate while all ranks copy (the slowest one's best of 5).
`message_s`: the least time of an 8-byte message between ranks 0 and 1: half of a ping-pong.
Both are references, not limits: a message that stays in a cache can beat a copy through memory, and a library can do
without messages where ranks share memory.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from bench.core.program import Exchange, Group, Message, Step
from bench.core.transport import Reduction, Transport
from bench.core.world import World

_COPY_BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
_COPY_REPEATS = 5
_COPY_LEAST_S = 20e-6  # shorter copies are repeated so that the clock's own cost is small
_PING_BYTES, _PINGS, _MORE_PINGS, _QUICK_S = 8, 10, 200, 1e-3


def calibrate(transport: Transport, world: World) -> dict[str, Any]:
    """The ceilings, on rank 0 (empty on the others). All ranks take part."""
    copied = transport.channel.gather([_copy_rate(transport, num_bytes) for num_bytes in _COPY_BYTES])
    message_s = _message_s(transport, world)
    if copied is None:
        return {}
    slowest = [min(rates) for rates in zip(*copied, strict=True)]
    memcpy = [[num_bytes, round(rate)] for num_bytes, rate in zip(_COPY_BYTES, slowest, strict=True)]
    return {"memcpy": memcpy, **({"message_s": message_s} if message_s is not None else {})}


def _copy_rate(transport: Transport, num_bytes: int) -> float:
    """Bytes per second of one rank copying while the others do."""
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


def _message_s(transport: Transport, world: World) -> float | None:
    if world.num_ranks < 2:
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
    for pings in (_PINGS, _MORE_PINGS):  # the first few also warm up; ranks that share a CPU do with those
        gathered = transport.channel.gather(transport.time_each(compiled, pings).seconds)
        if gathered is not None:
            message_s = float(min(map(max, zip(gathered[0], gathered[1], strict=True)))) / 2
        if transport.channel.broadcast(message_s is not None and message_s > _QUICK_S):
            break
    return message_s
