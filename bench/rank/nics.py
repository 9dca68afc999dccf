"""Which NIC a rank uses, where the case names them: said to its library before that is loaded."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from bench.core import plugins
from bench.core.case import Case
from bench.core.traits import traits

_INTERFACES = Path("/sys/class/net")


def variables() -> frozenset[str]:
    """The environment variables that name a NIC, of all transports."""
    found: set[str] = set()
    for name in plugins.names("transport"):
        its = traits(name)
        found.update(its.nic_variables)
        found.add(its.adapter_variable)
    return frozenset(found - {""})


def of(case: Case, local_rank: int) -> str | None:
    """The NIC of a rank: the k-th rank of a host uses the k-th, around again.

    None where none are named, and of MPI where several are: its ranks must all reach each other when it starts, so that
    a rank can not be held to one rail.
    """
    if not case.nics or (traits(case.transport).over_mpi and len(case.nics) > 1):
        return None
    return case.nics[local_rank % len(case.nics)]


def use(nic: str | None, transport: str, env: MutableMapping[str, str]) -> None:
    """Set what the transport's library reads at its start; what is set already stays."""
    if nic is None:
        return
    its = traits(transport)
    if its.adapter_variable and not (_INTERFACES / nic).exists():  # an adapter that is no interface, such as mlx5_0
        env.setdefault(its.adapter_variable, f"={nic}")  # '=': this one, not all that begin so
        return
    for name in its.nic_variables:
        env.setdefault(name, nic)
