"""Gather the times of all ranks for one row on rank 0 (docs/metrics.md).

For each sample, the time of the slowest rank is always kept. As long as the number of times is within the row's limit,
the times of all ranks are kept. Above the limit, only two values of each rank are kept: the sum of its times, and how
often it was the slowest rank.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.core.program import Group, Round
from bench.core.record import BesideSamples
from bench.results.shares import slowest_counts


@dataclass(frozen=True, slots=True)
class GatheredSamples:
    """One group's samples.

    `by_rank`: all ranks' times. The field is empty if the number of values exceeded the limit.
    `rank_mean_s`: the mean time of each rank, if `by_rank` is empty.
    `slowest_counts`: how often each rank was the slowest, if `by_rank` is empty.
    `host_s`, `enqueue_s`: for each sample, the longest host time of all ranks (see Timing). Both are empty unless a
        device measured the samples.
    `skew_s`: for each sample, how far apart the ranks started.
    `beside`: for concurrent copies, the times at which the copies ended (rank/beside.py).
    """

    slowest: array[float]
    by_rank: tuple[array[float], ...]
    rank_mean_s: tuple[float, ...]
    slowest_counts: tuple[int, ...]
    host_s: Sequence[float] = ()
    enqueue_s: Sequence[float] = ()
    skew_s: Sequence[float] = ()
    beside: BesideSamples | None = None


class Gathered:
    """Collects the samples of all groups of a row in chunks, while the row is measured."""

    def __init__(self, groups: Round, room: int) -> None:
        """Begin without samples. `room`: the largest number of values (samples x ranks) to keep."""
        self._groups, self._room = [_OfGroup(group) for group in groups], room

    def add(self, seconds: Sequence[Sequence[float]]) -> None:
        """Add one chunk of samples. `seconds` has one list of times for each world rank.

        The lists of all ranks of a group are equally long.
        """
        for own in self._groups:
            own.add(seconds)
        if self.num_values > self._room:
            for own in self._groups:
                own.fold()

    @property
    def num_values(self) -> int:
        """The number of kept values: samples x ranks, summed over all groups."""
        return sum(len(own.slowest) * len(own.ranks) for own in self._groups)

    def slowest(self) -> list[array[float]]:
        """For each group, return the slowest rank's time in all samples so far, in seconds."""
        return [own.slowest for own in self._groups]

    def shares(self) -> tuple[GatheredSamples, ...]:
        """Return the kept samples of each group."""
        return tuple(own.shares() for own in self._groups)


class _OfGroup:
    def __init__(self, group: Group) -> None:
        self.ranks = group.ranks
        self.slowest = array("d")
        self._by_rank: tuple[array[float], ...] | None = tuple(array("d") for _ in group.ranks)
        self._sums = np.zeros(len(group.ranks))
        self._counts = np.zeros(len(group.ranks), dtype=np.int64)

    def add(self, seconds: Sequence[Sequence[float]]) -> None:
        shares = np.array([seconds[rank] for rank in self.ranks])
        self.slowest.frombytes(shares.max(axis=0).tobytes())
        if self._by_rank is None:
            self._count(shares)
        else:
            for kept, more in zip(self._by_rank, shares, strict=True):
                kept.frombytes(more.tobytes())

    def fold(self) -> None:
        if self._by_rank is not None:
            self._count(np.array(self._by_rank))
            self._by_rank = None

    def _count(self, shares: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
        self._sums += shares.sum(axis=1)
        self._counts += slowest_counts(shares) or 0  # a group of one rank has no slowest rank

    def shares(self) -> GatheredSamples:
        if self._by_rank is not None:
            return GatheredSamples(self.slowest, self._by_rank, (), ())
        counts = tuple(map(int, self._counts)) if len(self.ranks) > 1 else ()
        return GatheredSamples(self.slowest, (), tuple(map(float, self._sums / len(self.slowest))), counts)
