"""Put a gate before a batch of copies. The device starts the batch only when all copies of the batch are in the queue.

The gate is a kernel of one thread on the copies' stream. The kernel runs until the host writes a certain number to host
memory. If the host does not open the gate within a time limit, the kernel ends, and the measurement of the batch is
invalid. Without the time limit, the host could wait forever, for example if the queue is full or a debugger makes every
launch wait.

The kernels of all ranks of a host wait for the same number. The streams of all ranks of a host therefore start
together, as soon as the host writes this number.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time
from typing import Any

from bench.core.codes import Code
from bench.core.errors import MeasurementError
from bench.transports import _cuda_kernels, _shared_page

LIMIT_S = 10.0
TRIAL_S = 1.0  # time limit of a trial in seconds; a gate that opens only by this limit is not used
MOST_CALLS = 64  # largest number of counted copies of a stream behind one gate
# largest number of copies of a stream; a GPU's queue has about a thousand entries, and each copy needs a few
MOST_QUEUED = 256
_MAPPED = 1 | 2  # cudaHostAllocPortable | cudaHostAllocMapped, and the same flags of cudaHostRegister
_BYTES = 64  # size of one rank's numbers; no two ranks write to one cache line


class GateProblem(Code):
    """The reasons why the batches of a run have no gate."""

    NO_KERNELS = "no-kernels", "CuPy cannot compile kernels here ({error})"
    LAUNCH_BLOCKING = "launch-blocking", "CUDA_LAUNCH_BLOCKING makes every launch wait"
    STAGED = "staged-copies", "the driver stages copies of pinned memory, so issuing them waits for the gate"
    FAILED = "gate-failed", "the gate does not work ({error})"


class _OwnWords:
    """Host memory with the numbers for the gates of a single rank."""

    opens = True

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.opened = self.on_device = runtime.hostAlloc(2 * _BYTES, _MAPPED)
        ctypes.memset(self.opened, 0, 2 * _BYTES)
        self.mine = self.opened + _BYTES

    def close(self) -> None:
        self._runtime.freeHost(self.opened)


class SharedWords:
    """Numbers in memory that all ranks of a host share: one common number opens the gates of all these ranks.

    Each rank also has two numbers of its own. The gate's kernel writes one of these numbers when the stream passes the
    gate. The kernel writes the other number when its time limit has passed.
    """

    def __init__(self, runtime: Any, memory: mmap.mmap, local_rank: int) -> None:
        """Register the memory with this rank's GPU.

        Raises RuntimeError if the driver does not allow the registration.
        """
        self._runtime, self._memory = runtime, memory
        self.opens = local_rank == 0
        self.opened = _shared_page.address(memory)
        self.mine = self.opened + (1 + local_rank) * _BYTES
        runtime.hostRegister(self.opened, len(memory), _MAPPED)
        try:
            self.on_device = int(runtime.pointerGetAttributes(self.opened).devicePointer)
        except Exception:
            runtime.hostUnregister(self.opened)
            raise

    @staticmethod
    def num_bytes(local_size: int) -> int:
        """Return how many bytes of shared memory the gates of these ranks need. CUDA registers only whole pages."""
        return -(-(1 + local_size) * _BYTES // mmap.PAGESIZE) * mmap.PAGESIZE

    def close(self) -> None:
        """Unregister the memory."""
        self._runtime.hostUnregister(self.opened)


class StreamGate:
    """A gate on one stream. A gate that is shut must be opened before the next call of `shut`."""

    def __init__(self, cupy: Any, limit_s: float = LIMIT_S, words: SharedWords | None = None) -> None:
        """Compile and load the kernel now.

        Later, while a gate is shut, loading the kernel's code would have to wait for this gate.

        Raises CuPy's exception if CuPy cannot compile the kernel.

        `words`: memory that all ranks of this host share. With such memory, all ranks of the host must shut their gates
            equally often. A rank without copies calls `skip` instead of `shut`.
        """
        self._runtime = cupy.cuda.runtime
        self._limit_s = self._shut_for_s = limit_s
        self._kernel = _cuda_kernels.gate_kernel(cupy)
        self._kernel.compile()
        self.is_shared = words is not None
        self._words = words or _OwnWords(self._runtime)
        self._opened = ctypes.c_uint32.from_address(self._words.opened)
        self._expired, self._passed = (ctypes.c_uint32.from_address(self._words.mine + k) for k in (0, 4))
        self._ticket = 0

    def warm(self, stream: int) -> None:
        """Run the gate's kernel once, and open the gate.

        Raises RuntimeError if the kernel does not notice that the host opens the gate, and therefore runs into its time
        limit.
        """
        ticket = self.shut(stream, TRIAL_S)
        self.open(ticket)
        self._runtime.streamSynchronize(stream)
        if self._expired.value == ticket:
            raise RuntimeError("the GPU does not see the host's writes while a kernel runs")

    def skip(self) -> int:
        """Count one gate without shutting it, and return its ticket.

        A rank without copies calls this method.
        """
        self._ticket = self._ticket % 0xFFFF_FFFF + 1
        return self._ticket

    def shut(self, stream: int, limit_s: float | None = None) -> int:
        """Stop the stream for at most `limit_s`. Return the ticket with which `open` opens the gate again."""
        ticket = self.skip()
        self._shut_for_s = self._limit_s if limit_s is None else limit_s
        shift = self._words.on_device - self._words.opened
        mine = self._words.mine + shift
        arguments = _cuda_kernels.numbers(
            self._words.on_device, mine, ticket, _cuda_kernels.clock_ticks(self._runtime, self._shut_for_s), mine + 4
        )
        self._kernel((1,), (1,), arguments, stream=_cuda_kernels.OnStream(stream))
        return ticket

    def open(self, ticket: int) -> None:
        """Let the stream continue. If ranks share memory, only the first rank opens the gates of all ranks."""
        if self._words.opens:
            self._opened.value = ticket

    def passed_s(self, ticket: int) -> float:
        """Wait until this rank's stream has passed the gate. Return the time on the host's monotonic clock."""
        while self._passed.value != ticket and self._expired.value != ticket:
            time.sleep(0)
        return time.monotonic()

    def is_open(self, ticket: int) -> bool:
        """Return whether `open` opened the gate with this ticket before the time limit.

        Call this method after the stream has passed the gate.
        """
        return self._expired.value != ticket

    def check(self, ticket: int) -> None:
        """Raise MeasurementError if the time limit opened the gate. Call this method after the batch."""
        if self._expired.value == ticket:
            raise MeasurementError(
                f"copies were not all in the GPU's queue after {self._shut_for_s:g} s, so their time is void: "
                "run without a debugger or profiler that makes launches wait"
            )

    def close(self) -> None:
        """Free the gate's host memory."""
        self._words.close()


def shared(cupy: Any, memory: mmap.mmap | None, local_rank: int) -> StreamGate | None:
    """Return a gate in memory that the ranks of a host share. Return None if the driver refuses shared memory."""
    with contextlib.suppress(Exception):  # CuPy raises many exception types
        if memory is not None:
            return StreamGate(cupy, words=SharedWords(cupy.cuda.runtime, memory, local_rank))
    return None
