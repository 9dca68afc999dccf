"""The operations of a training step, and how much of them recomputation repeats."""

from __future__ import annotations

from bench.core.errors import UsageError
from bench.predict.messages import Refusal
from bench.predict.workload import ModelSizes

REPEATED_PASSES = {"none": 1.0, "selective": 7 / 6, "full": 4 / 3}


def flops_per_sample(model: ModelSizes) -> tuple[float, str]:
    """Return the number of operations of a sample's forward and backward pass, and its derivation.

    Raises UsageError if it is unknown.
    """
    if model.flops_per_sample is not None:
        return model.flops_per_sample, f"{model.flops_per_sample:.4g} FLOP per sample (given)"
    active, tokens = model.active_parameters, model.tokens
    if active is None or tokens is None or model.layers is None or model.hidden is None:
        raise UsageError.of(Refusal.FLOPS_UNKNOWN)
    dense, attention = 6 * active * tokens, 12 * model.layers * model.hidden * tokens**2
    derivation = (
        f"6 x {active:.4g} parameters x {tokens} tokens + 12 x {model.layers} x {model.hidden} x {tokens}^2 (attention)"
        f" = {(dense + attention) / 1e12:.4g} TFLOP per sample"
    )
    return dense + attention, derivation
