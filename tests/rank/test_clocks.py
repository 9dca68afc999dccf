"""Comparing clocks and timing one way, with ranks as threads whose clocks and whose messages' delays are made up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.core.channel import Channel
from bench.core.errors import MeasurementError
from bench.core.program import Exchange, Group, Message
from bench.core.transport import Compiled
from bench.probes import sysfs
from bench.rank import clocks as module
from bench.rank.clocks import Clocks
from bench.rank.messages import RankFailure
from bench.rank.oneway import OneWaySampler
from bench.transports._host import HostBuffers

NUM_RANKS_OF_FIRST_HOST = 2
Clock = Callable[[], int]


class World:
    """What the threads of one test share. `delay_s(source, target)`: of each message."""

    def __init__(self, num_ranks: int, delay_s: Callable[[int, int], float]) -> None:
        self.num_ranks, self.delay_s = num_ranks, delay_s
        self.barrier = threading.Barrier(num_ranks)
        self.slots: list[Any] = [None] * num_ranks
        pairs = [(a, b) for a in range(num_ranks) for b in range(num_ranks)]
        self.mail: dict[tuple[int, int], queue.Queue[Any]] = {pair: queue.Queue() for pair in pairs}

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        """`work(transport)` on every rank; what each returned, or the first error."""
        results: list[Any] = [None] * self.num_ranks
        errors: list[BaseException] = []

        def body(rank: int) -> None:
            try:
                results[rank] = work(Threads(self, rank))
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(self.num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        if real:
            raise real[0]
        return results


class Shared(Channel):
    def __init__(self, world: World, rank: int) -> None:
        self._world, self._rank = world, rank

    def gather(self, value: Any) -> list[Any] | None:
        self._world.slots[self._rank] = value
        self._world.barrier.wait(30)
        gathered = list(self._world.slots)
        self._world.barrier.wait(30)
        return gathered if self._rank == 0 else None

    def broadcast(self, value: Any) -> Any:
        return (self.gather(value) or self._world.slots)[0] if self._rank == 0 else self._later(value)

    def _later(self, value: Any) -> Any:
        self._world.slots[self._rank] = value
        self._world.barrier.wait(30)
        first = self._world.slots[0]
        self._world.barrier.wait(30)
        return first


class Threads:
    """As much of a transport as comparing clocks takes; a message is there when its delay is over."""

    clock = "host"

    def __init__(self, world: World, rank: int) -> None:
        self._world, self.place = world, SimpleNamespace(rank=rank, num_ranks=world.num_ranks)
        self.channel = Shared(world, rank)

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: object = ()) -> HostBuffers:
        return HostBuffers(send_bytes, recv_bytes, num_sets)

    def sync(self) -> None:
        self._world.barrier.wait(30)

    def compile(self, steps: Any, group: Group, buffers: Any, reduction: Any, in_place: bool) -> Compiled:
        (step,) = steps
        (message,) = step.sends or step.recvs
        me, other = self.place.rank, group.ranks[message.peer]

        def send() -> None:
            due = time.perf_counter() + self._world.delay_s(me, other)
            self._world.mail[me, other].put((due, np.array(buffers.read("send", 0))))

        def recv() -> None:
            due, data = self._world.mail[other, me].get(timeout=30)
            while time.perf_counter() < due:
                pass
            buffers.write("recv", 0, data)

        return Compiled([send if step.sends else recv])


def clock(offset_s: float, drift: float) -> Clock:
    """A clock that reads differently: `drift` seconds per second faster since now, and `offset_s` ahead."""
    begin = time.perf_counter_ns()
    return lambda: time.perf_counter_ns() + round(offset_s * 1e9 + drift * (time.perf_counter_ns() - begin))


@pytest.fixture(autouse=True)
def _hosts_have_clocks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysfs, "clock", lambda: None)


OFFSETS_S, DRIFTS = (0.0, 1000.0, -3.5, 2e4), (0.0, 3e-4, -5e-4, 1e-4)


def compared(work: Callable[[Clocks, Any], Any], num_ranks: int = 4, delay_s: float = 2e-4) -> tuple[list[Any], float]:
    """`work(clocks, transport)` on ranks with clocks of their own, and when (true time) those began."""
    began_s = time.perf_counter()
    read = [clock(offset_s, drift) for offset_s, drift in zip(OFFSETS_S, DRIFTS, strict=True)]
    hosts = [f"h{rank}" for rank in range(num_ranks)]

    def on_rank(transport: Any) -> Any:
        return work(Clocks(transport, hosts, read[transport.place.rank]), transport)

    return World(num_ranks, lambda source, target: delay_s).run(on_rank), began_s


def test_injected_offsets_and_drifts_are_recovered_within_the_stated_bounds() -> None:
    def work(clocks: Clocks, transport: Any) -> Any:
        for _ in range(3):
            clocks.compare()
            time.sleep(0.2)
        return clocks.offsets()

    (told, *others), began_s = compared(work)
    assert others == [{}] * 3
    assert list(told) == ["h1", "h2", "h3"]
    for found, offset_s, drift in zip(told.values(), OFFSETS_S[1:], DRIFTS[1:], strict=True):
        truth_s = offset_s + drift * (found["at_s"] - began_s)
        assert abs(found["offset_s"] - truth_s) <= found["bound_s"] + 2e-5 * abs(drift)  # clocks began one by one
        assert abs(found["drift"] - drift) <= found["drift_bound"]
        assert found["bound_s"] > 0 and found["drift_bound"] < 0.1
        assert found["num_comparisons"] == 3


def test_a_longer_way_back_stays_inside_the_bound() -> None:
    world = World(2, lambda source, target: 1e-3 if source == 0 else 3e-3)

    def work(transport: Any) -> Any:
        clocks = Clocks(transport, ("h0", "h1"), clock(7.0 * transport.place.rank, 0.0))
        clocks.compare()
        return clocks.offsets()

    found = world.run(work)[0]["h1"]
    assert found["offset_s"] < 7.0 - 0.5e-3  # moved by half of the difference
    assert abs(found["offset_s"] - 7.0) <= found["bound_s"]
    assert found["bound_s"] >= 2e-3


def test_ranks_that_read_one_clock_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysfs, "clock", lambda: "boot time:[1]")

    def work(clocks: Clocks, transport: Any) -> Any:
        assert list(clocks.comparing_between(iter([1, 2]))) == [1, 2]
        return clocks.several, clocks.is_same(0, 3), clocks.offsets()

    results, _ = compared(work)
    assert results == [(False, True, {})] * 4


def test_rows_are_followed_by_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY_S", -1.0)

    def work(clocks: Clocks, transport: Any) -> Any:
        assert list(clocks.comparing_between(iter([1, 2]))) == [1, 2]
        return clocks.offsets()

    (told, *_), _ = compared(work, num_ranks=3)
    assert [found["num_comparisons"] for found in told.values()] == [3, 3]


def test_a_clock_that_is_set_ends_the_run_and_names_the_hosts() -> None:
    def work(transport: Any) -> None:
        readings = iter(range(10**6))
        jumping = clock(0.0, 0.0)

        def read_ns() -> int:
            return jumping() + (10**9 if transport.place.rank and next(readings) >= 5 else 0)

        Clocks(transport, ("h0", "h1"), read_ns).compare()

    with pytest.raises(MeasurementError) as error:
        World(2, lambda source, target: 1e-5).run(work)
    assert (error.value.code, error.value.facts["hosts"]) == (RankFailure.CLOCKS, ["h0", "h1"])


@pytest.mark.parametrize("alike", [False, True])
def test_one_way_times_of_both_directions_hold_the_truth(monkeypatch: pytest.MonkeyPatch, alike: bool) -> None:
    if alike:
        monkeypatch.setattr(sysfs, "clock", lambda: "boot time:[1]")
    there_s, back_s = 1e-3, 3e-3
    world = World(2, lambda source, target: there_s if source == 0 else back_s)

    def work(transport: Any) -> Any:
        me = transport.place.rank
        clocks = Clocks(transport, ("h0", "h1"), clock(0.0 if alike else 500.0 * me, 0.0 if alike else 2e-4 * me))
        found = []
        for ranks in ((0, 1), (1, 0)):
            group = Group("pair", ranks)
            step = Exchange(sends=(Message(1, 8),)) if me == ranks[0] else Exchange(recvs=(Message(0, 8),))
            compiled = transport.compile((step,), group, transport.allocate(8, 8, 1), None, False)
            row = OneWaySampler(transport, clocks, (group,), compiled)
            taken = [seconds for _ in range(2) for seconds in (row.take(5) or [[]])[0]]
            found.append((taken, row.bound_s(group)))
        return found

    (forward, forward_bound_s), (backward, backward_bound_s) = world.run(work)[0]
    assert len(forward) == len(backward) == 10
    assert min(forward) >= there_s - forward_bound_s and min(backward) >= back_s - backward_bound_s
    late_s = 5e-3  # a busy machine adds, also to the fastest of ten
    assert min(forward) <= there_s + forward_bound_s + late_s and min(backward) <= back_s + backward_bound_s + late_s
    if alike:
        assert forward_bound_s == backward_bound_s == 0
    else:
        assert forward_bound_s >= (there_s + back_s) / 2
        assert min(forward) > 1.5 * there_s, "half of the asymmetry is in the offset"
    # What the offset takes from one direction it gives to the other.
    assert np.median(forward) + np.median(backward) >= there_s + back_s - 1e-4


def test_a_rank_without_a_pair_takes_no_time() -> None:
    def work(transport: Any) -> Any:
        clocks = Clocks(transport, ("h0", "h1", "h2"), clock(1.0 * transport.place.rank, 0.0))
        group, me = Group("pair", (0, 1)), transport.place.rank
        step = Exchange(sends=(Message(1, 8),)) if me == 0 else Exchange(recvs=(Message(0, 8),))
        buffers = transport.allocate(8, 8, 1)
        compiled = transport.compile((step,), group, buffers, None, False) if me < 2 else None
        return OneWaySampler(transport, clocks, (group,), compiled).take(3)

    first, *others = World(3, lambda source, target: 1e-5).run(work)
    assert [len(taken) for taken in first] == [3, 3, 0]
    assert others == [None, None]
