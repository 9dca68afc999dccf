"""Predict the computation time of one step, which consists of kernels and the optimizer's update.

The kernels (predict/kernels.py) are slower than the data sheet allows. This slowdown consists of effects that are
fitted to published training runs (predict/effects.py). The update runs at the rate of the GPU's memory. A measured
baseline replaces this whole computation. The baseline of one GPU corrects the predictions of other GPUs, because the
job's software is the same. For GPUs without a similar published run, a share of the best matrix multiplication is
assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.core.errors import UsageError
from bench.hardware import catalogue
from bench.hardware.catalogue import GpuModel
from bench.predict.effects import (
    EVERYTHING,
    RARE,
    SD_PLACE,
    SD_RARE,
    SD_RUN,
    SD_SOURCE,
    TERMS,
    Effect,
    FittedEffects,
    effects_of,
    published_effects,
)
from bench.predict.kernels import RATES, Rates, kernels, no_rate, product_share
from bench.predict.layout import ParallelLayout, width
from bench.predict.operations import flops_per_sample, repeated_passes
from bench.predict.workload import LOW_PRECISION, NF4, ModelSizes, Span, Workload

if TYPE_CHECKING:
    from bench.predict.draws import Draws

# Assumption: the rate of a training step / the rate of the best matrix multiplication on the same GPU. All machines
# share one draw.
MATMUL_SHARE: Span = (0.35, 0.75)
# Assumption: the factor by which the ratio of a GPU model deviates from MATMUL_SHARE. Each model has its own draws.
GPU_DEVIATION: Span = (0.85, 1.15)
# Assumption: the rate of the optimizer's update / the data sheet's memory bandwidth. All machines share one draw.
MEMORY_SHARE: Span = (0.6, 0.9)
# Standard deviation of the logarithm of a step's computation, in addition to the fitted effects, for a type of model
# without published runs (`published_kind`).
SD_OTHER_KIND = 0.15
_WITHOUT_RUNS = ("trainium",)  # architectures to which no published run is similar


def published_kind(model: ModelSizes) -> bool:
    """Return whether the model is a language model, like the models of the published runs.

    A language model has a vocabulary.
    """
    return model.vocabulary is not None


@dataclass(frozen=True, slots=True)
class Compute:
    """The computation of one step on one GPU, in seconds, as draws.

    `basis`: "measured" (by a baseline) or "assumed".
    `unknowns`: the description of each unknown quantity, by the name of its draws.
    `lines`: the derivation.
    `verified`: whether all figures have a source.
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
    effects: FittedEffects | None = None,
) -> Compute:
    """Predict the computation of one GPU in a step.

    `rates`: the rates that the user's runs measured. These rates replace published rates.
    `effects`: the effects that replace the effects fitted to all published runs. Validation passes effects that were
        fitted without the held-out runs.

    Raises UsageError if no rate is known for the element type.
    """
    workload = found.workload
    samples = workload.batch * workload.accumulation
    mesh = workload.mesh
    parts = mesh.tensor * mesh.pipeline * mesh.context
    if gpu.name in workload.baselines:
        low, high = workload.baselines[gpu.name]
        name = f"baseline {gpu.name}"
        passes_s = samples / parts / draws.between(name, low, high)
        rate = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        line = (
            f"measured baseline (given): one {gpu.name} alone processes {rate} samples/s; {samples} samples / {parts}"
        )
        return Compute(passes_s, 0 * passes_s, "measured", {name: f"the baseline of {gpu.name}"}, (line,), True)
    flops, derivation = flops_per_sample(workload.model, workload.lora)
    repeated = repeated_passes(workload)
    total = f"x {samples} samples per GPU / {parts}"
    total += f" x {repeated:.3g} (repeated forward pass)" if repeated > 1 else ""
    total += f" = {flops * repeated * samples / parts / 1e12:.4g} TFLOP per GPU and step"
    update_s, update_line, unknowns = _update(found, gpu, draws)
    given = workload.efficiency.get(gpu.name, workload.efficiency.get(""))
    if given is None and _resembles(workload, gpu):
        passes_s, lines, fitted = _fitted(found, gpu, draws, rates or {}, effects or published_effects())
        return Compute(
            passes_s, update_s, "published", fitted | unknowns, (derivation, total, *lines, update_line), gpu.verified
        )
    achieved, line, assumed, verified = _assumed(found, gpu, draws, rates or {}, given)
    passes_s = flops * repeated * samples / parts / achieved
    read = verified and (gpu.verified or gpu.memory_bytes_per_s is None)
    return Compute(passes_s, update_s, "assumed", assumed | unknowns, (derivation, total, line, update_line), read)


