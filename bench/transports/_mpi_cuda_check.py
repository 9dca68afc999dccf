"""Check whether this MPI library can use GPU memory.

A separate process asks the library for CUDA support and tries to send and reduce GPU memory. A library without CUDA
reads a GPU address as a host address, which usually causes a segmentation fault. The segmentation fault ends only the
separate process, so all ranks keep running. Each rank that needs the check calls `check`, which runs this file as a
separate process. The separate process is an MPI world of one rank. This rank sends device memory to itself, and reduces
device memory. The process prints each result as a JSON line, so a crash does not lose earlier results.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.transports import _cache

LIMIT_S = 20.0
_ASK_S = 10.0
_ROOT = Path(__file__).resolve().parent.parent.parent
_NUM_BYTES = (64, 4 << 20)  # bytes of an eager message, and of a message with a rendezvous
# These variables mark a process as a rank. The separate process must be its own world.
_OF_A_RANK = re.compile(
    r"(PMI|PMIX|HYDI|HYDRA|MPI_LOCAL|PRTE|PALS|FLUX|JSM|SLURM|MV2_COMM|ALPS)"
    r"|OMPI_(?!MCA_|ALLOW_)"
    r"|OMPI_MCA_(ess|orte|pmix|plm|ras|rmaps|initial_wdir|num_procs|cpu_type|PREFIXES)"
)
_SETTING = re.compile(r"PMIX_MCA_|PMIX_PREFIX$|PRTE_MCA_")  # settings of a site
# These variables can disable the use of GPU memory, with the values that disable it.
_OFF = {
    "MPICH_GPU_SUPPORT_ENABLED": ("0",),
    "MPIR_CVAR_ENABLE_GPU": ("0",),
    "OMPI_MCA_opal_cuda_support": ("0", "false"),
    "OMPI_MCA_accelerator": ("null", "^cuda"),
}
_DOING = {
    "mpi": "MPI's start as a world of one",
    "gpu": "opening the GPU",
    "message": "a message of device memory to itself",
    "sum": "an allreduce of device memory",
}


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of the check.

    `problem`: why the library cannot use GPU memory. It is None if there is no problem.
    `answer`: the library's own report.
    `denied`: whether this report says that the library cannot use GPU memory.
    `library`: the library's name and version. `library` is empty if the check failed before the name and the version
        were known.
    """

    library: str
    answer: str
    problem: str | None
    denied: bool = False


