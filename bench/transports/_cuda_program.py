"""Build programs of copies, in which all arguments are bound. Each copy has its own stream.

One event starts all copies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from bench.transports import _cuda_kernels
from bench.transports._cuda_memory import HOST, End

Issue = Callable[[], Any]
_MOST_COPIES = 1000
_ANY_KIND, _TO_DEVICE, _TO_HOST = 4, 1, 2  # cudaMemcpyKind


def by_engine(runtime: Any, source: End, target: End, num_bytes: int, stream: int) -> Issue:
    """Return a function that issues a copy by memcpyAsync, or by memcpyPeerAsync between two GPUs of this process."""
    (source_on, source_at), (target_on, target_at) = source, target
    if HOST not in (source_on, target_on) and source_on != target_on:
        return partial(runtime.memcpyPeerAsync, target_at, target_on, source_at, source_on, num_bytes, stream)
    kind = _TO_DEVICE if source_on == HOST else _TO_HOST if target_on == HOST else _ANY_KIND
    return partial(runtime.memcpyAsync, target_at, source_at, num_bytes, kind, stream)


def by_kernel(
    kernel: Any, num_sms: int, blocks_per_sm: int, source: End, target: End, num_bytes: int, stream: int
) -> Issue:
    """Return a function that issues a copy by the kernel.

    The kernel has at most as many blocks as the GPU can run at the same time. The GPU must have access to source and
    target. Raises ValueError if the source or the target is not aligned.
    """
    source_at, target_at = _aligned(source, target)
    grid = (_cuda_kernels.copy_grid(num_bytes, num_sms, blocks_per_sm),)
    arguments = _cuda_kernels.numbers(source_at, target_at, num_bytes)
    return partial(kernel, grid, (_cuda_kernels.THREADS,), arguments, stream=_cuda_kernels.OnStream(stream))


def by_chase(kernel: Any, source: End, target: End, num_bytes: int, stream: int) -> Issue:
    """Return a function that issues a copy by a single GPU thread. Each load of the thread waits for the previous load.

    The GPU must have access to source and target. Raises ValueError if the source or the target is not aligned.
    """
    source_at, target_at = _aligned(source, target)
    step = _cuda_kernels.chase_step(num_bytes // _cuda_kernels.WORD_BYTES)
    arguments = _cuda_kernels.numbers(source_at, target_at, num_bytes, step, 0)
    return partial(kernel, (1,), (1,), arguments, stream=_cuda_kernels.OnStream(stream))


def _aligned(source: End, target: End) -> tuple[int, int]:
    (_, source_at), (_, target_at) = source, target
    if source_at % _cuda_kernels.WORD_BYTES or target_at % _cuda_kernels.WORD_BYTES:
        raise ValueError("both ends of a kernel's copy must be multiples of 16 bytes")
    return source_at, target_at


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """The times of one sample of copies, in seconds since the start of the sample.

    `device_s`: the time when the timed calls of all copies had ended.
    `host_s`: the time when the host noticed that the timed calls of all copies had ended.
    `enqueue_s`: the time when all calls had been issued.
    `started_s`: the reading of the host's monotonic clock at the start of the sample.
    `ends_s`: for each copy, the time when its timed calls had ended.
    `beside_s`: the earliest time when a copy had ended all its calls, both timed and uncounted.
    """

    device_s: float = 0.0
    host_s: float = 0.0
    enqueue_s: float = 0.0
    started_s: float = 0.0
    ends_s: tuple[float, ...] = ()
    beside_s: float = 0.0


class _Countdown:
    """The number of streams whose timed copies have not ended yet."""

    def __init__(self, num: int) -> None:
        self._num, self._lock = num, threading.Lock()

    def count_down(self) -> None:
        with self._lock:
            self._num -= 1

    @property
    def is_zero(self) -> bool:
        return self._num <= 0


class CopyProgram:
    """The copies of one rank. The function `issues[k][j]` puts the copy of buffer set k on stream j."""

    def __init__(
        self, runtime: Any, device: int, streams: Sequence[int], issues: Sequence[Sequence[Issue]], gated: bool
    ) -> None:
        self._runtime, self._device, self.issues = runtime, device, issues
        self.streams = list(streams[: len(issues[0])])
        self.gated = gated
        self._ran = False
        self._begin = runtime.eventCreate()
        self._ends = [runtime.eventCreate() for _ in self.streams]
        self._stops = [runtime.eventCreate() for _ in self.streams]
        self._others: ThreadPoolExecutor | None = None

    def run(self, index: int) -> None:
        """Issue all copies of a buffer set, and wait until the copies are complete."""
        self._ran = True
        self.issue((index,))
        for stream in self.streams:
            self._runtime.streamSynchronize(stream)

    def warm(self, index: int) -> None:
        """Run the copies of a buffer set once, unless this program has already run copies.

        At the first call, CUDA loads code, and may wait until the whole GPU is idle. The first call must therefore
        happen before a measurement begins.
        """
        if not self._ran:
            self.run(index)

    def issue(self, order: Sequence[int]) -> None:
        """Issue the copies of these buffer sets in order. Do not wait for the copies."""
        for index in order:
            for issue in self.issues[index]:
                issue()

    def keep_busy(self, for_s: float) -> None:
        """Issue copies that take about `for_s` seconds together, but never more copies than the queue can hold.

        Do not wait for these copies.
        """
        self.run(0)  # the first copy is slower than later copies, and waits for earlier work
        began = monotonic()
        self.run(0)
        one_s = max(monotonic() - began, 1e-6)
        self.issue([0] * min(_MOST_COPIES, int(for_s / one_s)))

    def enqueue(self, order: Sequence[int], extra: Sequence[int] = ()) -> None:
        """Enqueue the timed copies of the buffer sets in `order`, between two events.

        The streams of all copies wait for the first event. On each stream, an event follows the timed copies. After
        this event, the uncounted copies and a second event follow.

        `extra`: for each stream, the number of uncounted copies.
        """
        runtime, first = self._runtime, self.streams[0]
        runtime.eventRecord(self._begin, first)
        for stream in self.streams[1:]:
            runtime.streamWaitEvent(stream, self._begin)
        self.issue(order)
        for stream, end in zip(self.streams, self._ends, strict=True):
            runtime.eventRecord(end, stream)
        for k in range(max(extra, default=0)):
            for issue, num in zip(self.issues[order[k % len(order)]], extra, strict=True):
                if k < num:
                    issue()
        for stream, stop in zip(self.streams, self._stops, strict=True):
            runtime.eventRecord(stop, stream)

    def wait(self) -> None:
        """Wait for the end of the timed copies of every stream."""
        for end in self._ends:
            self._runtime.eventSynchronize(end)

    def taken(self, host_s: float, enqueue_s: float, started_s: float) -> CopyTimes:
        """Wait for all copies.

        Return the times of the sample. The ends of the copies come from events on the GPU. The times on the host are
        arguments.
        """
        for stop in self._stops:
            self._runtime.eventSynchronize(stop)
        ends, stops = self._since_begin(self._ends), self._since_begin(self._stops)
        return CopyTimes(max(ends), host_s, enqueue_s, started_s, ends, min(stops))

    def ends_s(self) -> list[float]:
        """Return, for each stream, the seconds from the common start to the end of the timed copies, by CUDA events."""
        return list(self._since_begin(self._ends))

    def _since_begin(self, events: Sequence[Any]) -> tuple[float, ...]:
        return tuple(float(self._runtime.eventElapsedTime(self._begin, event)) * 1e-3 for event in events)

    def timed(self, order: Sequence[int], extra: Sequence[int] = ()) -> CopyTimes:
        """Issue the copies of these buffer sets, and wait until the copies end. Return the times of the sample."""
        began = monotonic()
        self.enqueue(order, extra)
        issued = monotonic()
        self.wait()
        ended = monotonic()
        return self.taken(ended - began, issued - began, began)

    def timed_by_host(self, order: Sequence[int], extra: Sequence[int] = ()) -> CopyTimes:
        """Time copies of pageable memory with the host's clock.

        The calling thread itself makes copies of pageable memory, so two concurrent directions need two threads. Each
        thread continues with uncounted copies until the timed copies of all threads have ended.
        """
        if len(self.streams) > 1 and self._others is None:
            self._others = ThreadPoolExecutor(
                len(self.streams) - 1, initializer=lambda: self._runtime.setDevice(self._device)
            )
            self._together((), ())  # start the threads before the clock
        began = monotonic()
        ends, stops = zip(*self._together(order, extra), strict=True)
        since = tuple(end - began for end in ends)
        last_s = max(since)
        return CopyTimes(last_s, last_s, last_s, began, since, min(stops) - began)

    def _together(self, order: Sequence[int], extra: Sequence[int]) -> list[tuple[float, float]]:
        """Run the copies of each stream on a separate thread.

        Return two times for each stream: the end of its timed copies, and the end of all its copies.
        """
        open_streams = _Countdown(len(self.streams))
        more = list(extra) or [0] * len(self.streams)
        waiting: list[Future[tuple[float, float]]] = []
        if self._others is not None:
            run = partial(self._run_stream, order=order, open_streams=open_streams)
            waiting = [self._others.submit(run, j, more[j]) for j in range(1, len(self.streams))]
        first = self._run_stream(0, more[0], order, open_streams)
        return [first, *(future.result() for future in waiting)]

    def _run_stream(self, j: int, num_more: int, order: Sequence[int], open_streams: _Countdown) -> tuple[float, float]:
        try:
            for index in order:
                self.issues[index][j]()
            self._runtime.streamSynchronize(self.streams[j])
        finally:
            ended = monotonic()
            open_streams.count_down()
        while order and (num_more > 0 or not open_streams.is_zero):
            self.issues[order[0]][j]()
            self._runtime.streamSynchronize(self.streams[j])
            num_more -= 1
        return ended, monotonic()

    def close(self) -> None:
        """Release events and threads."""
        for event in (self._begin, *self._ends, *self._stops):
            self._runtime.eventDestroy(event)
        if self._others is not None:
            self._others.shutdown()
