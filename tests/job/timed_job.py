"""A small training job whose times are known: its layers sleep, and their gradients are real tensors.

    torchrun --nproc-per-node 2 tests/job/timed_job.py --output DIR --inject '{"backward": [0.0, 0.06]}'

torch's DataLoader, SGD, DistributedDataParallel and profiler over Gloo do what they do in any job, so a trace looks
like that of any job. Only the work of a layer is a sleep, which takes the same time on a loaded machine. Each rank
writes its trace, `rank0.json.gz`, and `stamps0.json`, the program's own clock readings, to which a reading of the trace
is compared.
"""

# No `from __future__ import annotations`: DistributedDataParallel reads the annotations of its hook.
import argparse
import contextlib
import gzip
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

SEGMENTS = ("data", "host", "forward", "backward", "optimizer")
NUM_WARM_UP = 3
_LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Options:
    """What the job does.

    strategy: `ddp` exchanges gradients in buckets of `bucket_bytes`; `tp` exchanges `message_bytes` after each layer's
    forward and backward, and all ranks wait for it. inject: seconds by which a segment of a step is longer, by segment
    and rank. every: inject in each n-th step only. rotate: the ranks of `inject` are shifted by a random number in each
    step.
    """

    strategy: str = "ddp"
    num_layers: int = 6
    num_steps: int = 10
    forward_s: float = 0.004
    backward_s: float = 0.008
    layer_bytes: int = 1 << 18
    bucket_bytes: int = 1 << 18
    message_bytes: int = 1 << 14
    inject: dict[str, list[float]] = field(default_factory=dict)
    every: int = 1
    rotate: bool = False
    seed: int = 0


