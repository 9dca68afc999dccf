"""Compute the work of a training step: matrix multiplications, attention, bytes of other kernels, and repeated work.

The numbers of operations follow Chowdhery et al., "PaLM" (2022, appendix B). Each active parameter needs 6 operations
per token. Attention needs 12 x layers x width x tokens^2 operations, because no causal mask is assumed. With low-rank
adapters, the gradients of the frozen weights are not computed, which leaves 4 operations per parameter and token (Hu et
al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.dtypes import dtype_of
from bench.core.errors import UsageError
from bench.predict.messages import Refusal
from bench.predict.workload import ModelSizes, Workload

_REPEATED_FORWARD = {"none": 0.0, "selective": 0.5, "full": 1.0}  # forward passes that are computed again
# Elements that kernels other than matrix multiplications and attention read and write in the forward pass: norms,
# residuals, position embeddings (per token and hidden element), the activation of the feed-forward block (per element
# of its width), and the cross entropy (per word). The backward pass moves twice as much.
_LAYER_ELEMENTS, _BLOCK_ELEMENTS, _WORD_ELEMENTS = 16, 3, 8


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one sample in the forward and backward pass, and the part of the forward pass that is repeated.

    `products`: the number of operations in matrix multiplications.
    `attention`: operations of attention.
    `bytes`: the bytes that other kernels read and write in GPU memory, or 0 if layer sizes are unknown.
    """

    products: float
    attention: float
    bytes: float

    @property
    def operations(self) -> float:
        """All operations."""
        return self.products + self.attention


def repeated_passes(workload: Workload) -> float:
    """Return (operations with recomputation) / (operations without recomputation): 1, 7/6 or 4/3.

    With adapters, the result is 1, 5/4 or 3/2.
    """
    return 1 + _REPEATED_FORWARD[workload.recompute] * forward_share(workload)


def forward_share(workload: Workload) -> float:
    """Return the share of the forward pass in the operations of both passes, without repeated operations."""
    return 1 / 3 if workload.lora is None else 1 / 2


def flops_per_sample(model: ModelSizes, lora: int | None = None) -> tuple[float, str]:
    """Return the number of operations for one sample in both passes, and the derivation of this number.

    `lora`: the rank of the low-rank adapters. If `lora` is set, all other weights are frozen.

    Raises UsageError if the number is unknown.
    """
    if model.flops_per_sample is not None:
        return model.flops_per_sample, f"{model.flops_per_sample:.4g} FLOP per sample (given)"
    if model.residual is not None:
        found = float(model.residual.flops)
        return found, f"3 x 2 x weights x pixels of each convolution = {found / 1e12:.4g} TFLOP per sample"
    active, tokens, width = model.active_parameters, model.tokens, model.attention_width
    if active is None or tokens is None or model.layers is None or width is None:
        raise UsageError.of(Refusal.FLOPS_UNKNOWN)
    each = 6 if lora is None else 4
    dense, attention = each * active * tokens, 12 * model.layers * width * tokens**2
    derivation = (
        f"{each} x {active:.4g} parameters x {tokens} tokens + 12 x {model.layers} x {width} x {tokens}^2 (attention)"
        f" = {(dense + attention) / 1e12:.4g} TFLOP per sample"
    )
    return dense + attention, derivation


def work(workload: Workload) -> Work:
    """Return the work of one sample, including repeated operations.

    Raises UsageError if the operations of the sample are unknown.
    """
    model = workload.model
    repeated, operations = repeated_passes(workload), flops_per_sample(model, workload.lora)[0]
    if model.flops_per_sample is not None or model.layers is None or model.tokens is None:
        return Work(operations * repeated, 0.0, 0.0)
    attention = 12.0 * model.layers * (model.attention_width or 0) * model.tokens**2
    hidden = model.hidden or 0
    block = (model.feedforward or 4 * hidden) * model.active_experts * (2 if model.gated else 1)
    layer = _LAYER_ELEMENTS * hidden + _BLOCK_ELEMENTS * block
    elements = model.tokens * (model.layers * layer * repeated + _WORD_ELEMENTS * (model.vocabulary or 0))
    return Work(
        products=(operations - attention) * repeated,
        attention=attention * repeated,
        bytes=3 * elements * dtype_of(workload.element).num_bytes,
    )
