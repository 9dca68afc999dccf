"""Element types by their torch names. The number of significand bits of a type decides which sums are exact."""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.errors import UsageError
from bench.core.plugins import nearest
from bench.core.record import Skip
from bench.core.skips import SkipCode

REDUCE_OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type. `precision`: significand bits including the implicit one (0 for integers)."""

    name: str
    num_bytes: int
    kind: str  # "float", "int", "uint", "complex"
    precision: int = 0


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float64", 8, "float", 53),
        Dtype("float32", 4, "float", 24),
        Dtype("float16", 2, "float", 11),
        Dtype("bfloat16", 2, "float", 8),
        Dtype("float8_e4m3fn", 1, "float", 4),
        Dtype("float8_e5m2", 1, "float", 3),
        Dtype("int64", 8, "int"),
        Dtype("int32", 4, "int"),
        Dtype("int16", 2, "int"),
        Dtype("int8", 1, "int"),
        Dtype("uint64", 8, "uint"),
        Dtype("uint32", 4, "uint"),
        Dtype("uint16", 2, "uint"),
        Dtype("uint8", 1, "uint"),
        Dtype("complex64", 8, "complex", 24),
        Dtype("complex128", 16, "complex", 53),
    )
}

# Other names, as in nccl-tests.
ALIASES = {
    "double": "float64",
    "float": "float32",
    "fp32": "float32",
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "char": "int8",
    "int": "int32",
}


def dtype_of(name: str) -> Dtype:
    """Return the type that torch or nccl-tests calls `name`.

    For an unknown name, raises UsageError, which suggests the nearest name.
    """
    word = ALIASES.get(name, name)
    if word not in DTYPES:
        raise UsageError(f"no element type is called {name!r}{nearest(name, list(DTYPES))}")
    return DTYPES[word]


def undefined_reduction(dtype: Dtype, reduce_op: str) -> Skip | None:
    """Return why this reduction is undefined or inexact for this type, or None if its result is exact."""
    if reduce_op in ("band", "bor", "bxor") and dtype.kind not in ("int", "uint"):
        return Skip.of(SkipCode.INTEGERS_ONLY, reduce_op=reduce_op, dtype=dtype.name)
    if reduce_op == "avg" and dtype.kind != "float":
        return Skip.of(SkipCode.AVERAGE_UNDEFINED, dtype=dtype.name)
    if (dtype.kind == "complex" and reduce_op != "sum") or dtype.name.startswith("float8"):
        return Skip.of(SkipCode.NO_EXACT_RESULT, reduce_op=reduce_op, dtype=dtype.name)
    return None
