"""CPU cores of a rank's own: ranks that wander between cores, or share one, time the scheduler.

The mask that was really in force is recorded for every rank (`Header.ranks`), whoever set it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from bench.core.world import RankInfo
from bench.probes import sysfs


def num_cpus() -> int:
    """CPUs that the ranks of this host have together: those of what started them, where it has bound each to a few."""
    try:
        launcher = os.sched_getaffinity(os.getppid())
    except OSError:
        launcher = set()
    return len(os.sched_getaffinity(0) | launcher)


def bind(me: RankInfo, how: str, least_cpus: int) -> str:
    """Bind this process to its share of the cores it may use; `how`: 'auto' or 'none'. Returns what was done, in words.

    `least_cpus`: threads of the library that wait for each other; on fewer CPUs they would take turns.

    The cores of this process's mask are dealt out in order to the ranks of the host, so ranks that a launcher has bound
    to different sockets stay apart. Where there are fewer cores than ranks nothing is changed.
    """
    if how == "none":
        return "as launched"
    cores = sysfs.cores(os.sched_getaffinity(0))
    share = share_of(cores, me.local_rank, me.local_size)
    if len(share) < least_cpus:
        return f"as launched: {me.local_size} ranks of {least_cpus} threads each on {len(cores)} cores"
    os.sched_setaffinity(0, share)
    return "each rank on cores of its own"


def share_of(cores: Sequence[tuple[int, ...]], local_rank: int, local_size: int) -> set[int]:
    """The CPUs of one rank: an equal run of whole cores; empty where there are fewer cores than ranks."""
    each = len(cores) // local_size
    return {cpu for core in cores[local_rank * each : (local_rank + 1) * each] for cpu in core}
