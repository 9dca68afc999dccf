"""Simulate a data loader that sleeps for an exact time per batch and may prepare batches in advance."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from bench.core.waiting import sleep_until


class BatchLoader:
    """A simulated worker that prepares one batch after the other.

    The worker is at most `prefetch` batches ahead of the consumer. No thread or process runs for the worker. From the
    times at which the consumer took earlier batches, the loader computes when the next batch is ready. The loader
    sleeps until the next batch is ready. If there is no prefetch, the worker begins a batch only when the consumer asks
    for the batch.
    """

    def __init__(
        self,
        batch_s: float,
        prefetch: int,
        now: Callable[[], float] = time.perf_counter,
        wait_until: Callable[[float], None] = sleep_until,
    ) -> None:
        """`batch_s`: seconds to prepare a batch."""
        self._batch_s, self._now, self._wait_until = batch_s, now, wait_until
        self._prefetch, self._taken = prefetch, deque[float]()
        self._ready, self._paused = 0.0, None  # type: float, float | None

    def resume(self) -> None:
        """Start the worker, or continue it after `pause`. At the first call, the worker begins to prepare batches."""
        now = self._now()
        if self._paused is None:
            self._taken.extend([now] * self._prefetch)
        else:
            self._ready += now - self._paused
            self._taken = deque(taken + now - self._paused for taken in self._taken)
        self._paused = now

    def pause(self) -> None:
        """Stop the worker until `resume` is called."""
        self._paused = self._now()

    def take(self) -> None:
        """Wait for the next batch."""
        begun = max(self._ready, self._taken.popleft()) if self._prefetch else self._now()
        self._ready = begun + self._batch_s
        if self._ready > self._now():
            self._wait_until(self._ready)
        if self._prefetch:
            self._taken.append(self._now())
