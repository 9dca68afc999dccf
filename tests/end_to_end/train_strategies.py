"""Ranks that train one case after another in one launch, and print what was wrong in their gradients.

    torchrun --nproc-per-node 4 train_strategies.py [--spoil] [--streams] CASE [CASE ...]

A case is the options of a step, such as "--strategy tensor --mesh 2x2". Rank 0 prints one line of JSON for each: the
kinds of exchanges of a step, what was wrong, and with --spoil what was found when rank 1 got a wrong element from one
kind of exchange. Exchanges are spoilt behind the meter, so every strategy is tested in the same way. With --streams,
ranks train at a place like a GPU, whose streams are those of torch.cpu; "waits" has the numbers of waits of a step.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from bench.core.case_argv import from_argv
from bench.core.training_step import StepVariant
from bench.core.world import World
from bench.rank import training_step
from bench.transports._step_place import GpuPlace
from bench.transports._torch_step import StepTrainer
from bench.transports.strategies import _groups, _hooks
from bench.transports.strategies._blocks import BlockSource
from bench.transports.strategies._replica import WHOLE, local
from bench.transports.strategies._residual import ResidualSource

USED: set[str] = set()
SPOILT: list[str] = []
HOOK = "hook"


def main() -> None:
    """Train each case."""
    words = sys.argv[1:]
    cases = [word for word in words if word not in ("--spoil", "--streams")]
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    _groups._passing = watched(_groups._passing)
    _groups._batching = watched_messages(_groups._batching)
    _hooks.BucketExchange.start = watched_hook(_hooks.BucketExchange.start)  # type: ignore[method-assign]
    for text in cases:
        found = waits(text) if "--streams" in words else trained(text, "--spoil" in words)
        if dist.get_rank() == 0:
            print(json.dumps({"case": text, **found}), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's threads may abort the process at exit


def trained(text: str, spoil: bool) -> dict[str, Any]:
    """Train one case, check it before and after a step without exchange, and spoil each kind of exchange in turn."""
    case = from_argv(["step", *text.split()])
    plan = training_step.plan_of(case, World(1, dist.get_world_size()))
    trainer = StepTrainer(torch, dist.get_rank(), plan, 60.0)
    for variant in (StepVariant.BARE, StepVariant.FULL):
        trainer.run(variant, 2)
    USED.clear()
    wrong = [first_wrong(trainer)]
    kinds = sorted(shared(sorted(USED)))
    trainer.run(StepVariant.LOCAL, 2)
    wrong.append(first_wrong(trainer))
    spoilt = {}
    for kind in kinds if spoil else ():
        SPOILT[:] = [kind]
        spoilt[kind] = first_wrong(trainer)
        SPOILT.clear()
        trainer.restore()
    if spoil:
        spoilt["bare"] = with_wrong_bare_step(trainer)
    return {
        "kinds": kinds,
        "wrong": wrong,
        "spoilt": spoilt,
        "error": trainer.gradient_error(),
        "learned": trainer.learned(),
        "rounded": rounded(trainer),
        **norms(trainer),
    }


class StreamPlace(GpuPlace):
    """A GPU whose memory is the host's, and whose streams are those of torch.cpu: they do their work at once."""

    kind = "cpu"

    def __init__(self) -> None:
        cuda = SimpleNamespace(
            current_stream=torch.cpu.current_stream,
            Event=StreamEvent,
            synchronize=lambda *_: None,
            reset_peak_memory_stats=lambda _: None,
            _sleep=lambda cycles: time.sleep(cycles * 1e-9),
        )
        super().__init__(SimpleNamespace(cuda=cuda), "cpu")

    def staged(self, tensor: Any) -> Any:
        return tensor

    def future(self) -> Any:
        return torch.futures.Future()


class StreamEvent:
    """A point on a stream."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing

    def record(self, stream: Any = None) -> None:
        self.at_s = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing: all work before the event is done."""

    def elapsed_time(self, later: StreamEvent) -> float:
        return (later.at_s - self.at_s) * 1e3


def recorded_on(stream: Any) -> StreamEvent:
    """Record an event, as torch.cuda.Stream does; torch.cpu.Stream does nothing."""
    event = StreamEvent()
    event.record(stream)
    return event


def waits(text: str) -> dict[str, Any]:
    """Count the waits of a step whose library exchanges on streams of its own, with and without those for events."""
    streams = torch.cpu.Stream
    torch.cpu.Event = StreamEvent
    streams.record_event = recorded_on
    streams.wait_event = lambda stream, event: event.wait(stream)
    streams.wait_stream = lambda stream, other: stream.wait_event(other.record_event())
    plan = training_step.plan_of(from_argv(["step", *text.split()]), World(1, dist.get_world_size()))
    trainer = StepTrainer(torch, dist.get_rank(), plan, 60.0, StreamPlace())
    trainer.run(StepVariant.FULL, 2)
    all_ = trainer.run(StepVariant.FULL, 1)[-1]
    trainer._place.noting_events = lambda _: contextlib.nullcontext()  # type: ignore[method-assign,assignment]
    fewer = trainer.run(StepVariant.FULL, 1)[-1]
    num = [len(all_.waits), len(fewer.waits)]
    groups = Counter(number for number, _ in all_.waits)
    return {"waits": num, "groups": groups, "wrong": first_wrong(trainer), "rounded": rounded(trainer)}


