"""Compute the GPU memory that a training job needs: an estimate, and a lower bound for any program.

Weights, gradients and optimizer states are exact (Rajbhandari et al., "ZeRO", SC20, section 5). Activations are the
inputs that the backward pass needs, as in Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models" (2022, section 4). The estimate omits dropout masks. The estimate also omits the attention matrix, because fused
attention never stores this matrix. The paper's layer has multi-head attention and two feed-forward matrices. In this
module, the size of keys and values depends on `kv_heads`. The size of the feed-forward block depends on its width, on
its gate, and on the number of experts per token. Memory of the runtime, library buffers and fragmentation are not
counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.errors import UsageError
from bench.predict.layout import ParallelLayout, width
from bench.predict.messages import Refusal
from bench.predict.workload import LOSSES

_GATHERED_LAYERS = 2  # ZeRO 3 gathers a layer's weights while it computes another layer
_FIRST_SHARDED_STAGE = {"weights": 3, "gradients": 2, "optimizer": 1}  # the first stage of ZeRO that shards each part
_STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory that one GPU needs: the bytes of each part by name, and the calculation of each part.

    `least`: the lower bound of the sum of all parts, in bytes.
    """

    parts: dict[str, float]
    calculations: dict[str, str]
    least: float

    @property
    def total(self) -> float:
        """The estimated memory in bytes, which is the sum of all parts."""
        return sum(self.parts.values())

    @property
    def calculation(self) -> str:
        """Each part in GB with its calculation, as text: `weights 1.2 (3e+08 x 4 bytes), ...`."""
        lines = (f"{name} {size / 1e9:.3g} ({self.calculations[name]})" for name, size in self.parts.items())
        return ", ".join(lines)


class OutOfMemoryError(UsageError):
    """A job needs more memory than the GPU has, even according to the lower bound.

    `summary`: the message without the calculation.
    """

    def __init__(self, need: MemoryNeed, memory_bytes: float, gpu: str) -> None:
        """Build the message.

        `memory_bytes`: the memory of one GPU in bytes.
        """
        facts = {
            "needed_gb": need.least / 1e9,
            "estimated_gb": need.total / 1e9,
            "memory_gb": memory_bytes / 1e9,
            "gpu": gpu,
        }
        self.need = need
        self.summary = Refusal.OUT_OF_MEMORY.words(facts)
        self.code, self.facts = str(Refusal.OUT_OF_MEMORY), facts | {"calculation": need.calculation}
        super().__init__(Refusal.OUT_OF_MEMORY.words(self.facts))


def refused(need: MemoryNeed, memory_bytes: float | None) -> bool:
    """Return whether the job certainly does not fit in the GPU's memory. If the memory size is unknown, return False.

    In data sheets, GB may mean 10^9 bytes or 2^30 bytes: an A100 of "40 GB" has 40,960 MiB. The larger size is assumed.
    """
    return memory_bytes is not None and need.least > memory_bytes / 1e9 * 2**30


def memory_need(found: ParallelLayout) -> MemoryNeed:
    """Return the memory that one GPU needs during training."""
    workload = found.workload
    stage = _STAGES[workload.strategy]
    bytes_each = {
        "weights": width(workload.weights),
        "gradients": width(workload.gradients),
        "optimizer": workload.state_bytes,
    }
    parts, calculations = {}, {}
    for name, each in bytes_each.items():
        dense_shards = expert_shards = 1
        dense, experts = found.dense, found.experts
        if name != "weights":  # only trained parameters have gradients and states
            dense, experts = found.trained, found.trained_experts
        calculation = f"{dense + experts:.3g} x {each:.3g} bytes"
        if stage >= _FIRST_SHARDED_STAGE[name]:
            dense_shards, expert_shards = found.shards("dense"), found.shards("experts")
            calculation += f" / {dense_shards}"
            if experts:
                calculation += f", experts / {expert_shards}"
        parts[name] = each * (dense / dense_shards + experts / expert_shards)
        calculations[name] = calculation
    least = sum(parts.values())
    for name, (estimate, bound, calculation) in _estimates(found).items():
        parts[name], calculations[name] = estimate, calculation
        least += bound
    return MemoryNeed(parts, calculations, least)


