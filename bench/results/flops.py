"""Compute how many operations per second matrix products reach, and look up the peak rate in the data sheet.

A product of two `order` x `order` matrices needs order^3 multiplications and order^3 additions. The peak is the
vendor's dense rate (without sparsity) for the data type, at the vendor's boost clock. A GPU at its power limit stays
below the peak. A GPU at a higher clock may exceed the peak. The peak is therefore not a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bench.core.case_argv import from_argv
from bench.core.dtypes import DTYPES
from bench.core.errors import UsageError
from bench.core.program import Product
from bench.core.record import Header
from bench.core.sweep import order_of
from bench.hardware import catalogue
from bench.results.document import Summary

PATTERN = "gpu_baseline"
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}


def of_payload(payload_bytes: int, dtype: str) -> int | None:
    """Return the number of operations in one product of two matrices of `payload_bytes` bytes each.

    Return None if the type is unknown.
    """
    known = DTYPES.get(dtype)
    return None if known is None or not payload_bytes else Product(order_of(payload_bytes, known.num_bytes)).flops


def rate(header: Header, payload_bytes: int, median_s: float | None) -> float | None:
    """Return the operations per second of one rank, or None if the row is from a pattern without matrix products."""
    if header.pattern != PATTERN or not median_s:
        return None
    operations = of_payload(payload_bytes, header.dtype)
    return None if operations is None else operations / median_s


def kind(header: Header) -> str:
    """Return the arithmetic type of a run's matrix products, named as in data sheets: bf16, fp32 or tf32."""
    short = _SHORT.get(header.dtype, header.dtype)
    return "tf32" if short == "fp32" and _asked(header, "tf32") else short


def gpu_of(header: Header) -> str | None:
    """Return the name of a run's GPUs in the catalogue.

    Return None if the GPU is unknown, if ranks share a GPU, or if the run has no GPU.
    """
    if header.clock != "device" or _asked(header, "share_gpu") or "gpu" not in header.facts:
        return None
    return catalogue.gpu_printed(header.facts["gpu"])


def peak(header: Header) -> tuple[float, str] | None:
    """Return the data sheet's dense rate in operations per second, and its name such as "bf16 of H200-SXM-141GB".

    Return None if the rate is unknown or if ranks share a GPU.
    """
    gpu = gpu_of(header) if header.pattern == PATTERN else None
    if gpu is None:
        return None
    found = catalogue.gpu(gpu).flops.get(kind(header))
    return None if found is None else (found, f"{kind(header)} of {gpu}")


def measured(headers: Mapping[str, Header], rows: Iterable[Summary]) -> dict[tuple[str, str], float]:
    """Return the operations per second of the slowest GPU, for each pair of GPU model and arithmetic type.

    The rate of a GPU is its highest rate over all sizes. The slowest GPU counts, because a training step waits for the
    slowest GPU. Rows with wrong data are left out.
    """
    best: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in rows:
        header = headers[row.job]
        gpu = gpu_of(header)
        if gpu is None or row.flops_per_s is None or row.verified is False:
            continue
        of_gpus = best.setdefault((gpu, kind(header)), {})
        at = (",".join(str(one.get("host")) for one in header.ranks[:1]), row.group)
        of_gpus[at] = max(row.flops_per_s, of_gpus.get(at, 0.0))
    return {which: min(of_gpus.values()) for which, of_gpus in best.items()}


def _asked(header: Header, switch: str) -> bool:
    try:
        return bool(getattr(from_argv(header.case), switch))
    except UsageError:  # a newer version or an editor wrote the header
        return False