def check(device: int, env: Mapping[str, str], limit_s: float = LIMIT_S) -> Checked:
    """Test the library with one GPU of this host.

    Call this function before MPI_Init, because an MPI process should not start other processes.
    """
    words = (sys.executable, "-m", "bench.transports._mpi_cuda_check", str(device))
    ended: int | None = None
    try:
        done = subprocess.run(
            words, env=alone(env), capture_output=True, stdin=subprocess.DEVNULL, timeout=limit_s, check=False
        )
        out, err, ended = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        out, err = error.stdout or b"", error.stderr or b""
    reported: dict[str, Any] = {}
    for line in out.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # the library prints the other lines
            found = json.loads(line)
            reported |= found if isinstance(found, dict) else {}
    checked = Checked(
        str(reported.get("library", "")),
        str(reported.get("answer", "it was not asked")),
        reported.get("problem"),
        bool(reported.get("denied")),
    )
    if reported.get("done"):
        return checked
    doing = _DOING[reported.get("doing", "mpi")]
    if ended is None:
        return replace(checked, problem=f"{doing} had not ended after {limit_s:g} s")
    if ended < 0:
        return replace(checked, problem=f"{doing} ended in {signal.Signals(-ended).name}")
    last = (err.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    return replace(checked, problem=f"{doing} ended with exit code {ended} ({last[:200]})")


def alone(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a world of one rank.

    The environment keeps the library settings of the site and of the user.
    """
    kept = {name: value for name, value in env.items() if not _OF_A_RANK.match(name) or _SETTING.match(name)}
    path = env.get("PYTHONPATH")
    return kept | {"PYTHONPATH": f"{_ROOT}{os.pathsep}{path}" if path else str(_ROOT)}


def refusal(checked: Checked, env: Mapping[str, str]) -> str:
    """Return the error message.

    The message states the library, the library's own report, the failure, and what to do.
    """
    library = checked.library or "the MPI library"
    off = [f"{name}={env[name]}" for name, values in _OFF.items() if env.get(name, "").lower() in values]
    built = _open_mpi_was_built(env) if library.startswith("Open MPI") else ""
    if off:
        remedy = f"{off[0]} turns it off: unset it"
    elif built == "true":
        remedy = "ompi_info reports a build with CUDA: set OMPI_MCA_opal_cuda_support=1, and see `nvidia-smi`"
    else:
        remedy = (
            "use --transport nccl, or set MPI4PY_LIBMPI to an MPI built with CUDA "
            "(on a Cray set MPICH_GPU_SUPPORT_ENABLED=1)"
        )
    without = "; ompi_info reports a build without CUDA" if built == "false" else ""
    return (
        f"{library} cannot use GPU memory here ({checked.problem}; asked whether it can, it answered "
        f"{checked.answer}{without}): {remedy}"
    )


def _open_mpi_was_built(env: Mapping[str, str]) -> str:
    """Return whether Open MPI was built with CUDA, as the program ompi_info reports it:

    `true`, `false`, or empty if unknown.
    """
    prefix = env.get("OPAL_PREFIX")
    folders = [f"{prefix}/bin"] if prefix else []
    path = os.pathsep.join([*folders, str(Path(sys.executable).parent), env.get("PATH", "")])
    program = shutil.which("ompi_info", path=path)
    if program is None:
        return ""
    try:
        done = subprocess.run(
            (program, "--parsable", "--all"),
            env=alone(env),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"(?:mpi|opal)_built_with_cuda_support:value:(\w+)", done.stdout)
    return found[1] if found else ""


# -- the separate process


def _try(device: int) -> None:
    """Print each result before the next step, because the next step may end this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _report(doing="mpi")
    import mpi4py

    mpi4py.rc.thread_level = "single"
    from mpi4py import MPI

    vendor, version = MPI.get_vendor()
    answer, denied = _answer(MPI)
    _report(library=f"{vendor} {'.'.join(map(str, version))}", answer=answer, denied=denied, doing="gpu")
    _cache.for_cupy(os.environ)
    import cupy

    cupy.cuda.Device(device).use()
    comm = MPI.COMM_SELF
    for num_bytes in _NUM_BYTES:
        data = (np.arange(num_bytes, dtype=np.uint32) * 2654435761 >> 16).astype(np.uint8)
        sent, received = cupy.empty(num_bytes, dtype=np.uint8), cupy.empty(num_bytes, dtype=np.uint8)
        moves: dict[str, Callable[[], Any]] = {
            "message": partial(comm.Sendrecv, [sent, MPI.BYTE], 0, 0, [received, MPI.BYTE], 0, 0),
            "sum": partial(comm.Allreduce, [sent, MPI.UINT8_T], [received, MPI.UINT8_T], MPI.SUM),
        }
        for doing, move in moves.items():
            sent.set(data)
            received.data.memset_async(0, num_bytes)
            cupy.cuda.get_current_stream().synchronize()
            _report(doing=doing)
            move()
            if not (received.get() == data).all():
                _report(done=True, problem=f"{_DOING[doing]} ({num_bytes} bytes) returned wrong data")
                return
    _report(done=True)


def _answer(mpi: Any) -> tuple[str, bool]:
    """Return the library's report, and whether the report says that the library cannot use GPU memory."""
    library = ctypes.CDLL(mpi.__file__)  # the MPI library that this module is linked to
    for name in ("MPIX_Query_cuda_support", "MPIX_GPU_query_support"):
        function = getattr(library, name, None)
        if function is None:
            continue
        if name == "MPIX_Query_cuda_support":
            can = bool(function())
        else:
            value = ctypes.c_int(0)
            if function(0, ctypes.byref(value)) != 0:  # 0: CUDA
                continue
            can = bool(value.value)
        return f"{'yes' if can else 'no'} ({name})", not can
    return "nothing (it has no function to ask)", False


def _report(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _try(int(sys.argv[1]))
