"""Compute rates, utilisation, memory, energy and price from the time of a training step."""

from __future__ import annotations

from dataclasses import replace

from bench.core.record import StepSamples
from bench.results.document import Document
from bench.results.training_rows import StepRates, TrainedStep

# If the formula and torch count operations that differ by more than this share, the row is flagged.
_FLOPS_APART = 0.05


def rates(step: StepSamples, step_s: float, num_ranks: int) -> StepRates:
    """Return the rates of a step of `step_s` seconds.

    Some models, such as timed layers, have no samples. For these models, the batch of one rank counts as one sample.
    """
    work = step.work
    samples = work.get("samples", float(num_ranks))
    tokens, flops, peak = work.get("tokens"), work.get("flops"), work.get("peak_flops_per_s")
    counted = work.get("counted_flops")
    joules = sum(step.energy_j) if step.energy_j else None
    return StepRates(
        samples=samples,
        samples_per_s=samples / step_s,
        tokens_per_s=None if tokens is None else tokens / step_s,
        flops_per_s=None if flops is None else flops / step_s,
        mfu=None if flops is None or not peak else flops / step_s / peak,
        counted_over_formula=counted / flops if counted is not None and flops else None,
        peak_bytes={where: tuple(by_rank) for where, by_rank in step.peak_bytes.items()},
        predicted_bytes=step.predicted_bytes,
        joules_per_sample=None if joules is None else joules / samples,
        usd_per_sample=None,
    )


def flops_apart(step: StepSamples) -> bool:
    """Check whether the operations counted by torch differ by more than 5 % from the operations by the formula."""
    flops, counted = step.work.get("flops"), step.work.get("counted_flops")
    return bool(flops) and counted is not None and abs(counted / (flops or 1.0) - 1) > _FLOPS_APART


def at_step(found: StepRates, step_s: float) -> StepRates:
    """Return the rates of a step that takes `step_s` seconds instead of its measured time."""
    factor = found.samples / step_s / found.samples_per_s

    def scaled(value: float | None) -> float | None:
        return None if value is None else value * factor

    return replace(
        found,
        samples_per_s=found.samples / step_s,
        tokens_per_s=scaled(found.tokens_per_s),
        flops_per_s=scaled(found.flops_per_s),
        mfu=scaled(found.mfu),
    )


def priced(document: Document, usd_per_rank_hour: float) -> Document:
    """Return the document with a price per sample in each training step."""
    return replace(document, steps=tuple(_priced(one, usd_per_rank_hour) for one in document.steps))


def _priced(one: TrainedStep, usd_per_rank_hour: float) -> TrainedStep:
    usd_per_s = usd_per_rank_hour * one.num_ranks / 3600
    return replace(one, rates=replace(one.rates, usd_per_sample=usd_per_s / one.rates.samples_per_s))
