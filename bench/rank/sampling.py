"""Run the timed part of a row: warm up, take samples, decide when to stop. All ranks execute the same steps.

Rank 0 decides from the slowest rank's times, and broadcasts each decision outside the timed region.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bench.core.case import Case
from bench.core.record import OverlapSamples, StopReason
from bench.core.transport import Compiled, Timing, Transport
from bench.rank.beside import Beside
from bench.rank.gathered import Gathered, GatheredSamples
from bench.rank.oneway import OneWaySampler
from bench.rank.rows import PlannedRow
from bench.results import stats

MIN_SAMPLES = 30  # with fewer samples, early stopping makes the interval too narrow (docs/metrics.md)
MAX_SAMPLES = 10_000
TARGET_HALF_WIDTH = {"isolated": 0.025, "pipelined": 0.01}
_CHECK_EVERY = 10
_WARMUP_CALLS, _WARMUP_S, _WARMUP_MOST_S = 5, 0.05, 2.0
_MOST_CHUNK, _CHUNK_S = 1000, 1.0  # largest number of samples, and most seconds, between two heartbeats
_SOAK_CHUNK_S = 0.25
_BATCH_MOST = 1024
# Limits on the data that rank 0 keeps for a row, for any number of ranks (docs/metrics.md): values of one chunk, and
# samples of all groups.
_MOST_GATHERED, _MOST_SECONDS = 1 << 20, 1 << 20


@dataclass(frozen=True, slots=True)
class Taken:
    """The times of each group of a row, on rank 0, in seconds per call of the program. Other ranks have no times.

    `warmup`: for each group, the slowest rank's warm-up times.
    """

    warmup: tuple[Sequence[float], ...]
    shares: tuple[GatheredSamples, ...]
    calls_per_sample: int
    loop: str  # the loop that measured the times: compiled, python, virtual
    stop_reason: str
    contest: ContestedSamples | None = None  # set if aggressors disturbed these samples
    overlaps: tuple[OverlapSamples, ...] = ()  # by group, if products overlapped these samples


@dataclass(frozen=True, slots=True)
class ContestedSamples:
    """The samples of undisturbed blocks, and the rates of the aggressors in the disturbed blocks.

    `alone`: for each group, the slowest rank's times in the undisturbed blocks, in seconds. A block has
        `samples_per_block` samples.
    `passes_per_s`: for each disturbed block, how often per second the aggressors ran their program.
    `busy`: for each disturbed block, the fraction of its time that the aggressors spent inside calls. The value is the
        smallest fraction of any aggressor.
    """

    alone: tuple[Sequence[float], ...]
    samples_per_block: int
    passes_per_s: tuple[float, ...]
    passes_alone_per_s: float
    busy: tuple[float, ...]


def take(
    case: Case,
    transport: Transport,
    row: PlannedRow,
    compiled: Compiled | None,
    most_batch: int,
    room: int,
    beat: Callable[[str], None],
    one_way: OneWaySampler | None = None,
) -> Taken:
    """Run the warm-up and take the samples of one row. If this rank is idle, `compiled` is None.

    `most_batch`: the largest number of calls in one pipelined sample.
    `room`: the largest number of values (samples x ranks) that are kept.
    `one_way`: the sampler for patterns whose messages start on one rank and end on another rank.
    """
    sampler = Sampler(case, transport, row, compiled, one_way)
    beat("warm-up")
    loop, warmup, call_s, wall_s = sampler.warm_up()
    batch = sampler.batch(call_s, most_batch)
    shares, stop_reason = sampler.sample(batch, wall_s, room, beat)
    return Taken(warmup, shares, batch, "python" if one_way else loop, stop_reason)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Disable garbage collection within a context."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Sampler:
    """The state of one row during the timed part."""

    def __init__(
        self,
        case: Case,
        transport: Transport,
        row: PlannedRow,
        compiled: Compiled | None,
        one_way: OneWaySampler | None = None,
    ) -> None:
        self._case, self._transport, self._row, self._compiled = case, transport, row, compiled
        self._one_way = one_way
        self._channel = transport.channel
        self._of_device = transport.clock == "device"
        # Number of times gathered for each sample. For a device, starts and ends are included.
        values = 6 if self._of_device else 1
        self._most_chunk = max(1, min(_MOST_CHUNK, _MOST_GATHERED // (values * transport.place.num_ranks)))

    def warm_up(self) -> tuple[str, tuple[Sequence[float], ...], float, float]:
        """Run the warm-up calls.

        Return the name of the loop that timed the calls, each group's warm-up times, and two durations of a call in
        seconds. The first duration is the time of the call alone. The second duration includes the synchronisation and
        all other overheads.
        """
        asked = self._case.warmup
        # At least one call is needed, even with -w 0, because it determines how many calls a sample needs.
        first = _WARMUP_CALLS if asked is None else max(1, min(_WARMUP_CALLS, asked))
        began = time.monotonic()
        timings = self._channel.gather(self._transport.time_each(self._compiled, first))
        wall_s = (time.monotonic() - began) / first
        loop, call_s, more = "", 0.0, 0
        taken = Gathered(self._row.round, 0)
        if timings is not None:
            loop = "+".join(sorted({timing.loop for timing in timings if timing.seconds}))
            seconds = [timing.seconds for timing in timings]
            taken.add(seconds)
            call_s = _typical(seconds)
            more = max(0, asked - first) if asked is not None else self._more_warm_up(first, wall_s)
        call_s, wall_s, more = self._channel.broadcast((call_s, wall_s, more))
        most = max(1, _MOST_GATHERED // self._transport.place.num_ranks)
        for done in range(0, more, most):
            rest = self._channel.gather(self._transport.time_each(self._compiled, min(most, more - done)).seconds)
            if rest is not None:
                taken.add(rest)
            call_s = self._channel.broadcast(_typical(rest) if rest is not None else None)
        return loop, tuple(taken.slowest()), call_s, wall_s

    def _more_warm_up(self, done: int, wall_s: float) -> int:
        """Return how many more warm-up calls are necessary after the first `done` calls.

        Together, all warm-up calls take about 50 ms.
        """
        most_s = min(_WARMUP_MOST_S, max(2 * self._row.max_s, _WARMUP_S))
        return max(0, min(int((_WARMUP_S - done * wall_s) / wall_s), int(most_s / wall_s)))

    def batch(self, call_s: float, most: int) -> int:
        """Return the number of calls per sample, which is 1 in isolated mode.

        In pipelined mode, the number is the smallest power of two for which a sample lasts as long as the transport
        requires (2 ms for most transports). A longer sample makes the clock readings only a small part of the time. The
        number is at most `most`.
        """
        if self._row.mode == "isolated":
            return 1
        least, least_s = self._transport.least_batch()
        wanted = max(least, int(least_s / max(call_s, 1e-9)))
        return min(1 << (wanted - 1).bit_length(), _BATCH_MOST, most)

    def sample(
        self,
        batch: int,
        wall_s: float,
        room: int,
        beat: Callable[[str], None],
    ) -> tuple[tuple[GatheredSamples, ...], str]:
        """Return each group's samples (on rank 0), and why sampling ended."""
        with no_garbage():
            return self._sample(batch, wall_s * batch, room, beat)

    def _sample(
        self,
        batch: int,
        sample_s: float,
        room: int,
        beat: Callable[[str], None],
    ) -> tuple[tuple[GatheredSamples, ...], str]:
        taken = Gathered(self._row.round, room)
        on_host, enqueued = Gathered(self._row.round, 0), Gathered(self._row.round, 0)  # the longest times of all ranks
        beside = Beside(self._row.round, self._transport.place.local_size, room)
        num, stop_reason = 0, None
        began = time.monotonic()
        while stop_reason is None:
            beat(f"{num} samples")
            chunk = self._channel.broadcast(self._chunk(num, sample_s))
            gathered = self._timed_by_all(batch, chunk)
            num += chunk
            elapsed_s = time.monotonic() - began
            sample_s = elapsed_s / num
            if gathered is not None:
                taken.add([timing.seconds for timing in gathered])
                on_host.add([timing.host_s for timing in gathered])
                enqueued.add([timing.enqueue_s for timing in gathered])
                beside.add(gathered)
                stop_reason = self._stop(taken.slowest(), num, elapsed_s)
            stop_reason = self._channel.broadcast(stop_reason)
        if self._transport.place.rank != 0:
            return (), stop_reason
        groups = zip(self._row.round, taken.shares(), on_host.slowest(), enqueued.slowest(), strict=True)
        return tuple(
            replace(own, host_s=host_s, enqueue_s=enqueue_s, skew_s=beside.skew_s, beside=beside.of_group(group))
            for group, own, host_s, enqueue_s in groups
        ), stop_reason

    def _timed_by_all(self, batch: int, chunk: int) -> Sequence[Timing] | None:
        if self._one_way is not None:
            return _as_timings(self._one_way.take(chunk))
        timing = self.timed(batch, chunk)
        if self._of_device or self._transport.tells_starts:
            return self._channel.gather(timing)
        return _as_timings(self._channel.gather(timing.seconds))

    def timed(self, batch: int, chunk: int) -> Timing:
        """Take `chunk` samples. Return this rank's times. An idle rank has no times."""
        if self._row.mode == "isolated" and not self._case.pause_s:
            return self._transport.time_each(self._compiled, chunk)
        if self._row.mode == "isolated":
            timings = [self._after_pause() for _ in range(chunk)]
        else:
            timings = [self._transport.time_batch(self._compiled, batch) for _ in range(chunk)]
        return _joined(timings)

    def _after_pause(self) -> Timing:
        """Sleep for the case's pause, synchronise the ranks, and return the time of one isolated call."""
        time.sleep(self._case.pause_s)
        return self._transport.time_each(self._compiled, 1)

    def _chunk(self, num: int, sample_s: float) -> int:
        """Return the number of samples until the next check.

        Without `--iterations` and `--soak`, the first check is after 30 samples. Later checks follow after a tenth of
        all samples so far, but after at least 10 samples. If each sample takes long, the next check comes earlier.
        """
        if self._case.soak_s:
            return max(1, min(self._most_chunk, int(_SOAK_CHUNK_S / max(sample_s, 1e-9))))
        if self._case.iterations is not None:
            return max(1, min(self._case.iterations - num, self._most_chunk, int(_CHUNK_S / max(sample_s, 1e-9))))
        wanted = MIN_SAMPLES if num == 0 else max(_CHECK_EVERY, num // 10)
        wanted = min(wanted, self._most_chunk)
        return max(1 if num else 3, min(wanted, int(2 * self._row.max_s / max(sample_s, 1e-9))))

    def _stop(self, slowest: Sequence[Sequence[float]], num: int, elapsed_s: float) -> str | None:
        """Return why this row is finished. Return None if the row continues.

        A row is finished when all groups of the row are finished.
        """
        if self._case.soak_s:
            most = _MOST_SECONDS // len(slowest)
            return StopReason.SOAKED if elapsed_s >= self._case.soak_s or num >= most else None
        if self._case.iterations is not None:
            return StopReason.FIXED if num >= self._case.iterations else None
        reasons = [
            stats.should_stop(
                seconds,
                target=TARGET_HALF_WIDTH[self._row.mode],
                n_min=MIN_SAMPLES,
                n_max=max(MIN_SAMPLES, min(MAX_SAMPLES, _MOST_SECONDS // len(slowest))),
                elapsed_s=elapsed_s,
                max_s=self._row.max_s,
            )
            for seconds in slowest
        ]
        found = [reason for reason in reasons if reason is not None]
        return None if len(found) < len(reasons) else max(found, key=lambda reason: reason != "ci")


def _joined(timings: Sequence[Timing]) -> Timing:
    """Combine the timings of successive samples into one timing."""

    def all_of(name: str) -> tuple[Any, ...]:
        return tuple(value for timing in timings for value in getattr(timing, name))

    by_copy = zip(*(timing.ends_s for timing in timings), strict=True)
    return Timing(
        all_of("seconds"),
        timings[0].loop,
        all_of("host_s"),
        all_of("enqueue_s"),
        all_of("started_s"),
        tuple(tuple(second for ends in copy for second in ends) for copy in by_copy),
        all_of("beside_s"),
    )


def _as_timings(gathered: Sequence[Sequence[float]] | None) -> list[Timing] | None:
    """Return a timing for each rank. In each timing, only the field `seconds` has values."""
    return None if gathered is None else [Timing(tuple(seconds), "") for seconds in gathered]


def _typical(gathered: Sequence[Sequence[float]]) -> float:
    """Return the median time of a call in seconds.

    The time of a call is the time of its slowest rank. Idle ranks are left out.
    """
    return float(median(map(max, zip(*filter(None, gathered), strict=True))))
