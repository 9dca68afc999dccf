"""Predict the computation time of one step: its operations at the achieved rate, and the optimizer's update at the rate
of memory.

Operations per sample: 6 x active parameters x tokens, plus 12 x layers x hidden x tokens^2 for attention (Chowdhery et
al., "PaLM", 2022, appendix B). Recomputation repeats the forward pass, which adds a third of these operations. The
achieved rate is a share of the data sheet's that published training runs predict (predict/utilisation.py), unless the
workload file has a measured baseline or the user's runs measured a rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.core.errors import UsageError
from bench.hardware import catalogue
from bench.hardware.catalogue import GpuModel
from bench.predict.messages import Refusal
from bench.predict.operations import REPEATED_PASSES, flops_per_sample
from bench.predict.training import ParallelLayout, width
from bench.predict.utilisation import SharePrediction, model_kind, predicted_share
from bench.predict.workload import OPTIMIZERS, Span, Workload

if TYPE_CHECKING:
    from bench.predict.draws import Draws

# Assumption: the rate of a training step / the rate of the best matrix multiplication on the same GPU. All machines
# share one draw.
MATMUL_SHARE: Span = (0.35, 0.75)
# Assumption: the factor by which the ratio of a GPU model deviates from MATMUL_SHARE. Each model has its own draws.
GPU_DEVIATION: Span = (0.85, 1.15)
# Assumption: the rate of the optimizer's update / the data sheet's memory bandwidth. All machines share one draw.
MEMORY_SHARE: Span = (0.6, 0.9)
_OTHER_MAKERS = ("cdna", "trainium")  # no published run of them is at hand
_Z90 = 1.6448536269514722
_RATES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
Rates = Mapping[tuple[str, str], float]  # (GPU model, "bf16") -> measured FLOP/s
_REPEATED = {
    "none": "",
    "selective": " x 7/6 (half of the forward pass repeated)",
    "full": " x 4/3 (forward pass repeated)",
}


@dataclass(frozen=True, slots=True)
class Compute:
    """The computation of one step on one GPU, in seconds, as draws. `basis`: "measured" (by a baseline) or "assumed".

    `unknowns`: the description of each unknown quantity, by the name of its draws. `lines`: the derivation. `verified`:
    whether all figures have a source.
    """

    passes_s: Any
    update_s: Any
    basis: str
    unknowns: dict[str, str]
    lines: tuple[str, ...]
    verified: bool


def compute(
    found: ParallelLayout,
    gpu: GpuModel,
    draws: Draws,
    rates: Rates | None = None,
    share: SharePrediction | None = None,
) -> Compute:
    """Predict the computation of one GPU in a step.

    `rates`: the rates that the user's runs measured; they replace published rates. `share`: the achieved share of
    the data sheet's rate, in place of the one that all published training runs predict (validation holds runs out).

    Raises UsageError if no rate is known for the element type.
    """
    workload = found.workload
    samples = workload.batch * workload.accumulation
    parts = workload.mesh.tensor * workload.mesh.pipeline
    update_s, update_line, update_unknowns = _update(found, gpu, draws)
    if gpu.name in workload.baselines:
        low, high = workload.baselines[gpu.name]
        name = f"baseline {gpu.name}"
        passes_s = samples / parts / draws.between(name, low, high)
        rate = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        line = (
            f"measured baseline (given): one {gpu.name} alone processes {rate} samples/s; {samples} samples / {parts}"
        )
        return Compute(passes_s, 0 * passes_s, "measured", {name: f"the baseline of {gpu.name}"}, (line,), True)
    flops, derivation = flops_per_sample(workload.model)
    repeated = REPEATED_PASSES[workload.recompute]
    achieved, achieved_line, unknowns, verified = _achieved(found, gpu, draws, rates or {}, share)
    passes_s = flops * repeated * samples / parts / achieved
    total = f"x {samples} samples per GPU / {parts}" + _REPEATED[workload.recompute]
    lines = (
        derivation,
        f"{total} = {flops * repeated * samples / parts / 1e12:.4g} TFLOP per GPU and step",
        achieved_line,
        update_line,
    )
    read = verified and (gpu.verified or gpu.memory_bytes_per_s is None)
    return Compute(passes_s, update_s, "assumed", unknowns | update_unknowns, lines, read)


def _achieved(
    found: ParallelLayout, gpu: GpuModel, draws: Draws, rates: Rates, share: SharePrediction | None
) -> tuple[Any, str, dict[str, str], bool]:
    """Return the FLOP/s of one GPU in training: draws, derivation, unknown quantities, and whether the figures have a
    source.
    """
    workload = found.workload
    dense = gpu.flops.get(_RATES.get(workload.compute, ""))
    given = workload.efficiency.get(gpu.name, workload.efficiency.get(""))
    if given is not None:
        if dense is None:
            raise _no_rate(gpu, workload.compute)
        name = f"efficiency {gpu.name}" if gpu.name in workload.efficiency else "efficiency"
        line = f"{_span(given)} (given) of {dense / 1e12:.4g} TFLOP/s ({workload.compute}, dense: {gpu.source})"
        return dense * draws.between(name, *given), line, {name: "the achieved part of the peak rate"}, gpu.verified
    if _by_published_runs(workload, gpu, rates):
        return _published(
            workload, gpu, draws, share or predicted_share(gpu, workload.recompute, model_kind(workload.model))
        )
    rate, rate_line, unknowns, verified = _multiplication(gpu, workload.compute, draws, rates)
    of_rate, share_line, shared = _share(found, draws, rates)
    unknowns |= shared | {f"gpu {gpu.name}": f"the training rate of {gpu.name} relative to other GPUs"}
    line = f"{rate_line}; {share_line} x {_span(GPU_DEVIATION)} (assumed deviation of this GPU)"
    return rate * of_rate * draws.between(f"gpu {gpu.name}", *GPU_DEVIATION), line, unknowns, verified


def _by_published_runs(workload: Workload, gpu: GpuModel, rates: Rates) -> bool:
    """Return whether the share of published training runs applies.

    Measurements of the user are nearer, and the runs are of NVIDIA GPUs and 2-byte types.
    """
    measured = any(name == gpu.name for name, _ in rates) or any(
        _RATES.get(workload.compute, "") in catalogue.gpu(name).flops for name in workload.baselines
    )
    dense = _RATES.get(workload.compute, "") in gpu.flops
    known = workload.compute in ("bfloat16", "float16") and not gpu.architecture.startswith(_OTHER_MAKERS)
    return dense and known and not measured


def _published(
    workload: Workload, gpu: GpuModel, draws: Draws, share: SharePrediction
) -> tuple[Any, str, dict[str, str], bool]:
    """Return the FLOP/s of one GPU by the share that published training runs predict, as `_achieved` does."""
    import numpy as np

    dense = gpu.flops[_RATES[workload.compute]]
    deviation = share.sd_shared * draws.normal("training share") + share.sd_gpu * draws.normal(f"gpu {gpu.name}")
    every = share.num_runs, share.num_sources
    evidence = (
        f"{every[0]} published runs of {gpu.architecture} GPUs in {every[1]} sources" if every[0] else "other GPUs"
    )
    half = _Z90 * (share.sd_shared**2 + share.sd_gpu**2) ** 0.5
    ends = share.median * math.exp(-half), share.median * math.exp(half)
    line = f"{_span(ends)} (from {evidence}) of {dense / 1e12:.4g} TFLOP/s ({workload.compute}, dense: {gpu.source})"
    unknowns = {
        "training share": "the share of the data sheet's rate that the job's software reaches, on every GPU alike",
        f"gpu {gpu.name}": f"the training rate of {gpu.name} relative to other GPUs",
    }
    achieved = dense * np.minimum(share.median * np.exp(deviation), 1.0)
    return achieved, line, unknowns, gpu.verified


def _multiplication(gpu: GpuModel, dtype: str, draws: Draws, rates: Rates) -> tuple[Any, str, dict[str, str], bool]:
    """Return the FLOP/s of a matrix multiplication: measured by the user's runs, else published, else derived from
    other GPUs.
    """
    own = rates.get((gpu.name, _RATES.get(dtype, "")))
    if own is not None:
        line = f"matrix multiplication {own / 1e12:.4g} TFLOP/s ({dtype}, measured: slowest GPU of your run)"
        return own * draws.ones, line, {}, True
    if dtype == "bfloat16" and gpu.measured_bf16_flops is not None:
        rate = gpu.measured_bf16_flops
        line = f"best measured matrix multiplication {rate / 1e12:.4g} TFLOP/s (published: {gpu.source})"
        return rate * draws.ones, line, {}, True
    dense = gpu.flops.get(_RATES.get(dtype, ""))
    if dense is None:
        raise _no_rate(gpu, dtype)
    low, high = _matmul_range()
    name = f"matmul {gpu.name}"
    line = (
        f"{dense / 1e12:.4g} TFLOP/s ({dtype}, dense: {gpu.source}) x {_span((low, high))} (derived from matrix "
        "multiplications on other GPUs)"
    )
    words = {name: f"the rate of matrix multiplication on {gpu.name}"}
    return dense * draws.between(name, low, high), line, words, gpu.verified


def _share(found: ParallelLayout, draws: Draws, rates: Rates) -> tuple[Any, str, dict[str, str]]:
    """Return the rate of training / the rate of matrix multiplication, assumed or derived from the baseline of another
    GPU.
    """
    workload = found.workload
    for name, (low, high) in workload.baselines.items():
        other = catalogue.gpu(name)
        try:
            rate, _, unknowns, _ = _multiplication(other, workload.compute, draws, rates)
            flops = flops_per_sample(workload.model)[0] * REPEATED_PASSES[workload.recompute]
        except UsageError:
            continue  # no rate to compare this baseline with
        achieved = flops * draws.between(f"baseline {name}", low, high)
        share = achieved / (rate * draws.between(f"gpu {name}", *GPU_DEVIATION))
        words = f"{_span((float(share.min()), float(share.max())))} of it (from the measured baseline of {name})"
        unknowns |= {
            f"baseline {name}": f"the baseline of {name}",
            f"gpu {name}": f"the training rate of {name} relative to other GPUs",
        }
        return share, words, unknowns
    words = f"{_span(MATMUL_SHARE)} of it (assumed, one draw for all machines)"
    description = "the training rate relative to the best matrix multiplication"
    return draws.between("matmul share", *MATMUL_SHARE), words, {"matmul share": description}


def _no_rate(gpu: GpuModel, dtype: str) -> UsageError:
    known = [name for name, short in _RATES.items() if short in gpu.flops]
    setting = f"training.compute={known[0]}" if known else f"training.baselines of {gpu.name}"
    return UsageError.of(Refusal.DTYPE_RATE_UNKNOWN, dtype=dtype, gpu=gpu.name, setting=setting)


@cache
def _matmul_range() -> Span:
    """Return the smallest and largest ratio of measured to data-sheet bf16 matrix rate among the catalogue's NVIDIA
    GPUs.
    """
    every = [catalogue.gpu(name) for name in catalogue.gpus()]
    shares = [
        gpu.measured_bf16_flops / gpu.flops["bf16"]
        for gpu in every
        if gpu.measured_bf16_flops and "bf16" in gpu.flops and not gpu.architecture.startswith("cdna")
    ]
    return min(shares), max(shares)


def _update(found: ParallelLayout, gpu: GpuModel, draws: Draws) -> tuple[Any, str, dict[str, str]]:
    """Return the seconds of the optimizer's update in GPU memory.

    It reads the gradient, and reads and writes the weight and the states.
    """
    workload = found.workload
    if gpu.memory_bytes_per_s is None:
        return 0 * draws.ones, f"the optimizer's update is left out: the memory bandwidth of {gpu.name} is unknown", {}
    master = 0 if workload.weights == "float32" else 4
    states = OPTIMIZERS[workload.optimizer]
    each = width(workload.gradients) + 2 * (width(workload.weights) + master + states)
    num_bytes = each * (found.dense / found.shards("dense") + found.experts / found.shards("experts"))
    share = draws.between("memory share", *MEMORY_SHARE)
    line = (
        f"update: {num_bytes / 1e9:.4g} GB ({each} bytes per parameter) at {_span(MEMORY_SHARE)} (assumed) of "
        f"{gpu.memory_bytes_per_s / 1e9:.4g} GB/s ({gpu.source})"
    )
    return (
        num_bytes / (gpu.memory_bytes_per_s * share),
        line,
        {"memory share": "the update rate relative to the memory bandwidth"},
    )


def _span(ends: Span) -> str:
    return f"{ends[0]:.3g}" if ends[0] == ends[1] else f"{ends[0]:.3g}..{ends[1]:.3g}"
