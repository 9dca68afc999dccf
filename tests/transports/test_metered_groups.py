"""Metered groups where NCCL differs from Gloo: calls without a Work, messages in one call, waits of one stream."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from bench.core.training_step import HOP  # noqa: E402
from bench.transports._step_place import GpuPlace  # noqa: E402
from bench.transports.strategies import _groups, _hooks  # noqa: E402


class Clock:
    """A GPU on which each mark is one later, with streams that are names."""

    def __init__(self) -> None:
        self.marks, self.stream = 0, "model"
        self.followed = dict[str, int]()

    def place(self) -> Any:
        def mark() -> int:
            self.marks += 1
            return self.marks

        return SimpleNamespace(
            mark=mark,
            is_models_stream=lambda: self.stream == "model",
            follows=lambda number: self.followed.update({self.stream: number}),
            noting_events=lambda note: nullcontext(),
            future=torch.futures.Future,
            kind="cuda",
        )


def group(answers: dict[str, Any], clock: Clock, num_ranks: int = 2, exchanges: bool = True) -> Any:
    """Return what a metered group is for its methods: number 3, around a group of the library."""
    plain = SimpleNamespace(size=lambda: num_ranks, **answers)
    return SimpleNamespace(_plain=plain, _meter=_groups.Meter(clock.place(), exchanges), _number=3)


def work(clock: Clock, marks: int = 5) -> Any:
    """Return a Work of the library; waiting for it lasts some marks."""

    def wait() -> None:
        clock.marks += marks

    return SimpleNamespace(wait=wait)


def call(name: str) -> Any:
    return _groups._passing(torch, _groups._waiting_class(torch), name)


def test_a_synchronous_call_on_the_current_stream_has_no_work_but_a_wait() -> None:
    clock = Clock()
    own = group({"allreduce": lambda tensors, options: None}, clock)
    done = call("allreduce")(own, ["values"], "options")
    assert done.wait()  # torch.distributed would wait for it
    assert own._meter.waits == [(3, 1, 2)]
    clock.stream = "another"
    call("allreduce")(own, ["values"], "options").wait()
    assert len(own._meter.waits) == 1
    assert clock.followed == {"another": 3}
    assert clock.marks == 2  # only the model's stream has marks


@pytest.mark.parametrize(("name", "number"), [("allreduce", 3), ("recv", HOP)])
def test_only_the_models_stream_waits(name: str, number: int) -> None:
    clock = Clock()
    own = group({name: lambda *_: work(clock)}, clock)
    found = call(name)(own, ["values"])
    clock.stream = "another"
    found.wait()
    assert own._meter.waits == []
    assert clock.followed == {"another": number}
    clock.stream = "model"
    found.wait()
    found.wait()  # a second wait finds it done
    assert [wait[0] for wait in own._meter.waits] == [number]
    assert own._meter.waits[0][2] - own._meter.waits[0][1] == 6
    assert clock.followed == {"another": number}


def test_a_group_of_one_rank_always_has_a_work() -> None:
    clock = Clock()
    own = group({"allreduce": lambda *_: None}, clock, num_ranks=1)
    assert call("allreduce")(own, ["values"]).wait()
    assert own._meter.waits == []


class Message(SimpleNamespace):
    """torch's P2POp as it was in torch 2.4: `peer` is the rank among all ranks."""

    def __init__(self, op: str, tensor: str, peer: int, group: Any = None, tag: int = 0) -> None:
        super().__init__(op=op, tensor=tensor, peer=peer, group=group, tag=tag)


def test_messages_of_a_metered_group_are_one_call_of_the_library() -> None:
    clock, calls = Clock(), list[Any]()

    class Metered(SimpleNamespace):
        """Stands for the class of metered groups."""

    def batch(messages: Any) -> list[Any]:
        calls.append([(one.op, one.tensor, one.group, one.peer, one.tag) for one in messages])
        return [work(clock)]

    fake = SimpleNamespace(distributed=SimpleNamespace(batch_isend_irecv=batch, P2POp=Message), _C=torch._C)
    batched = _groups._batching(fake, _groups._waiting_class(torch), Metered)
    own = Metered(**vars(group({}, clock)))
    both = [Message("recv", "in", 1, own, 7), Message("send", "out", 1, own, 7)]
    (found,) = batched(both)
    found.wait()
    assert calls == [[("recv", "in", own._plain, 1, 7), ("send", "out", own._plain, 1, 7)]]
    assert [wait[0] for wait in own._meter.waits] == [HOP]
    own._meter.exchanges = False
    assert [one.wait() for one in batched(both)] == [True, True]
    assert len(calls) == 1
    assert len(batched([Message("recv", "in", 1, "a group of torch")])) == 1 and calls[-1][0][2] == "a group of torch"


