"""Compute the work of a training step, summed over all ranks: samples, tokens and operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.core.residual import Residual
from bench.core.step_model import Transformer
from bench.core.step_plan import StepPlan
from bench.predict.operations import flops_per_sample
from bench.predict.workload import ModelSizes


def work_of(plan: StepPlan, of_ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the work of a step, with the keys of `StepSamples.work`.

    The result is empty for a model whose layers only sleep. The number of operations follows from a formula. If torch
    counted the operations on all ranks, the result also contains the sum of torch's counts.

    `of_ranks`: the counts of each rank (`CountsWork.work`).
    """
    if plan.model is None:
        return {}
    samples = plan.num_data_ranks * plan.num_micro_batches * plan.model.samples
    model, by_formula = plan.model, dict[str, float]()
    if isinstance(model, Transformer):
        by_formula["tokens"] = float(samples * model.tokens)
    if not model.head_only:  # no formula says how much a backward pass saves that ends at the head
        by_formula["flops"] = float(samples * _flops_per_sample(model))
    counted = {name for own in of_ranks for name in own if all(name in other for other in of_ranks)}
    return {
        "samples": float(samples),
        **by_formula,
        **{name: float(sum(own[name] for own in of_ranks)) for name in sorted(counted)},
    }


def _flops_per_sample(model: Transformer | Residual) -> float:
    if isinstance(model, Residual):
        return model.flops
    return flops_per_sample(_sizes(model), model.adapter_rank or None)[0]


def _sizes(model: Transformer) -> ModelSizes:
    """Return the sizes for the formula of `linkbench select`.

    The formula counts the elements of all layer matrices and of both vocabulary matrices as parameters.
    """
    return ModelSizes(
        parameters=float(model.layers * model.layer_matrices + 2 * model.hidden * model.vocabulary),
        layers=model.layers,
        hidden=model.hidden,
        feedforward=model.feedforward,
        heads=model.heads,
        kv_heads=model.kv_heads,
        vocabulary=model.vocabulary or None,
        tokens=model.tokens,
        gated=model.gated,
        experts=model.experts,
        active_experts=model.active_experts,
    )
