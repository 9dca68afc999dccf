"""Metered groups where NCCL differs from Gloo: calls without a Work, messages in one call, waits of one stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from bench.core.training_step import HOP  # noqa: E402
from bench.transports._step_place import GpuPlace  # noqa: E402
from bench.transports.strategies import _groups  # noqa: E402


class Clock:
    """A GPU on which each mark is one later, with streams that are names."""

    def __init__(self) -> None:
        self.marks, self.stream = 0, "model"

    def place(self) -> Any:
        def mark() -> int:
            self.marks += 1
            return self.marks

        return SimpleNamespace(
            mark=mark, is_models_stream=lambda: self.stream == "model", future=torch.futures.Future, kind="cuda"
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


@pytest.mark.parametrize(("name", "number"), [("allreduce", 3), ("recv", HOP)])
def test_only_the_models_stream_waits(name: str, number: int) -> None:
    clock = Clock()
    own = group({name: lambda *_: work(clock)}, clock)
    found = call(name)(own, ["values"])
    clock.stream = "another"
    found.wait()
    assert own._meter.waits == []
    clock.stream = "model"
    found.wait()
    found.wait()  # a second wait finds it done
    assert [wait[0] for wait in own._meter.waits] == [number]
    assert own._meter.waits[0][2] - own._meter.waits[0][1] == 6
    assert own._meter.called == 3


def test_a_group_of_one_rank_always_has_a_work() -> None:
    clock = Clock()
    own = group({"allreduce": lambda *_: None}, clock, num_ranks=1)
    assert call("allreduce")(own, ["values"]).wait()
    assert own._meter.waits == []


def test_messages_of_a_metered_group_are_one_call_of_the_library() -> None:
    clock, calls = Clock(), list[Any]()

    class Metered(SimpleNamespace):
        """Stands for the class of metered groups."""

    def batch(messages: Any) -> list[Any]:
        calls.append([(one.op, one.tensor, one.group, one.group_peer, one.tag) for one in messages])
        return [work(clock)]

    def message(op: str, tensor: str, *, group: Any, tag: int, group_peer: int) -> Any:
        return SimpleNamespace(op=op, tensor=tensor, group=group, tag=tag, group_peer=group_peer)

    fake = SimpleNamespace(distributed=SimpleNamespace(batch_isend_irecv=batch, P2POp=message), _C=torch._C)
    batched = _groups._batching(fake, _groups._waiting_class(torch), Metered)
    own = Metered(**vars(group({}, clock)))
    both = [
        message("recv", "in", group=own, tag=7, group_peer=1),
        message("send", "out", group=own, tag=7, group_peer=1),
    ]
    (found,) = batched(both)
    found.wait()
    assert calls == [[("recv", "in", own._plain, 1, 7), ("send", "out", own._plain, 1, 7)]]
    assert [wait[0] for wait in own._meter.waits] == [HOP]
    own._meter.exchanges = False
    assert [one.wait() for one in batched(both)] == [True, True]
    assert len(calls) == 1
    others = [message("recv", "in", group="a group of torch", tag=0, group_peer=1)]
    assert len(batched(others)) == 1 and calls[-1][0][2] == "a group of torch"


class Stream:
    """A stream of CUDA."""

    def __init__(self) -> None:
        self.waited: list[str] = []

    def wait_event(self, event: str) -> None:
        self.waited.append(event)


def test_waits_of_the_models_stream_for_events_are_noted() -> None:
    model, other = Stream(), Stream()
    events: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            events.append("mark")

        def elapsed_time(self, later: Any) -> float:
            return 1.0

    cuda = SimpleNamespace(
        Stream=Stream, Event=Event, current_stream=lambda: model, _sleep=lambda cycles: None, synchronize=lambda: None
    )
    place = GpuPlace(SimpleNamespace(cuda=cuda), "cuda:0")
    plain, notes = Stream.wait_event, list[Any]()
    events.clear()
    with place.noting_events(lambda began, ended: notes.append((began, ended))):
        other.wait_event("copy")
        model.wait_event("gathered")
    assert (other.waited, model.waited) == (["copy"], ["gathered"])
    assert len(notes) == 1 and len(events) == 2
    assert Stream.wait_event is plain
