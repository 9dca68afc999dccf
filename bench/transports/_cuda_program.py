"""Programs of copies whose arguments are bound. Each copy has its own stream, and one event starts all streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

from bench.transports import _cuda_kernels
from bench.transports._cuda_memory import HOST, End

Issue = Callable[[], Any]
_MOST_COPIES = 1000
_ANY_KIND, _TO_DEVICE, _TO_HOST = 4, 1, 2  # cudaMemcpyKind
_ALIGNMENT_BYTES = 16  # alignment of both ends of a kernel's copy


def by_engine(runtime: Any, source: End, target: End, num_bytes: int, stream: int) -> Issue:
    """Return a function that issues a copy by memcpyAsync, or by memcpyPeerAsync between two GPUs of this process."""
    (source_on, source_at), (target_on, target_at) = source, target
    if HOST not in (source_on, target_on) and source_on != target_on:
        return partial(runtime.memcpyPeerAsync, target_at, target_on, source_at, source_on, num_bytes, stream)
    kind = _TO_DEVICE if source_on == HOST else _TO_HOST if target_on == HOST else _ANY_KIND
    return partial(runtime.memcpyAsync, target_at, source_at, num_bytes, kind, stream)


def by_kernel(kernel: Any, num_sms: int, source: End, target: End, num_bytes: int, stream: int) -> Issue:
    """Return a function that issues a copy by the kernel, with at most as many blocks as fit on the GPU.

    The GPU must have access to both ends. Raises ValueError if an end is not aligned.
    """
    (_, source_at), (_, target_at) = source, target
    if source_at % _ALIGNMENT_BYTES or target_at % _ALIGNMENT_BYTES:
        raise ValueError("both ends of a kernel's copy must be multiples of 16 bytes")
    grid = (_cuda_kernels.copy_grid(num_bytes, num_sms),)
    arguments = _cuda_kernels.numbers(source_at, target_at, num_bytes)
    return partial(kernel, grid, (_cuda_kernels.THREADS,), arguments, stream=_cuda_kernels.OnStream(stream))


class CopyProgram:
    """The copies of one rank. `issues[k][j]` issues the copy of buffer set k on stream j."""

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
        """Issue all copies of a buffer set and wait until they are complete."""
        self._ran = True
        self.issue((index,))
        for stream in self.streams:
            self._runtime.streamSynchronize(stream)

    def warm(self, index: int) -> None:
        """Run the copies of a buffer set, unless some copies ran before.

        CUDA may wait for the whole GPU while it loads code. This call makes it load the code before a measurement.
        """
        if not self._ran:
            self.run(index)

    def issue(self, order: Sequence[int]) -> None:
        """Issue the copies of these buffer sets in order, without waiting for them."""
        for index in order:
            for issue in self.issues[index]:
                issue()

    def keep_busy(self, for_s: float) -> None:
        """Issue copies that take about `for_s` seconds, but no more than fit in a queue. Does not wait for them."""
        self.run(0)  # the first copy is slower than the others, and waits for earlier copies
        began = perf_counter()
        self.run(0)
        one_s = max(perf_counter() - began, 1e-6)
        self.issue([0] * min(_MOST_COPIES, int(for_s / one_s)))

    def enqueue(self, order: Sequence[int]) -> None:
        """Enqueue an event that all streams wait for, the copies of these buffer sets, and an event on each stream."""
        runtime, first = self._runtime, self.streams[0]
        runtime.eventRecord(self._begin, first)
        for stream in self.streams[1:]:
            runtime.streamWaitEvent(stream, self._begin)
        self.issue(order)
        for stream, end in zip(self.streams, self._ends, strict=True):
            runtime.eventRecord(end, stream)

    def wait(self) -> None:
        """Wait for the last event of every stream."""
        for end in self._ends:
            self._runtime.eventSynchronize(end)

    def ends_s(self) -> list[float]:
        """Return for each stream the seconds from the common start to the stream's end, by the GPU's events."""
        return [float(self._runtime.eventElapsedTime(self._begin, end)) * 1e-3 for end in self._ends]

    def elapsed_s(self) -> float:
        """Return the seconds from the common start to the end of the last stream."""
        return max(self.ends_s())

    def timed(self, order: Sequence[int]) -> tuple[float, float, float]:
        """Issue the copies of these buffer sets and wait for them.

        Returns three times in seconds: the time by the GPU's events, the time until the host saw the end, and the time
        until all copies were issued.
        """
        began = perf_counter()
        self.enqueue(order)
        issued = perf_counter()
        self.wait()
        ended = perf_counter()
        return self.elapsed_s(), ended - began, issued - began

    def timed_by_host(self, order: Sequence[int]) -> float:
        """Return the seconds that copies take by the host's clock. This is for copies that block the calling thread.

        The driver copies pageable memory on the calling thread. Two directions at once therefore need two threads.
        """
        if len(self.streams) > 1 and self._others is None:
            self._others = ThreadPoolExecutor(
                len(self.streams) - 1, initializer=lambda: self._runtime.setDevice(self._device)
            )
            self._together(())  # start the threads before the clock
        began = perf_counter()
        self._together(order)
        return perf_counter() - began

    def _together(self, order: Sequence[int]) -> None:
        waiting: list[Future[None]] = []
        if self._others is not None:
            waiting = [self._others.submit(self._run_stream, j, order) for j in range(1, len(self.streams))]
        self._run_stream(0, order)
        for future in waiting:
            future.result()

    def _run_stream(self, j: int, order: Sequence[int]) -> None:
        for index in order:
            self.issues[index][j]()
        self._runtime.streamSynchronize(self.streams[j])

    def close(self) -> None:
        """Release events and threads."""
        for event in (self._begin, *self._ends):
            self._runtime.eventDestroy(event)
        if self._others is not None:
            self._others.shutdown()
