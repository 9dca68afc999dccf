"""Define the interface of the files in `transports/`. A transport moves bytes between ranks with one library.

A transport opens its library in its constructor. A transport compiles steps into the library's fastest form, so that
little Python code runs in the timed region. A transport also measures the times itself, because only the transport
knows when an operation is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from bench.core.arrays import Difference, Memory
from bench.core.case import Case
from bench.core.channel import Channel
from bench.core.checkpoint import BurstPlan, Checkpointer
from bench.core.payload import Bytes, Tiled, constant
from bench.core.program import Collective, Group, Round, Step
from bench.core.record import Failure, ReadSamples, Skip
from bench.core.step_plan import StepPlan
from bench.core.training_step import GradientCheck, StepStamps, StepVariant
from bench.core.world import RankInfo

GUARD = 0xC3  # in every byte around a buffer
Which = Literal["send", "recv"]
LEAST_BATCH_S = 2e-3  # of a pipelined sample: reading the clock then takes a small share of the time


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of successive samples on this rank, in seconds, and the loop that ran the samples.

    The loop is python, compiled, virtual or graph. If `seconds` was measured with events of a device, there are also
    `host_s` and `enqueue_s`. `host_s` and `enqueue_s` have one value per sample, in seconds per call. If the host
    needed nearly all the time of a sample to issue the calls, the sample shows the software's speed, not the device's.

    `host_s`: the time from the start of a sample until the host saw the sample complete, by the host's clock.
    `enqueue_s`: the time from the start of a sample until the last call returned, by the host's clock.
    `started_s[i]`: the time when this rank began sample i, by the monotonic clock of its host. If a sample has several
        batches, it has several such times.
    `ends_s[j][i]`: if several copies run at the same time, the seconds per call of copy j in sample i.
    `beside_s[i]`: the seconds per call during which all copies of this rank ran in sample i.
    """

    seconds: tuple[float, ...]
    loop: str
    host_s: tuple[float, ...] = ()
    enqueue_s: tuple[float, ...] = ()
    started_s: tuple[tuple[float, ...], ...] = ()
    ends_s: tuple[tuple[float, ...], ...] = ()
    beside_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """Options for opening a transport. A transport uses only the options that it needs.

    `mpi`: 'mpich' or 'openmpi' if the launcher reports which MPI started this rank.
    `timeout_s`: timeout of one operation, in libraries that have a timeout.
    `case`: all factors. Some factors also have a field in this class. Such a field is set only if the factor has an
        effect on the pattern.
    """

    mpi: str | None = None
    timeout_s: float = 60.0
    thread_level: str = "single"
    sync: str = "double-barrier"
    loop: str = "auto"
    timer: str = "system"
    alignment_bytes: int = 64
    oversubscribed: bool = False  # more ranks than CPUs on this host
    engine: str = "ce"
    memory: str = "pinned"
    graph: bool = False
    tf32: bool = False
    share_gpu: bool = False
    require: tuple[tuple[str, str], ...] = ()
    near_cpus: Callable[[str], Sequence[int]] | None = None  # CPUs near a PCI address, if the kernel reports them
    near_node: Callable[[str], int | None] | None = None  # the NUMA node of a PCI address
    case: Case = field(default_factory=lambda: Case(""))  # all factors, also those without a field here


@dataclass(frozen=True, slots=True)
class Reduction:
    """Element type and reduce operation of a program. Programs without reductions ignore the operation."""

    dtype: str
    reduce_op: str


