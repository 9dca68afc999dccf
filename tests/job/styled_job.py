"""Real training jobs of several styles over Gloo, whose layers sleep: pipelines, FSDP, accumulation, checkpointing.

    torchrun --nproc-per-node 2 tests/job/styled_job.py --style gpipe --output DIR [--late 0.01]

Each rank writes the trace of torch's profiler, `rank0.json.gz`. `--late`: seconds that the last rank's layers need
longer in their backward pass.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

FORWARD_S, BACKWARD_S = 0.004, 0.008
NUM_LAYERS, LAYERS_OF_A_STAGE = 6, 2
NUM_MICRO_BATCHES = 4
_WARM_UP, _STEPS = 2, 8
_LAYER_ELEMENTS = 1 << 14


class _Sleep(torch.autograd.Function):  # type: ignore[misc]
    """Takes a known time in both directions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, backward_s: float) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.backward_s = backward_s
        time.sleep(FORWARD_S)
        return x + weight.mean() * 0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        time.sleep(ctx.backward_s)
        return gradient.contiguous(), torch.ones_like(weight), None


class Layer(nn.Module):  # type: ignore[misc]
    """A layer that sleeps."""

    def __init__(self, late_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(_LAYER_ELEMENTS))
        self._backward_s = BACKWARD_S + late_s

    def forward(self, x: torch.Tensor) -> Any:
        """Sleep."""
        return _Sleep.apply(x, self.weight, self._backward_s)


def layers(num: int, late_s: float) -> nn.Sequential:
    """Layers, one after the other."""
    return nn.Sequential(*(Layer(late_s) for _ in range(num)))


def step_of(style: str, late_s: float) -> Callable[[], None]:
    """The function that makes a step on this rank."""
    if style in ("gpipe", "1f1b"):
        return _pipeline(style, late_s)
    model: nn.Module = layers(NUM_LAYERS, late_s)
    if style == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = nn.parallel.DistributedDataParallel(_Checkpointed(model) if style == "checkpoint" else model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(4, 64, requires_grad=style == "checkpoint")

    def step() -> None:
        if style == "accumulation":
            with model.no_sync():
                for _ in range(2):
                    model(batch).sum().backward()
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if style == "evaluation":
            with torch.no_grad():
                model.module(batch)
            dist.all_reduce(torch.ones(1))

    return step


class _Checkpointed(nn.Module):  # type: ignore[misc]
    """Recomputes the layers in the backward pass."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor) -> Any:
        from torch.utils.checkpoint import checkpoint_sequential

        return checkpoint_sequential(self.inside, 3, x, use_reentrant=False)


def _pipeline(style: str, late_s: float) -> Callable[[], None]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(layers(LAYERS_OF_A_STAGE, late_s), rank, num_ranks, torch.device("cpu"))
    kind = ScheduleGPipe if style == "gpipe" else Schedule1F1B
    schedule = kind(stage, n_microbatches=NUM_MICRO_BATCHES, loss_fn=lambda y, target: (y - target).sum())
    batch = torch.ones(4 * NUM_MICRO_BATCHES, 64)

    def step() -> None:
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(**({"target": batch} if rank == num_ranks - 1 else {}))

    return step


def main() -> None:
    """Run the job and write the trace."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--style", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--late", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    is_last = dist.get_rank() == dist.get_world_size() - 1
    step = step_of(given.style, given.late if is_last else 0.0)
    from torch.profiler import ProfilerActivity, profile, schedule

    file = given.output / f"rank{dist.get_rank()}.json.gz"
    dist.barrier()
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=_WARM_UP, active=_STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
    ) as profiler:
        for _ in range(_WARM_UP + _STEPS):
            step()
            profiler.step()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's threads may abort the process at its end


if __name__ == "__main__":
    main()
