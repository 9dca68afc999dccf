"""Make MPI calls from a compiled loop. No Python runs between the two readings of the clock.

The loop is `_mpi_loop.c`, which needs no MPI header. The loop is compiled once and kept in the user's cache. Python
passes the addresses of the MPI functions that the loop calls. These MPI functions belong to the MPI library that mpi4py
has loaded. Without a compiler, transports/mpi.py uses a Python loop.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.core.transport import Compiled, Timing
from bench.transports import _compiler

_SOURCE = Path(__file__).with_name("_mpi_loop.c")

# Each operation and its MPI function, in the order of the `enum` in _mpi_loop.c.
_FUNCTIONS = {
    "allreduce": "MPI_Allreduce",
    "reduce": "MPI_Reduce",
    "reducescatter": "MPI_Reduce_scatter_block",
    "allgather": "MPI_Allgather",
    "alltoall": "MPI_Alltoall",
    "alltoallv": "MPI_Alltoallv",
    "broadcast": "MPI_Bcast",
    "gather": "MPI_Gather",
    "scatter": "MPI_Scatter",
    "barrier": "MPI_Barrier",
    "send": "MPI_Send",
    "recv": "MPI_Recv",
    "exchange": "MPI_Startall",
}
_OPERATIONS = {name: number for number, name in enumerate(_FUNCTIONS)}


class LoopStep(ctypes.Structure):
    """`struct step` of _mpi_loop.c."""

    _fields_ = (
        ("operation", ctypes.c_int64),
        ("function", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("send", ctypes.c_void_p),
        ("recv", ctypes.c_void_p),
        ("send_count", ctypes.c_int64),
        ("recv_count", ctypes.c_int64),
        ("peer", ctypes.c_int64),
        ("type", ctypes.c_ssize_t),
        ("op", ctypes.c_ssize_t),
        ("comm", ctypes.c_ssize_t),
        ("send_counts", ctypes.c_void_p),
        ("send_starts", ctypes.c_void_p),
        ("recv_counts", ctypes.c_void_p),
        ("recv_starts", ctypes.c_void_p),
        ("requests", ctypes.c_void_p),
        ("statuses", ctypes.c_void_p),
    )


def build() -> tuple[Path | None, str]:
    """Return the file of the compiled loop and the compiler's name. On failure, return None and the reason."""
    return _compiler.build(_SOURCE)


@dataclass(slots=True)
class LoopProgram:
    """The steps of all buffer sets in one array, which the compiled loop reads. The steps of each set are adjacent.

    `keep`: Python objects whose addresses the steps contain. These Python objects must exist as long as the steps
        exist.
    """

    steps: Any
    num_steps: int
    num_sets: int
    keep: list[Any] = field(default_factory=list)


