"""Define which element types and reductions NCCL supports, and how data of other types are moved."""

from __future__ import annotations

from bench.core.codes import Code
from bench.core.program import Step
from bench.core.record import Skip
from bench.core.transport import Reduction
from bench.transports import _torch

_REDUCED = frozenset({"float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8"})
_FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})
_FLOAT8_SINCE, _FLOAT8_ON = (2, 24), (9, 0)  # NCCL's version, and the GPU's compute capability (Hopper)
_OPS = frozenset({"sum", "prod", "min", "max", "avg"})


class NcclRefusal(Code):
    """Why NCCL cannot run a step."""

    NO_REDUCTION = "nccl-no-reduction", "NCCL has no reduction {reduce_op}"
    NO_DTYPE = "nccl-no-dtype", "NCCL cannot reduce element type {dtype}"
    FLOAT8_VERSION = "nccl-float8-version", "NCCL {version} cannot reduce {dtype}; NCCL 2.24 and later can"
    FLOAT8_GPU = "nccl-float8-gpu", "NCCL reduces {dtype} on GPUs of compute capability 9.0 and up, not {capability}"
    SENDS_NOT_REPORTED = (
        "nccl-sends-not-reported",
        "NCCL does not report how it sends messages, so {demand} cannot be checked",
    )
    BARRIER_IN_GRAPH = "nccl-barrier-in-graph", "torch's barrier waits on the host: a CUDA graph cannot capture it"
    FAILED = "nccl-failed", "NCCL through torch cannot run this step ({error})"
    NO_COMPILER = "nccl-no-compiler", "torch.compile cannot run on this host: {why}"
    NO_MATRICES = "nccl-no-matrices", "PowerSGD compresses matrices, and the weights of timed layers are vectors"


def unsupported_reason(reduction: Reduction, version: tuple[int, ...], capability: tuple[int, ...]) -> Skip | None:
    """Return why NCCL's documentation excludes this reduction on this GPU.

    Return None if NCCL can run the reduction.
    """
    if reduction.reduce_op not in _OPS:
        return Skip.of(NcclRefusal.NO_REDUCTION, reduce_op=reduction.reduce_op)
    if reduction.dtype in _FLOAT8:
        if version < _FLOAT8_SINCE:
            return Skip.of(NcclRefusal.FLOAT8_VERSION, dtype=reduction.dtype, version=".".join(map(str, version)))
        if capability < _FLOAT8_ON:
            shown = ".".join(map(str, capability))
            return Skip.of(NcclRefusal.FLOAT8_GPU, dtype=reduction.dtype, capability=shown)
    elif reduction.dtype not in _REDUCED:
        return Skip.of(NcclRefusal.NO_DTYPE, dtype=reduction.dtype)
    return None


def moved(reduction: Reduction, steps: tuple[Step, ...]) -> Reduction:
    """Return the reduction to use.

    If the steps only move data, elements of an unsupported type are moved as bytes.
    """
    if reduction.dtype in _REDUCED or any(map(_torch.reduces, steps)):
        return reduction
    return Reduction("uint8", reduction.reduce_op)
