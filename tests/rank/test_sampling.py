"""The sampler against an injected clock: what is combined, when it stops, and how large a batch is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.core.case import Case
from bench.core.channel import Channel
from bench.core.pattern import Shape
from bench.core.program import Group
from bench.core.transport import LEAST_BATCH_S, Compiled, Timing
from bench.core.world import RankInfo
from bench.rank import sampling
from bench.rank.rows import PlannedRow


class Scripted(Channel):
    """All ranks in one process: rank 0 runs, and gathers what the script says the others measured."""

    def __init__(self, others: list[Iterator[float]], last: list[int]) -> None:
        self._others, self._last = others, last

    def gather(self, value: Any) -> list[Any]:
        """Rank 0's seconds and as many of every other rank's."""
        others = [tuple(next(series) for _ in range(self._last[0])) for series in self._others]
        if isinstance(value, Timing) and value.host_s:
            return [value, *(on_device(seconds) for seconds in others)]
        return [value, *(Timing(seconds, value.loop) if isinstance(value, Timing) else seconds for seconds in others)]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's own."""
        return value


class Clockwork:
    """A transport whose clock says what the test programmed: `programmed[rank]` yields seconds per sample."""

    clock = "host"
    tells_starts = False

    def __init__(self, programmed: list[Iterator[float]]) -> None:
        self.place = RankInfo(0, len(programmed), 0, len(programmed), "direct")
        self.last = [0]
        self.channel = Scripted(programmed[1:], self.last)
        self.mine = programmed[0]
        self.batches: list[int] = []

    def least_batch(self) -> tuple[int, float]:
        """As most transports."""
        return 1, LEAST_BATCH_S

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """As many samples as calls."""
        self.last[0] = num_calls
        return Timing(tuple(next(self.mine) for _ in range(num_calls)), "python")

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """One sample."""
        self.batches.append(num_calls)
        self.last[0] = len(self.batches) if len(self.batches) < 30 else 10
        return Timing((next(self.mine),), "python")


def on_device(seconds: tuple[float, ...]) -> Timing:
    """What a rank tells whose times are a device's: its host sees 1 ms more, and issues in half of that."""
    host_s = tuple(second + 1e-3 for second in seconds)
    return Timing(seconds, "python", host_s, tuple(second / 2 for second in host_s))


class Device(Clockwork):
    """The same, but a device tells the times."""

    clock = "device"

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """As many samples as calls."""
        return on_device(super().time_each(compiled, num_calls).seconds)


def forever(*values: float) -> Iterator[float]:
    """The values again and again."""
    while True:
        yield from values


def take(
    programmed: list[Iterator[float]],
    *,
    mode: str = "isolated",
    max_s: float = 5.0,
    most: int = 1024,
    room: int = 1 << 30,
    kind: type[Clockwork] = Clockwork,
    **case: Any,
) -> tuple[sampling.Taken, Clockwork]:
    """Take one row's samples of these ranks."""
    transport = kind(programmed)
    group = Group("world", tuple(range(len(programmed))))
    row = PlannedRow(mode, Shape(len(programmed), 64), (64,), (group,), max_s)
    said: list[str] = []
    taken = sampling.take(Case("allreduce", **case), transport, row, None, most, room, said.append)  # type: ignore[arg-type]
    assert said[0] == "warm-up" and said[1] == "0 samples"
    return taken, transport


def test_every_rank_keeps_its_own_seconds_in_order() -> None:
    first, second = (iter([n / 1e6 for n in range(base, base + 500)]) for base in (1000, 2000))
    taken, _ = take([first, second], warmup=5, iterations=7)
    [warmup], [shares] = taken.warmup, taken.shares
    assert list(warmup) == [n / 1e6 for n in range(2000, 2005)], "of warm-up, the slowest rank's alone"
    assert [list(own) for own in shares.by_rank] == [[n / 1e6 for n in range(k, k + 7)] for k in (1005, 2005)]
    assert list(shares.slowest) == list(shares.by_rank[1])
    assert (taken.stop_reason, taken.calls_per_sample, taken.loop) == ("fixed", 1, "python")


def test_of_what_the_hosts_saw_the_longest_of_any_rank_is_kept() -> None:
    programmed = [forever(1e-4, 3e-4), forever(2e-4)]
    taken, _ = take(programmed, warmup=6, iterations=4, kind=Device)
    [shares] = taken.shares
    assert list(shares.slowest) == [2e-4, 3e-4, 2e-4, 3e-4]
    assert list(shares.host_s) == pytest.approx([1.2e-3, 1.3e-3, 1.2e-3, 1.3e-3])
    assert list(shares.enqueue_s) == pytest.approx([0.6e-3, 0.65e-3, 0.6e-3, 0.65e-3])
    assert len(shares.by_rank) == 2 and len(taken.warmup[0]) == 6


