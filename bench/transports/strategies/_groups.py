"""Open groups of ranks for strategies. A metered group can leave out exchanges, and records how long ranks wait.

A metered group is a process group of torch that is written in Python. The metered group forwards each call to a group
of the transport's library. Code that uses torch.distributed, such as FSDP, DTensor and pipelines, can therefore be
measured without changes.

On a GPU, the recorded waits are the times for which the model's stream waits for a call of a group. Some libraries,
such as FSDP, exchange data on separate streams. The model's stream then waits for an event that was recorded after the
call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from bench.core.training_step import HOP
from bench.transports._step_place import GpuPlace, HostPlace

# Calls of torch's process groups, with old and new names. Each call returns a Work.
_COLLECTIVES = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)
_MESSAGES = ("recv", "recv_anysource", "send")
_BACKEND = "metered"


@dataclass(slots=True)
class Meter:
    """The current mode of metered groups, and the waits that metered groups have recorded.

    `exchanges`: whether the groups exchange data. If `exchanges` is False, calls of the groups return at once, without
        an exchange.
    `lossless`: whether buckets are exchanged uncompressed, even if the case has a compression.
    `waits`: for each wait, the number of the group, the mark of its begin, and the mark of its end. Waits for messages
        have the number HOP instead of a group's number.
    """

    place: HostPlace | GpuPlace
    exchanges: bool = True
    lossless: bool = False
    waits: list[tuple[int, Any, Any]] = field(default_factory=list)

    def noting_events(self) -> AbstractContextManager[None]:
        """Return a context that also records when the model's stream waits for events."""
        return self.place.noting_events(lambda group, began, ended: self.waits.append((group, began, ended)))


class RankGroups:
    """Opens groups of ranks. All ranks open the same groups in the same order."""

    def __init__(self, torch: Any, meter: Meter | None, timeout_s: float) -> None:
        """Begin without groups.

        `meter`: the meter of metered groups, or None for plain groups, which record nothing.
        `timeout_s`: the timeout of one exchange.
        """
        self._torch, self._dist, self.meter = torch, torch.distributed, meter
        self._timeout = timedelta(seconds=timeout_s)
        self._opened: dict[tuple[int, ...], Any] = {}
        self._metered = _metered_class(torch, meter.place.kind) if meter else None

    def of(self, parts: Sequence[tuple[int, ...]]) -> Any:
        """Open one group for each of the parts into which the ranks are divided.

        Return the group that contains this rank.
        """
        rank, mine = self._dist.get_rank(), None
        for part in parts:
            if part not in self._opened:
                self._opened[part] = self._open(part)
            if rank in part:
                mine = self._opened[part]
        return mine

    def number(self, group: Any) -> int:
        """Return the number of a group. Groups have numbers in the order in which they were opened."""
        return next(place for place, opened in enumerate(self._opened.values()) if opened is group)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Return a context that records waits for events, and in which metered groups send messages in batches."""
        if self.meter is None:
            yield
            return
        dist, batch = self._dist, self._dist.batch_isend_irecv
        dist.batch_isend_irecv = _batching(self._torch, _waiting_class(self._torch), self._metered)
        try:
            with self.meter.noting_events():
                yield
        finally:
            dist.batch_isend_irecv = batch

    def _open(self, part: tuple[int, ...]) -> Any:
        plain = self._dist.new_group(list(part), timeout=self._timeout)
        if self._metered is None or self.meter is None:
            return plain
        self._metered.next = (plain, self.meter, len(self._opened))
        return self._dist.new_group(list(part), timeout=self._timeout, backend=_BACKEND)


def finished(torch: Any, place: HostPlace | GpuPlace, value: Any = None) -> Any:
    """Return a Work that is done."""
    future = place.future()
    future.set_result(value)
    return torch._C._distributed_c10d._create_work_from_future(future)


@cache
def _metered_class(torch: Any, kind: str) -> Any:
    """Return the class of metered groups for tensors on one kind of device.

    This function creates the class at its first call, because torch is imported only when a rank trains.
    """
    work_class = _waiting_class(torch)

    class Metered(torch.distributed.ProcessGroup):  # type: ignore[misc]
        """A group that forwards calls to the group `_plain` if the meter's field `exchanges` is True.

        If `exchanges` is False, calls return at once.
        """

        next: tuple[Any, Meter, int]

        def __init__(self, plain: Any, meter: Meter, number: int) -> None:
            super().__init__(plain.rank(), plain.size())
            self._plain, self._meter, self._number = plain, meter, number

        def getBackendName(self) -> str:
            return _BACKEND

        @property
        def pg_name(self) -> str:
            return str(torch.distributed.distributed_c10d._world.pg_names[self])

        group_name = pg_name

        def barrier(self, *args: Any, **kwargs: Any) -> Any:
            return self._plain.barrier(*args, **kwargs)

    for name in (*_COLLECTIVES, *_MESSAGES):
        if hasattr(torch.distributed.ProcessGroup, name):
            setattr(Metered, name, _passing(torch, work_class, name))
    torch.distributed.Backend.register_backend(
        _BACKEND, lambda _store, _options: Metered(*Metered.next), extended_api=True, devices=sorted({"cpu", kind})
    )
    return Metered


def _passing(torch: Any, work_class: Any, name: str) -> Callable[..., Any]:
    """Return a method of metered groups for one call of torch's process groups."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter, number = self._meter, HOP if name in _MESSAGES else self._number
        if self._plain.size() > 1 and not meter.exchanges:
            return finished(torch, meter.place, args[0])
        place = meter.place
        began = place.mark() if place.is_models_stream() else None
        work = getattr(self._plain, name)(*args, **kwargs)
        if self._plain.size() == 1:
            return work or finished(torch, place, args[0])
        if work is not None:
            return work_class(work, meter, number)
        # There is no Work to wait for, because NCCL has put a synchronous call on the current stream.
        if began is None:
            place.follows(number)
        else:
            meter.waits.append((number, began, place.mark()))
        return finished(torch, place, args[0])

    return call


