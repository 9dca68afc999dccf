"""Compute the time of a step's kernels on one GPU at the data sheet's rates.

The kernels are matrix products, attention and other kernels.

Matrix products and attention are limited by the GPU's FLOP/s. All other kernels are limited by the bandwidth of the
GPU's memory. A GPU with three times the FLOP/s and 1.6 times the memory bandwidth therefore trains about 2.3 times as
fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.core.errors import UsageError
from bench.hardware.catalogue import GpuModel
from bench.predict.layout import ParallelLayout
from bench.predict.messages import Refusal
from bench.predict.operations import work

RATES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "float8": "fp8",
    "float4": "fp4",
}
TYPICAL_PRODUCT = 0.78  # best matrix product / data sheet for GPUs without a measurement: the catalogue's median
# The time of all kernels / the time of matrix products, for a model with unknown layer sizes.
OTHER_KERNELS = 1.35
Rates = Mapping[tuple[str, str], float]  # (GPU model, "bf16") -> measured FLOP/s of a matrix product


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """The durations of all types of kernels in one step on one GPU, in seconds.

    Matrix products and attention run at the best measured rate of a matrix product. Other kernels run at the data
    sheet's memory rate.
    """

    products_s: float
    attention_s: float
    memory_s: float


def product_share(gpu: GpuModel, rates: Rates | None = None) -> tuple[float, str]:
    """Return the ratio of the best measured matrix product to the data sheet's bf16 rate, and the source of this ratio.

    The source is "measured" (by the user), "published" or "typical".
    """
    dense = gpu.flops.get("bf16")
    own = (rates or {}).get((gpu.name, "bf16"))
    if dense and own is not None:
        return own / dense, "measured"
    if dense and gpu.measured_bf16_flops is not None:
        return gpu.measured_bf16_flops / dense, "published"
    return TYPICAL_PRODUCT, "typical"


def kernels(found: ParallelLayout, gpu: GpuModel, rates: Rates | None = None) -> KernelTimes:
    """Return the duration of one step's kernels in seconds.

    Raises UsageError if the operations or a rate are unknown.
    """
    workload, mesh = found.workload, found.workload.mesh
    dense = {name: gpu.flops.get(RATES.get(name, "")) for name in (workload.compute, workload.element)}
    for name, rate in dense.items():
        if rate is None:
            raise no_rate(gpu, name)
    each = work(workload)
    parts = mesh.tensor * mesh.pipeline * mesh.context
    # The slowest stage has the most layers.
    layers = workload.model.layers
    uneven = found.stage_layers * mesh.pipeline / layers if layers else 1.0
    share = product_share(gpu, rates)[0]
    scale = workload.batch * workload.accumulation / parts * uneven
    others = OTHER_KERNELS if not each.bytes else 1.0
    return KernelTimes(
        products_s=others * scale * each.products / ((dense[workload.compute] or 1.0) * share),
        attention_s=scale * each.attention / ((dense[workload.element] or 1.0) * share),
        memory_s=scale * each.bytes / gpu.memory_bytes_per_s if gpu.memory_bytes_per_s else 0.0,
    )


def no_rate(gpu: GpuModel, dtype: str) -> UsageError:
    """Return an error which says that the GPU's rate for an element type is unknown."""
    known = [name for name, short in RATES.items() if short in gpu.flops]
    setting = f"training.compute={known[0]}" if known else f"training.baselines of {gpu.name}"
    return UsageError.of(Refusal.DTYPE_RATE_UNKNOWN, dtype=dtype, gpu=gpu.name, setting=setting)
