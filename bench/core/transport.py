"""How bytes move: what every file in `transports/` offers.

A transport opens its library in its constructor, compiles steps into the library's best form so that as little Python
as possible runs inside the timed region, and owns the clock because it owns the completion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from bench.core.arrays import Difference, Memory
from bench.core.case import Case
from bench.core.channel import Channel
from bench.core.payload import Bytes, Tiled, constant
from bench.core.program import Collective, Group, Round, Step
from bench.core.record import Skip
from bench.core.world import RankInfo

GUARD = 0xC3  # in every byte around a buffer
Which = Literal["send", "recv"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of successive samples on this rank, and which loop took them (`python`, `compiled`, `virtual`, `graph`).

    Where a device's events tell the seconds, the host's clock tells of the same samples: `host_s` until their
    completion was seen, `enqueue_s` until the last call had returned, both from the same begin; as many as `seconds`,
    and like them per call. A batch whose calls took nearly all of it to issue measured the software, not the device.
    """

    seconds: tuple[float, ...]
    loop: str
    host_s: tuple[float, ...] = ()
    enqueue_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """How a transport is to be opened; each uses what concerns it.

    `mpi`: 'mpich' or 'openmpi' where the launcher tells which of them started us. `timeout_s`: of one operation, in
    libraries that have one. The rest as in a Case: MPI thread level, synchronisation, timing loop, buffer alignment,
    what copies, what kind of host memory, CUDA graphs, products in TF32, shared GPUs, what NCCL is held to.
    """

    mpi: str | None = None
    timeout_s: float = 60.0
    thread_level: str = "single"
    sync: str = "double-barrier"
    loop: str = "auto"
    alignment_bytes: int = 64
    oversubscribed: bool = False  # more ranks than CPUs on this host
    engine: str = "ce"
    memory: str = "pinned"
    graph: bool = False
    tf32: bool = False
    share_gpu: bool = False
    require: tuple[tuple[str, str], ...] = ()
    near_cpus: Callable[[str], Sequence[int]] | None = None  # CPUs near a PCI address, if the kernel reports them
    case: Case = field(default_factory=lambda: Case(""))  # all factors, also those without a field here


@dataclass(frozen=True, slots=True)
class Reduction:
    """Element type and operation of a program (the operation matters to reductions only)."""

    dtype: str
    reduce_op: str


class Buffers(ABC):
    """Some sets of one send and one receive buffer, each with guard bytes around it. All contents are bytes (uint8).

    A kind of buffers says where they lie (`memory`, `guards`); they are filled and compared there, whatever that is.
    A device does so on the current stream of torch or CuPy: calls that run on another one must wait for it, as
    `Transport.sync` does, and be complete before `count_wrong`.
    """

    num_sets: int
    send_bytes: int
    recv_bytes: int

    @abstractmethod
    def memory(self, which: Which, index: int) -> Sequence[Memory]:
        """A buffer of set `index`: one piece, or several one after the other where it lies in several places."""

    @abstractmethod
    def guards(self, index: int) -> Sequence[Memory]:
        """What lies around both buffers of a set and held GUARD in every byte when it was allocated."""

    def write(self, which: Which, index: int, data: Bytes | int) -> None:
        """Put a whole buffer's bytes (numpy uint8 array, or one byte for all) into set `index`."""
        if isinstance(data, int):
            self.fill(which, index, 0, self._num_bytes(which), constant(data))
            return
        for begin, piece in self._pieces(which, index, 0, len(data)):
            piece.write(data[begin : begin + piece.num_bytes])

    def read(self, which: Which, index: int, begin: int = 0, num_bytes: int | None = None) -> Bytes:
        """A buffer of set `index`, or a part of it, as a numpy array (a view or a copy)."""
        num_bytes = self._num_bytes(which) - begin if num_bytes is None else num_bytes
        found = [piece.read() for _, piece in self._pieces(which, index, begin, num_bytes)]
        return found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.uint8), *found])

    def fill(self, which: Which, index: int, begin: int, num_bytes: int, content: Tiled) -> None:
        """Write the first bytes of `content` at byte `begin` of a buffer."""
        for offset, piece in self._pieces(which, index, begin, num_bytes):
            piece.fill(content.after(offset))

    def count_wrong(
        self, which: Which, index: int, begin: int, num_bytes: int, content: Tiled, element_bytes: int
    ) -> Difference:
        """How a part of a buffer differs from `content`. Elements are counted from byte `begin` on."""
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
        """Are the guard bytes around both buffers of a set unchanged?"""
        return not any(piece.count_wrong(constant(GUARD), 1).num_wrong for piece in self.guards(index))

    def on_host(self, which: Which) -> bool:
        """Does the CPU compare any of it?"""
        return any(piece.arrays.on_host for piece in self.memory(which, 0))

    def _num_bytes(self, which: Which) -> int:
        return self.send_bytes if which == "send" else self.recv_bytes

    def _pieces(self, which: Which, index: int, begin: int, num_bytes: int) -> Iterator[tuple[int, Memory]]:
        """(offset from `begin`, memory) of what holds a part of a buffer."""
        at = 0
        for piece in self.memory(which, index):
            first, end = max(at, begin), min(at + piece.num_bytes, begin + num_bytes)
            if first < end:
                yield first - begin, piece.part(first - at, end - first)
            at += piece.num_bytes


