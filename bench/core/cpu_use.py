"""Find the ranks that got too little CPU time, by comparing the CPU time of all ranks in the same interval.

A rank that waits for other ranks does not lack CPU time, whether the rank spins or sleeps. A starved rank is ready to
run but has no CPU. For example, the rank waits in a run queue. The CPU quota of a container may also throttle the rank,
or something may stop the rank for short times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LEAST_LOST_S = 0.2  # many time slices of the scheduler; on a busy machine, a short row loses several by chance
_LEAST_LOST_SHARE = 0.25  # of the interval
# A starved rank gets less than this fraction of the share that the other ranks get. On too few CPUs, the shares of
# equal ranks differ by at most a factor of 2: n + 1 ranks on n CPUs.
_FAR_BELOW = 0.25
_ALWAYS_BUSY = 0.9


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU time of one rank, summed over all its threads, in an interval of `wall_s` seconds.

    `waited_s`: seconds in which its threads were ready to run but had no CPU, or 0 if the kernel does not report this
        time.
    """

    cpu_s: float
    waited_s: float
    wall_s: float

    @property
    def needed_s(self) -> float:
        """The CPU time that the rank would have used if it had never waited for a CPU."""
        return self.cpu_s + self.waited_s


@dataclass(frozen=True, slots=True)
class Shortage:
    """A rank that got too little CPU time: `cpu_s` of the `needed_s` seconds that it needed.

    `others_share`: the median share of the other ranks. A rank's share is the CPU time that it got, divided by the CPU
        time that it needed.
    """

    cpu_s: float
    needed_s: float
    others_share: float

    @property
    def share(self) -> float:
        """The share of the needed CPU time that the rank got."""
        return self.cpu_s / self.needed_s


def shortages(uses: Mapping[int, CpuUse], spins: bool = False) -> dict[int, Shortage]:
    """Return the starved ranks of one interval.

    If all ranks lack CPU time, as on a busy machine, no rank counts as starved.

    `spins`: whether a rank uses its CPU while it waits for other ranks. If ranks spin and the other ranks were busy
        during the whole interval, a rank also needed CPU time during the whole interval. Time in which the rank neither
        ran nor waited for a CPU then counts as needed time, because something stopped the rank.
    """
    busy = {rank: _share(use.needed_s, use.wall_s) for rank, use in uses.items()}
    all_busy = sorted(busy.values())
    needed, shares = {}, {}
    for rank, use in uses.items():
        others_busy = _median_of_others(all_busy, busy[rank]) if spins else None
        always = others_busy is not None and others_busy >= _ALWAYS_BUSY
        needed[rank] = max(use.needed_s, use.wall_s) if always else use.needed_s
        shares[rank] = _share(use.cpu_s, needed[rank])
    all_shares = sorted(shares.values())
    found = {}
    for rank, use in uses.items():
        if needed[rank] - use.cpu_s < max(_LEAST_LOST_S, _LEAST_LOST_SHARE * use.wall_s):
            continue
        others_share = _median_of_others(all_shares, shares[rank])
        if others_share is not None and shares[rank] < _FAR_BELOW * others_share:
            found[rank] = Shortage(use.cpu_s, needed[rank], others_share)
    return found


def _median_of_others(ordered: Sequence[float], own: float) -> float | None:
    """Return the median of the values of all other ranks, or None if there are no other ranks.

    `ordered`: the sorted values of all ranks.
    `own`: the value of this rank. One value that equals `own` is removed from `ordered`.
    """
    num, place = len(ordered) - 1, bisect_left(ordered, own)
    if num == 0:
        return None
    low, high = (ordered[k + (k >= place)] for k in ((num - 1) // 2, num // 2))
    return (low + high) / 2


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 1.0
