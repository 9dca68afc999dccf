"""Streams that are threads: work begins when the work before it is done, and never in the caller's thread.

What CUDA forbids, or what would be a race there, is an error: an event that was never recorded, calls of the library on
two streams that do not wait for each other. An operation of the host on tensors waits for the current stream only, as
if it were put on this stream.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.futures import Future
from torch.overrides import TorchFunctionMode

_CALL_S = float(os.environ.get("FAKE_CALL_S", "0"))
_MOST_S = 120.0
_here = threading.local()


class Stream:
    """Order of execution. `waited`: of each other stream, how much of its work this one waits for."""

    def __init__(self, device: Any = None) -> None:
        self._work: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._lock = threading.Condition()
        self._error: BaseException | None = None
        self.num_put = self.num_done = 0
        self.waited: dict[Stream, int] = {}
        _all.append(self)
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, work: Callable[[], Any]) -> int:
        """Enqueue. Returns the number of this piece of work."""
        with self._lock:
            self.num_put += 1
            self._work.put(work)
            return self.num_put

    def _run(self) -> None:
        _here.of_stream = True
        while True:
            work = self._work.get()
            try:
                if self._error is None:
                    work()
            except BaseException as error:
                self._error = error
            with self._lock:
                self.num_done += 1
                self._lock.notify_all()

    def reach(self, number: int) -> None:
        """Wait until that piece of work is done. What it raised is raised here, as CUDA tells errors late."""
        with self._lock:
            assert self._lock.wait_for(lambda: self.num_done >= number, _MOST_S), "a stream got stuck"
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def is_idle(self) -> bool:
        """Whether all its work is done."""
        return self.num_done == self.num_put

    query = is_idle

    def synchronize(self) -> None:
        """Wait for all its work."""
        self.reach(self.num_put)

    def record_event(self, event: Event | None = None) -> Event:
        """Put an event here. As in torch, the event's own method does so."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Later work waits for the event. As in torch, the event's own method does so."""
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        """Later work waits for what the other stream has now."""
        self.wait_event(other.record_event())

    def follow(self, other: Stream) -> None:
        """The same by the library, which calls no method that Python sees."""
        if other is not self:
            self.wait_for(other, other.num_put)

    def wait_for(self, other: Stream, number: int) -> None:
        self.waited[other] = max(number, self.waited.get(other, 0))
        self.put(lambda: other.reach(number))


class Event:
    """A point on a stream, and the time at which it was reached."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self.stream: Stream | None = None
        self.number = 0
        self.at_ns = 0

    def record(self, stream: Stream | None = None) -> None:
        """Put it on a stream."""

        def reach() -> None:
            self.at_ns = time.perf_counter_ns()

        self.stream = stream or current()
        self.number = self.stream.put(reach)

    def wait(self, stream: Stream | None = None) -> None:
        """Later work of a stream waits for it."""
        assert self.stream is not None, "the event was never recorded"
        stream = stream or current()
        if self.stream is not stream:
            stream.wait_for(self.stream, self.number)

    def synchronize(self) -> None:
        """Wait until it is reached."""
        assert self.stream is not None, "the event was never recorded"
        self.stream.reach(self.number)

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds."""
        for one in (self, later):
            assert one.enable_timing, "the event has no time"
            assert one.stream is not None and one.stream.num_done >= one.number, "cudaErrorNotReady"
        return (later.at_ns - self.at_ns) * 1e-6


_all: list[Stream] = []
DEFAULT = Stream()
_last: tuple[Stream, int] | None = None  # the last call of the library


def current() -> Stream:
    """The stream to which this thread's work goes."""
    return getattr(_here, "stream", DEFAULT)


def set_current(stream: Stream) -> None:
    """From now on."""
    _here.stream = stream


@contextlib.contextmanager
def using(stream: Stream) -> Iterator[None]:
    """Within a block."""
    before = current()
    set_current(stream)
    try:
        yield
    finally:
        set_current(before)


def synchronize(device: Any = None) -> None:
    """Wait for all streams."""
    for stream in list(_all):
        stream.synchronize()


