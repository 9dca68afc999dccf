"""What do the clocks and hooks of `step` add to a step? Two ranks over Gloo: a line for each strategy.

    torchrun --nproc-per-node 2 benchmarks/step_instruments.py [--pairs 60] [--only ddp,fsdp2]

Blocks of steps with instruments alternate with blocks without; the order changes in every second pair. A step is that
of the slowest rank. Printed are the median ratio of neighbouring blocks with its 95 % interval over pairs, and the CPU
time that instruments add to a step, on the rank with most of it. Layers sleep, so a step has 72 ms of computation. The
last line is a small model that computes for a few ms, in which each call of a hook counts more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # torchrun starts a file, not a module

from bench.core.case_argv import from_argv
from bench.core.training_step import StepVariant
from bench.core.world import World
from bench.rank import sampling, training_step
from bench.results import stats
from bench.transports._torch_step import StepTrainer

_TIMED = "--timed layers=8,forward=3ms,backward=6ms,bytes=1M"
_CASES = {
    "ddp": f"{_TIMED} --bucket 1M",
    "zero1": f"{_TIMED} --bucket 1M --strategy zero1",
    "fsdp2": f"{_TIMED} --strategy fsdp2",
    "tensor": f"{_TIMED} --strategy tensor",
    "expert": f"{_TIMED} --strategy expert",
    "pipeline": f"{_TIMED} --strategy pipeline",
    "gossip": f"{_TIMED} --strategy gossip",
    "ddp, small model": "--workload vit-l-306m --layers 2 --samples 2 --bucket 64K "
    "--resize hidden=64,feedforward=256,heads=4,kv_heads=4,tokens=17,patch=48",
}
_BLOCK_S, _WARM_UP = 0.5, 3


def main() -> None:
    """Print one line for each case, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, metavar="N", help="pairs of blocks of each case")
    parser.add_argument("--only", default="", metavar="LIST", help="cases whose names contain one of these words")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    if dist.get_rank() == 0:
        print("| step | ms | with / without instruments | 95 % | CPU added (us) | of a step | pairs |")
        print("|" + "---|" * 7, flush=True)
    for name, options in _CASES.items():
        if any(word in name for word in args.only.split(",")):
            _show(name, *_compared(options, args.pairs))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's threads may abort the process at exit


def _compared(options: str, num_pairs: int) -> tuple[float, list[float], float]:
    """Return the seconds of a step without instruments, the ratio of each pair of blocks, and the CPU seconds added."""
    plan = training_step.plan_of(from_argv(["step", *options.split()]), World(1, dist.get_world_size()))
    trainer = StepTrainer(torch, dist.get_rank(), plan, 60.0)
    for variant in (StepVariant.BARE, StepVariant.FULL):
        trainer.run(variant, _WARM_UP)
    per_block = max(1, round(_BLOCK_S / _block(trainer, StepVariant.BARE, _WARM_UP)[0]))
    ratios, bare_s, added_s = [], [], []
    with sampling.no_garbage():
        for pair in range(num_pairs):
            order = (StepVariant.BARE, StepVariant.FULL) if pair % 2 == 0 else (StepVariant.FULL, StepVariant.BARE)
            found = {variant: _block(trainer, variant, per_block) for variant in order}
            ratios.append(found[StepVariant.FULL][0] / found[StepVariant.BARE][0])
            bare_s.append(found[StepVariant.BARE][0])
            added_s.append(found[StepVariant.FULL][1] - found[StepVariant.BARE][1])
    return median(bare_s), ratios, median(added_s)


def _block(trainer: StepTrainer, variant: StepVariant, num_steps: int) -> tuple[float, float]:
    """Return the median step of a block, each step on its slowest rank, and the CPU seconds of a step."""
    began = time.process_time()
    own = torch.tensor([one.step_s for one in trainer.run(variant, num_steps)], dtype=torch.float64)
    used = torch.tensor([(time.process_time() - began) / num_steps], dtype=torch.float64)
    for values in (own, used):
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return median(own.tolist()), float(used[0])


def _show(name: str, bare_s: float, ratios: list[float], added_s: float) -> None:
    if dist.get_rank() != 0:
        return
    around = stats.interval(ratios)
    shown = "-" if around is None else f"{around[0]:.4f} to {around[1]:.4f}"
    cells = f"{median(ratios):.4f} | {shown} | {added_s * 1e6:.0f} | {added_s / bare_s:.2%} | {len(ratios)}"
    print(f"| {name} | {bare_s * 1e3:.2f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