class Buffers(ABC):
    """Several buffer sets. A buffer set has a send buffer and a receive buffer, each between guard bytes.

    All contents are bytes (uint8).

    A subclass allocates the memory (`memory`, `guards`). Buffers in host memory are filled and compared by the CPU, and
    buffers in device memory by the device. A device fills and compares buffers in the current stream of torch or CuPy.
    If a program runs in another stream, its calls must wait for the current stream, as `Transport.sync` does. All calls
    must be complete before `count_wrong` begins.
    """

    num_sets: int
    send_bytes: int
    recv_bytes: int

    @abstractmethod
    def memory(self, which: Which, index: int) -> Sequence[Memory]:
        """Return a buffer of set `index` as a sequence of one or more regions of memory."""

    @abstractmethod
    def guards(self, index: int) -> Sequence[Memory]:
        """Return the guards around both buffers of a set. Every guard byte is GUARD after allocation."""

    def write(self, which: Which, index: int, data: Bytes | int) -> None:
        """Write a whole buffer of set `index`. `data`: a numpy uint8 array, or one value for all bytes."""
        if isinstance(data, int):
            self.fill(which, index, 0, self._num_bytes(which), constant(data))
            return
        for begin, piece in self._pieces(which, index, 0, len(data)):
            piece.write(data[begin : begin + piece.num_bytes])

    def read(self, which: Which, index: int, begin: int = 0, num_bytes: int | None = None) -> Bytes:
        """Return a buffer of set `index`, or a part of it, as a numpy array (view or copy)."""
        num_bytes = self._num_bytes(which) - begin if num_bytes is None else num_bytes
        found = [piece.read() for _, piece in self._pieces(which, index, begin, num_bytes)]
        return found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.uint8), *found])

    def fill(self, which: Which, index: int, begin: int, num_bytes: int, content: Tiled) -> None:
        """Write the first `num_bytes` of `content` at byte `begin` of a buffer."""
        for offset, piece in self._pieces(which, index, begin, num_bytes):
            piece.fill(content.after(offset))

    def count_wrong(
        self, which: Which, index: int, begin: int, num_bytes: int, content: Tiled, element_bytes: int
    ) -> Difference:
        """Compare a part of a buffer with `content`. Elements are counted from byte `begin`."""
        size = element_bytes if num_bytes % element_bytes == 0 else 1
        total = Difference()
        for offset, piece in self._pieces(which, index, begin, num_bytes):
            found = piece.count_wrong(content.after(offset), size)
            if found.num_wrong and not total.num_wrong:
                total = replace(found, first=offset // size + found.first)
            elif found.num_wrong:
                total = replace(total, num_wrong=total.num_wrong + found.num_wrong)
        return total

    def guards_intact(self, index: int) -> bool:
        """Check whether the guards around both buffers of a set are unchanged."""
        return not any(piece.count_wrong(constant(GUARD), 1).num_wrong for piece in self.guards(index))

    def on_host(self, which: Which) -> bool:
        """Check whether the CPU compares these buffers or a part of them."""
        return any(piece.arrays.on_host for piece in self.memory(which, 0))

    def _num_bytes(self, which: Which) -> int:
        return self.send_bytes if which == "send" else self.recv_bytes

    def _pieces(self, which: Which, index: int, begin: int, num_bytes: int) -> Iterator[tuple[int, Memory]]:
        """Yield (offset, memory) for each region of a part of a buffer. The offset is counted from `begin`."""
        at = 0
        for piece in self.memory(which, index):
            first, end = max(at, begin), min(at + piece.num_bytes, begin + num_bytes)
            if first < end:
                yield first - begin, piece.part(first - at, end - first)
            at += piece.num_bytes


@dataclass(slots=True)
class Compiled:
    """A program that is ready to run.

    `calls[k]`: runs the program once on buffer set k, and returns when the program is complete.
    """

    calls: Sequence[Callable[[], Any]]
    next_set: int = 0
    last_set: int = 0  # the set of the last timed call, which is checked
    refill: Callable[[int], None] | None = (
        None  # untimed, before a set's call: restores the data that an in-place call changed
    )
    keep: list[Any] = field(default_factory=list)  # objects that the library needs alive; the buffers first
    release: Callable[[], None] | None = None  # frees the library's objects after the row
    native: Any = None  # the same program for a compiled loop, if the transport has one
    flags: tuple[str, ...] = ()  # flags of the row: "through-host", ...
    reads: Callable[[], ReadSamples | Failure] | None = None  # after timing: where the bytes came from


class Transport(ABC):
    """One communication library, opened for this rank."""

    clock: Literal["host", "device", "virtual"]
    in_place_only: ClassVar[frozenset[str]] = frozenset()  # operations whose call has no out-of-place form
    keeps_order: ClassVar[bool] = True  # may the ranks of a collective's group be in any order?
    num_threads: ClassVar[int] = 1  # threads of a rank that must run at the same time: the caller's and the library's
    calls_alone: ClassVar[bool] = False  # can one rank call a collective by itself, with little set-up?
    carries_messages: ClassVar[bool] = True  # can ranks send each other messages through it?
    carries_collectives: ClassVar[bool] = True  # does it have an allreduce?

    exits_at_once: bool = False  # after `close`, must a rank end without the clean-up of Python and its libraries?
    notes: tuple[str, ...] = ()  # what the reader must know about how the transport was opened, as sentences
    nobody: int | None = None  # a rank number; messages to or from it complete at once
    spins: bool = False  # does a rank that waits for others always use its CPU?
    tells_starts: ClassVar[bool] = False  # does each Timing say when its samples started?
    sync_method: str = "barrier"  # how ranks wait for each other before an isolated call
    place: RankInfo
    channel: Channel

    @abstractmethod
    def close(self) -> None:
        """Close the library. After a failure, the suite does not call `close`."""

    @abstractmethod
    def abort(self, exit_code: int) -> None:
        """Stop the other ranks after a failure of this rank, if the library can do that."""

    def discard(self) -> None:  # noqa: B027  # most transports keep nothing on disks
        """Remove the files that this rank has made. Any thread may call this method.

        The process ends at once after this call.
        """

    def lost_contact(self, error: BaseException) -> bool:
        """Check whether this error of the library means that a peer has died or does not answer."""
        return False

    def must_be_in_place(self, steps: Iterable[Step]) -> bool:
        """Check whether the library must run at least one of these steps in place.

        A step runs in place if its input and output are in the same buffer.
        """
        return any(isinstance(step, Collective) and step.op in self.in_place_only for step in steps)

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return versions and settings of the library that can change a result."""

    @abstractmethod
    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return why the library cannot run a step with this element type and operation, or None if it can."""

    def available_bytes(self) -> int | None:
        """Return how many bytes this rank may use for its buffers.

        If the result is None, the limit is the host memory that the kernel reports.
        """
        return None

    def cache_bytes(self) -> int | None:
        """Return the size of the cache that cold buffers must exceed.

        If the result is None, cold buffers must exceed the host CPU's last-level cache.
        """
        return None

    def cache_words(self, asked: str) -> str:
        """Return the text of a remark that says how this transport makes caches cold or hot.

        `asked`: the requested state.

        The result is "" if the transport uses several buffer sets in rotation.
        """
        return ""

    @abstractmethod
    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Allocate `num_sets` buffer sets in the memory that this transport uses, host or device, and touch every page.

        `steps`: the program that will use the buffers.

        Raises MemoryError if there is not enough memory.
        """

    def share(self, buffers: Buffers | None, steps: tuple[Step, ...] = ()) -> Skip | None:
        """Exchange the addresses of buffers between ranks, if ranks access each other's memory directly.

        Every rank calls this method and gives its own steps. After a call, the buffers of earlier calls can no longer
        be used. For most libraries, this method does nothing. Returns why `steps` cannot run between these GPUs, or
        None if they can.
        """
        return None

    def least_batch(self) -> tuple[int, float]:
        """Return two minimums for a pipelined sample of this row: the number of calls, and the time in seconds.

        All ranks return the same two values.
        """
        return 1, LEAST_BATCH_S

    def keep_link_active(self) -> None:  # noqa: B027  # host memory needs nothing
        """Start a short transfer on this rank's link to its device, and return at once.

        The transfer keeps the link at its full rate, because idle links drop to a lower rate.
        """

    @abstractmethod
    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Prepare the steps of this rank, so that they can run on each buffer set."""

    @abstractmethod
    def open_groups(self, groups: Round) -> None:
        """Make communicators for groups that run collectives, and exchange addresses for groups that run copies.

        Every rank calls this method with the same groups.
        """

    def finish(self) -> None:  # noqa: B027  # a call of a host library is complete when it returns
        """Wait until the calls that this rank made are complete."""

    @abstractmethod
    def sync(self) -> None:
        """Wait for all ranks of the world. After `separate`, wait only for the ranks in the same part as this rank."""

    def before_each(self) -> None:
        """Synchronise the ranks before an isolated call."""
        self.sync()

    @abstractmethod
    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time calls in isolated mode.

        The ranks synchronise before each call, and each call is one sample. If `compiled` is None, the rank has nothing
        to run and is idle.
        """

    @abstractmethod
    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time a pipelined sample, in seconds per call.

        The ranks synchronise, make `num_calls` calls, and wait for all of these calls.
        """


@runtime_checkable
class Separable(Protocol):
    """Methods of a transport that can run two patterns at the same time, each on its own ranks (`Traits.separates`)."""

    def separate(self, parts: Round) -> None:
        """Restrict `sync` and timed calls to one part of the ranks.

        After `separate`, these calls wait only for the ranks in the same part as this rank. Every rank calls `separate`
        once, with the same list of disjoint parts. Every rank is in one of the parts.
        """

    def barrier_async(self) -> Callable[[], bool]:
        """Enter a barrier without waiting. The returned function reports whether all ranks have entered it.

        All ranks must call this method the same number of times.
        """

    def broadcast_async(self, value: float) -> Callable[[], float]:
        """Start a broadcast from the first rank of this rank's part. The returned function waits for the value."""


@dataclass(frozen=True, slots=True)
class Together:
    """The times of one rank when collective calls and products run at the same time.

    The first collective call and the first product start at the same time.

    `collective_s`: seconds from the start to the end of the last collective call, or None if there are no calls.
    `products_s`: for each product, seconds from the start until the end of the product. The tuple is empty if there are
        no products.
    """

    collective_s: float | None = None
    products_s: tuple[float, ...] = ()


@runtime_checkable
class Overlapping(Protocol):
    """A transport that can compute while it communicates."""

    def time_together(
        self, collective: Compiled | None, num_calls: int, product: Compiled | None, num_products: int
    ) -> Together:
        """Synchronise all ranks, then run collective calls and matrix products at the same time.

        The rank makes `num_calls` collective calls back to back. Without `collective`, only the products run. Without
        `product`, only the collective runs. The same method therefore times the calls and the products together, and
        either of them alone.
        """


class Trainer(Protocol):
    """Trains on one rank. All ranks call the same methods in the same order."""

    def run(self, variant: StepVariant, num_steps: int) -> list[StepStamps]:
        """Synchronise all ranks, then run `num_steps` training steps of one variant back to back."""

    def check(self) -> GradientCheck:
        """Run one full step and compare its gradients with the closed form."""

    def check_last(self) -> GradientCheck:
        """Compare the gradients of the last step with the closed form. The last step must have been a full step."""

    def gradient_error(self) -> float | None:
        """Return the relative error of compressed gradients, or None if gradients are not compressed.

        All ranks must call this method.
        """

    def logged(self) -> Mapping[str, tuple[float, float]]:
        """Return two times for each segment of a step, one by linkbench's clocks and one by the library's logger.

        The result is empty without a logger. The two times of a segment are means over the first steps. They are
        complete only when one more step has run.
        """

    def traced(self, profiled_into: Path | None, num_steps: int) -> list[StepStamps]:
        """Run full steps. If a file is given, profile the steps and write the trace into this file."""

    def learned(self) -> Mapping[str, float]:
        """Train a small problem and return the field `learned` of StepSamples. All ranks must call this method.

        The result is empty if a step uses the exact mean gradient.
        """


@runtime_checkable
class CountsWork(Protocol):
    """A trainer that can report the floating-point operations and the memory use of its library."""

    def work(self) -> Mapping[str, float]:
        """Run a step, and return what this rank computed in the step, with the keys of `StepSamples.work`.

        The result is empty if nothing can be counted. All ranks must call this method.
        """

    def device_peaks(self) -> Mapping[str, int]:
        """Return, for each type of device memory, this rank's peak use since the model was built.

        The result is empty if the rank has no device.
        """


@runtime_checkable
class Training(Protocol):
    """A transport over which a model can be trained."""

    def trainer(self, plan: StepPlan) -> Trainer:
        """Build the model on this rank."""

    def untrainable(self, plan: StepPlan) -> Skip | None:
        """Return why this library cannot train with an option of the plan, or None if it can."""


@runtime_checkable
class Checkpointing(Protocol):
    """A transport whose ranks can write checkpoints."""

    def checkpointer(self, plan: BurstPlan) -> Checkpointer:
        """Return the object that writes this rank's part of a checkpoint (its shard)."""


def chain(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """Return a function that calls the functions in `calls` in order."""
    if len(calls) == 1:
        return calls[0]

    def run() -> None:
        for call in calls:
            call()

    return run