def _resembles(workload: Workload, gpu: GpuModel) -> bool:
    """Return whether the effects of published runs apply to this job.

    The effects apply to element types of at most 2 bytes. The GPU's rate for this type must be known, and a published
    run must be on a similar architecture.
    """
    types = workload.compute in ("bfloat16", "float16", *LOW_PRECISION)
    return types and RATES[workload.compute] in gpu.flops and not gpu.architecture.startswith(_WITHOUT_RUNS)


def _measured_words(gpu: GpuModel, rates: Rates) -> str:
    """Return, as text, the rate of matrix products that the user's run measured, or "" if no run measured this rate."""
    rate = rates.get((gpu.name, "bf16"))
    return "" if rate is None else f"your run: {rate / 1e12:.4g} TFLOP/s in bf16"


def _fitted(
    found: ParallelLayout, gpu: GpuModel, draws: Draws, rates: Rates, effects: FittedEffects
) -> tuple[Any, tuple[str, ...], dict[str, str]]:
    """Return the duration of the passes in seconds as draws, its derivation, and the unknown quantities.

    The fitted effects are included in these seconds.

    A baseline of another GPU shows how much the job's software differs from the software of the published runs.
    """
    passes_s, exponents, unknowns = _passes(found, gpu, draws, rates, effects)
    each, (share, measurer) = kernels(found, gpu, rates), product_share(gpu, rates)
    whose = {"measured": "your run", "published": "published", "typical": "typical of other GPUs"}[measurer]
    dense = gpu.flops[RATES[found.workload.compute]]
    seconds = (each.products_s, each.attention_s, each.memory_s)
    terms = [
        f"{name} {1e3 * value:.3g} ms x {math.exp(float(exponent.mean())):.3g}"
        for name, value, exponent in zip(TERMS, seconds, exponents, strict=True)
        if value
    ]
    lines = (
        f"{dense / 1e12:.4g} TFLOP/s ({found.workload.compute}, dense: {gpu.source}) x {share:.3g} (best matrix "
        f"product, {_measured_words(gpu, rates) or whose})",
        f"{' + '.join(terms)} (factors of published training runs)",
    )
    for name, (low, high) in found.workload.baselines.items():
        other = catalogue.gpu(name)
        if not _resembles(found.workload, other):
            continue  # there is no rate to which this baseline can be compared
        expected_s, _, others = _passes(found, other, draws, rates, effects)
        update_s, _, _ = _update(found, other, draws)
        mesh = found.workload.mesh
        alone = found.workload.batch * found.workload.accumulation / (mesh.tensor * mesh.pipeline * mesh.context)
        measured_s = alone / draws.between(f"baseline {name}", low, high)
        factor = measured_s / (expected_s + update_s)
        line = (
            f"x {_span((float(factor.min()), float(factor.max())))} (the measured baseline of {name} / its prediction)"
        )
        unknowns |= others | {f"baseline {name}": f"the baseline of {name}"}
        return passes_s * factor, (*lines, line), unknowns
    return passes_s, lines, unknowns


