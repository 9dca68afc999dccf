"""Marks of a rank that trains on a GPU, over a device with a clock of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.transports._step_place import GpuPlace

HZ = 2e9  # cycles per second of a kernel that spins


class Device:
    """What GpuPlace calls of torch.cuda. Only work advances the clock, and events are known after a synchronisation."""

    def __init__(self) -> None:
        self.now_s, self.synced = 100.0, 0
        device = self

        class Stream:
            pass

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                self.at_s: float | None = None

            def record(self, stream: Any = None) -> None:
                assert stream in (None, device.current)
                self.at_s, self.synced = device.now_s, device.synced

            def elapsed_time(self, later: Any) -> float:
                for one in (self, later):
                    assert one.at_s is not None, "the event was never recorded"
                    assert one.synced < device.synced, "cudaErrorNotReady"
                return float((later.at_s - self.at_s) * 1e3)

        self.Stream, self.Event = Stream, Event
        self.current = Stream()

    def current_stream(self) -> Any:
        return self.current

    def _sleep(self, cycles: int) -> None:
        self.now_s += cycles / HZ

    def synchronize(self) -> None:
        self.synced += 1


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def place(device: Device) -> GpuPlace:
    return GpuPlace(SimpleNamespace(cuda=device), "cuda:0")


def test_marks_are_events_and_their_times_count_from_the_beginning_of_the_block(
    place: GpuPlace, device: Device
) -> None:
    device.now_s += 50
    place.restart()
    device.now_s += 0.25
    mark = place.mark()
    with pytest.raises(AssertionError, match="NotReady"):
        place.seconds(mark)
    place.end()
    assert place.seconds(mark) == pytest.approx(0.25)


def test_work_of_a_known_length_spins_on_the_gpu(place: GpuPlace, device: Device) -> None:
    before = device.now_s
    place.work_until(place.due(0.003))
    assert device.now_s - before == pytest.approx(0.003)
    place.work_until(place.due(0.0))
    assert device.now_s - before == pytest.approx(0.003)


def test_a_wait_delays_the_model_only_on_its_own_stream(place: GpuPlace, device: Device) -> None:
    assert place.is_models_stream()
    device.current = device.Stream()
    assert not place.is_models_stream()
