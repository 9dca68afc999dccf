"""Compute statistics from the times of each rank: which rank is late, how often, and the statistics of other tools."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from bench.core.case_argv import from_argv
from bench.core.contention import rounds
from bench.core.errors import BenchError
from bench.core.record import Header, Record, Samples, known
from bench.core.world import World
from bench.results import stats

# In these patterns, no rank can finish before the last rank arrives, so the shortest time of a rank includes no
# waiting.
FULLY_SYNCHRONISING = frozenset({"allreduce", "allgather", "reducescatter", "alltoall", "alltoallv", "barrier"})

_NOT_KEPT = np.empty((0, 0))


class RankShares:
    """Statistics that are computed from the times of each rank.

    If the record has no valid times of each rank, the stored counts and means of the ranks are used. If the record has
    no stored counts and means either, there are no statistics.
    """

    def __init__(self, header: Header, record: Record, samples: Samples) -> None:
        self._header, self._record = header, record
        by_rank = np.asarray(samples.by_rank, dtype=float) if samples.by_rank else _NOT_KEPT  # ranks x samples
        good = by_rank.ndim == 2 and by_rank.size and np.isfinite(by_rank).all() and (by_rank > 0).all()
        self._by_rank = by_rank if good else _NOT_KEPT
        self._seconds = samples.seconds
        self._counts = slowest_counts(self._by_rank) if good else samples.slowest_counts
        self._means = self._by_rank.mean(axis=1) if good else np.asarray(samples.rank_mean_s)

    def last_arriver_s(self) -> float | None:
        """Return the time of an operation in seconds, without the time spent waiting for late ranks.

        In each sample, the last rank to arrive has the shortest time, because it does not wait. The result is the
        median of these shortest times.
        """
        synchronising = self._header.pattern in FULLY_SYNCHRONISING and self._record.mode == "isolated"
        if not synchronising or len(self._by_rank) < 2:
            return None
        return float(np.median(self._by_rank.min(axis=0)))

    def slowest_counts(self) -> tuple[int, ...]:
        """For each member of a group, return in how many samples it was the slowest."""
        return self._counts

    def slowest_rank(self) -> int | None:
        """Return the rank that is the slowest in more than half of the samples, or None if there is no such rank.

        Return None if there are too few samples, or if there are only two ranks. If there are only two ranks, one of
        them is nearly always slower than the other.
        """
        counts, num_samples = self._counts, len(self._seconds)
        if len(counts) < 3 or stats.interval_rank(num_samples) is None or max(counts) * 2 <= num_samples:
            return None
        header = self._header
        num_nodes, per_node = known(header.num_nodes), known(header.ranks_per_node)
        members = _members(header.case, num_nodes, per_node, header.topology, self._record.group)
        member = counts.index(max(counts))
        return members[member] if member < len(members) else None

    def rotation(self) -> float | None:
        """Return the mean over samples of the slowest rank's time, divided by the largest mean time of a single rank.

        Each sample may have a different slowest rank.

        If the same rank is always the slowest, the ratio is 1.
        """
        if len(self._means) < 2:
            return None
        return float(np.mean(self._seconds) / self._means.max())

    def compat(self) -> dict[str, float | None]:
        """Return the statistics that other tools would report for these samples.

        - OSU: each rank has a mean time. Avg Latency is the mean of these means, Min Latency is their minimum, and Max
          Latency is their maximum.
        - nccl-tests (-a 1): each rank has a time per call, over all batches. The result is the mean of the times per
          call over the ranks. The bandwidths follow from this time. These statistics exist only in pipelined mode.
        """
        if not len(self._means):
            return {}
        mean_s = float(self._means.mean())
        found: dict[str, float | None] = {
            # osu_latency prints the time of its first rank.
            "osu_mean_s": float(self._means[0]) if self._header.pattern == "pingpong" else mean_s,
            "osu_min_s": float(self._means.min()),
            "osu_max_s": float(self._means.max()),
        }
        if self._record.mode == "pipelined" and self._record.payload_bytes:
            algbw = self._record.payload_bytes / mean_s
            factor = self._record.bus_factor
            found |= {
                "nccl_tests_s": mean_s,
                "nccl_tests_algbw_bytes_per_s": algbw,
                "nccl_tests_busbw_bytes_per_s": algbw * factor if factor is not None else None,
            }
        return found


def slowest_counts(by_rank: Any) -> tuple[int, ...]:
    """For each member of a group, return in how many samples it was the slowest.

    If several members share the longest time in a sample, the sample counts for none of them.

    `by_rank`: times in seconds, as an array of shape (members, samples).
    """
    shares = np.asarray(by_rank, dtype=float)
    if len(shares) < 2:
        return ()
    alone = (shares == shares.max(axis=0)).sum(axis=0) == 1
    wins = np.bincount(shares.argmax(axis=0)[alone], minlength=len(shares))
    return tuple(int(count) for count in wins)


def _members(case: tuple[str, ...], num_nodes: int, ranks_per_node: int, topology: str, group: str) -> tuple[int, ...]:
    """Return the world ranks of a group's members, in the order of the members.

    The result is empty if an imported file does not state the world ranks.
    """
    return _groups(case, num_nodes, ranks_per_node, topology).get(group, ())


@lru_cache(maxsize=64)
def _groups(case: tuple[str, ...], num_nodes: int, ranks_per_node: int, topology: str) -> dict[str, tuple[int, ...]]:
    try:
        in_time = rounds(from_argv(case), World(num_nodes, ranks_per_node), topology)
    except (BenchError, IndexError):
        return {}
    return {group.name: group.ranks for groups in in_time for group in groups}
