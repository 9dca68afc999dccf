"""Compute the GPU memory that a training job needs.

Weights, gradients and optimizer states are exact, and activations are an estimate.

The formulas for weights, gradients and optimizer states are from Rajbhandari et al., "ZeRO" (SC20, section 5). The
formula for activations is from Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(2022, equation 1), without the attention matrix, which fused attention never stores. Memory of the runtime, library
buffers and fragmentation are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.errors import UsageError
from bench.predict.messages import Refusal
from bench.predict.training import ParallelLayout, width
from bench.predict.workload import OPTIMIZERS

_BYTES_PER_ELEMENT = 34  # activations of one layer with 2-byte elements: 34 x tokens x batch x hidden
_BYTES_KEPT = 2  # with full recomputation, only the input of each layer is kept
# One element of the output layer: logits in 2 bytes and as float32. Programs that keep a float32 gradient need more.
_OUTPUT_BYTES = 6
_FIRST_SHARDED_STAGE = {"weights": 3, "gradients": 2, "optimizer": 1}  # the first stage of ZeRO that shards it
_STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory that one GPU needs: the bytes of each part by its name, and how each part was calculated."""

    parts: dict[str, float]
    calculations: dict[str, str]

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return sum(self.parts.values())

    @property
    def calculation(self) -> str:
        """Each part in GB with its calculation, as text: `weights 1.2 (3e+08 x 4 bytes), ...`."""
        lines = (f"{name} {size / 1e9:.3g} ({self.calculations[name]})" for name, size in self.parts.items())
        return ", ".join(lines)


class OutOfMemoryError(UsageError):
    """An error: the job needs more memory than the GPU has. `summary`: the message without the calculation."""

    def __init__(self, need: MemoryNeed, memory_bytes: float, gpu: str) -> None:
        """`memory_bytes`: the memory of one GPU in bytes."""
        facts = {"needed_gb": need.total / 1e9, "memory_gb": memory_bytes / 1e9, "gpu": gpu}
        self.need = need
        self.summary = Refusal.OUT_OF_MEMORY.words(facts)
        self.code, self.facts = str(Refusal.OUT_OF_MEMORY), facts | {"calculation": need.calculation}
        super().__init__(Refusal.OUT_OF_MEMORY.words(self.facts))


def memory_need(found: ParallelLayout) -> MemoryNeed:
    """Return the memory that one GPU needs during training."""
    workload = found.workload
    stage = _STAGES[workload.strategy]
    master_weights = 0 if workload.weights == "float32" else 4
    bytes_each = {
        "weights": width(workload.weights),
        "gradients": width(workload.gradients),
        "optimizer": OPTIMIZERS[workload.optimizer] + master_weights,
    }
    parts, calculations = {}, {}
    for name, each in bytes_each.items():
        dense_shards = expert_shards = 1
        calculation = f"{found.dense + found.experts:.3g} x {each} bytes"
        if stage >= _FIRST_SHARDED_STAGE[name]:
            dense_shards, expert_shards = found.shards("dense"), found.shards("experts")
            calculation += f" / {dense_shards}"
            if found.experts:
                calculation += f", experts / {expert_shards}"
        parts[name] = each * (found.dense / dense_shards + found.experts / expert_shards)
        calculations[name] = calculation
    activations, calculation = _activations(found)
    if activations:
        parts["activations"], calculations["activations"] = activations, calculation
    return MemoryNeed(parts, calculations)


def _activations(found: ParallelLayout) -> tuple[float, str]:
    """Return the bytes of the activations, and their calculation as text; 0 if the layers are unknown."""
    workload, model, mesh = found.workload, found.workload.model, found.workload.mesh
    if None in (model.layers, model.hidden, model.tokens):
        return 0.0, ""
    elements = workload.batch * (model.tokens or 0) * (model.hidden or 0) * width(workload.compute) / 2
    in_flight = min(mesh.pipeline, workload.accumulation)
    layers = found.stage_layers * in_flight
    if workload.recompute == "full":
        total = elements * (_BYTES_KEPT * layers + _BYTES_PER_ELEMENT / mesh.tensor)
        words = f"{_BYTES_KEPT} bytes x {layers} layers + {_BYTES_PER_ELEMENT} bytes of one layer, each"
    elif workload.recompute == "selective":
        each = (_BYTES_PER_ELEMENT + _BYTES_KEPT) / 2
        total = elements * each * layers / mesh.tensor
        words = f"{each:g} bytes x {layers} layers"
    else:
        total = elements * _BYTES_PER_ELEMENT * layers / mesh.tensor
        words = f"{_BYTES_PER_ELEMENT} bytes x {layers} layers"
    words += f" x {workload.batch} x {model.tokens} tokens x {model.hidden}, estimated"
    if model.vocabulary and mesh.pipeline == 1:
        total += workload.batch * (model.tokens or 0) * model.vocabulary * _OUTPUT_BYTES / mesh.tensor
        words += f", plus {_OUTPUT_BYTES} bytes per element of the output layer"
    return total, words