def _batching(torch: Any, work_class: Any, metered_class: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a version of torch.distributed.batch_isend_irecv that also batches the messages of metered groups.

    If two GPUs send messages to each other, one call of NCCL must contain the messages of both directions. For a group
    of one of its own classes, torch makes one call. For a group of any other class, torch makes one call per message.
    """
    dist = torch.distributed
    batch = dist.batch_isend_irecv

    def batched(messages: Sequence[Any]) -> list[Any]:
        group = messages[0].group if messages else None
        if not isinstance(group, metered_class):
            return list(batch(messages))
        if not group._meter.exchanges:
            return [finished(torch, group._meter.place, message.tensor) for message in messages]
        plain = [dist.P2POp(one.op, one.tensor, one.peer, group._plain, one.tag) for one in messages]
        return [work_class(work, group._meter, HOP) for work in batch(plain)]

    return batched


@cache
def _waiting_class(torch: Any) -> Any:
    class Waiting(torch.distributed.Work):  # type: ignore[misc]
        """A torch Work whose first call of `wait` is recorded."""

        def __init__(self, work: Any, meter: Meter, number: int) -> None:
            super().__init__()
            self._work, self._meter, self._number, self._noted = work, meter, number, False

        def wait(self, *_timeout: Any) -> bool:
            place = self._meter.place
            if not place.is_models_stream():
                self._work.wait()
                place.follows(self._number)
                return True
            if self._noted:
                self._work.wait()
                return True
            began, self._noted = place.mark(), True
            self._work.wait()
            self._meter.waits.append((self._number, began, place.mark()))
            return True

        def is_completed(self) -> bool:
            return bool(self._work.is_completed())

        def get_future(self) -> Any:
            return self._work.get_future()

    return Waiting