class Clock:
    """The job's own clock readings of one rank and the seconds to inject. Times are of the monotonic clock."""

    def __init__(self, options: Options, rank: int, num_ranks: int) -> None:
        self._options, self._rank, self._num_ranks = options, rank, num_ranks
        self._random = random.Random(options.seed)
        self._shift, self._step = 0, -1
        self.steps: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Begin a step."""
        self._step += 1
        self._shift = self._random.randrange(self._num_ranks) if self._options.rotate else 0
        self.steps.append({"start": time.monotonic(), "exchanges": []})

    def stamp(self, name: str) -> None:
        """Note the time under a name."""
        self.steps[-1][name] = time.monotonic()

    def injected_s(self, segment: str) -> float:
        """Return by how much a segment of this rank is longer in this step."""
        by_rank = self._options.inject.get(segment)
        if by_rank is None or self._step % self._options.every:
            return 0.0
        return by_rank[(self._rank + self._shift) % len(by_rank)]

    def exchange(self) -> dict[str, float]:
        """Note that this rank is ready for an exchange. The caller adds the time `done`."""
        noted = {"ready": time.monotonic()}
        self.steps[-1]["exchanges"].append(noted)
        return noted


def train(options: Options, output: Path) -> None:
    """Train as one rank of the job that the environment describes (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    Raises AssertionError if the exchanged gradients are wrong.
    """
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    clock = Clock(options, rank, num_ranks)
    model = _model(options, clock, rank)
    optimizer = _optimizer(model, clock)
    batches = iter(_loader(options, clock))
    dist.barrier()
    raw = output / f"rank{rank}.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=NUM_WARM_UP, active=options.num_steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(raw)),
        record_shapes=True,
    ) as profiler:
        for _ in range(NUM_WARM_UP + options.num_steps):
            clock.begin()
            batch = next(batches)
            clock.stamp("data")
            time.sleep(clock.injected_s("host"))
            loss = model(batch.requires_grad_()).sum()  # so that the first layer, too, has a backward for its input
            clock.stamp("forward")
            loss.backward()
            clock.stamp("backward")
            optimizer.step()
            optimizer.zero_grad()
            clock.stamp("end")
            profiler.step()
    _check(options, model, num_ranks)
    dist.barrier()
    dist.destroy_process_group()
    with raw.open("rb") as plain, gzip.open(f"{raw}.gz", "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed)
    raw.unlink()
    document = {"rank": rank, "options": asdict(options), "steps": clock.steps[NUM_WARM_UP:]}
    (output / f"stamps{rank}.json").write_text(json.dumps(document), encoding="utf-8")


def _loader(options: Options, clock: Clock) -> Any:
    from torch.utils.data import DataLoader, IterableDataset

    class Samples(IterableDataset[Any]):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            import torch

            for _ in range(NUM_WARM_UP + options.num_steps):
                time.sleep(clock.injected_s("data"))
                yield torch.ones(64)

    return DataLoader(Samples(), batch_size=1)


def _optimizer(model: Any, clock: Clock) -> Any:
    import torch

    class TimedSGD(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            time.sleep(clock.injected_s("optimizer"))
            return super().step(closure)

    return TimedSGD(model.parameters(), lr=_LEARNING_RATE)


def _model(options: Options, clock: Clock, rank: int) -> Any:
    """Return the layers, wrapped by the strategy."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    class Work(torch.autograd.Function):  # type: ignore[misc]
        """Sleep for the time of a layer, forwards and backwards. The gradient of the weight is the rank + 1."""

        @staticmethod
        def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor, extra: tuple[float, float]) -> torch.Tensor:
            ctx.save_for_backward(weight)
            ctx.backward_s = options.backward_s + extra[1]
            time.sleep(options.forward_s + extra[0])
            return values + 1

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            (weight,) = ctx.saved_tensors
            gradient = torch.full_like(weight, rank + 1)
            time.sleep(ctx.backward_s)
            return upstream[0], gradient, None

    class Exchange(torch.autograd.Function):  # type: ignore[misc]
        """Exchange a message after a layer's forward and before its backward, as tensor parallelism does."""

        @staticmethod
        def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
            _blocking(clock, options.message_bytes)
            return values.clone()

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            _blocking(clock, options.message_bytes)
            return upstream[0]

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, is_late: bool) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(options.layer_bytes // 4))
            self._is_late = is_late

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            extra = (clock.injected_s("forward"), clock.injected_s("backward")) if self._is_late else (0.0, 0.0)
            values = Work.apply(values, self.weight, extra)
            return Exchange.apply(values) if options.strategy == "tp" else values

    late = random.Random(options.seed).randrange(options.num_layers)
    layers = torch.nn.Sequential(*(Layer(number == late) for number in range(options.num_layers)))
    if options.strategy == "tp":
        return layers
    model = DistributedDataParallel(layers, bucket_cap_mb=options.bucket_bytes / (1 << 20))

    def exchange(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        noted = clock.exchange()
        work = dist.all_reduce(bucket.buffer(), async_op=True)

        def average(future: torch.futures.Future[Any]) -> torch.Tensor:
            noted["done"] = time.monotonic()
            total: torch.Tensor = future.value()[0]
            return total.div_(dist.get_world_size())

        return work.get_future().then(average)

    model.register_comm_hook(None, exchange)
    return model


def _blocking(clock: Clock, num_bytes: int) -> None:
    """Exchange a message and wait for it."""
    import torch
    import torch.distributed as dist

    message = torch.ones(num_bytes // 4)
    noted = clock.exchange()
    dist.all_reduce(message)
    noted["done"] = time.monotonic()
    assert message[-1] == dist.get_world_size()


def _check(options: Options, model: Any, num_ranks: int) -> None:
    """Check the sum of all exchanged gradients: the mean over ranks in each step, times the learning rate."""
    if options.strategy == "ddp":
        expected = -_LEARNING_RATE * (num_ranks + 1) / 2 * (NUM_WARM_UP + options.num_steps)
        for layer in model.module:
            assert (layer.weight - expected).abs().max() < 1e-5, (layer.weight[0], expected)


def main(argv: list[str]) -> None:
    """Run the job with the options of a command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--inject", type=json.loads, default={}, metavar="JSON", help="segment: seconds by rank")
    for name, kind in (("strategy", str), ("num_layers", int), ("num_steps", int), ("layer_bytes", int)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(Options, name))
    given = vars(parser.parse_args(argv))
    output: Path = given.pop("output")
    output.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt):
        train(Options(**given), output)


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
