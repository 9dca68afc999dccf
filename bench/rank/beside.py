"""Find how far apart the ranks start, and whether concurrent copies overlapped fully."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from bench.core.program import Group, Round
from bench.core.record import BesideSamples
from bench.core.transport import Timing

_ALLOWED = 0.01  # share of a copy's time; a copy may stop earlier than the last end by this share


class Beside:
    """Gathers, on rank 0, the start and end times of a row's samples. The times arrive in chunks."""

    def __init__(self, groups: Round, ranks_per_host: int, most_values: int) -> None:
        """Begin without data.

        `most_values`: how many end times may be kept. If there are more end times, none is kept. The number of
            samples in which copies overlapped only partly is always kept.
        """
        self._groups, self._per_host, self._room = groups, ranks_per_host, most_values
        self._skew: array[float] = array("d")
        self._ends: dict[int, list[array[float]]] = {}  # rank -> by copy
        self._num_alone = 0

    def add(self, gathered: Sequence[Timing]) -> None:
        """Add one chunk of samples, with one timing for each rank of the world."""
        busy = [rank for group in self._groups for rank in group.ranks if gathered[rank].started_s]
        by_host: dict[int, list[Timing]] = {}
        for rank in busy:
            by_host.setdefault(rank // self._per_host, []).append(gathered[rank])
        if not by_host:
            return
        for sample in range(len(gathered[busy[0]].started_s)):
            self._skew.append(max(_skew(timings, sample) for timings in by_host.values()))
            copies = (timings for timings in by_host.values() if sum(len(one.ends_s) for one in timings) > 1)
            self._num_alone += any(_is_alone(timings, sample) for timings in copies)
        for rank in busy:
            own = self._ends.setdefault(rank, [array("d") for _ in gathered[rank].ends_s])
            for kept, more in zip(own, gathered[rank].ends_s, strict=True):
                self._room -= len(more)
                if self._room >= 0:
                    kept.extend(more)

    @property
    def skew_s(self) -> Sequence[float]:
        """Return how far apart the ranks of a host started each sample, in seconds.

        If there are several hosts, each value is the largest of all hosts. The result is empty if the start times are
        unknown.
        """
        return self._skew

    def of_group(self, group: Group) -> BesideSamples | None:
        """Return the end times of a group's copies, or None if each of its hosts ran at most one copy at a time."""
        num_copies = {rank: len(own) for rank, own in self._ends.items()}
        hosts = {rank // self._per_host for rank in group.ranks}
        if not any(
            sum(num for rank, num in num_copies.items() if rank // self._per_host == host) > 1 for host in hosts
        ):
            return None
        ends = tuple(tuple(self._ends.get(rank, ())) for rank in group.ranks) if self._room >= 0 else ()
        return BesideSamples(ends, self._num_alone)


def _skew(timings: Sequence[Timing], sample: int) -> float:
    """Return how far apart the ranks started the same part of a sample (the largest value), in seconds."""
    parts = zip(*(one.started_s[sample] for one in timings), strict=True)
    return float(max(max(starts) - min(starts) for starts in parts))


def _is_alone(timings: Sequence[Timing], sample: int) -> bool:
    """Check whether a copy stopped while the timed part of another copy was still running."""
    last_end_s = max(ends[sample] for one in timings for ends in one.ends_s)
    first_stop_s = min(one.beside_s[sample] for one in timings if one.ends_s)
    return first_stop_s < last_end_s * (1 - _ALLOWED)