def test_of_a_host_clock_there_is_no_second_look() -> None:
    taken, _ = take([forever(1e-4), forever(2e-4)], warmup=5, iterations=4)
    assert not len(taken.shares[0].host_s) and not len(taken.shares[0].enqueue_s)


def test_ranks_rest_before_each_isolated_call_and_never_before_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("bench.rank.sampling.time.sleep", rests.append)
    taken, transport = take([forever(1e-4, 3e-4)], warmup=5, iterations=4, pause_s=0.02, kind=Device)
    assert rests == [0.02] * 4
    assert len(taken.shares[0].slowest) == len(taken.shares[0].host_s) == len(taken.shares[0].enqueue_s) == 4
    assert transport.last == [1]  # each call on its own
    rests.clear()
    take([forever(1e-4)], warmup=5, iterations=4, pause_s=0.02, mode="pipelined")
    assert rests == []


def test_steady_times_stop_at_thirty_samples() -> None:
    taken, _ = take([forever(1e-4, 1.001e-4, 0.999e-4)], warmup=5)
    assert (taken.stop_reason, len(taken.shares[0].slowest)) == ("ci", 30)


def test_the_slowest_rank_decides_when_to_stop() -> None:
    steady, wild = forever(1e-4), forever(1e-4, 9e-4, 2e-4, 7e-4, 3e-4)
    taken, _ = take([steady, wild], warmup=5)
    assert len(taken.shares[0].by_rank[0]) == len(taken.shares[0].by_rank[1]) > 30, (
        "rank 0 alone would have stopped at 30"
    )


def test_no_row_is_sampled_without_end() -> None:
    taken, _ = take([forever(*(1e-4 * (1 + n % 7) for n in range(35)))], warmup=5, max_s=1000)
    assert taken.stop_reason in ("ci", "max_n") and len(taken.shares[0].slowest) <= sampling.MAX_SAMPLES + 1000


@pytest.mark.parametrize(("call_s", "batch"), [(1e-6, 1024), (1e-5, 256), (1.5e-4, 16), (2e-3, 1), (1.0, 1)])
def test_a_batch_is_the_smallest_power_of_two_that_lasts_two_milliseconds(call_s: float, batch: int) -> None:
    taken, transport = take([forever(call_s)], mode="pipelined", warmup=5, iterations=3)
    assert taken.calls_per_sample == batch and transport.batches == [batch] * 3


def test_a_batch_is_never_more_than_the_buffers_allow() -> None:
    taken, _ = take([forever(1e-6)], mode="pipelined", warmup=5, iterations=3, most=8)
    assert taken.calls_per_sample == 8


def test_without_warm_up_one_call_still_tells_how_long_a_call_takes() -> None:
    taken, _ = take([forever(1e-3)], mode="pipelined", warmup=0, iterations=2)
    assert (len(taken.warmup[0]), taken.calls_per_sample) == (1, 2)


def test_garbage_is_collected_again_after_a_row_also_when_it_fails() -> None:
    import gc

    def broken() -> Iterator[float]:
        yield from (1e-4,) * 6

    with pytest.raises(RuntimeError, match="StopIteration"):
        take([broken()], warmup=5)
    assert gc.isenabled()


def test_thousands_of_ranks_come_in_by_pieces_and_their_values_are_added_up() -> None:
    num = 4096
    steady = [forever(1e-4, 1.001e-4, 0.999e-4) for _ in range(num - 1)]
    taken, _ = take([*steady, forever(2e-4)], warmup=600, iterations=300, room=1000)
    [shares], [warmup] = taken.shares, taken.warmup
    assert (len(warmup), len(shares.slowest), shares.by_rank) == (600, 300, ())
    assert set(shares.slowest) == {2e-4}
    assert shares.slowest_counts == (0,) * (num - 1) + (300,)
    assert shares.rank_mean_s[-1] == pytest.approx(2e-4) and shares.rank_mean_s[0] == pytest.approx(1e-4)


def test_many_groups_share_the_room_for_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_MOST_SECONDS", 200)
    transport = Clockwork([forever(*(1e-4 * (1 + n % 7) for n in range(35))) for _ in range(8)])
    groups = tuple(Group(f"{k}", (k, k + 1)) for k in range(0, 8, 2))
    row = PlannedRow("isolated", Shape(2, 64), (64,), groups, 1000.0)
    taken = sampling.take(Case("pairs", warmup=1), transport, row, None, 1024, 0, lambda doing: None)  # type: ignore[arg-type]
    assert (taken.stop_reason, len(taken.shares[0].slowest)) == ("max_n", 50)
