"""Which GPU is this rank's, what keeps it from having one, and which NCCL is loaded."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.core.errors import first_line
from bench.core.world import RankInfo

_LIBRARY = "libnccl.so.2"
# The first NCCL that lets ranks share a GPU when asked; before, it is told that they are on different hosts.
_SHARES_SINCE = (2, 30, 3)
_RANKS_WITHOUT_LIMIT = 2  # per GPU, whose channels all find room (NCCL's documentation of the variable)
_MOST_CHANNELS = "8"
_GIB = 1 << 30
_STIR_BYTES, _STIR_S, _MOST_STIRS = 64 << 20, 0.2, 1000
_OF_A_DRIVER = ("nvidiactl", "dxg")  # under Linux, and under Windows' own


_OTHER = "another transport (mpi, gloo)"


def problem(
    torch: Any, place: RankInfo, share_gpu: bool, environ: Mapping[str, str], devices: Path = Path("/dev")
) -> str | None:
    """Why this rank can not run on a GPU, in one sentence with what to do; None when it can."""
    if lack := built_without(torch):
        wanted = "a CUDA build of torch" if lack == "CUDA" else "another build"
        return f"this torch ({torch.__version__}) was built without {lack}: install {wanted}, or use {_OTHER}"
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0 or not torch.cuda.is_available():
        return _none(torch, environ, devices)
    if num_gpus < place.local_size and not share_gpu and not _has_its_own(environ):
        return (
            f"{place.local_size} ranks on this host need a GPU each, and torch sees {num_gpus}: start fewer ranks per "
            f"node, let them share for a try (--share-gpu 1), or use {_OTHER}"
        )
    return None


def built_without(torch: Any) -> str:
    """What this torch lacks, "CUDA" or "NCCL"; "" when it has both."""
    if torch.version.cuda is None:
        return "CUDA"
    return "" if torch.distributed.is_available() and torch.distributed.is_nccl_available() else "NCCL"


def _has_its_own(environ: Mapping[str, str]) -> bool:
    """A launcher may show each rank another GPU; that two see the same one is found when they meet."""
    return bool(environ.get("CUDA_VISIBLE_DEVICES"))


def _none(torch: Any, environ: Mapping[str, str], devices: Path) -> str:
    """torch sees no GPU: is there a driver, does it show any, are they hidden?"""
    shown = sum(1 for one in devices.glob("nvidia[0-9]*") if one.name.removeprefix("nvidia").isdigit())
    if not shown and not any((devices / name).exists() for name in _OF_A_DRIVER):
        return (
            f"no NVIDIA driver is loaded here (there is no {devices}/nvidiactl): use {_OTHER}, or a machine with GPUs"
        )
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return (
            f"CUDA_VISIBLE_DEVICES={visible!r} hides all GPUs (the driver shows {shown}): unset it, or name GPUs that "
            "are there"
        )
    why = "it says no more"
    try:
        torch.cuda.init()
    except Exception as error:  # a driver may fail in any way; its words are the answer
        why = first_line(error).rstrip(".")
    return f"the NVIDIA driver is there, and torch sees no GPU ({why}): see nvidia-smi, or use {_OTHER}"


def unusable(torch: Any, device: Any, rank: int) -> str | None:
    """Why a GPU that is there can not be used, tried by a first byte in its memory; None when it can. It is current."""
    try:
        torch.cuda.set_device(device)
        torch.full((1,), 1.0, device=device)
        torch.cuda.synchronize()
    except Exception as error:  # somebody has it alone, it is full or off the bus: torch tells it in several types
        return f"rank {rank} can not use {device} ({first_line(error)}): see nvidia-smi, or use {_OTHER}"
    return None


def loaded() -> ctypes.CDLL | None:
    """The NCCL that torch has loaded; None where it is part of torch itself."""
    try:
        return ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def version(torch: Any, library: Any) -> tuple[int, ...]:
    """Of the NCCL that runs; torch tells the one it was built with, which may be older."""
    number = ctypes.c_int(0)
    try:
        if library is not None and library.ncclGetVersion(ctypes.byref(number)) == 0:
            code = number.value
            return code // 10_000, code // 100 % 100, code % 100
    except AttributeError:
        pass
    told = torch.cuda.nccl.version()
    return tuple(part for part in told if isinstance(part, int))


def share(environ: MutableMapping[str, str], runs: tuple[int, ...], place: RankInfo, num_gpus: int) -> str:
    """Before NCCL is initialised: let it accept several ranks on one GPU. Returns how, in words."""
    environ["NCCL_NVLS_ENABLE"] = environ["NCCL_MNNVL_ENABLE"] = "0"
    if runs >= _SHARES_SINCE:
        environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        if place.local_size > _RANKS_WITHOUT_LIMIT * num_gpus:
            environ.setdefault("NCCL_MAX_CTAS", _MOST_CHANNELS)
        return "NCCL_MULTI_RANK_GPU_ENABLE"
    environ["NCCL_HOSTID"] = f"{socket.gethostname()}-rank{place.rank}"
    return "a host of its own for every rank (NCCL_HOSTID), so through the network"


def reserve_bytes(total_bytes: int) -> int:
    """What buffers leave free for NCCL and the driver: 1 GiB per 16 GiB, 4 at most, as nccl-tests does, and 1 more."""
    return min(-(-total_bytes // (16 * _GIB)), 4) * _GIB + _GIB


def stir(torch: Any, device: Any) -> None:
    """Keep the link between this GPU and its host busy for a fifth of a second; a first pair of copies says how many.

    Returns when they are ordered. torch keeps the memory until they are done. Where it gives none, nothing is stirred.
    """
    try:
        host = torch.empty(_STIR_BYTES, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(_STIR_BYTES, dtype=torch.uint8, device=device)
    except RuntimeError:
        return
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    there.record_stream(side)
    with torch.cuda.stream(side):
        began = perf_counter()
        there.copy_(host, non_blocking=True)
        host.copy_(there, non_blocking=True)
        side.synchronize()
        once_s = perf_counter() - began
        for _ in range(min(_MOST_STIRS, int(_STIR_S / once_s) + 1)):
            there.copy_(host, non_blocking=True)
            host.copy_(there, non_blocking=True)
