"""Which NIC a rank uses, where the case names them: said to its library before that is loaded."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from bench.core.case import OVER_MPI, Case

# What a library reads: Gloo, NCCL; MPICH over UCX, Open MPI over TCP.
_OF_TRANSPORT = {
    "gloo": ("GLOO_SOCKET_IFNAME",),
    "mpi": ("UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include"),
    "mpi_cuda": ("UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include"),
    "nccl": ("NCCL_SOCKET_IFNAME",),
}
_ADAPTERS = "NCCL_IB_HCA"  # for a NIC that is no network interface, such as mlx5_0
VARIABLES = (*(name for names in _OF_TRANSPORT.values() for name in names), _ADAPTERS)
_INTERFACES = Path("/sys/class/net")


def of(case: Case, local_rank: int) -> str | None:
    """The NIC of a rank: the k-th rank of a host uses the k-th, around again.

    None where none are named, and of MPI where several are: its ranks must all reach each other when it starts, so that
    a rank can not be held to one rail.
    """
    if not case.nics or (case.transport in OVER_MPI and len(case.nics) > 1):
        return None
    return case.nics[local_rank % len(case.nics)]


def use(nic: str | None, transport: str, env: MutableMapping[str, str]) -> None:
    """Set what the transport's library reads at its start; what is set already stays."""
    if nic is None:
        return
    names = _OF_TRANSPORT.get(transport, ())
    if transport == "nccl" and not (_INTERFACES / nic).exists():
        names = (_ADAPTERS,)
    for name in names:
        env.setdefault(name, f"={nic}" if name == _ADAPTERS else nic)  # '=': this one, not all that begin so
