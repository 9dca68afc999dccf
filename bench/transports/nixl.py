"""Move messages between host memories with NIXL, the library with which inference servers hand over KV caches.

A sender writes its messages into the memory of the receiver. All messages that one exchange sends to one receiver form
one transfer. After the data of a transfer, the receiver gets a notification. A receiver's call ends when all
notifications from its senders have arrived. Receivers do not reply. In pipelined rows, a sender may therefore overwrite
a buffer set that the receiver has not used yet.

NIXL's own backend `UCX` moves the bytes, through shared memory, TCP or an RDMA adapter (`UCX_TLS`, `UCX_NET_DEVICES`).
This transport calls NIXL through its Python interface, as inference servers do. The agents have no progress thread,
because a call that waits also makes progress. A progress thread would need a separate CPU. GPU memory is not supported.

If a notification is sent without a transfer, it may stay in the library until its sender makes progress again. The
control plane therefore carries all information that ranks need before a transfer. NIXL carries only transfers.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from bench.core.codes import Code
from bench.core.errors import BenchError, NotInstalledError, RefusedError, first_line
from bench.core.program import Exchange, Group, Message, Round, Step
from bench.core.record import Skip
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Transport
from bench.core.world import RankInfo
from bench.transports import _control, _host

TRAITS = Traits(
    launcher="torchrun",
    requires=("nixl_cu12",),
    rendezvous=True,
    host_memory=True,
    nic_variables=("UCX_NET_DEVICES",),
    library_facts=("nixl",),
    required_facts=("nixl",),
    look=8,
)
_BACKEND, _MEMORY = "UCX", "DRAM"
_LOOKS_PER_CLOCK = 256


class NixlRefusal(Code):
    """Why NIXL cannot run a step."""

    MESSAGES_ONLY = "nixl-messages-only", "NIXL has messages only, no collectives, copies or products"
    TO_ITSELF = "nixl-to-itself", "rank {rank} sends a message to itself, which the transport nixl does not do"


class NixlFailure(Exception):
    """A transfer failed, or a peer did not answer in time."""


class NixlBuffers(_host.HostBuffers):
    """Host memory that is registered with the agent. `registered`: NIXL's handle of the registration."""

    registered: Any = None

    def extent(self) -> tuple[int, int]:
        """Return the address of the first buffer, and the number of bytes from there to the end of the last buffer."""
        last = self.num_sets - 1
        begin = min(self.address("send", 0), self.address("recv", 0))
        end = max(self.address("send", last) + self.send_bytes, self.address("recv", last) + self.recv_bytes)
        return begin, max(end - begin, 1)

    def empty(self) -> None:
        """Return the physical pages of the buffers to the kernel, but keep their addresses valid.

        The contents are lost.
        """
        begin = -(-self._block.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
        num_bytes = (self._block.ctypes.data + self._block.nbytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
        if num_bytes > 0:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes), mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The addresses in one receiver's memory to which a sender writes its messages.

    `bases`: for each buffer set, the address of the receive buffer.
    `places`: for each exchange, the (offset, bytes) of each message in the receive buffer.
    """

    bases: tuple[int, ...]
    places: tuple[tuple[tuple[int, int], ...], ...]

    def text(self) -> bytes:
        return json.dumps([self.bases, self.places]).encode()

    @classmethod
    def of_text(cls, text: bytes) -> _Layout:
        bases, places = json.loads(text)
        return cls(tuple(bases), tuple(tuple((at, size) for at, size in one) for one in places))


@dataclass(frozen=True, slots=True)
class _Call:
    """One exchange on one buffer set: the transfers to start, and the notifications for which the call waits.

    `transfers`: for each transfer, NIXL's handle and the notification.
    `awaited`: for each notification, the sender and the text.
    """

    transfers: tuple[tuple[Any, bytes], ...]
    awaited: tuple[tuple[int, bytes], ...]


class Nixl(Transport):
    """One agent on each rank. Each rank has one NIXL agent, and knows the agents of all other ranks."""

    clock = "host"
    carries_collectives = False
    spins = True
    exits_at_once = True  # the clean-up of NIXL 1.5.1 ends the process by a segmentation fault

    def __init__(self, place: RankInfo, options: Options) -> None:
        """Open an agent on each rank, and exchange the agents' descriptions over the control plane.

        Raises NotInstalledError without NIXL. Raises RefusedError on all ranks if some rank cannot open its agent.
        """
        self.place, self._timeout_s, self._alignment_bytes = place, options.timeout_s, options.alignment_bytes
        self._api = _load()
        self._control = _control.open_control(place, options)
        self.channel = self._control.channel
        self._agent, why = self._opened()
        shared = self.channel.share((why, self._agent.get_agent_metadata() if self._agent else b""))
        for rank, (reason, _) in enumerate(shared):
            if reason:
                raise RefusedError(
                    f"rank {rank} cannot open NIXL's backend {_BACKEND} ({reason}): check UCX_TLS and UCX_NET_DEVICES, "
                    "or use another transport (mpi, gloo)"
                )
        for rank, (_, description) in enumerate(shared):
            if rank != place.rank:
                self._agent.add_remote_agent(description)
        self._arrived: Counter[tuple[int, bytes]] = Counter()  # notifications that no call has used, by sender
        self._num_programs: Counter[tuple[int, int]] = Counter()  # by sender and receiver
        self._kept: list[NixlBuffers] = []  # registered memory must stay
        # NIXL keeps the first key that it was told for an address, so new memory must not get an old address.
        self._spent: list[NixlBuffers] = []

    def _opened(self) -> tuple[Any, str]:
        """Return this rank's agent, or None and the reason."""
        try:
            config = self._api.nixl_agent_config(enable_prog_thread=False, backends=[_BACKEND])
            return self._api.nixl_agent(str(self.place.rank), config), ""
        except Exception as error:  # the exceptions of the library have no common base
            return None, first_line(error)

    def close(self) -> None:
        """Wait for all ranks. The process exits without the clean-up of the library."""
        self.sync()
        self._control.close()

    def abort(self, exit_code: int) -> None:
        """End the other ranks if the control plane supports this."""
        self._control.abort(exit_code)

    def lost_contact(self, error: BaseException) -> bool:
        """Check whether contact with a peer or with the control plane was lost."""
        return isinstance(error, NixlFailure) or self._control.lost_contact(error)

    def facts(self) -> dict[str, str]:
        """Return the version of NIXL, the name of the backend, the type of memory, and the control plane."""
        return {
            "nixl": metadata.version("nixl-cu12"),
            "nixl_backend": _BACKEND,
            "memory": "host",
            "control_plane": self._control.name,
            "buffer_alignment_bytes": str(self._alignment_bytes),
        }

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return None for exchanges of messages.

        For all other types of steps, return the reason: this transport only moves messages.
        """
        return None if isinstance(step, Exchange) else Skip.of(NixlRefusal.MESSAGES_ONLY)

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Return registered host memory with every page written."""
        buffers = NixlBuffers(send_bytes, recv_bytes, num_sets, self._alignment_bytes)
        buffers.registered = self._agent.register_memory([(*buffers.extent(), 0, "")], _MEMORY)
        self._kept.append(buffers)
        return buffers

    def open_groups(self, groups: Round) -> None:
        """Do nothing, because every rank already knows the agents of all ranks."""

    # -- programs

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Return calls for which all transfers are prepared.

        Before the first transfer, receivers tell their senders where in memory messages must arrive. While a program is
        compiled, the two ranks of each pair wait for each other. All ranks must therefore compile their programs in the
        same order.

        Raises RefusedError if a rank sends a message to itself. Raises ValueError if the messages that a receiver
        expects differ from the messages that its sender sends.
        """
        assert isinstance(buffers, NixlBuffers)
        exchanges = [_by_peer(step, group) for step in steps]
        sets = range(buffers.num_sets)
        receivers = sorted({peer for sends, _ in exchanges for peer in sends})
        senders = sorted({peer for _, recvs in exchanges for peer in recvs})
        if self.place.rank in (*receivers, *senders):
            raise RefusedError.of(NixlRefusal.TO_ITSELF, rank=self.place.rank)
        names = {peer: self._next_name(self.place.rank, peer) for peer in receivers}
        awaited = {peer: self._next_name(peer, self.place.rank) for peer in senders}
        bases = tuple(buffers.address("recv", k) for k in sets)
        wanted = {
            peer: _Layout(bases, tuple(_places(recvs[peer]) for _, recvs in exchanges if peer in recvs))
            for peer in senders
        }
        layouts = self._layouts(wanted, receivers, buffers)
        for peer, layout in layouts.items():
            own = tuple(_sizes(sends[peer]) for sends, _ in exchanges if peer in sends)
            if own != tuple(tuple(size for _, size in one) for one in layout.places):
                raise ValueError(f"rank {peer} expects other messages than rank {self.place.rank} sends")
        calls, handles = [], []
        for k in sets:
            done: Counter[int] = Counter()  # exchanges with each receiver so far
            program = []
            for sends, recvs in exchanges:
                transfers = []
                for peer, messages in sends.items():
                    handle = self._transfer(buffers, k, messages, peer, layouts[peer], done[peer])
                    transfers.append((handle, names[peer]))
                    done[peer] += 1
                program.append(_Call(tuple(transfers), tuple((peer, awaited[peer]) for peer in recvs)))
                handles += [handle for handle, _ in transfers]
            calls.append(self._caller(program))

        def release() -> None:
            for handle in handles:
                self._agent.release_xfer_handle(handle)
            if buffers in self._kept:
                self._kept.remove(buffers)
                self._agent.deregister_memory(buffers.registered)
                buffers.empty()
                self._spent.append(buffers)

        return Compiled(calls, keep=[buffers], release=release)

    def _next_name(self, sender: int, receiver: int) -> bytes:
        """Return the name for the next program between two ranks.

        The two ranks of a pair must compile their programs in the same order.
        """
        self._num_programs[sender, receiver] += 1
        return b"%d" % self._num_programs[sender, receiver]

    def _layouts(
        self, wanted: Mapping[int, _Layout], receivers: Collection[int], buffers: NixlBuffers
    ) -> dict[int, _Layout]:
        """Send each sender the layout of its messages, and NIXL's description of this rank's memory.

        Return the layouts that this rank's receivers sent.
        """
        if not wanted and not receivers:
            return {}
        described = self._agent.get_partial_agent_metadata(buffers.registered, True, [_BACKEND]) if wanted else b""
        told = self._control.swap(
            {peer: b"\n".join((layout.text(), described)) for peer, layout in wanted.items()}, receivers
        )
        layouts = {}
        for peer, text in told.items():
            layout, described = text.split(b"\n", 1)
            with _LibraryErrors():
                self._agent.add_remote_agent(described)
            layouts[peer] = _Layout.of_text(layout)
        return layouts

    def _transfer(
        self, buffers: NixlBuffers, k: int, messages: Sequence[Message], peer: int, layout: _Layout, number: int
    ) -> Any:
        """Return the handle of a transfer, which contains all messages of an exchange to one receiver.

        `k`: the number of the buffer set.
        """
        own, theirs = buffers.address("send", k), layout.bases[k % len(layout.bases)]
        places = layout.places[number]
        from_here = [(own + message.offset_bytes, message.num_bytes, 0) for message in messages]
        to_there = [(theirs + offset, size, 0) for offset, size in places]
        described = [self._agent.get_xfer_descs(each, _MEMORY) for each in (from_here, to_there)]
        with _LibraryErrors():
            return self._agent.initialize_xfer("WRITE", *described, str(peer), b"", [_BACKEND])

    # -- calls

    def _caller(self, program: Sequence[_Call]) -> Callable[[], None]:
        agent, arrived = self._agent, self._arrived

        def call() -> None:
            with _LibraryErrors():
                for one in program:
                    for handle, notification in one.transfers:
                        agent.transfer(handle, notification)
                    self._wait(one)
                    for key in one.awaited:
                        arrived[key] -= 1

        return call

    def _wait(self, one: _Call) -> None:
        """Wait until the transfers are done and the notifications have arrived."""
        open_handles = [handle for handle, _ in one.transfers]
        state = self._agent.check_xfer_state
        for _ in self._until_timeout():
            states = [(handle, state(handle)) for handle in open_handles]
            if any(found == "ERR" for _, found in states):
                raise NixlFailure("a transfer failed")
            open_handles = [handle for handle, found in states if found != "DONE"]
            missing = [key for key in one.awaited if not self._arrived[key]]
            if missing:
                self._look()
            elif not open_handles:
                return
        peers = sorted({peer for peer, _ in missing})
        raise NixlFailure(f"no data within {self._timeout_s:.0f} s" + (f" from ranks {peers}" if peers else ""))

    def _look(self) -> None:
        """Take all notifications that have arrived so far."""
        for peer, texts in self._agent.get_new_notifs().items():
            for text in texts:
                self._arrived[int(peer), text] += 1

    def _until_timeout(self) -> Iterator[None]:
        """Yield None again and again until the timeout of an operation has passed.

        The clock is read only once per several iterations, to save time.
        """
        end = time.monotonic() + self._timeout_s
        while time.monotonic() < end:
            yield from (None,) * _LOOKS_PER_CLOCK

    def sync(self) -> None:
        """Wait for all ranks, over the control plane."""
        self._control.barrier()

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time isolated calls on the host clock."""
        return _host.time_each(self._control.barrier, compiled, num_calls)

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time back-to-back calls on the host clock."""
        return _host.time_batch(self._control.barrier, compiled, num_calls)


class _LibraryErrors:  # a generator of contextlib would take longer, inside of timed calls
    """Convert each error of NIXL to a NixlFailure. The exceptions of NIXL have no common base class."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, NixlFailure | BenchError):
            raise NixlFailure(first_line(error)) from error


def _load() -> Any:
    """Return NIXL's Python interface. Raises NotInstalledError."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    try:
        from nixl_cu12 import _api as api
    except ImportError as error:
        raise NotInstalledError(f"NIXL is not installed here ({first_line(error)}): pip install nixl-cu12") from None
    return api


def _by_peer(step: Step, group: Group) -> tuple[dict[int, list[Message]], dict[int, list[Message]]]:
    """Return two mappings from world ranks to messages: messages to send, and messages to receive.

    Empty messages are omitted.
    """
    assert isinstance(step, Exchange)
    sides: tuple[dict[int, list[Message]], dict[int, list[Message]]] = ({}, {})
    for side, messages in zip(sides, (step.sends, step.recvs), strict=True):
        for message in messages:
            if message.num_bytes:
                side.setdefault(group.ranks[message.peer], []).append(message)
    return sides


def _sizes(messages: Sequence[Message]) -> tuple[int, ...]:
    return tuple(message.num_bytes for message in messages)


def _places(messages: Sequence[Message]) -> tuple[tuple[int, int], ...]:
    return tuple((message.offset_bytes, message.num_bytes) for message in messages)


TRANSPORT = Nixl
