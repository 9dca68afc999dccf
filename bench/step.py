"""Train a model for some steps and say where the time of a step goes: input, copies, compute, waiting, exchange.

The model is that of a workload file, which `select` reads, too, or layers of `--timed`: they sleep, so that compute is
exact. Gradients are exchanged as in any training job. The row is the step of the slowest rank. Twins of the step
without exchange, without loader and without copies take turns with it in one launch: what each of them saves is shown
beside what the clocks of the step itself say. The size of the row is that of all gradients of the model. It has no
bandwidth, because most of a step is no exchange.

    torchrun --nproc-per-node 2 -m bench.step --timed layers=8,forward=5ms,backward=10ms,bytes=1M
    torchrun --nproc-per-node 2 -m bench.step --timed layers=8,forward=5ms,backward=10ms,bytes=1M \
        --inject rank=1,segment=backward,delay=60ms
    torchrun --nproc-per-node 2 -m bench.step --workload vit-l-306m --layers 2 --samples 1 --strategy fsdp2
"""

from __future__ import annotations

from bench.core.pattern import AllReducePattern, Shape


class Step(AllReducePattern):
    """One training step; its gradients are reduced among all ranks."""

    name = "step"
    trains = True
    in_place = False
    factors = frozenset({"timed", "strategy", "bucket", "inject"}) | {
        "workload",
        "layers",
        "resize",
        "samples",
        "autocast",
        "recompute",
        "trained",
        "compiled",
        "bucket_view",
        "hook",
        "mesh",
        "pipeline",
        "micro_batches",
        "sync_each",
        "period",
        "post_local",
        "staleness",
    }

    def bus_factor(self, shape: Shape) -> float | None:
        """None: most of a step is no exchange."""
        return None


PATTERN = Step()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
