"""A loader of batches that sleeps: its time for a batch is known exactly, and it may prepare batches ahead."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from bench.core.waiting import sleep_until


class BatchLoader:
    """One worker that prepares batches one after the other, at most `prefetch` ahead of those that were taken.

    The worker sleeps, so nothing needs to run: the time at which a batch is ready follows from the times at which
    others were taken. Without prefetch it begins when a batch is asked for.
    """

    def __init__(
        self,
        batch_s: float,
        prefetch: int,
        now: Callable[[], float] = time.perf_counter,
        wait_until: Callable[[float], None] = sleep_until,
    ) -> None:
        """`batch_s`: the time of a batch."""
        self._batch_s, self._now, self._wait_until = batch_s, now, wait_until
        self._prefetch, self._taken = prefetch, deque[float]()
        self._ready, self._paused = 0.0, None  # type: float, float | None

    def resume(self) -> None:
        """Go on after a pause, in which the worker stood still. The first time, it begins its first batches."""
        now = self._now()
        if self._paused is None:
            self._taken.extend([now] * self._prefetch)
        else:
            self._ready += now - self._paused
            self._taken = deque(taken + now - self._paused for taken in self._taken)
        self._paused = now

    def pause(self) -> None:
        """Let the worker stand still."""
        self._paused = self._now()

    def take(self) -> None:
        """Wait for the next batch."""
        begun = max(self._ready, self._taken.popleft()) if self._prefetch else self._now()
        self._ready = begun + self._batch_s
        if self._ready > self._now():
            self._wait_until(self._ready)
        if self._prefetch:
            self._taken.append(self._now())