def rounded(trainer: StepTrainer) -> list[int]:
    """Return for how many ranks the gradients may be rounded."""
    return sorted({held.num_rounded for held in trainer._full.held()})


def with_wrong_bare_step(trainer: StepTrainer) -> str | None:
    """Check a step after which rank 1 has wrong elements in the replica without instruments."""
    replica = trainer._bare
    update = replica.update

    def wrong() -> None:
        update()
        if dist.get_rank() == 1:
            for weight in replica.model.parameters():
                one_more(local(weight))
                one_more(local(weight.grad))

    replica.update = wrong  # type: ignore[method-assign]
    found = first_wrong(trainer)
    replica.update = update  # type: ignore[method-assign]
    trainer.restore()
    return found


def norms(trainer: StepTrainer) -> dict[str, float]:
    """Return the norm of all gradients of a model, and that of the same model on one rank without any strategy."""
    plan = trainer._plan
    if plan.model is None:
        return {}
    trainer.check()
    own: dict[str, float] = {}
    for held in trainer._full.held():
        own[held.part] = own.get(held.part, 0.0) + float(held.gradient.double().square().sum())
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, own)
    merged = {part: square for of_rank in of_ranks for part, square in of_rank.items()}
    data_ranks: list[Any] = [None] * dist.get_world_size()
    assert isinstance(trainer._source, BlockSource | ResidualSource)
    dist.all_gather_object(data_ranks, trainer._source._data_rank)
    case = plan.case
    kind: Any = type(trainer._source)
    plain = replace(case, recompute="none", compiled=False)
    model = torch.nn.Sequential(*kind(torch, plan.model, 0, plain).blocks(WHOLE))
    for data_rank in set(data_ranks):
        source = kind(torch, plan.model, data_rank, plain)
        inputs, targets = source.batch(plan.num_micro_batches)
        num = plan.num_micro_batches
        for part, of_part in zip(inputs.chunk(num), targets.chunk(num), strict=True):  # norms see one micro-batch
            source.loss(model(part), of_part, num).backward()
    trained = [one for one in model.parameters() if one.requires_grad]
    squares = [float((one.grad / len(set(data_ranks))).double().square().sum()) for one in trained]
    return {"norm": sum(merged.values()) ** 0.5, "alone": sum(squares) ** 0.5}


def first_wrong(trainer: StepTrainer) -> str | None:
    """Check one step of all ranks."""
    checks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(checks, trainer.check())
    found = training_step._first_wrong(checks)
    return None if found is None else found.text


def shared(own: list[str]) -> set[str]:
    """Return the kinds that any rank used."""
    kinds: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(kinds, own)
    return {kind for of_rank in kinds for kind in of_rank}


def watched(passing: Callable[..., Any]) -> Callable[..., Any]:
    """Note each call of a group, and spoil what it gives rank 1."""

    def made(torch_: Any, work_class: Any, name: str) -> Any:
        call = passing(torch_, work_class, name)

        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            work = call(self, *args, **kwargs)
            if name == "send":  # what is sent arrives as another call's result
                return work
            USED.add(name)
            if name in SPOILT and dist.get_rank() == 1:
                work._work = Spoiler(work._work, args[0])
            return work

        return noted

    return made


def watched_messages(batching: Callable[..., Any]) -> Callable[..., Any]:
    """The same for messages in a batch."""

    def made(*given: Any) -> Any:
        batch = batching(*given)

        def noted(messages: Any) -> Any:
            works = batch(messages)
            for message, work in zip(messages, works, strict=True):
                if message.op is dist.irecv and hasattr(work, "_work"):  # not of the bare replica
                    USED.add("recv")
                    if "recv" in SPOILT and dist.get_rank() == 1:
                        work._work = Spoiler(work._work, message.tensor)
            return works

        return noted

    return made


class Spoiler:
    """A Work whose result is wrong once it has been waited for."""

    def __init__(self, work: Any, value: Any) -> None:
        self.work, self.value = work, value

    def wait(self) -> None:
        """Wait, then spoil."""
        self.work.wait()
        one_more(self.value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


def watched_hook(start: Callable[..., Any]) -> Callable[..., Any]:
    """The same for the buckets of DistributedDataParallel, of which no group's Work is waited for."""

    def noted(self: Any, gradients: Any, *more: Any) -> Any:
        USED.add(HOOK)
        future = start(self, gradients, *more)
        if HOOK not in SPOILT or dist.get_rank() != 1:
            return future

        def spoilt(done: Any) -> Any:
            one_more(done.value())
            return done.value()

        return future.then(spoilt)

    return noted


def one_more(value: Any) -> None:
    """Add one to the first element of a tensor, or of the first tensor of lists."""
    while isinstance(value, list | tuple):
        value = value[0]
    value.detach().flatten()[:1].add_(1)


if __name__ == "__main__":
    main()
