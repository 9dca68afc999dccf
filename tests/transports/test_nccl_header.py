"""What we assume of NCCL without its header: sizes, numbers and arguments, against nccl.h where it is installed.

The header is that of the package nvidia-nccl-cu13 (or -cu12), of the system, or the file BENCH_NCCL_HEADER.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.transports import _nccl_library, _nccl_loop

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")

_NUMBERS = {
    "ncclInt8": _nccl_library.TYPES["int8"],
    "ncclUint8": _nccl_library.TYPES["uint8"],
    "ncclInt32": _nccl_library.TYPES["int32"],
    "ncclUint32": _nccl_library.TYPES["uint32"],
    "ncclInt64": _nccl_library.TYPES["int64"],
    "ncclUint64": _nccl_library.TYPES["uint64"],
    "ncclFloat16": _nccl_library.TYPES["float16"],
    "ncclFloat32": _nccl_library.TYPES["float32"],
    "ncclFloat64": _nccl_library.TYPES["float64"],
    "ncclBfloat16": _nccl_library.TYPES["bfloat16"],
    "ncclSum": _nccl_library.REDUCTIONS["sum"],
    "ncclProd": _nccl_library.REDUCTIONS["prod"],
    "ncclMax": _nccl_library.REDUCTIONS["max"],
    "ncclMin": _nccl_library.REDUCTIONS["min"],
    "ncclAvg": _nccl_library.REDUCTIONS["avg"],
    "ncclSuccess": 0,
    "ncclSystemError": 2,
    "ncclRemoteError": 6,
    "ncclInProgress": 7,
}
_SIZES = {"ncclUniqueId": _nccl_library.ID_BYTES, "ncclComm_t": 8, "ncclDataType_t": 4, "ncclRedOp_t": 4}
_FUNCTIONS = {
    "ncclGetUniqueId": "ncclUniqueId *",
    "ncclCommInitRank": "ncclComm_t *, int, ncclUniqueId, int",
    "ncclCommDestroy": "ncclComm_t",
    "ncclCommAbort": "ncclComm_t",
    "ncclCommGetAsyncError": "ncclComm_t, ncclResult_t *",
    "ncclGetVersion": "int *",
    "ncclGroupStart": "void",
    "ncclGroupEnd": "void",
    "ncclAllReduce": "const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t",
    "ncclReduce": "const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t",
    "ncclReduceScatter": "const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t",
    "ncclAllGather": "const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t",
    "ncclBroadcast": "const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t",
    "ncclSend": "const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t",
    "ncclRecv": "void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t",
}
# A header of ours, with what we assume: the check itself is tried on it.
_OURS = (
    "typedef struct ncclComm *ncclComm_t;\n"
    "typedef struct { char internal[128]; } ncclUniqueId;\n"
    "typedef enum { ncclSuccess, ncclSystemError = 2, ncclRemoteError = 6, ncclInProgress } ncclResult_t;\n"
    "typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg } ncclRedOp_t;\n"
    "typedef enum { ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclFloat32,\n"
    "               ncclFloat64, ncclBfloat16 } ncclDataType_t;\n"
    + "".join(f"ncclResult_t {name}({arguments});\n" for name, arguments in _FUNCTIONS.items())
)


def headers() -> Iterator[Path]:
    """Every nccl.h that is here."""
    if "BENCH_NCCL_HEADER" in os.environ:
        yield Path(os.environ["BENCH_NCCL_HEADER"])
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(folder) / "nccl" / "include" / "nccl.h"
    yield Path("/usr/include/nccl.h")
    yield Path("/usr/local/cuda/include/nccl.h")


def mistakes(header: str, tmp_path: Path) -> str:
    """What a C compiler says of our assumptions; empty if all hold."""
    (tmp_path / "nccl.h").write_text(header, encoding="utf-8")
    stubs = "#include <stddef.h>\n#include <stdint.h>\ntypedef struct CUstream_st *cudaStream_t;\n"
    stubs += "typedef struct CUevent_st *cudaEvent_t;\n"
    for name in ("cuda_runtime.h", "cuda_fp16.h"):
        (tmp_path / name).write_text(f"#pragma once\n{stubs if name == 'cuda_runtime.h' else ''}", encoding="utf-8")
    lines = ["#include <cuda_runtime.h>", "#include <nccl.h>"]
    lines += [f'_Static_assert({name} == {number}, "{name}");' for name, number in _NUMBERS.items()]
    lines += [f'_Static_assert(sizeof({name}) == {size}, "{name}");' for name, size in _SIZES.items()]
    lines += [f"ncclResult_t (*our_{name})({arguments}) = {name};" for name, arguments in _FUNCTIONS.items()]
    (tmp_path / "check.c").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["cc", "-std=c11", "-Werror", "-I", str(tmp_path), "-c", "check.c", "-o", "check.o"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    return done.stderr if done.returncode else ""


def test_the_installed_header_agrees(tmp_path: Path) -> None:
    found = next((path for path in headers() if path.exists()), None)
    if found is None:
        pytest.skip("no nccl.h here: pip install nvidia-nccl-cu13, or set BENCH_NCCL_HEADER")
    assert mistakes(found.read_text(encoding="utf-8"), tmp_path) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ("char internal[128]", "char internal[256]"),
        ("ncclFloat16, ncclFloat32,", "ncclFloat32, ncclFloat16,"),
        ("ncclMax, ncclMin", "ncclMin, ncclMax"),
        ("ncclRemoteError = 6", "ncclRemoteError = 5"),
        ("ncclResult_t ncclSend(const void *, size_t,", "ncclResult_t ncclSend(const void *, int,"),
        ("ncclResult_t ncclCommAbort(ncclComm_t);\n", ""),
    ],
)
def test_an_assumption_that_does_not_hold_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    assert (mistakes(_OURS.replace(right, wrong) if right else _OURS, tmp_path) == "") == (not right)


def test_every_function_that_the_loop_calls_is_checked() -> None:
    assert set(_nccl_loop._FUNCTIONS.values()) <= set(_FUNCTIONS)