def test_torchs_function_for_messages_is_replaced_only_during_steps() -> None:
    plain, meter = torch.distributed.batch_isend_irecv, _groups.Meter(Clock().place())
    groups = _groups.RankGroups(torch, meter, 1.0)
    assert torch.distributed.batch_isend_irecv is plain
    with groups.stepping():
        assert torch.distributed.batch_isend_irecv is not plain
    assert torch.distributed.batch_isend_irecv is plain
    with pytest.raises(ZeroDivisionError), groups.stepping():
        raise ZeroDivisionError
    assert torch.distributed.batch_isend_irecv is plain
    with _groups.RankGroups(torch, None, 1.0).stepping():
        assert torch.distributed.batch_isend_irecv is plain


@pytest.mark.parametrize(
    ("exchanges", "is_last", "values"), [(True, False, 3.0), (False, True, 1.0), (False, False, 2.0)]
)
def test_an_exchange_of_a_bucket_ends_before_its_division(exchanges: bool, is_last: bool, values: float) -> None:
    """Without the exchange, the division that the pass cannot hide stays."""
    clock, gradients, at_end = Clock(), torch.full((4,), 2.0), list[float]()
    place = clock.place()
    mark, future = place.mark, torch.futures.Future()

    def marked() -> Any:
        at_end[:] = [float(gradients[0])]
        return mark()

    place.mark = marked

    def all_reduce(tensor: Any, group: Any, async_op: bool) -> Any:
        tensor.fill_(6.0)  # the sum of both ranks
        future.set_result([tensor])
        return SimpleNamespace(get_future=lambda: future)

    meter = _groups.Meter(place, exchanges)
    build: Any = SimpleNamespace(
        torch=SimpleNamespace(distributed=SimpleNamespace(all_reduce=all_reduce)),
        case=SimpleNamespace(hook="none"),
        groups=SimpleNamespace(meter=meter, number=lambda group: 0),
        place=place,
    )
    exchange = _hooks.BucketExchange(build, SimpleNamespace(size=lambda: 2))
    done = exchange.start(gradients, SimpleNamespace(is_last=lambda: is_last))
    assert done.wait().tolist() == [values] * 4
    assert at_end == [6.0 if exchanges else 2.0]
    (bucket,) = exchange.finish("returned").buckets
    assert (bucket.ready, bucket.done) == (1, 2)


class Cuda:
    """torch.cuda with streams and events that write down what they do. A stream's methods call those of the event."""

    def __init__(self) -> None:
        cuda, self.done = self, list[tuple[str, str]]()

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.enable_timing = enable_timing

            def record(self, stream: Any = None) -> None:
                stream = stream or cuda.current
                cuda.done.append(("mark" if self.enable_timing else "event", stream.name))

            def wait(self, stream: Any = None) -> None:
                cuda.done.append(("wait", (stream or cuda.current).name))

            def elapsed_time(self, later: Any) -> float:
                return 1.0

        class Stream:
            def __init__(self, name: str) -> None:
                self.name = name

            def wait_event(self, event: Any) -> None:
                event.wait(self)

            def record_event(self) -> Any:
                event = Event()
                event.record(self)
                return event

            def wait_stream(self, other: Any) -> None:
                self.wait_event(other.record_event())

        self.Event, self.Stream = Event, Stream
        self.model = self.current = Stream("model")
        self.methods = Event.record, Event.wait

    def place(self) -> GpuPlace:
        names = {"current_stream": lambda: self.current, "_sleep": lambda cycles: None, "synchronize": lambda: None}
        return GpuPlace(SimpleNamespace(cuda=SimpleNamespace(Event=self.Event, Stream=self.Stream, **names)), "cuda:0")


def test_a_wait_for_an_event_belongs_to_the_group_whose_call_the_event_follows() -> None:
    """As in tensor_fsdp: the weights of a layer are gathered ahead, while another group sums activations."""
    cuda = Cuda()
    place, notes = cuda.place(), list[Any]()
    copies, gathers, sums = (cuda.Stream(name) for name in ("copies", "gathers", "sums"))
    with place.noting_events(lambda group, began, ended: notes.append((group, began, ended))):
        gathers.wait_stream(copies)
        cuda.current = gathers
        place.follows(1)
        gathered = gathers.record_event()
        cuda.current = copies
        copied = copies.record_event()
        cuda.current = sums
        sums.wait_event(gathered)
        behind = sums.record_event()  # only group 1 comes before it
        place.follows(2)
        summed = sums.record_event()
        cuda.done.clear()
        cuda.model.wait_event(gathered)  # the current stream is another
        assert cuda.done == [("mark", "model"), ("wait", "model"), ("mark", "model")]
        cuda.model.wait_event(copied)  # no call
        cuda.model.wait_stream(copies)
        copies.wait_event(summed)  # another stream
        cuda.model.wait_event(behind)
        cuda.current = cuda.model
        summed.wait()
        cuda.model.wait_event(cuda.model.record_event())
        assert [group for group, _, _ in notes] == [1, 1, 2]
        assert all(one.enable_timing for note in notes for one in note[1:])
    assert (cuda.Event.record, cuda.Event.wait) == cuda.methods
    cuda.model.wait_event(summed)
    assert len(notes) == 3
    with place.noting_events(lambda *note: notes.append(note)):
        cuda.model.wait_stream(gathers)  # no call in these steps
    assert len(notes) == 3
