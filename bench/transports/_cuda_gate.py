"""A gate in front of a batch of copies: the device begins when all of them are in its queue, not as they are issued.

A kernel of one thread waits on the stream for a number in host memory. It ends by itself after a while, so that a host
that is held up (by a queue that is full, or by a debugger that makes every launch wait) can not wait for ever; such a
batch is void.
"""

from __future__ import annotations

import ctypes
from typing import Any

from bench.core.errors import MeasurementError
from bench.transports import _cuda_kernels

LIMIT_S = 10.0
TRIAL_S = 1.0  # of a gate that is only tried: nothing is lost when it opens by itself
MOST_CALLS = 64  # behind one gate: a GPU's queue holds about a thousand entries, and each copy takes a few
_MAPPED = 1 | 2  # cudaHostAllocPortable | cudaHostAllocMapped
_BYTES = 64


class StreamGate:
    """Holds one stream back, again and again. Not to be shut twice before it is opened."""

    def __init__(self, cupy: Any, limit_s: float = LIMIT_S) -> None:
        """Compile and load the kernel: nothing may be loaded while it waits, for that would wait for it.

        Raises what CuPy raises where it can not compile.
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
        """Once through a gate that is opened at once; RuntimeError where it opens by itself alone."""
        ticket = self.shut(stream, TRIAL_S)
        self.open(ticket)
        self._runtime.streamSynchronize(stream)
        if self._expired.value == ticket:
            raise RuntimeError("the GPU does not see what the host writes while a kernel runs")

    def shut(self, stream: int, limit_s: float | None = None) -> int:
        """From here on the stream waits, `limit_s` at most. Returns the ticket that opens it."""
        self._ticket = self._ticket % 0xFFFF_FFFF + 1
        self._shut_for_s = self._limit_s if limit_s is None else limit_s
        arguments = _cuda_kernels.numbers(
            self._memory, self._memory + _BYTES // 2, self._ticket, int(self._shut_for_s * 1e9)
        )
        self._kernel((1,), (1,), arguments, stream=_cuda_kernels.OnStream(stream))
        return self._ticket

    def open(self, ticket: int) -> None:
        """Let the stream go on."""
        self._opened.value = ticket

    def check(self, ticket: int) -> None:
        """After the batch: MeasurementError when the gate had opened by itself."""
        if self._expired.value == ticket:
            raise MeasurementError(
                f"copies were not all in the GPU's queue after {self._shut_for_s:g} s, so their time is void: "
                "run without a debugger or profiler that makes launches wait"
            )

    def close(self) -> None:
        """Give the host memory back."""
        self._runtime.freeHost(self._memory)
