"""Find a process's rank, and bind it to its own CPU cores and NIC before the library is loaded.

If ranks move between cores or share a core, their times include time of the scheduler. The header records the actual
CPU mask of each rank (`Header.ranks`), no matter who set it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from bench.core import plugins
from bench.core.case import Case
from bench.core.launcher import Launcher
from bench.core.traits import traits
from bench.core.world import RankInfo
from bench.probes import sysfs

_INTERFACES = Path("/sys/class/net")


def launchers() -> tuple[Launcher, ...]:
    """Return every launcher, in descending order of precedence."""
    loaded: list[Launcher] = [plugins.load("launcher", name).LAUNCHER for name in plugins.names("launcher")]
    return tuple(sorted(loaded, key=lambda launcher: launcher.precedence))


def place(env: Mapping[str, str]) -> RankInfo:
    """Return this process's rank and host from the variables of its launcher.

    If the variables of several launchers are set (torchrun inside srun), the inner launcher is used.
    """
    for launcher in launchers():
        found = launcher.place(env)
        if found is not None:
            return found
    return RankInfo(rank=0, num_ranks=1, local_rank=0, local_size=1, launcher="direct")


def usable_cpus() -> frozenset[int]:
    """Return the CPUs that all ranks of this host may use together.

    The launcher may have bound each rank to a few of these CPUs.
    """
    try:
        launcher = os.sched_getaffinity(os.getppid())
    except OSError:
        launcher = set()
    return frozenset(os.sched_getaffinity(0) | launcher)


def cpus_beside_gpus(me: RankInfo, addresses: Sequence[str], root: Path = sysfs.ROOT) -> tuple[frozenset[int], ...]:
    """Return, for each rank of this host, the CPUs of its GPU's NUMA node; an empty set if they are unknown.

    `addresses`: PCI addresses of the GPUs that this rank sees, in CUDA's order. Rank k uses GPU k modulo the number of
    GPUs, as in every transport.
    """
    if not addresses:
        return ()
    beside = [frozenset(sysfs.cpus_beside(address, root)) for address in addresses]
    return tuple(beside[rank % len(beside)] for rank in range(me.local_size))


def bind_cpus(me: RankInfo, how: str, least_cpus: int, beside: Sequence[frozenset[int]] = ()) -> str:
    """Bind this process to its share of the cores. `how`: "auto" or "none". Returns the binding as text.

    `least_cpus`: number of library threads that wait for each other. On fewer CPUs, these threads could not run at the
        same time.
    `beside`: for each rank of the host, the CPUs nearest to its GPU.

    The cores of this process's mask that are nearest to its GPU are divided among the ranks whose GPUs have the same
    nearest CPUs. Without such cores, all cores of the mask are divided in order among the ranks of the host. Ranks that
    a launcher bound to different sockets therefore stay on different sockets. If there are fewer cores than ranks,
    nothing changes.
    """
    if how == "none":
        return "as launched"
    mask, sharers = os.sched_getaffinity(0), list(range(me.local_size))
    near = mask & beside[me.local_rank] if beside else set()
    if near:
        sharers = [rank for rank in sharers if beside[rank] == beside[me.local_rank]]
    cores = sysfs.cores(near or mask)
    share = share_of(cores, sharers.index(me.local_rank), len(sharers))
    if len(share) < least_cpus:
        return f"as launched: {len(sharers)} ranks of {least_cpus} threads each on {len(cores)} cores"
    os.sched_setaffinity(0, share)
    if near:
        return "each rank on cores of its own, beside its GPU"
    if beside and beside[me.local_rank]:
        return "each rank on cores of its own, none beside its GPU: the launcher gave it other CPUs"
    return "each rank on cores of its own"


def share_of(cores: Sequence[tuple[int, ...]], local_rank: int, local_size: int) -> set[int]:
    """Return the CPUs of one rank.

    Each rank gets the same number of whole cores. The result is empty if there are fewer cores than ranks.
    """
    num = len(cores) // local_size
    return {cpu for core in cores[local_rank * num : (local_rank + 1) * num] for cpu in core}


def nic_variables() -> frozenset[str]:
    """Return the environment variables of all transports that name a NIC."""
    found: set[str] = set()
    for name in plugins.names("transport"):
        its = traits(name)
        found.update(its.nic_variables)
        found.add(its.adapter_variable)
    return frozenset(found - {""})


def nic_of(case: Case, local_rank: int) -> str | None:
    """Return the NIC of a rank. NICs are assigned to a host's ranks in turn. Return None if the case names no NIC.

    Return None also for several NICs over MPI. All MPI ranks must reach each other at the start, so a rank cannot be
    bound to one NIC.
    """
    if not case.nics or (traits(case.transport).over_mpi and len(case.nics) > 1):
        return None
    return case.nics[local_rank % len(case.nics)]


def use_nic(nic: str | None, transport: str, env: MutableMapping[str, str]) -> None:
    """Set the variable that names the NIC to the transport's library, unless it is already set."""
    if nic is None:
        return
    its = traits(transport)
    # an adapter without a network interface, such as mlx5_0
    if its.adapter_variable and not (_INTERFACES / nic).exists():
        env.setdefault(its.adapter_variable, f"={nic}")  # '=' means an exact name, not a prefix
        return
    for name in its.nic_variables:
        env.setdefault(name, nic)
