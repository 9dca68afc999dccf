"""Take samples of NCCL calls in a compiled loop. No Python runs between the calls of a sample.

The loop is `_nccl_loop.c`. All ranks start a sample together. On one host, the ranks synchronise through shared memory.
On several hosts, the ranks synchronise by an allreduce of four bytes.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.core.transport import Compiled, Timing
from bench.transports import _compiler, _shared_page
from bench.transports._nccl_library import NOT_READY, NcclFailure, NcclLibrary, Runtime

_SOURCE = Path(__file__).with_name("_nccl_loop.c")
_FROM_RUNTIME, _FROM_PEER, _TOO_LATE = 10000, 20000, 30000
_OF_PEER = (2, 6)  # ncclSystemError, for a connection; ncclRemoteError
_NO_SET = -1
_LEAD = 10  # an untimed call precedes the timed calls only if there are at least this many
MEETING_BYTES = 4096

# Each operation and its function, in the order of the `enum` in _nccl_loop.c.
_FUNCTIONS = {
    "allreduce": "ncclAllReduce",
    "reduce": "ncclReduce",
    "reducescatter": "ncclReduceScatter",
    "allgather": "ncclAllGather",
    "broadcast": "ncclBroadcast",
    "send": "ncclSend",
    "recv": "ncclRecv",
    "group-start": "ncclGroupStart",
    "group-end": "ncclGroupEnd",
}
_OF_RUNTIME = ("EventRecord", "EventQuery", "EventElapsedTime", "GraphLaunch")
_OPERATIONS = {name: number for number, name in enumerate(_FUNCTIONS)}


class NcclStep(ctypes.Structure):
    """The C structure `struct step` of _nccl_loop.c."""

    _fields_ = (
        ("operation", ctypes.c_int64),
        ("function", ctypes.c_void_p),
        ("send", ctypes.c_void_p),
        ("recv", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("type", ctypes.c_int64),
        ("reduction", ctypes.c_int64),
        ("peer", ctypes.c_int64),
        ("comm", ctypes.c_void_p),
    )


class _Device(ctypes.Structure):
    """`struct device`."""

    _fields_ = (
        ("record", ctypes.c_void_p),
        ("query", ctypes.c_void_p),
        ("elapsed", ctypes.c_void_p),
        ("async_error", ctypes.c_void_p),
        ("launch", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("begin", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("comm", ctypes.c_void_p),
        ("not_ready", ctypes.c_int64),
        ("timeout_ns", ctypes.c_int64),
    )


class _Program(ctypes.Structure):
    """`struct program`."""

    _fields_ = (
        ("sets", ctypes.c_void_p),
        ("num_steps", ctypes.c_int64),
        ("num_sets", ctypes.c_int64),
        ("graph", ctypes.c_void_p),
    )


@dataclass(slots=True)
class NcclProgram:
    """The steps of all buffer sets in one array, which the compiled loop reads. The steps of each set are adjacent.

    `steps`: the array of steps.
    `aggregate`: the number of operations in one group call of the program.
    `rehearses`: whether one untimed call precedes the timed calls of a long batch. All ranks of a group must have the
        same value.
    `graphs`: the captured CUDA graph for each pair (first buffer set, number of calls). None means that the program
        uses no graphs.
    """

    steps: Any
    num_steps: int
    num_sets: int
    aggregate: int = 1
    rehearses: bool = True
    graphs: dict[tuple[int, int], int] | None = None
    native: Any = field(init=False)

    def __post_init__(self) -> None:
        """Make the C structure that the loop reads."""
        self.native = _Program(ctypes.addressof(self.steps), self.num_steps, self.num_sets, None)


def build() -> tuple[Path | None, str]:
    """Return the file of the compiled loop and the compiler's name. On failure, return None and the reason."""
    return _compiler.build(_SOURCE)


