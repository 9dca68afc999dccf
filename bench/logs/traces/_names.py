"""Define names that several trace formats use: operations, runtime calls, data types and ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|msccl", re.IGNORECASE)
# Words in names of collectives, without `_`, in the order of the search.
_OPS = (
    ("allreduce", "allreduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "allgather"),
    ("alltoall", "alltoall"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "sendrecv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("recv", "recv"),
    ("send", "send"),
)
BYTES_OF = {
    "float": 4,
    "float32": 4,
    "double": 8,
    "float64": 8,
    "half": 2,
    "float16": 2,
    "c10::half": 2,
    "bfloat16": 2,
    "c10::bfloat16": 2,
    "long": 8,
    "long int": 8,
    "int64": 8,
    "int": 4,
    "int32": 4,
    "short": 2,
    "char": 1,
    "signed char": 1,
    "unsigned char": 1,
    "byte": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
SYNC = re.compile(r"^(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize")
ALLOCATOR = re.compile(r"^(cuda|hip|cu)(Malloc|Free|HostAlloc|HostRegister|MallocHost|MemAlloc|MemFree|MallocManaged)")
ITEM = frozenset({"aten::item", "aten::_local_scalar_dense"})
_RANK_IN_NAME = re.compile(r"(?:rank|worker|_r)[-_]?(\d+)", re.IGNORECASE)

KNOWN_OPS = frozenset(op for _, op in _OPS)


def op(name: str) -> str:
    """Return linkbench's name of a collective, or the given name if the collective is unknown."""
    words = name.lower().replace("_", "").replace("all2all", "alltoall").replace("coalesced", "")
    return next((op for word, op in _OPS if word in words), name)


def numbers(value: Any) -> tuple[int, ...] | None:
    """Return the integers of a list, or of a text that contains a list.

    Return None if the value is truncated or empty, or if it is not a list.
    """
    if isinstance(value, str):
        if "..." in value:
            return None
        value = [int(word) for word in re.findall(r"\d+", value)]
    if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        return tuple(value)
    return None


def rank_in_name(source: str) -> int | None:
    """Return the rank in the name of a file: `rank3.json`, `worker3_step_12...`, `trace_rank-3`."""
    found = _RANK_IN_NAME.search(Path(source).name)
    return int(found[1]) if found else None
