"""Turn the steps of a program into MPI calls with bound arguments.

mpi4py or the compiled loop makes these calls.

Each exchange of several messages becomes persistent requests. A single message becomes a blocking call. Data of types
that MPI lacks are moved as bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

from bench.core.dtypes import DTYPES
from bench.core.program import Collective, Exchange, Group, Message, Step
from bench.core.transport import Reduction, Which, chain
from bench.transports import _mpi_loop

TYPES = {
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "int64": "INT64_T",
    "int32": "INT32_T",
    "int16": "INT16_T",
    "int8": "INT8_T",
    "uint64": "UINT64_T",
    "uint32": "UINT32_T",
    "uint16": "UINT16_T",
    "uint8": "UINT8_T",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}
OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
REDUCTIONS = ("allreduce", "reduce", "reducescatter")
_ADDRESS = 2**64 - 1  # MPI.IN_PLACE is a signed number; addresses are unsigned


@runtime_checkable
class Addressed(Protocol):
    """Buffers that MPI can read and write directly.

    mpi4py uses the method `view`, and the compiled loop uses the method `address`.
    """

    num_sets: int

    def view(self, which: Which, index: int) -> Any:
        """Return a buffer's bytes, which can be sliced."""

    def address(self, which: Which, index: int) -> int:
        """Return the address of a buffer's first byte."""