class NcclLoop:
    """The compiled loop on one stream of this rank's GPU."""

    def __init__(self, path: Path, runtime: Runtime, nccl: NcclLibrary, timeout_s: float) -> None:
        """Load the loop. Raises OSError if the file is not a library for this machine."""
        self._runtime, self._nccl = runtime, nccl
        self._loop = ctypes.CDLL(str(path))
        self._loop.samples.argtypes = (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_void_p,
            *(ctypes.c_int64,) * 5,
            ctypes.c_void_p,
        )
        self._loop.once.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._loop.issue.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._stream = runtime.new_stream()
        self._events = [runtime.new_event() for _ in range(2)]
        address = {name: _address(runtime.function(name)) for name in _OF_RUNTIME}
        self._device = _Device(
            address["EventRecord"],
            address["EventQuery"],
            address["EventElapsedTime"],
            nccl.address("ncclCommGetAsyncError"),
            address["GraphLaunch"],
            self._stream,
            *self._events,
            None,
            NOT_READY,
            int(timeout_s * 1e9),
        )
        self._idle = NcclProgram((NcclStep * 1)(), 0, 1)
        self._tiny = self._idle
        self._meeting: mmap.mmap | None = None
        self._num_local = 0

    def start_by(self, comm: int, tiny: NcclProgram, meeting: mmap.mmap | None, num_local: int) -> None:
        """Set how ranks start a sample together.

        `comm`: the communicator of all ranks.
        `tiny`: a program with one small collective among all ranks.
        `meeting`: memory that all `num_local` ranks share. `meeting` is None if the ranks are on several hosts.
        """
        self._device.comm, self._tiny, self._meeting, self._num_local = comm, tiny, meeting, num_local

    def step(self, operation: str, **values: int) -> NcclStep:
        """Return one step. The values `send` and `recv` are addresses, and `count` is a number of elements."""
        return NcclStep(_OPERATIONS[operation], self._nccl.address(_FUNCTIONS[operation]), **values)

    def program(
        self,
        sets: Sequence[Sequence[NcclStep]],
        aggregate: int = 1,
        with_graphs: bool = False,
        changes_input: bool = False,
    ) -> NcclProgram:
        """Return the steps of every buffer set as one array.

        `aggregate`: how many buffer sets' steps form one group call.
        `with_graphs`: whether a CUDA graph captures the calls of a sample once, and replays them in each sample.
        `changes_input`: whether a call overwrites its input data. If so, each buffer set must be refilled after its
            call.
        """
        if aggregate > 1:
            grouped = []
            for index in range(len(sets)):
                several = [step for k in range(aggregate) for step in sets[(index + k) % len(sets)]]
                grouped.append([self.step("group-start"), *several, self.step("group-end")])
            sets = grouped
        flat = [step for steps in sets for step in steps]
        array = (NcclStep * max(len(flat), 1))(*flat)
        rehearses = not (with_graphs or changes_input)
        return NcclProgram(array, len(sets[0]), len(sets), aggregate, rehearses, {} if with_graphs else None)

    def release(self, program: NcclProgram) -> None:
        """Destroy the graphs of a program.

        Call this method before the communicators that the graphs use are destroyed.
        """
        for graph in (program.graphs or {}).values():
            self._runtime.free_graph(graph)
        if program.graphs:
            program.graphs.clear()

    def _graph(self, program: NcclProgram, first: int, num_calls: int) -> int | None:
        """Return the CUDA graph of a sample's calls.

        If the graph does not exist yet, capture it. Return None for a program without graphs.
        """
        if program.graphs is None or program.num_steps == 0:
            return None
        if (first, num_calls) not in program.graphs:
            native = ctypes.byref(program.native)

            def enqueue() -> None:
                self._check(self._loop.issue(ctypes.byref(self._device), native, first, num_calls))

            program.graphs[first, num_calls] = self._runtime.captured(self._stream, enqueue)
        return program.graphs[first, num_calls]

    def calls(self, program: NcclProgram) -> list[Callable[[], None]]:
        """Return one callable per buffer set.

        A call runs the steps of one buffer set, and waits until the GPU has completed the steps.
        """
        step_bytes = ctypes.sizeof(NcclStep) * program.num_steps
        start = ctypes.addressof(program.steps)

        def call(index: int) -> Callable[[], None]:
            device = ctypes.byref(self._device)
            return lambda: self._check(self._loop.once(device, start + index * step_bytes, program.num_steps))

        return [call(index) for index in range(program.num_sets)]

    def samples(self, compiled: Compiled | None, num_samples: int, num_calls: int) -> Timing:
        """Take samples of `num_calls` calls each. An idle rank passes None and gets no sample.

        If buffer sets must be refilled between samples, or if the program uses CUDA graphs, Python starts the compiled
        loop separately for each sample.
        """
        # Before the first sample, all ranks of the world make one tiny untimed call.
        rehearses = self._meeting is not None
        if compiled is None:
            self._timed(self._idle, 0, rehearses, _NO_SET, num_samples, 1)
            return Timing((), "compiled")
        program: NcclProgram = compiled.native
        rehearsed = self._rehearsed(compiled, num_samples * num_calls)
        taken: list[tuple[float, float, float, float]] = []
        while len(taken) < num_samples:
            if compiled.refill is not None:
                for k in range(min(num_calls, program.num_sets)):
                    compiled.refill((compiled.next_set + k) % program.num_sets)
                self._runtime.deviceSynchronize()
            one_by_one = compiled.refill is not None or program.graphs is not None
            num = 1 if one_by_one else num_samples
            taken += self._timed(program, compiled.next_set, rehearses, rehearsed, num, num_calls)
            rehearses, rehearsed = False, _NO_SET
            compiled.last_set = (compiled.next_set + num * num_calls - 1) % program.num_sets
            compiled.next_set = (compiled.last_set + 1) % program.num_sets
        per_operation = [tuple(second / program.aggregate for second in sample[:3]) for sample in taken]
        seconds, host_s, enqueue_s = zip(*per_operation, strict=True)
        loop = "compiled" if program.graphs is None else "graph"
        return Timing(seconds, loop, host_s, enqueue_s, tuple((sample[3],) for sample in taken))

    def _rehearsed(self, compiled: Compiled, num_calls: int) -> int:
        """Return the buffer set for the untimed call that precedes `num_calls` timed calls.

        Return _NO_SET if there is no untimed call. The untimed call warms the caches. The untimed call uses the buffer
        set of the previous call. There is no untimed call for programs that use graphs or change their input. A batch
        with few calls has no untimed call either: its calls take so long that the caches do not matter.

        Ranks that exchange data must all get the same result. The result depends only on the case, on `num_calls`
        (which rank 0 broadcasts), and on whether this rank has steps.
        """
        program: NcclProgram = compiled.native
        if not program.rehearses or not program.num_steps or num_calls < _LEAD:
            return _NO_SET
        return (compiled.next_set - 1) % program.num_sets

    def _timed(
        self, program: NcclProgram, first: int, rehearses: bool, rehearsed: int, num_samples: int, num_calls: int
    ) -> list[tuple[float, float, float, float]]:
        took = (ctypes.c_double * (4 * num_samples))()
        program.native.graph = self._graph(program, first, num_calls)
        meeting = None
        if self._meeting is not None:
            meeting = _shared_page.address(self._meeting)
        self._check(
            self._loop.samples(
                ctypes.byref(self._device),
                ctypes.byref(program.native),
                first,
                self._tiny.steps,
                meeting,
                self._num_local,
                rehearses,
                rehearsed,
                num_samples,
                num_calls,
                took,
            )
        )
        times = [nanoseconds * 1e-9 for nanoseconds in took]
        return list(zip(times[::4], times[1::4], times[2::4], times[3::4], strict=True))

    def _check(self, code: int) -> None:
        if code == 0:
            return
        if code >= _TOO_LATE:
            raise NcclFailure("the other ranks did not answer in time", of_peer=True)
        if code >= _FROM_PEER:
            reported = code - _FROM_PEER
            raise NcclFailure(f"NCCL error {reported}: {self._nccl.words(reported)}", reported in _OF_PEER)
        if code >= _FROM_RUNTIME:
            raise self._runtime.failure(code - _FROM_RUNTIME)
        raise NcclFailure(f"NCCL error {code}: {self._nccl.words(code)}")

    def close(self) -> None:
        """Free the stream and the events."""
        for event in self._events:
            self._runtime.free_event(event)
        self._runtime.free_stream(self._stream)


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