@dataclass(slots=True)
class Compiled:
    """A program ready to run: `calls[k]` runs it once on buffer set k and completes."""

    calls: Sequence[Callable[[], Any]]
    next_set: int = 0
    last_set: int = 0  # which set the last timed call used: that one is checked
    refill: Callable[[int], None] | None = None  # untimed, before a set's call: puts back what an in-place call changed
    keep: list[Any] = field(default_factory=list)  # what the library needs alive; the buffers first
    release: Callable[[], None] | None = None  # gives back what the library holds for it, when the row is done
    native: Any = None  # the same program for a compiled loop, where the transport has one
    flags: tuple[str, ...] = ()  # what the row must say of how it was carried out: "through-host", ...


class Transport(ABC):
    """One communication library, opened for this rank."""

    clock: Literal["host", "device", "virtual"]
    in_place_only: ClassVar[frozenset[str]] = frozenset()  # operations whose call has no out-of-place form
    keeps_order: ClassVar[bool] = True  # can a group of a collective have its ranks in any order?
    num_threads: ClassVar[int] = 1  # of a rank that must run at the same time: the caller's, and the library's own
    calls_alone: ClassVar[bool] = False  # can one rank call a collective by itself, at little cost to set up?
    carries_messages: ClassVar[bool] = True  # can ranks send each other anything by it?

    notes: tuple[str, ...] = ()  # what the reader must know of how it was opened, in sentences
    nobody: int | None = None  # the rank to and from which messages end at once
    sync_method: str = "barrier"  # how ranks wait for each other before an isolated call
    place: RankInfo
    channel: Channel

    @abstractmethod
    def close(self) -> None:
        """Leave the library in order. After a failure it is not called."""

    @abstractmethod
    def abort(self, exit_code: int) -> None:
        """End the other ranks, too, after a failure of this one, where the library can."""

    def lost_contact(self, error: BaseException) -> bool:
        """Does this error of the library mean that a peer is gone or silent?"""
        return False

    def must_be_in_place(self, steps: Iterable[Step]) -> bool:
        """Is one of these steps an operation whose call has no out-of-place form?"""
        return any(isinstance(step, Collective) and step.op in self.in_place_only for step in steps)

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Versions and settings of the library that can change a figure."""

    @abstractmethod
    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Why the library cannot run a step with this element type and operation; None if it can."""

    def available_bytes(self) -> int | None:
        """Memory that this rank's buffers may take; None: the host's, as the kernel tells it."""
        return None

    def cache_bytes(self) -> int | None:
        """The cache that buffers must exceed to be cold; None: the last level of the host's CPU."""
        return None

    @abstractmethod
    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Buffers in the memory this transport moves, every page touched. `steps`: what they are for, if it matters.

        Raises MemoryError when there is not enough.
        """

    def share(self, buffers: Buffers | None, steps: tuple[Step, ...] = ()) -> Skip | None:
        """Exchange buffer addresses between ranks, for libraries that access each other's memory directly.

        Every rank calls it with its own steps. It ends the use of all buffers shared before. Returns why `steps` cannot
        run between these GPUs; None if they can. Most libraries need nothing.
        """
        return None

    def keep_link_active(self) -> None:  # noqa: B027  # host memory needs nothing
        """Keep this rank's link to its device busy for a moment, without waiting: idle links report a lower rate."""

    @abstractmethod
    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """The steps of this rank, ready to run on each buffer set."""

    @abstractmethod
    def open_groups(self, groups: Round) -> None:
        """Make the communicators of groups that run collectives, or learn whose memory copies reach.

        Every rank calls it with the same groups.
        """

    @abstractmethod
    def sync(self) -> None:
        """All ranks of the world wait for each other; of a part, where they were separated."""

    def before_each(self) -> None:
        """What synchronises the ranks before an isolated call."""
        self.sync()

    @abstractmethod
    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Isolated: synchronise, then one call, `num_calls` times; one sample per call. None: an idle rank."""

    @abstractmethod
    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Pipelined: synchronise once, `num_calls` calls, one completion; one sample, seconds per call."""


@runtime_checkable
class Separable(Protocol):
    """What a transport adds that can run two patterns at once, each on a part of the ranks (`Traits.separates`)."""

    def separate(self, parts: Round) -> None:
        """From now on `sync` and timed calls wait for the ranks of one's own part only.

        Every rank calls it, once, with the same disjoint parts, and is in one of them.
        """

    def barrier_async(self) -> Callable[[], bool]:
        """Enter a barrier without waiting. The returned function reports whether all ranks have entered it.

        All ranks call it equally often.
        """

    def broadcast_async(self, value: float) -> Callable[[], float]:
        """Start a broadcast from the first rank of this rank's part. The returned function waits for the value."""


@dataclass(frozen=True, slots=True)
class Together:
    """What one rank saw of a burst of calls of a collective and one of products that were released at the same moment.

    Seconds since that moment: when the last call had ended, and when each product had; None and () of what was not in
    the burst.
    """

    collective_s: float | None = None
    products_s: tuple[float, ...] = ()


@runtime_checkable
class Overlapping(Protocol):
    """What a transport that can compute while it communicates has besides."""

    def time_together(
        self, collective: Compiled | None, num_calls: int, product: Compiled | None, num_products: int
    ) -> Together:
        """All ranks wait for each other; then `num_calls` calls one after the other, and beside them the products.

        Either may be None: then the other goes alone, in exactly the way in which it goes together.
        """


def chain(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """One callable that runs several one after the other."""
    if len(calls) == 1:
        return calls[0]

    def run() -> None:
        for call in calls:
            call()

    return run
