"""What NCCL can reduce, how other element types are moved, and the tiny calls by which the rest is found."""

from __future__ import annotations

from bench.core.program import Collective, Exchange, Message, Step
from bench.core.transport import Reduction

_REDUCED = frozenset({"float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8"})
_FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})
_FLOAT8_SINCE, _FLOAT8_ON = (2, 24), (9, 0)  # NCCL's version, and the GPU's compute capability (Hopper)
_OPS = frozenset({"sum", "prod", "min", "max", "avg"})
_REDUCES = ("allreduce", "reduce", "reducescatter")
_TINY_BYTES = 64  # per rank: whole elements of every type


def reduces(step: Step) -> bool:
    """Does it compute with the elements, rather than move them?"""
    return isinstance(step, Collective) and step.op in _REDUCES


def why_not(reduction: Reduction, version: tuple[int, ...], capability: tuple[int, ...]) -> str | None:
    """Why this NCCL on this GPU does not carry out a reduction, as it is documented; None when it does."""
    if reduction.reduce_op not in _OPS:
        return f"NCCL has no reduction {reduction.reduce_op}"
    if reduction.dtype in _FLOAT8:
        if version < _FLOAT8_SINCE:
            return f"NCCL reduces {reduction.dtype} from 2.24 on, and this is {'.'.join(map(str, version))}"
        if capability < _FLOAT8_ON:
            return f"NCCL reduces {reduction.dtype} on GPUs of compute capability 9.0 and up"
    elif reduction.dtype not in _REDUCED:
        return f"NCCL reduces no element type {reduction.dtype}"
    return None


def moved(reduction: Reduction, steps: tuple[Step, ...]) -> Reduction:
    """Element types that NCCL or torch do not know are moved as the bytes they are, where nothing is computed."""
    if reduction.dtype in _REDUCED or any(map(reduces, steps)):
        return reduction
    return Reduction("uint8", reduction.reduce_op)


def tiny_collective(op: str, num_ranks: int) -> Collective:
    """A call of this kind with whole elements of any type for each of `num_ranks` ranks."""
    whole, block = _TINY_BYTES * num_ranks, _TINY_BYTES
    split = (block,) * num_ranks if op == "alltoallv" else ()
    send_bytes = block if op in ("allgather", "gather") else whole
    recv_bytes = block if op in ("reducescatter", "scatter") else whole
    return Collective(op, send_bytes, recv_bytes, 0, split, split)


def tiny_exchange(rank: int, num_ranks: int) -> Exchange:
    """A message to the next rank, and one from the rank before."""
    to, by = Message((rank + 1) % num_ranks, _TINY_BYTES), Message((rank - 1) % num_ranks, _TINY_BYTES)
    return Exchange((to,), (by,))
