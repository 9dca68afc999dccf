"""Train a model for some steps, and show where a step's time goes: input, copies, compute, waiting, exchange.

The model comes from a workload file, as for `linkbench select`. Alternatively, `--timed` defines layers that only sleep
for given times. The ranks exchange gradients as in any training job. The row shows the step of the slowest rank. In the
same launch, the full step alternates with three variants: a step without the exchange, a step without the loader, and a
step without the copies. For each variant, the output shows how much shorter the step is than the full step. The output
also shows the times that clocks inside the step measured. The size of the row is the total size of the model's
gradients. The row has no bandwidth, because most of a step is not exchange.

    torchrun --nproc-per-node 2 -m bench.step --timed layers=8,forward=5ms,backward=10ms,bytes=1M
    torchrun --nproc-per-node 2 -m bench.step --timed layers=8,forward=5ms,backward=10ms,bytes=1M \
        --inject rank=1,segment=backward,delay=60ms
    torchrun --nproc-per-node 2 -m bench.step --workload vit-l-306m --layers 2 --samples 1 --strategy fsdp2
"""

from __future__ import annotations

from bench.core.pattern import AllReducePattern, Shape


class Step(AllReducePattern):
    """Each rank runs a training step, and the ranks reduce their gradients together."""

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
        """Return None, because most of a step is not exchange."""
        return None


PATTERN = Step()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