def _passes(
    found: ParallelLayout, gpu: GpuModel, draws: Draws, rates: Rates, effects: FittedEffects
) -> tuple[Any, tuple[Any, ...], dict[str, str]]:
    """Return the duration of the passes in seconds, the exponent of each term, and the unknown quantities.

    The function does not use baselines.
    """
    workload = found.workload
    asked = effects_of(gpu, workload, product_share(gpu, rates)[1])
    unknowns = {
        "training software": "the speed of the job's software and settings (the same on every GPU)",
        f"gpu {gpu.name}": f"the training rate of {gpu.name} relative to other GPUs",
    }
    rare = SD_RARE**2 if any(effect.name in RARE for effect in asked) else 0.0
    shared = SD_RUN**2 / 2 + rare + (0.0 if published_kind(workload.model) else SD_OTHER_KIND**2)
    shared += SD_SOURCE[EVERYTHING] ** 2
    common = math.sqrt(shared) * draws.normal("training software")
    own = SD_PLACE**2 + SD_RUN**2 / 2
    common = common + math.sqrt(own) * draws.normal(f"gpu {gpu.name}")
    exponents = {
        term: common + (SD_SOURCE[term] * draws.normal(f"training {term}") if term in SD_SOURCE else 0.0)
        for term in TERMS
    }
    for effect in asked:
        drawn = _drawn(effect, effects, draws)
        for term in TERMS if effect.target == EVERYTHING else (effect.target,):
            exponents[term] = exponents[term] + drawn
        unknowns[f"effect {effect.name}"] = f"the exact size of the effect `{effect.name}`"
    each = kernels(found, gpu, rates)
    if each.attention_s:
        unknowns["training attention"] = "the speed of the job's attention kernels (the same on every GPU)"
    if each.memory_s:
        unknowns["training memory"] = "the speed of the job's memory-bound kernels (the same on every GPU)"
    import numpy as np

    passes_s = sum(
        seconds * np.exp(exponents[term])
        for term, seconds in zip(TERMS, (each.products_s, each.attention_s, each.memory_s), strict=True)
    )
    return passes_s, tuple(exponents[term] for term in TERMS), unknowns


def _drawn(effect: Effect, effects: FittedEffects, draws: Draws) -> Any:
    """Return draws of an effect. The draws of different effects are correlated in the same way as in the fit."""
    _, known = draws.effects.setdefault(id(effects), (effects, {}))
    if effect.name not in known:
        known[effect.name] = _drawn_once(effect, effects, draws)
    return known[effect.name]


def _drawn_once(effect: Effect, effects: FittedEffects, draws: Draws) -> Any:
    if effect.name not in effects.names:
        return effect.mean + effect.deviation * draws.normal(f"effect {effect.name}")
    row = effects.factor[effects.names.index(effect.name)]
    drawn = effects.mean(effect) * draws.ones
    for name, weight in zip(effects.names, row, strict=True):
        if weight:
            drawn = drawn + weight * draws.normal(f"effect {name}")
    return drawn


def _assumed(
    found: ParallelLayout, gpu: GpuModel, draws: Draws, rates: Rates, given: Span | None
) -> tuple[Any, str, dict[str, str], bool]:
    """Return the FLOP/s of one GPU in training, from the share that the user gave or from an assumed share.

    The result has the FLOP/s as draws, their derivation, the unknown quantities, and whether all figures have a source.
    """
    workload = found.workload
    dense = gpu.flops.get(RATES.get(workload.compute, ""))
    if given is not None:
        if dense is None:
            raise no_rate(gpu, workload.compute)
        name = f"efficiency {gpu.name}" if gpu.name in workload.efficiency else "efficiency"
        line = f"{_span(given)} (given) of {dense / 1e12:.4g} TFLOP/s ({workload.compute}, dense: {gpu.source})"
        return dense * draws.between(name, *given), line, {name: "the achieved part of the peak rate"}, gpu.verified
    rate, rate_line, unknowns, verified = _multiplication(gpu, workload.compute, draws, rates)
    of_rate, share_line, shared = _share(found, draws, rates)
    unknowns |= shared | {f"gpu {gpu.name}": f"the training rate of {gpu.name} relative to other GPUs"}
    line = f"{rate_line}; {share_line} x {_span(GPU_DEVIATION)} (assumed deviation of this GPU)"
    return rate * of_rate * draws.between(f"gpu {gpu.name}", *GPU_DEVIATION), line, unknowns, verified


