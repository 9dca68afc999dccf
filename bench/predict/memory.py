"""Does a training job fit into a GPU's memory? Weights, gradients and optimizer exactly, activations by estimate.

States follow Rajbhandari et al., "ZeRO" (SC20, section 5), activations Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models" (2022, equation 1, without the attention matrix, which fused attention never
stores). What the runtime, the library's buffers and fragmentation take is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.errors import UsageError
from bench.predict.training import ParallelLayout, width
from bench.predict.workload import OPTIMIZERS

_BYTES_PER_ELEMENT = 34  # of one layer's activations at 2 bytes each: 34 x tokens x batch x hidden
_BYTES_KEPT = 2  # with full recomputation: the input of each layer


@dataclass(frozen=True, slots=True)
class Need:
    """What one GPU must hold, in bytes, by name; `why`: the arithmetic of each."""

    parts: dict[str, float]
    why: dict[str, str]

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.parts.values())

    @property
    def arithmetic(self) -> str:
        """`weights 1.2 (3e+08 x 4 bytes), ...`: each part in GB with its calculation."""
        return ", ".join(f"{name} {num_bytes / 1e9:.3g} ({self.why[name]})" for name, num_bytes in self.parts.items())


class DoesNotFitError(UsageError):
    """A job that needs more memory than the GPU has. `need`: what it needs; `summary`: the sentence without `need`."""

    def __init__(self, need: Need, memory_bytes: float, gpu: str) -> None:
        """`memory_bytes`: of one GPU."""
        has = f"{memory_bytes / 1e9:.3g} GB of a {gpu}"
        self.need = need
        self.summary = f"does not fit in memory: needs {need.total / 1e9:.3g} GB of the {has}"
        super().__init__(f"{self.summary}: {need.arithmetic}")


def need(found: ParallelLayout) -> Need:
    """What one GPU holds while it trains."""
    workload = found.workload
    stage = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[workload.strategy]
    optimizer = OPTIMIZERS[workload.optimizer] + (0 if workload.weights == "float32" else 4)
    bytes_each = {
        "weights": (width(workload.weights), 3),
        "gradients": (width(workload.gradients), 2),
        "optimizer": (optimizer, 1),
    }
    parts, why = {}, {}
    for name, (each, from_stage) in bytes_each.items():
        spread = {part: found.shards(part) if stage >= from_stage else 1 for part in ("dense", "experts")}
        parts[name] = each * (found.dense / spread["dense"] + found.experts / spread["experts"])
        why[name] = f"{found.dense + found.experts:.3g} x {each} bytes"
        if stage >= from_stage:
            why[name] += f" / {spread['dense']}" + (f", experts / {spread['experts']}" if found.experts else "")
    activations, words = _activations(found)
    if activations:
        parts["activations"], why["activations"] = activations, words
    return Need(parts, why)


def _activations(found: ParallelLayout) -> tuple[float, str]:
    """Bytes, and their arithmetic; 0 where the layers are unknown."""
    workload, model, mesh = found.workload, found.workload.model, found.workload.mesh
    if None in (model.layers, model.hidden, model.tokens):
        return 0.0, ""
    elements = workload.batch * (model.tokens or 0) * (model.hidden or 0) * width(workload.compute) / 2
    in_flight = min(mesh.pipeline, workload.accumulation)
    layers = found.stage_layers * in_flight
    if workload.recompute == "full":
        total = elements * (_BYTES_KEPT * layers + _BYTES_PER_ELEMENT / mesh.tensor)
        words = f"{_BYTES_KEPT} bytes x {layers} layers and one of {_BYTES_PER_ELEMENT}"
    else:
        total = elements * _BYTES_PER_ELEMENT * layers / mesh.tensor
        words = f"{_BYTES_PER_ELEMENT} bytes x {layers} layers"
    words += f" x {workload.batch} x {model.tokens} tokens x {model.hidden}, an estimate"
    if model.vocabulary and mesh.pipeline == 1:
        total += workload.batch * (model.tokens or 0) * model.vocabulary * 6 / mesh.tensor
        words += ", and 6 bytes for each of the output layer"
    return total, words