class Builder:
    """Builds MPI calls from the steps of one group, either as mpi4py calls or for the compiled loop."""

    def __init__(
        self, mpi: Any, world: Any, comm: Any, group: Group, buffers: Addressed, reduction: Reduction, in_place: bool
    ) -> None:
        self._mpi, self._world, self._comm, self._ranks = mpi, world, comm, group.ranks
        self._buffers, self._in_place = buffers, in_place
        self._requests: list[Any] = []
        # An element type that MPI lacks is moved as bytes.
        known = reduction.dtype in TYPES
        self._type = getattr(mpi, TYPES[reduction.dtype]) if known else mpi.BYTE
        self.element_bytes = DTYPES[reduction.dtype].num_bytes if known else 1
        self._op = getattr(mpi, OPS[reduction.reduce_op]) if reduction.reduce_op in OPS else None

    def calls(self, steps: Sequence[Step]) -> list[Callable[[], Any]]:
        """For each buffer set, return a function that makes the calls through mpi4py."""
        return [chain([self._call(step, index) for step in steps]) for index in range(self._buffers.num_sets)]

    def program(self, steps: Sequence[Step], loop: _mpi_loop.Loop) -> _mpi_loop.LoopProgram:
        """For each buffer set, return the calls in the form that the compiled loop reads."""
        keep: list[Any] = [self._buffers]
        sets = [[self._native(step, index, loop, keep) for step in steps] for index in range(self._buffers.num_sets)]
        return loop.program(sets, keep)

    def _call(self, step: Step, index: int) -> Callable[[], Any]:
        send, recv = self._buffers.view("send", index), self._buffers.view("recv", index)
        if isinstance(step, Exchange):
            return self._exchange(step, send, recv)
        assert isinstance(step, Collective)
        return self._collective(step, send, recv)

    def free(self) -> None:
        """Free the persistent requests."""
        for request in self._requests:
            request.Free()
        self._requests.clear()

    def _typed(self, memory: Any) -> list[Any]:
        """Return [memory, type], from which mpi4py computes the number of elements."""
        return [memory, self._type]

    def _collective(self, step: Collective, send_memory: Any, recv_memory: Any) -> Callable[[], Any]:
        comm, root, operation = self._comm, step.root, self._op
        is_root = comm.Get_rank() == root
        send: Any = self._mpi.IN_PLACE if self._in_place else self._typed(send_memory[: step.send_bytes])
        recv: Any = self._typed(recv_memory[: step.recv_bytes])
        if step.op == "reduce" and self._in_place and not is_root:
            send = self._typed(recv_memory[: step.send_bytes])  # only the root's call is in place
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
        return [memory, [num_bytes // self.element_bytes for num_bytes in parts], self._type]

    def _exchange(self, step: Exchange, send_memory: Any, recv_memory: Any) -> Callable[[], Any]:
        world, ranks = self._world, self._ranks
        if len(step.sends) + len(step.recvs) == 1:  # a single message is fastest by the library's blocking call
            for message in step.sends:
                return partial(world.Send, self._part(send_memory, message), ranks[message.peer])
            for message in step.recvs:
                return partial(world.Recv, self._part(recv_memory, message), ranks[message.peer])
        requests = self._posted(step, send_memory, recv_memory)
        start, wait = self._mpi.Prequest.Startall, self._mpi.Request.Waitall

        def run() -> None:
            start(requests)
            wait(requests)

        return run if requests else lambda: None

    def _part(self, memory: Any, message: Message) -> list[Any]:
        return self._typed(memory[message.offset_bytes : message.offset_bytes + message.num_bytes])

    def _posted(self, step: Exchange, send_memory: Any, recv_memory: Any) -> list[Any]:
        """Return persistent requests. Receives are posted before sends, so that each message finds a posted receive."""
        world, ranks = self._world, self._ranks
        requests = [world.Recv_init(self._part(recv_memory, m), ranks[m.peer]) for m in step.recvs]
        requests += [world.Send_init(self._part(send_memory, m), ranks[m.peer]) for m in step.sends]
        self._requests += requests
        return requests

    # -- for the compiled loop

    def _native(self, step: Step, index: int, loop: _mpi_loop.Loop, keep: list[Any]) -> _mpi_loop.LoopStep:
        send, recv = self._buffers.address("send", index), self._buffers.address("recv", index)
        if isinstance(step, Exchange):
            return self._native_exchange(step, index, loop, keep)
        assert isinstance(step, Collective)
        if step.op == "alltoallv":
            return self._native_alltoallv(step, send, recv, loop, keep)
        comm, num, is_root = self._comm, self._comm.Get_size(), self._comm.Get_rank() == step.root
        sends, recvs = step.send_bytes // self.element_bytes, step.recv_bytes // self.element_bytes
        if step.op in ("allgather", "alltoall", "gather"):
            recvs //= num  # counts are per block if every rank has a block
        if step.op in ("alltoall", "scatter"):
            sends //= num
        if self._in_place and not (step.op == "reduce" and not is_root):
            send = int(self._mpi.IN_PLACE) & _ADDRESS
        elif self._in_place:
            send = recv  # only the root's call is in place
        if step.op == "broadcast" and is_root:
            recv, recvs = send, sends
        return loop.step(
            step.op,
            type=self._type,
            op=self._op if step.op in REDUCTIONS else None,
            comm=comm,
            send=send,
            recv=recv,
            send_count=sends,
            recv_count=recvs,
            peer=step.root,
        )

    def _native_alltoallv(
        self, step: Collective, send: int, recv: int, loop: _mpi_loop.Loop, keep: list[Any]
    ) -> _mpi_loop.LoopStep:
        arrays = []
        for split in (step.send_split, step.recv_split):
            counts = [num_bytes // self.element_bytes for num_bytes in split]
            starts = [0, *accumulate(counts)][: len(counts)]
            arrays += [(ctypes.c_int * len(counts))(*counts), (ctypes.c_int * len(counts))(*starts)]
        keep += arrays
        names = ("send_counts", "send_starts", "recv_counts", "recv_starts")
        addresses = dict(zip(names, map(ctypes.addressof, arrays), strict=True))
        return loop.step("alltoallv", type=self._type, comm=self._comm, send=send, recv=recv, **addresses)

    def _native_exchange(self, step: Exchange, index: int, loop: _mpi_loop.Loop, keep: list[Any]) -> _mpi_loop.LoopStep:
        if len(step.sends) + len(step.recvs) == 1:
            statuses = loop.status()
            keep.append(statuses)
            operation, message = ("send", step.sends[0]) if step.sends else ("recv", step.recvs[0])
            where = self._buffers.address("send" if step.sends else "recv", index) + message.offset_bytes
            count = message.num_bytes // self.element_bytes
            return loop.step(
                operation,
                type=self._type,
                comm=self._world,
                send=where,
                recv=where,
                send_count=count,
                recv_count=count,
                peer=self._ranks[message.peer],
                statuses=ctypes.addressof(statuses),
            )
        requests = self._posted(step, self._buffers.view("send", index), self._buffers.view("recv", index))
        handles, statuses = loop.handles(requests), loop.status(len(requests))
        keep += [handles, statuses]
        return loop.step(
            "exchange",
            send_count=len(requests),
            requests=ctypes.addressof(handles),
            statuses=ctypes.addressof(statuses),
        )