class Loop:
    """The compiled loop over one MPI library."""

    def __init__(self, path: Path, mpi: Any, by_wtime: bool = False) -> None:
        """Load the loop. Raises OSError if the file is not a library for this machine's architecture.

        `mpi`: mpi4py's module.
        `by_wtime`: whether MPI_Wtime times the calls, as in OSU's programs. If `by_wtime` is false, clock_gettime times
            the calls.
        """
        self._mpi = mpi
        self._loop = ctypes.CDLL(str(path))
        self._library = ctypes.CDLL(mpi.__file__)  # the MPI library that this module is linked to
        self._pointers = int(mpi._sizeof(mpi.Comm) == ctypes.sizeof(ctypes.c_void_p))
        self._handle = ctypes.c_void_p if self._pointers else ctypes.c_int
        self._status_bytes = mpi._sizeof(mpi.Status)
        self._wtime = self._address("MPI_Wtime") if by_wtime else None
        for function, num_counts in ((self._loop.each, 3), (self._loop.batch, 2)):
            function.argtypes = (
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.c_int64,
                ctypes.c_int64,
                ctypes.c_int64,
                ctypes.c_void_p,
                *(ctypes.c_int64,) * num_counts,
                ctypes.c_void_p,
                ctypes.c_void_p,
            )
        self._loop.once.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)

    def step(self, operation: str, *, type: Any = None, op: Any = None, comm: Any = None, **values: int) -> LoopStep:
        """Return one step.

        `type`, `op` and `comm` are mpi4py objects. Buffers are given as addresses. Counts are numbers of elements per
        block.
        """
        handles = {
            name: self._mpi._handleof(each)
            for name, each in (("type", type), ("op", op), ("comm", comm))
            if each is not None
        }
        second = self._address("MPI_Waitall") if operation == "exchange" else None
        function = self._address(_FUNCTIONS[operation])
        return LoopStep(_OPERATIONS[operation], function, second, **handles, **values)

    def status(self, num: int = 1) -> Any:
        """Return memory for the statuses that MPI calls write. The statuses are never read."""
        return ctypes.create_string_buffer(max(num, 1) * self._status_bytes)

    def handles(self, requests: Sequence[Any]) -> Any:
        """Return an array with the handles of mpi4py's requests."""
        return (self._handle * len(requests))(*(self._mpi._handleof(request) for request in requests))

    def program(self, sets: Sequence[Sequence[LoopStep]], keep: list[Any]) -> LoopProgram:
        """Return the steps of every buffer set as one array."""
        flat = [step for steps in sets for step in steps]
        return LoopProgram((LoopStep * max(len(flat), 1))(*flat), len(sets[0]), len(sets), keep)

    def calls(self, program: LoopProgram) -> list[Callable[[], None]]:
        """Return one callable per buffer set.

        Each callable runs the steps of its buffer set once, in the same C code that times the steps.
        """
        step_bytes = ctypes.sizeof(LoopStep) * program.num_steps
        start = ctypes.addressof(program.steps)

        def call(index: int) -> Callable[[], None]:
            return lambda: self._check(self._loop.once(self._pointers, start + index * step_bytes, program.num_steps))

        return [call(index) for index in range(program.num_sets)]

    def time_each(self, compiled: Compiled, barriers: LoopProgram, num_calls: int, num_lead: int = 0) -> Timing:
        """Time isolated calls, after `num_lead` untimed calls.

        If buffer sets must be refilled between calls, Python starts the compiled loop separately for each sample.
        """
        if compiled.refill is None:
            return Timing(self._timed_each(compiled, barriers, num_calls, num_lead), "compiled")
        seconds: list[float] = []
        for _ in range(num_lead + num_calls):
            compiled.refill(compiled.next_set)
            seconds += self._timed_each(compiled, barriers, 1, 0)
        return Timing(tuple(seconds[num_lead:]), "compiled")

    def time_batch(self, compiled: Compiled, barriers: LoopProgram, num_calls: int) -> Timing:
        """Time back-to-back calls as one sample, in seconds per call."""
        program: LoopProgram = compiled.native
        if compiled.refill is not None:
            for k in range(num_calls):
                compiled.refill((compiled.next_set + k) % program.num_sets)
        (second,) = self._timed(self._loop.batch, compiled, barriers, num_calls, 1, (num_calls,))
        return Timing((second / num_calls,), "compiled")

    def _timed_each(
        self, compiled: Compiled, barriers: LoopProgram, num_calls: int, num_lead: int
    ) -> tuple[float, ...]:
        counts = (num_calls, num_lead)
        return self._timed(self._loop.each, compiled, barriers, num_lead + num_calls, num_calls, counts)

    def _timed(
        self,
        function: Any,
        compiled: Compiled,
        barriers: LoopProgram,
        num_calls: int,
        num_times: int,
        counts: tuple[int, ...],
    ) -> tuple[float, ...]:
        """Return the seconds of `num_times` samples.

        After the call, `next_set` is the buffer set that follows the last used set.

        `counts`: how many calls the loop's function makes. The function gets the numbers in `counts` as arguments.
        """
        program: LoopProgram = compiled.native
        took = (ctypes.c_int64 * num_times)()
        self._check(
            function(
                self._pointers,
                program.steps,
                program.num_steps,
                program.num_sets,
                compiled.next_set,
                barriers.steps,
                barriers.num_steps,
                *counts,
                took,
                self._wtime,
            )
        )
        compiled.last_set = (compiled.next_set + num_calls - 1) % program.num_sets
        compiled.next_set = (compiled.next_set + num_calls) % program.num_sets
        return tuple(ns * 1e-9 for ns in took)

    def _check(self, code: int) -> None:
        if code != 0:
            raise self._mpi.Exception(code)

    def _address(self, name: str) -> int:
        return int(ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0)
