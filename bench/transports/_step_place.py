"""The place where a rank trains: host memory, or the rank's GPU.

A mark is a point in a rank's step. On the host, a mark is a time of the performance counter. On a GPU, a mark is an
event on the current stream, so it never makes the host wait. The time of a mark is known when `end` has returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from bench.core.waiting import sleep_until

_CALIBRATED_S = 0.02  # seconds of a kernel, which are long compared with its launch


class HostPlace:
    """Host memory. Work of a known length sleeps."""

    kind = "cpu"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def put(self, value: Any) -> Any:
        """Return a tensor or a module here."""
        return value

    def staged(self, tensor: Any) -> Any:
        """Return a tensor in host memory, from which batches are copied to this place."""
        return tensor

    def mark(self) -> Any:
        """Return a mark of now."""
        return time.perf_counter()

    def seconds(self, mark: Any) -> float:
        """Return the time of a mark in seconds. Only differences have a meaning."""
        return float(mark)

    def is_models_stream(self) -> bool:
        """Check whether a wait of this thread delays the work of the model. On a host, every wait does."""
        return True

    def follows(self, group: int) -> None:
        """Note that this thread's stream has waited for a call of a group. On a host, there are no streams."""

    def noting_events(self, note: Callable[[int, Any, Any], None]) -> AbstractContextManager[None]:
        """Return a context for steps. On a host, no work waits for events."""
        return nullcontext()

    def due(self, seconds: float) -> Any:
        """Begin a task of a known length. Return what `work_until` needs."""
        return time.perf_counter() + seconds

    def work_until(self, due: Any) -> None:
        """Sleep until the end of a task that `due` began."""
        sleep_until(due)

    def mean(self, values: Any, number: int) -> Any:
        """Return the sum of the values, divided by `number`."""
        return float(values.detach().sum()) / number

    def future(self) -> Any:
        """Return a future for tensors of this place."""
        return self._torch.futures.Future()

    def begin(self) -> None:
        """Begin to train. Memory that is allocated from now on belongs to the model."""

    def restart(self) -> None:
        """Begin a block of steps."""

    def end(self) -> None:
        """Wait until all work of this rank is done."""

    def peaks(self) -> dict[str, int]:
        """Return the peaks of device memory in bytes since `begin`, by kind of memory."""
        return {}


class GpuPlace:
    """Memory of one GPU. Work of a known length is a kernel that spins."""

    kind = "cuda"

    def __init__(self, torch: Any, device: Any) -> None:
        """Measure how many cycles a kernel spins per second."""
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
        """Note that the current stream has waited for a group's call. Later events of this stream follow the call."""
        self._followed[self._cuda.current_stream()] = group

    @contextmanager
    def noting_events(self, note: Callable[[int, Any, Any], None]) -> Iterator[None]:
        """Return a context that reports when the model's stream waits for an exchange on another stream.

        A library may call a group on a separate stream and then record an event on this stream. The context calls
        `note` when the model's stream waits for such an event. The arguments are the number of the group, and the marks
        before and after the wait.

        The context replaces methods of torch.cuda.Event. The methods of torch.cuda.Stream call them. A stream of
        torch.accelerator is a different class and waits in C++, so the context does not see its waits. FSDP uses such a
        stream only for weights that were gathered and then not used.
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
        """Return the sum of the values, divided by `number`, as a tensor. A Python number would make the host wait."""
        return values.detach().sum() / number

    def future(self) -> Any:
        """Return a future for tensors on the GPU."""
        return self._torch.futures.Future(devices=[self._device])

    def begin(self) -> None:
        """Begin to count the memory that torch allocates."""
        self._cuda.reset_peak_memory_stats(self._device)

    def restart(self) -> None:
        """Begin a block of steps. Times are relative to this moment.

        CUDA's milliseconds have only 24 bits. After a minute, the resolution is 4 us.
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
