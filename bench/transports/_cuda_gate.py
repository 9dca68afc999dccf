"""A gate in front of a batch of copies: the device starts the batch only when all its copies are in the queue.

A kernel of one thread waits on the stream for a number in host memory. It ends after a time limit, because a full
queue, or a debugger that makes every launch wait, could otherwise block the host forever. The batch is then invalid.
"""

from __future__ import annotations

import ctypes
from typing import Any

from bench.core.codes import Code
from bench.core.errors import MeasurementError
from bench.transports import _cuda_kernels

LIMIT_S = 10.0
TRIAL_S = 1.0  # time limit in seconds of a trial, whose result is not used if the gate opens by itself
MOST_CALLS = 64  # most copies behind one gate; a GPU's queue holds about a thousand entries, and each copy needs a few
_MAPPED = 1 | 2  # cudaHostAllocPortable | cudaHostAllocMapped
_BYTES = 64


class GateProblem(Code):
    """Why batches run without a gate."""

    NO_KERNELS = "no-kernels", "CuPy cannot compile kernels here ({error})"
    LAUNCH_BLOCKING = "launch-blocking", "CUDA_LAUNCH_BLOCKING makes every launch wait"
    STAGED = "staged-copies", "the driver stages copies of pinned memory, so issuing them waits for the gate"
    FAILED = "gate-failed", "the gate does not work ({error})"


class StreamGate:
    """A gate on one stream. It must be opened before it is shut again."""

    def __init__(self, cupy: Any, limit_s: float = LIMIT_S) -> None:
        """Compile and load the kernel now, because loading code while a gate is shut would wait for the gate.

        Raises CuPy's exception if it cannot compile.
        """
        self._runtime = cupy.cuda.runtime
        self._limit_s = self._shut_for_s = limit_s
        self._kernel = _cuda_kernels.gate_kernel(cupy)
        self._kernel.compile()
        self._memory = self._runtime.hostAlloc(_BYTES, _MAPPED)
        ctypes.memset(self._memory, 0, _BYTES)
        self._opened = ctypes.c_uint32.from_address(self._memory)
        self._expired = ctypes.c_uint32.from_address(self._memory + _BYTES // 2)
        self._ticket = 0

    def warm(self, stream: int) -> None:
        """Run the gate's kernel once and open the gate. Raises RuntimeError if only the time limit ends the kernel."""
        ticket = self.shut(stream, TRIAL_S)
        self.open(ticket)
        self._runtime.streamSynchronize(stream)
        if self._expired.value == ticket:
            raise RuntimeError("the GPU does not see the host's writes while a kernel runs")

    def shut(self, stream: int, limit_s: float | None = None) -> int:
        """Stop the stream for at most `limit_s`. Returns the ticket that opens the gate again."""
        self._ticket = self._ticket % 0xFFFF_FFFF + 1
        self._shut_for_s = self._limit_s if limit_s is None else limit_s
        arguments = _cuda_kernels.numbers(
            self._memory, self._memory + _BYTES // 2, self._ticket, int(self._shut_for_s * 1e9)
        )
        self._kernel((1,), (1,), arguments, stream=_cuda_kernels.OnStream(stream))
        return self._ticket

    def open(self, ticket: int) -> None:
        """Let the stream continue."""
        self._opened.value = ticket

    def check(self, ticket: int) -> None:
        """Raise MeasurementError if the gate opened by itself. Call this after the batch."""
        if self._expired.value == ticket:
            raise MeasurementError(
                f"copies were not all in the GPU's queue after {self._shut_for_s:g} s, so their time is void: "
                "run without a debugger or profiler that makes launches wait"
            )

    def close(self) -> None:
        """Free the gate's host memory."""
        self._runtime.freeHost(self._memory)
