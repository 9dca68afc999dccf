"""What a rank is bound to: CPU cores of its own, and the NIC that its case names, set before the library is loaded.

Ranks that wander between cores, or share one, time the scheduler. The CPU mask that was really in force is recorded
for every rank (`Header.ranks`), whoever set it.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from bench.core import plugins
from bench.core.case import Case
from bench.core.traits import traits
from bench.core.world import RankInfo
from bench.probes import sysfs

_INTERFACES = Path("/sys/class/net")


def num_cpus() -> int:
    """The number of CPUs for all ranks of this host: those of the launcher, if it bound each rank to a few of them."""
    try:
        launcher = os.sched_getaffinity(os.getppid())
    except OSError:
        launcher = set()
    return len(os.sched_getaffinity(0) | launcher)


def bind_cpus(me: RankInfo, how: str, least_cpus: int) -> str:
    """Bind this process to its share of its cores; `how`: "auto" or "none". Returns in words what was done.

    `least_cpus`: threads of the library that wait for each other; with fewer CPUs they would take turns.

    The cores of this process's mask go in order to the ranks of the host, so ranks that a launcher bound to different
    sockets stay apart. If there are fewer cores than ranks, nothing changes.
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
    """The CPUs of one rank: equally many whole cores for each; empty if there are fewer cores than ranks."""
    num = len(cores) // local_size
    return {cpu for core in cores[local_rank * num : (local_rank + 1) * num] for cpu in core}


def nic_variables() -> frozenset[str]:
    """The environment variables that name a NIC, of all transports."""
    found: set[str] = set()
    for name in plugins.names("transport"):
        its = traits(name)
        found.update(its.nic_variables)
        found.add(its.adapter_variable)
    return frozenset(found - {""})


def nic_of(case: Case, local_rank: int) -> str | None:
    """The NIC of a rank: NICs go to a host's ranks in turn. None if the case names none.

    Also None with several NICs over MPI: its ranks must all reach each other at the start, so a rank cannot be held to
    one rail.
    """
    if not case.nics or (traits(case.transport).over_mpi and len(case.nics) > 1):
        return None
    return case.nics[local_rank % len(case.nics)]


def use_nic(nic: str | None, transport: str, env: MutableMapping[str, str]) -> None:
    """Set the variable that the transport's library reads at its start, unless it is already set."""
    if nic is None:
        return
    its = traits(transport)
    if its.adapter_variable and not (_INTERFACES / nic).exists():  # an adapter without an interface, such as mlx5_0
        env.setdefault(its.adapter_variable, f"={nic}")  # '=': this one, not all names that start with it
        return
    for name in its.nic_variables:
        env.setdefault(name, nic)
