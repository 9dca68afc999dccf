"""Find pauses of this process. A pause happens if the machine sleeps or is paused, or if this process is stopped.

During a pause a process cannot write heartbeats, so the pause must not count as time without a heartbeat. After a long
pause, a rank may report that a peer was lost although the peer is still running.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

from bench.core.ends import EndCode

_LEAST_S = 2.0  # four ticks; a busy machine delays a thread less
# A thread that waits for Python's lock wakes up 200 times a second to request the lock. A paused thread does not wake
# up.
_MOST_WAKE_UPS_PER_S = 20.0
# this clock includes sleep, unlike the monotonic clock
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause, and its length `paused_s` in seconds.

    The code SUSPENDED means that the machine slept, according to its clocks. The code PAUSED means any other pause, in
    which this process did not run.
    """

    code: EndCode
    paused_s: float


@dataclass(frozen=True, slots=True)
class _Tick:
    monotonic_s: float
    boot_s: float
    wake_ups: int  # how often this thread has woken up so far

    @classmethod
    def now(cls) -> _Tick:
        wake_ups = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return cls(time.monotonic(), time.clock_gettime(_BOOT_CLOCK), wake_ups)


class PauseDetector:
    """Finds pauses by regular calls of `tick` from one thread. The thread sleeps at most 0.5 s between two calls."""

    def __init__(self) -> None:
        self._last = _Tick.now()

    def tick(self) -> Pause | None:
        """Return the pause since the previous call, or None if there was no pause."""
        last = self._last
        self._last = now = _Tick.now()
        return _pause_between(last, now)

    @property
    def overdue(self) -> bool:
        """Check whether the next call of `tick` is so late that it will report a pause.

        Any thread may call this method.
        """
        return time.clock_gettime(_BOOT_CLOCK) - self._last.boot_s > _LEAST_S


def _pause_between(last: _Tick, now: _Tick) -> Pause | None:
    took_s = now.monotonic_s - last.monotonic_s
    slept_s = now.boot_s - last.boot_s - took_s
    if slept_s > _LEAST_S:
        return Pause(EndCode.SUSPENDED, slept_s)
    if took_s > _LEAST_S and now.wake_ups - last.wake_ups < _MOST_WAKE_UPS_PER_S * took_s:
        return Pause(EndCode.PAUSED, took_s)
    return None
