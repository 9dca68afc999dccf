"""Can this MPI library use GPU memory? Asked of the library, then tried, in a process of its own.

A library without CUDA reads a GPU's address as if it were the host's: the usual answer is a segmentation fault, which
ends this process and no rank. `check` is the ranks' side; run as a program the file is the process that tries, an MPI
world of one that sends device memory to itself and sums it up. What it learns is said line by line, so that what was
known before a crash is not lost with it.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.transports import _cache

LIMIT_S = 20.0
_ASK_S = 10.0
_ROOT = Path(__file__).resolve().parent.parent.parent
_NUM_BYTES = (64, 4 << 20)  # as one piece with its envelope, and after an agreement on where to
# What tells a process that it is a rank: the process that tries must be a world of its own.
_OF_A_RANK = re.compile(
    r"(PMI|PMIX|HYDI|HYDRA|MPI_LOCAL|PRTE|PALS|FLUX|JSM|SLURM|MV2_COMM|ALPS)"
    r"|OMPI_(?!MCA_|ALLOW_)"
    r"|OMPI_MCA_(ess|orte|pmix|plm|ras|rmaps|initial_wdir|num_procs|cpu_type|PREFIXES)"
)
_SETTING = re.compile(r"PMIX_MCA_|PMIX_PREFIX$|PRTE_MCA_")  # a site's own, not of one rank
# Variables that turn the use of GPU memory off, and what they must be for that.
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
    """What came of it. `answer`: of the library, in words; `wrong`: why GPU memory can not be used, None where it can.

    `library`: its name and version, empty where it did not come so far as to tell.
    """

    library: str
    answer: str
    wrong: str | None

    @property
    def says_no(self) -> bool:
        """Did the library itself deny that it can?"""
        return self.answer.startswith("no ")


def check(device: int, env: Mapping[str, str], limit_s: float = LIMIT_S) -> Checked:
    """Try it on one GPU of this host, before MPI is started here: no process should be started from within MPI."""
    words = (sys.executable, "-m", "bench.transports._mpi_cuda_check", str(device))
    ended: int | None = None
    try:
        done = subprocess.run(
            words, env=alone(env), capture_output=True, stdin=subprocess.DEVNULL, timeout=limit_s, check=False
        )
        out, err, ended = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        out, err = error.stdout or b"", error.stderr or b""
    told: dict[str, Any] = {}
    for line in out.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # a library may print, too
            said = json.loads(line)
            told |= said if isinstance(said, dict) else {}
    library, answer = str(told.get("library", "")), str(told.get("answer", "it was not asked"))
    if told.get("done"):
        return Checked(library, answer, told.get("wrong"))
    doing = _DOING[told.get("doing", "mpi")]
    if ended is None:
        return Checked(library, answer, f"{doing} had not ended after {limit_s:g} s")
    if ended < 0:
        return Checked(library, answer, f"{doing} ended in {signal.Signals(-ended).name}")
    last = (err.decode(errors="replace").strip().splitlines() or ["no word"])[-1]
    return Checked(library, answer, f"{doing} ended with exit code {ended} ({last[:200]})")


def alone(env: Mapping[str, str]) -> dict[str, str]:
    """An environment in which MPI starts as a world of one, with all settings of the site and the user."""
    kept = {name: value for name, value in env.items() if not _OF_A_RANK.match(name) or _SETTING.match(name)}
    path = env.get("PYTHONPATH")
    return kept | {"PYTHONPATH": f"{_ROOT}{os.pathsep}{path}" if path else str(_ROOT)}


def refusal(checked: Checked, env: Mapping[str, str]) -> str:
    """One sentence for the user: what the library is, what it answered, what happened, and what to use instead."""
    library = checked.library or "the MPI library"
    off = [f"{name}={env[name]}" for name, values in _OFF.items() if env.get(name, "").lower() in values]
    built = _open_mpi_was_built(env) if library.startswith("Open MPI") else ""
    if off:
        remedy = f"{off[0]} turns that off: unset it"
    elif built == "true":
        remedy = "ompi_info says that it was built with CUDA: set OMPI_MCA_opal_cuda_support=1, and see `nvidia-smi`"
    else:
        remedy = (
            "use --transport nccl, or name an MPI that was built with CUDA by MPI4PY_LIBMPI "
            "(on a Cray set MPICH_GPU_SUPPORT_ENABLED=1)"
        )
    told = ", and ompi_info that it was built without CUDA" if built == "false" else ""
    return (
        f"{library} can not use GPU memory here: asked about it, it answers {checked.answer}{told}, "
        f"and {checked.wrong}: {remedy}"
    )


def _open_mpi_was_built(env: Mapping[str, str]) -> str:
    """Whether Open MPI was built with CUDA, as its own tool tells: true, false; empty where it does not."""
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


# -- the process that tries


def _try(device: int) -> None:
    """Say what is known so far, then do what may end this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _say(doing="mpi")
    import mpi4py

    mpi4py.rc.thread_level = "single"
    from mpi4py import MPI

    vendor, version = MPI.get_vendor()
    _say(library=f"{vendor} {'.'.join(map(str, version))}", answer=_answer(MPI), doing="gpu")
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
            _say(doing=doing)
            move()
            if not (received.get() == data).all():
                _say(done=True, wrong=f"{_DOING[doing]} ({num_bytes} bytes) brought other bytes than were sent")
                return
    _say(done=True)


def _answer(mpi: Any) -> str:
    """What the library says of itself: `yes (function)`, `no (function)`, or that it has no such function."""
    library = ctypes.CDLL(mpi.__file__)  # finds the functions of the library that this module is linked with
    for name in ("MPIX_Query_cuda_support", "MPIX_GPU_query_support"):
        function = getattr(library, name, None)
        if function is None:
            continue
        if name == "MPIX_Query_cuda_support":
            return f"{'yes' if function() else 'no'} ({name})"
        can = ctypes.c_int(0)
        if function(0, ctypes.byref(can)) == 0:  # 0: CUDA
            return f"{'yes' if can.value else 'no'} ({name})"
    return "nothing (it has no function to ask)"


def _say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _try(int(sys.argv[1]))
