"""Find a process's rank, and bind it to its own CPU cores and NIC before the library is loaded.

If ranks move between cores or share a core, their times include time of the scheduler. The header records the actual
CPU mask of each rank (`Header.ranks`), whether linkbench or the launcher set it.
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
    """Return all launchers. Launchers with a higher precedence come first."""
    loaded: list[Launcher] = [plugins.load("launcher", name).LAUNCHER for name in plugins.names("launcher")]
    return tuple(sorted(loaded, key=lambda launcher: launcher.precedence))


def place(env: Mapping[str, str]) -> RankInfo:
    """Return this process's rank and local rank, the number of ranks, and the number of local ranks.

    These values come from environment variables that the launcher sets. If several launchers have set their variables,
    as with torchrun inside srun, the inner launcher is used.
    """
    for launcher in launchers():
        found = launcher.place(env)
        if found is not None:
            return found
    return RankInfo(rank=0, num_ranks=1, local_rank=0, local_size=1, launcher="direct")


def usable_cpus() -> frozenset[int]:
    """Return the CPUs on which the ranks of this host may run, all ranks together.

    The launcher may have bound each rank to a few of these CPUs.
    """
    try:
        launcher = os.sched_getaffinity(os.getppid())
    except OSError:
        launcher = set()
    return frozenset(os.sched_getaffinity(0) | launcher)


def cpus_beside_gpus(me: RankInfo, addresses: Sequence[str], root: Path = sysfs.ROOT) -> tuple[frozenset[int], ...]:
    """For each local rank, return the CPUs in the NUMA node of the rank's GPU. A set is empty if the node is unknown.

    `addresses`: PCI addresses of the GPUs that this rank sees, in CUDA's order. As in every transport, local rank k
        uses GPU k modulo the number of GPUs.
    """
    if not addresses:
        return ()
    beside = [frozenset(sysfs.cpus_beside(address, root)) for address in addresses]
    return tuple(beside[rank % len(beside)] for rank in range(me.local_size))


def bind_cpus(me: RankInfo, how: str, least_cpus: int, beside: Sequence[frozenset[int]] = ()) -> str:
    """Bind this process to a part of the cores on which it may run. Return a description of the binding.

    The function divides the cores of this process's CPU mask among ranks. If a launcher bound ranks to different
    sockets, each rank therefore stays on its socket. If the mask contains cores near this rank's GPU, these cores are
    divided among all ranks whose GPUs are near them. If the mask contains no such cores, all ranks of the host divide
    all cores of the mask in order. If a rank would get fewer than `least_cpus` CPUs, the mask does not change.

    `how`: "auto" or "none".
    `least_cpus`: the number of the library's threads that wait for each other. A rank needs this many CPUs, because
        these threads must run at the same time.
    `beside`: the CPUs nearest to the GPU of each rank on this host.
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
    """Return the names of all environment variables that tell a transport's library which NIC to use."""
    found: set[str] = set()
    for name in plugins.names("transport"):
        its = traits(name)
        found.update(its.nic_variables)
        found.add(its.adapter_variable)
    return frozenset(found - {""})


def nic_of(case: Case, local_rank: int) -> str | None:
    """Return the NIC of a rank. The NICs of the case are assigned to a host's ranks in turn.

    Return None if the case names no NIC. Return None also if the transport uses MPI and the case names several NICs.
    During start-up, every MPI rank must reach every other rank, so no rank may be restricted to one NIC.
    """
    if not case.nics or (case.traits.over_mpi and len(case.nics) > 1):
        return None
    return case.nics[local_rank % len(case.nics)]


def use_nic(nic: str | None, transport: str, env: MutableMapping[str, str]) -> None:
    """Set the environment variables that tell the transport's library which NIC to use.

    Variables that are already set stay unchanged.
    """
    if nic is None:
        return
    its = traits(transport)
    # an adapter without a network interface, such as mlx5_0
    if its.adapter_variable and not (_INTERFACES / nic).exists():
        env.setdefault(its.adapter_variable, f"={nic}")  # '=' means an exact name, not a prefix
        return
    for name in its.nic_variables:
        env.setdefault(name, nic)
