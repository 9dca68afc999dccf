"""A loader that sleeps: what a step waits for its batch, with and without batches prepared ahead."""

from __future__ import annotations

import pytest

from bench.core.batch_loader import BatchLoader


class Clock:
    """A clock that moves only when somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def read(self) -> float:
        return self.now

    def wait_until(self, until: float) -> None:
        assert until >= self.now
        self.now = until


def waits(batch_s: float, prefetch: int, step_s: float, num: int, pause_after: int | None = None) -> list[float]:
    """Return the wait of each of `num` steps that take a batch and then last `step_s`."""
    clock = Clock()
    loader = BatchLoader(batch_s, prefetch, clock.read, clock.wait_until)
    loader.resume()
    found = []
    for number in range(num):
        if number == pause_after:
            loader.pause()
            clock.now += 50.0
            loader.resume()
        began = clock.now
        loader.take()
        found.append(clock.now - began)
        clock.now += step_s
    return found


def test_without_prefetch_each_step_waits_for_all_of_its_batch() -> None:
    assert waits(3.0, 0, 10.0, 4) == [3.0] * 4


@pytest.mark.parametrize(("batch_s", "step_s"), [(4.0, 10.0), (12.0, 10.0)])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_batch_prepared_ahead_is_waited_for_only_if_it_takes_longer_than_a_step(
    batch_s: float, step_s: float, prefetch: int
) -> None:
    found = waits(batch_s, prefetch, step_s, 40)
    assert found[0] == batch_s
    assert found[-1] == pytest.approx(max(0.0, batch_s - step_s))


def test_more_batches_ahead_cover_one_long_step_only() -> None:
    """The worker prepares 3 batches of 4 s during a step of 12 s; without a pause it goes on meanwhile."""
    clock = Clock()
    loader = BatchLoader(4.0, 3, clock.read, clock.wait_until)
    loader.resume()
    loader.take()
    clock.now += 12.0
    found = []
    for _ in range(5):
        began = clock.now
        loader.take()
        found.append(clock.now - began)
    assert found == [0.0, 0.0, 0.0, 4.0, 4.0]


def test_a_pause_prepares_nothing() -> None:
    assert waits(12.0, 2, 10.0, 20, pause_after=10) == pytest.approx(waits(12.0, 2, 10.0, 20))