class _Work:
    """What an asynchronous call returns: waiting for it makes the stream wait, not the host."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def wait(self) -> None:
        """The call is on the current stream already."""

    def get_future(self) -> Any:
        """Callbacks run on a stream of their own, which waits for the call."""
        future, side = Future(), Stream()
        side.follow(current())

        def done() -> None:
            with using(side):
                future.set_result([self._values])

        side.put(done)
        return future


def take_time() -> None:
    """The least time of a call of the library."""
    if _CALL_S:
        time.sleep(_CALL_S)


def carry_out(name: str, call: Callable[..., Any], args: Any, rest: Any) -> Any:
    """Put a call of the library on the current stream. Calls on another stream than the last one must wait for it."""
    global _last
    stream = current()
    if _last is not None and _last[0] is not stream and not _last[0].is_idle():
        assert stream.waited.get(_last[0], 0) >= _last[1], f"{name}: two streams use the library at the same time"

    grad = torch.is_grad_enabled()  # of this thread

    def work() -> None:
        take_time()
        with torch.set_grad_enabled(grad):
            found = call(*args, **rest)
        for each in found if isinstance(found, list) else [found]:
            if each is not None:
                each.wait()

    _last = stream, stream.put(work)
    if not rest.get("async_op") and torch._C._current_graph_task_id() != -1:
        stream.synchronize()  # C++ goes on with the values at once, as if it were on the stream
    work_ = _Work(args[0] if args else None)
    return [work_] if name == "batch_isend_irecv" else work_ if rest.get("async_op") else None


class _SideWork(torch.distributed.Work):  # type: ignore[misc]  # Any to mypy
    """A call that a group runs on its own stream. Waiting for it makes the current stream wait; nothing else does."""

    def __init__(self, stream: Stream, number: int, values: Any) -> None:
        super().__init__()
        self._stream, self._number, self._values = stream, number, values

    def wait(self, *_timeout: Any) -> bool:
        """Later work of the current stream begins after the call."""
        stream = current()
        stream.wait_for(self._stream, self._number)
        if torch._C._current_graph_task_id() != -1 or getattr(_here, "in_cpp", False):
            stream.synchronize()  # C++ goes on with the values at once, as if it were on the stream
        return True

    def is_completed(self) -> bool:
        """Whether the call is done."""
        return self._stream.num_done >= self._number

    def get_future(self) -> Any:
        """Callbacks run on a stream of their own, which waits for the call."""
        future, side = Future(), Stream()
        side.wait_for(self._stream, self._number)

        def done() -> None:
            with using(side):
                future.set_result(self._values)

        side.put(done)
        return future


class GroupStream(torch.distributed.ProcessGroup):  # type: ignore[misc]  # Any to mypy
    """A group of NCCL: its calls run on a stream of its own, after the work that the current stream has now."""

    BACKEND = "standin"
    _next: Any = None

    def __init__(self, plain: Any) -> None:
        super().__init__(plain.rank(), plain.size())
        self.plain, self._own = plain, Stream()

    @classmethod
    def register(cls) -> str:
        """The name of this backend, for torch's `new_group`."""
        if not hasattr(torch.distributed.Backend, cls.BACKEND.upper()):
            torch.distributed.Backend.register_backend(
                cls.BACKEND, lambda _store, _options: cls(cls._next), extended_api=True, devices=["cpu", "cuda"]
            )
        return cls.BACKEND

    @classmethod
    def around(cls, plain: Any, make: Callable[[str], Any]) -> Any:
        """A group around one of Gloo. `make`: opens a group of a backend with the same ranks."""
        cls._next = plain
        return make(cls.register())

    def getBackendName(self) -> str:
        return self.BACKEND

    @property
    def pg_name(self) -> str:
        return str(torch.distributed.distributed_c10d._world.pg_names[self])

    group_name = pg_name

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        return self.plain.barrier(*args, **kwargs)

    def send(self, tensors: list[Any], peer: int, tag: int = 0) -> Any:
        """One message: the call is done when the peer has it, and later calls of the group wait."""
        return self._messages([("send", tensors[0], peer)])

    def recv(self, tensors: list[Any], peer: int, tag: int = 0) -> Any:
        """The same from a peer."""
        return self._messages([("recv", tensors[0], peer)])

    def batch(self, messages: list[Any]) -> Any:
        """Messages between ncclGroupStart and ncclGroupEnd: one call, in which no message waits for another one."""
        send = torch.distributed.isend
        return self._messages([("send" if one.op is send else "recv", one.tensor, one.group_peer) for one in messages])

    def _messages(self, messages: list[tuple[str, Any, int]]) -> Any:
        """NCCL has no tags: messages between two ranks are matched in their order."""
        for kind, tensor, _ in messages:
            if kind == "recv" and tensor.is_floating_point():
                tensor.detach().fill_(float("nan"))  # until the message is there, nobody may read it

        def work() -> None:
            take_time()
            for begun in [getattr(self.plain, kind)([tensor], peer, 0) for kind, tensor, peer in messages]:
                begun.wait()

        return self.enqueue(work, [tensor for _, tensor, _ in messages])

    def enqueue(self, work: Callable[[], None], values: Any) -> Any:
        """A call on the group's stream, after the work that the current stream has now."""
        self._own.follow(current())
        return _SideWork(self._own, self._own.put(work), values)


def _on_own_stream(name: str) -> Callable[..., Any]:
    def call(self: GroupStream, *args: Any, **kwargs: Any) -> Any:
        def work() -> None:
            take_time()
            getattr(self.plain, name)(*args, **kwargs).wait()

        return self.enqueue(work, args[0])

    return call


for _name in dir(torch.distributed.ProcessGroup):
    if re.match(r"_?(all|reduce|broadcast|gather|scatter)", _name):
        setattr(GroupStream, _name, _on_own_stream(_name))


def in_cpp(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch in C++ that calls a group and goes on with the values, as if it were on the stream."""

    def run(*args: Any, **rest: Any) -> Any:
        _here.in_cpp = True
        try:
            return call(*args, **rest)
        finally:
            _here.in_cpp = False

    return run


class _OfHost(TorchFunctionMode):  # type: ignore[misc]  # Any to mypy
    """Operations of the host wait for the current stream. Those of the streams' own threads do not come here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not getattr(_here, "of_stream", False):
            stream = current()
            stream.reach(stream.num_put)
        kwargs = dict(kwargs or {})
        if getattr(kwargs.get("device"), "type", None) == "cuda":
            kwargs["device"] = "cpu"  # device memory is host memory
        return func(*args, **kwargs)


_OfHost().__enter__()
