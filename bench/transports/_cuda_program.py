"""Copies with all their arguments bound, and how they are issued: each on a stream of its own, begun by one event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any

Issue = Callable[[], Any]
_MOST_STIRS = 1000


class CopyProgram:
    """Copies of one rank: `issues[k]` are those of buffer set k, the j-th of them for stream j."""

    def __init__(
        self, runtime: Any, device: int, streams: Sequence[int], issues: Sequence[Sequence[Issue]], gated: bool
    ) -> None:
        self._runtime, self._device, self.issues = runtime, device, issues
        self.streams = list(streams[: len(issues[0])])
        self.gated = gated
        self._ran = False
        self._begin = runtime.eventCreate()
        self._ends = [runtime.eventCreate() for _ in self.streams]
        self._others: ThreadPoolExecutor | None = None

    def run(self, index: int) -> None:
        """All copies of a set, complete."""
        self._ran = True
        self.issue((index,))
        for stream in self.streams:
            self._runtime.streamSynchronize(stream)

    def warm(self, index: int) -> None:
        """Run once, if it never ran: what CUDA loads for it may wait for the whole GPU."""
        if not self._ran:
            self.run(index)

    def issue(self, order: Sequence[int]) -> None:
        """The copies of those sets one after the other, not waited for."""
        for index in order:
            for issue in self.issues[index]:
                issue()

    def stir(self, for_s: float) -> None:
        """Copies for about that time, not waited for: as many as a queue takes at most."""
        self.run(0)  # the first one is slower than those that follow, and waits for those that were not waited for
        began = perf_counter()
        self.run(0)
        one_s = max(perf_counter() - began, 1e-6)
        self.issue([0] * min(_MOST_STIRS, int(for_s / one_s)))

    def enqueue(self, order: Sequence[int]) -> None:
        """An event that all streams wait for, the copies of those sets one after the other, an event on each stream."""
        runtime, first = self._runtime, self.streams[0]
        runtime.eventRecord(self._begin, first)
        for stream in self.streams[1:]:
            runtime.streamWaitEvent(stream, self._begin)
        self.issue(order)
        for stream, end in zip(self.streams, self._ends, strict=True):
            runtime.eventRecord(end, stream)

    def wait(self) -> None:
        """Until every stream has come to its end."""
        for end in self._ends:
            self._runtime.eventSynchronize(end)

    def ends_s(self) -> list[float]:
        """Of each stream, from the common beginning to its own end, by the GPU's events."""
        return [float(self._runtime.eventElapsedTime(self._begin, end)) * 1e-3 for end in self._ends]

    def elapsed_s(self) -> float:
        """From the common beginning to the later end."""
        return max(self.ends_s())

    def timed(self, order: Sequence[int]) -> tuple[float, float, float]:
        """Issued while time runs: seconds by events, until the host saw the end, and until all were issued."""
        began = perf_counter()
        self.enqueue(order)
        issued = perf_counter()
        self.wait()
        ended = perf_counter()
        return self.elapsed_s(), ended - began, issued - began

    def timed_by_host(self, order: Sequence[int]) -> float:
        """Seconds on the host's clock: of copies that hold up whoever issues them, each stream has a thread of its own.

        The driver copies pageable memory on the calling thread, so one thread could not do two directions at once.
        """
        if len(self.streams) > 1 and self._others is None:
            self._others = ThreadPoolExecutor(
                len(self.streams) - 1, initializer=lambda: self._runtime.setDevice(self._device)
            )
            self._together(())  # the threads start now, not while time runs
        began = perf_counter()
        self._together(order)
        return perf_counter() - began

    def _together(self, order: Sequence[int]) -> None:
        waiting: list[Future[None]] = []
        if self._others is not None:
            waiting = [self._others.submit(self._one_after_the_other, j, order) for j in range(1, len(self.streams))]
        self._one_after_the_other(0, order)
        for one in waiting:
            one.result()

    def _one_after_the_other(self, j: int, order: Sequence[int]) -> None:
        for index in order:
            self.issues[index][j]()
        self._runtime.streamSynchronize(self.streams[j])

    def close(self) -> None:
        """Give events and threads back."""
        for event in (self._begin, *self._ends):
            self._runtime.eventDestroy(event)
        if self._others is not None:
            self._others.shutdown()
