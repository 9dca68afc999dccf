"""Provide the two places where a rank may train: host memory, or the rank's GPU.

A mark is a point in a rank's step. On the host, a mark is a time of the performance counter. On a GPU, a mark is an
event on the current stream, so a mark never makes the host wait. The time of a mark can be read after `end` has
returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from bench.core.waiting import sleep_until

_CALIBRATED_S = 0.02  # seconds of a kernel, which are long compared with its launch


class HostPlace:
    """Host memory. On a host, a task of a known length is a sleep."""

    kind = "cpu"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def put(self, value: Any) -> Any:
        """Return a tensor or a module unchanged, because it is already in host memory."""
        return value

    def staged(self, tensor: Any) -> Any:
        """Return the tensor in host memory from which the batches of the steps are copied."""
        return tensor

    def mark(self) -> Any:
        """Return a mark of now."""
        return time.perf_counter()

    def seconds(self, mark: Any) -> float:
        """Return the time of a mark in seconds. Only the difference between the times of two marks has a meaning."""
        return float(mark)

    def is_models_stream(self) -> bool:
        """Return whether waiting in this thread, or on its current stream, delays the work of the model.

        On a host, every wait delays the model.
        """
        return True

    def follows(self, group: int) -> None:
        """Record that the current stream has waited for a call of a group.

        On a host, this method does nothing, because there are no streams.
        """

    def noting_events(self, note: Callable[[int, Any, Any], None]) -> AbstractContextManager[None]:
        """Return a context that records nothing, because no work on a host waits for events."""
        return nullcontext()

    def due(self, seconds: float) -> Any:
        """Begin a task of a known length. Return the end of the task, for a call of `work_until`."""
        return time.perf_counter() + seconds

    def work_until(self, due: Any) -> None:
        """Sleep until the task that `due` began has reached its length."""
        sleep_until(due)

    def mean(self, values: Any, number: int) -> Any:
        """Return the sum of all elements, divided by `number`."""
        return float(values.detach().sum()) / number

    def future(self) -> Any:
        """Return a torch future that holds tensors in this memory."""
        return self._torch.futures.Future()

    def begin(self) -> None:
        """Begin to train. Memory that is allocated from now on belongs to the model."""

    def restart(self) -> None:
        """Begin a block of steps."""

    def end(self) -> None:
        """Wait until all work of this rank is done."""

    def peaks(self) -> dict[str, int]:
        """Return the peak use of device memory in bytes since the call of `begin`, for each kind of memory."""
        return {}


class GpuPlace:
    """Memory of one GPU. On a GPU, a task of a known length is a kernel that spins."""

    kind = "cuda"

    def __init__(self, torch: Any, device: Any) -> None:
        """Measure how many cycles per second a spinning kernel counts."""
        self._torch, self._cuda, self._device = torch, torch.cuda, device
        self._stream = torch.cuda.current_stream()
        self._followed: dict[Any, int] = {}  # streams that wait for groups, and the group of the last wait
        self.restart()
        self._cycles_per_s = self._spin_rate()

    def put(self, value: Any) -> Any:
        """Return a tensor or a module on the GPU."""
        return value.to(self._device)

    def staged(self, tensor: Any) -> Any:
        """Return a tensor in pinned host memory, so that its copy does not make the host wait."""
        return tensor.pin_memory()

    def mark(self) -> Any:
        """Record an event on the current stream."""
        return self._mark_on(self._cuda.current_stream())

    def seconds(self, mark: Any) -> float:
        """Return the seconds from the beginning of the block until the GPU reached a mark."""
        return float(self._origin.elapsed_time(mark)) * 1e-3

    def is_models_stream(self) -> bool:
        """Check whether the model computes on the current stream."""
        return bool(self._cuda.current_stream() == self._stream)

    def follows(self, group: int) -> None:
        """Record that the current stream has waited for a call of a group.

        Every event that this stream records later therefore comes after this call, too.
        """
        self._followed[self._cuda.current_stream()] = group

    @contextmanager
    def noting_events(self, note: Callable[[int, Any, Any], None]) -> Iterator[None]:
        """Return a context that reports each wait of the model's stream for an exchange that runs on another stream.

        A library may make a call of a group on a separate stream, and then record an event on that stream. The context
        calls `note` when the model's stream waits for an event that was recorded after a call of a group. The arguments
        of `note` are the number of the group, the mark before the wait, and the mark after the wait.

        The context replaces the methods `record` and `wait` of torch.cuda.Event. The methods of torch.cuda.Stream call
        the replaced methods, so their waits are also recorded. Streams of torch.accelerator have a different class and
        wait in C++, so the context does not record their waits. FSDP waits for a stream of torch.accelerator only if
        weights were gathered but then not used.
        """
        events, followed = self._cuda.Event, self._followed
        record, wait = events.record, events.wait
        followed.clear()

        def recorded(event: Any, stream: Any = None) -> None:
            stream = self._cuda.current_stream() if stream is None else stream
            record(event, stream)
            event.followed_group = followed.get(stream)

        def waited(event: Any, stream: Any = None) -> None:
            stream = self._cuda.current_stream() if stream is None else stream
            group = getattr(event, "followed_group", None)
            if group is None:
                wait(event, stream)
            elif stream != self._stream:
                wait(event, stream)
                followed[stream] = group
            else:
                began = self._mark_on(stream)
                wait(event, stream)
                note(group, began, self._mark_on(stream))

        events.record, events.wait = recorded, waited
        try:
            yield
        finally:
            events.record, events.wait = record, wait

    def due(self, seconds: float) -> Any:
        """Return the length of a task."""
        return seconds

    def work_until(self, due: Any) -> None:
        """Spin on the GPU for the whole length of the task."""
        if due > 0:
            self._cuda._sleep(round(due * self._cycles_per_s))

    def mean(self, values: Any, number: int) -> Any:
        """Return the sum of the values, divided by `number`, as a tensor.

        If the result were a Python number, the host would have to wait for the GPU.
        """
        return values.detach().sum() / number

    def future(self) -> Any:
        """Return a future for tensors on the GPU."""
        return self._torch.futures.Future(devices=[self._device])

    def begin(self) -> None:
        """Begin to count the memory that torch allocates."""
        self._cuda.reset_peak_memory_stats(self._device)

    def restart(self) -> None:
        """Begin a block of steps. The times of marks are measured from the start of the block.

        CUDA returns times in milliseconds as floats with 24 significant bits. After a minute, the resolution of CUDA's
        times is 4 us.
        """
        self._origin = self.mark()

    def end(self) -> None:
        """Wait for the GPU."""
        self._cuda.synchronize()

    def peaks(self) -> dict[str, int]:
        """Return the peaks of allocated and of reserved memory."""
        return {
            "allocated": self._cuda.max_memory_allocated(self._device),
            "reserved": self._cuda.max_memory_reserved(self._device),
        }

    def _mark_on(self, stream: Any) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _spin_rate(self) -> float:
        """Return the cycles per second of a spinning kernel.

        The first kernel gives the GPU time to raise its clock. The second, longer kernel is measured.
        """
        cycles = 1 << 24
        for _ in range(2):
            began = self.mark()
            self._cuda._sleep(cycles)
            ended = self.mark()
            self.end()
            rate = cycles / (began.elapsed_time(ended) * 1e-3)
            cycles = round(rate * _CALIBRATED_S)
        return float(rate)