def _estimates(found: ParallelLayout) -> dict[str, tuple[float, float, str]]:
    """Return the estimated parts by name. Each part has its bytes, their lower bound, and the calculation.

    The result is empty if sizes of the model are unknown.
    """
    workload, model, mesh = found.workload, found.workload.model, found.workload.mesh
    if model.layers is None or model.hidden is None or model.tokens is None:
        return {}
    parts = {}
    element = width(workload.element)
    tokens = workload.batch * model.tokens / mesh.context
    scale = tokens * model.hidden * element / 2
    # The first stage keeps as many micro-batches as there are stages. An interleaved schedule adds a fraction
    # (Korthikanti et al. 2022, section 4.2.3).
    layers = float(found.stage_layers * min(mesh.pipeline, workload.accumulation))
    if mesh.interleave > 1:
        layers = layers * (1 + (mesh.pipeline - 1) / (mesh.pipeline * mesh.interleave))
    computed, computed_least = _layer_bytes(found)
    kept, kept_least = _kept_bytes(found)
    # A layer whose forward pass is repeated is in memory as a whole.
    repeated, repeated_least = (0.0, 0.0) if workload.recompute == "none" else (computed, computed_least)
    words = f"({kept:.3g} bytes x {layers:g} layers"
    words += f" + {repeated:.3g} bytes of a layer computed again)" if repeated else ")"
    words += f" x {workload.batch} x {model.tokens // mesh.context} tokens x {model.hidden}"
    estimate, least = scale * (kept * layers + repeated), scale * (kept_least * layers + repeated_least)
    parts["activations"] = estimate, least, f"{words}, estimated; at least {least / 1e9:.3g}"
    if model.vocabulary and mesh.pipeline == 1:
        # Some programs compute the loss in pieces, so the lower bound of this part is 0.
        per_logit = LOSSES[workload.loss]
        output = tokens * model.vocabulary * per_logit / mesh.tensor
        words = f"{per_logit} bytes x {workload.batch} x {model.tokens // mesh.context} tokens x {model.vocabulary}"
        words += f" / {mesh.tensor}" if mesh.tensor > 1 else ""
        if _gathers(found):
            output += 2 * scale
            words += f" + 2 bytes x {model.hidden} of gathered input"
        parts["output layer"] = output, 0.0, f"{words}, estimated; none if the loss is computed in pieces"
    if workload.strategy == "zero3":
        each = (found.dense + found.experts) / found.stage_layers
        gathered = _GATHERED_LAYERS if mesh.pipeline == 1 else found.stage_layers
        words = f"{gathered} layers x {each:.3g} x {element} bytes, estimated"
        parts["gathered weights"] = gathered * each * element, 0.0, words
    return parts


def _gathers(found: ParallelLayout) -> bool:
    """Return whether tensor-parallel ranks keep the gathered inputs of matrices."""
    mesh = found.workload.mesh
    return mesh.tensor > 1 and mesh.sequence and not found.workload.fused


def _layer_bytes(found: ParallelLayout) -> tuple[float, float]:
    """Return the bytes of one layer's activations, and the lower bound of these bytes.

    The bytes are counted per token and hidden element, with 2 bytes per element.

    The lower bound includes only values that cannot be recomputed without a matrix multiplication. These values are the
    inputs of the norms, the queries, the keys, the values, the output of attention, and the results of the first matrix
    products of the feed-forward block. Without sequence parallelism, tensor parallelism does not divide the inputs of
    norms and matrices. With sequence parallelism, tensor parallelism divides all activations. With sequence
    parallelism, PyTorch keeps the gathered inputs of matrices until the backward pass. Megatron-LM does not keep the
    inputs, but gathers them again in the backward pass (Korthikanti et al. 2022, section 4.2.2).
    """
    model, mesh = found.workload.model, found.workload.mesh
    attention, block = _attention_bytes(found), _block_bytes(found)
    norms, inputs = 4, 2 + 2 * model.active_experts
    undivided = mesh.tensor if not mesh.sequence else 1
    # A gated block keeps two products, the activation of one of them, and their product. A plain block keeps a product
    # and its activation.
    gathered = mesh.tensor if _gathers(found) else undivided
    computed = norms * undivided + inputs * gathered + attention + 2 * block
    least = norms * undivided + attention + block
    return computed / mesh.tensor, least / mesh.tensor


def _kept_bytes(found: ParallelLayout) -> tuple[float, float]:
    """Return the bytes that the forward pass keeps of each layer, and their lower bound.

    The unit is the same as in `_layer_bytes`.

    Selective recomputation works like torchtitan's option `op`. Selective recomputation keeps the layer's input, the
    output of attention, and the results of half of the matrix multiplications. Full recomputation keeps the layer's
    input.
    """
    workload, mesh = found.workload, found.workload.mesh
    layer_input = 2 / (mesh.tensor if mesh.sequence else 1)
    if workload.recompute == "none":
        return _layer_bytes(found)
    if workload.recompute == "full":
        return layer_input, layer_input
    # Queries, keys, values, the output projection (as wide as attention's output), and the block's multiplications.
    results = _attention_bytes(found) + _block_bytes(found) + 2
    kept = layer_input + (2 + results / 2) / mesh.tensor
    return kept, layer_input


def _attention_bytes(found: ParallelLayout) -> float:
    """Return the bytes of queries, keys, values and the output of attention, in the unit of _layer_bytes."""
    model = found.workload.model
    return (4 * (model.attention_width or 0) + 4 * model.shared_width) / (model.hidden or 1)


def _block_bytes(found: ParallelLayout) -> float:
    """Return the size of the first matrix products of a token's feed-forward blocks, in the unit of _layer_bytes."""
    model = found.workload.model
    hidden = model.hidden or 1
    wide = (model.feedforward or 4 * hidden) / hidden
    return 2 * wide * (2 if model.gated else 1) * model.active_experts