def _multiplication(gpu: GpuModel, dtype: str, draws: Draws, rates: Rates) -> tuple[Any, str, dict[str, str], bool]:
    """Return the FLOP/s of a matrix multiplication.

    The function prefers the rate that the user measured, then the published rate, then a rate derived from other GPUs.
    """
    own = rates.get((gpu.name, RATES.get(dtype, "")))
    if own is not None:
        line = f"matrix multiplication {own / 1e12:.4g} TFLOP/s ({dtype}, measured: slowest GPU of your run)"
        return own * draws.ones, line, {}, True
    if dtype == "bfloat16" and gpu.measured_bf16_flops is not None:
        rate = gpu.measured_bf16_flops
        line = f"best measured matrix multiplication {rate / 1e12:.4g} TFLOP/s (published: {gpu.source})"
        return rate * draws.ones, line, {}, True
    dense = gpu.flops.get(RATES.get(dtype, ""))
    if dense is None:
        raise no_rate(gpu, dtype)
    low, high = _matmul_range()
    name = f"matmul {gpu.name}"
    line = (
        f"{dense / 1e12:.4g} TFLOP/s ({dtype}, dense: {gpu.source}) x {_span((low, high))} (derived from matrix "
        "multiplications on other GPUs)"
    )
    words = {name: f"the rate of matrix multiplication on {gpu.name}"}
    return dense * draws.between(name, low, high), line, words, gpu.verified


def _share(found: ParallelLayout, draws: Draws, rates: Rates) -> tuple[Any, str, dict[str, str]]:
    """Return the training rate divided by the rate of matrix multiplication.

    The ratio is derived from the baseline of another GPU. Without a baseline of another GPU, the ratio is assumed.
    """
    workload = found.workload
    for name, (low, high) in workload.baselines.items():
        other = catalogue.gpu(name)
        try:
            rate, _, unknowns, _ = _multiplication(other, workload.compute, draws, rates)
            flops = flops_per_sample(workload.model, workload.lora)[0] * repeated_passes(workload)
        except UsageError:
            continue  # there is no rate to which this baseline can be compared
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


@cache
def _matmul_range() -> Span:
    """Return the smallest and the largest ratio of measured to nominal bf16 matrix rate among NVIDIA GPUs.

    Only GPUs in the catalogue are considered. The nominal rate is the rate of the data sheet.
    """
    every = [catalogue.gpu(name) for name in catalogue.gpus()]
    shares = [
        gpu.measured_bf16_flops / gpu.flops["bf16"]
        for gpu in every
        if gpu.measured_bf16_flops and "bf16" in gpu.flops and not gpu.architecture.startswith("cdna")
    ]
    return min(shares), max(shares)


def update_bytes(found: ParallelLayout) -> tuple[float, float]:
    """Return the bytes that the optimizer's update moves in GPU memory.

    The first value is the number of bytes per GPU. The second value is the number of bytes per parameter.

    The update reads the gradient, and reads and writes the weight and the states.
    """
    workload = found.workload
    # the adapters of QLoRA are not quantised
    stored = workload.gradients if workload.weights == NF4 else workload.weights
    each = width(workload.gradients) + 2 * (width(stored) + workload.state_bytes)
    trained, experts = found.trained / found.shards("dense"), found.trained_experts / found.shards("experts")
    return each * (trained + experts), each


def _update(found: ParallelLayout, gpu: GpuModel, draws: Draws) -> tuple[Any, str, dict[str, str]]:
    """Return the duration of the optimizer's update in seconds."""
    if gpu.memory_bytes_per_s is None:
        return 0 * draws.ones, f"the optimizer's update is left out: the memory bandwidth of {gpu.name} is unknown", {}
    num_bytes, each = update_bytes(found)
    share = draws.between("memory share", *MEMORY_SHARE)
    line = (
        f"update: {num_bytes / 1e9:.4g} GB ({each:.3g} bytes per parameter) at {_span(MEMORY_SHARE)} (assumed) of "
        f"{gpu.memory_bytes_per_s / 1e9:.4g} GB/s ({gpu.source})"
    )
    return (
        num_bytes / (gpu.memory_bytes_per_s * share),
        line,
        {"memory share": "the update rate relative to the memory bandwidth"},
    )


def _span(ends: Span) -> str:
    return f"{ends[0]:.3g}" if ends[0] == ends[1] else f"{ends[0]:.3g}..{ends[1]:.3g}"
