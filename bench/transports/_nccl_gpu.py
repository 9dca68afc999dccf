"""Find this rank's GPU and the loaded NCCL, or explain why a rank cannot use a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.core.errors import first_line
from bench.core.world import RankInfo

LIBRARY, AMD_LIBRARY = "libnccl.so.2", "librccl.so.1"  # RCCL has the functions of NCCL
# The first NCCL version with a setting for ranks that share a GPU. Older versions must believe that the ranks are on
# several hosts.
_SHARES_SINCE = (2, 30, 3)
_RANKS_WITHOUT_LIMIT = 2  # per GPU; all channels of so few ranks fit (NCCL's documentation of the variable)
_MOST_CHANNELS = "8"
_GIB = 1 << 30
_ACTIVE_BYTES, _ACTIVE_S, _MOST_COPIES = 64 << 20, 0.2, 1000
_OF_A_DRIVER = ("nvidiactl", "dxg")  # device files on Linux, and on Windows Subsystem for Linux
_OF_AMD_DRIVER = "kfd"
_OTHER = "another transport (mpi, gloo)"
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class MissingPart(StrEnum):
    """What a build of torch lacks. The value CUDA means "CUDA or HIP", because one of them is enough."""

    CUDA = "CUDA"
    NCCL = "NCCL"


def problem(
    torch: Any, place: RankInfo, share_gpu: bool, environ: Mapping[str, str], devices: Path = Path("/dev")
) -> str | None:
    """Return why this rank cannot use a GPU and what to do, or None if the rank can use a GPU."""
    if lack := built_without(torch):
        wanted = "a CUDA or ROCm build of torch" if lack is MissingPart.CUDA else "another build"
        return f"this torch ({torch.__version__}) was built without {lack}: install {wanted}, or use {_OTHER}"
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0 or not torch.cuda.is_available():
        return _none_of_amd(torch, environ, devices) if is_hip(torch) else _none(torch, environ, devices)
    if num_gpus < place.local_size and not share_gpu and not _has_its_own(environ):
        return (
            f"{place.local_size} ranks on this host need a GPU each, and torch sees {num_gpus}: start fewer ranks per "
            f"node, share GPUs for a functional test (--share-gpu 1), or use {_OTHER}"
        )
    return None


def built_without(torch: Any) -> MissingPart | None:
    """Return what this build of torch lacks. Return None if it has CUDA and NCCL, or HIP and RCCL."""
    if torch.version.cuda is None and not is_hip(torch):
        return MissingPart.CUDA
    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return None if has_nccl else MissingPart.NCCL


def is_hip(torch: Any) -> bool:
    """Check whether this torch is built for AMD GPUs.

    In a torch build for AMD GPUs, the module `torch.cuda` uses HIP, and the library behind `nccl` is RCCL.
    """
    return getattr(torch.version, "hip", None) is not None


def hides(environ: Mapping[str, str]) -> bool:
    """Check whether an environment variable selects this rank's GPUs.

    If an environment variable selects GPUs, each rank may see different GPUs.
    """
    return any(name in environ for name in _VISIBLE)


def _has_its_own(environ: Mapping[str, str]) -> bool:
    """Check whether the launcher gave each rank separate GPUs.

    When all ranks meet later, they check that each of them has a separate GPU.
    """
    return any(environ.get(name) for name in _VISIBLE)


def _none(torch: Any, environ: Mapping[str, str], devices: Path) -> str:
    """Return why torch sees no GPU: no driver, hidden GPUs, or the driver's own error."""
    shown = sum(1 for one in devices.glob("nvidia[0-9]*") if one.name.removeprefix("nvidia").isdigit())
    if not shown and not any((devices / name).exists() for name in _OF_A_DRIVER):
        return f"no NVIDIA driver is loaded here (no {devices}/nvidiactl): use {_OTHER}, or a machine with GPUs"
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides all {shown} GPUs: unset it, or list existing GPUs"
    why = _driver_error(torch)
    return f"torch sees no GPU, although the NVIDIA driver is loaded ({why}): see nvidia-smi, or use {_OTHER}"


def _none_of_amd(torch: Any, environ: Mapping[str, str], devices: Path) -> str:
    """Return why a torch build for AMD GPUs sees no GPU."""
    if not (devices / _OF_AMD_DRIVER).exists():
        return f"no AMD driver is loaded here (no {devices}/{_OF_AMD_DRIVER}): use {_OTHER}, or a machine with GPUs"
    for name in _VISIBLE:
        if name in environ:
            return f"{name}={environ[name]!r} hides all GPUs: unset it, or list existing GPUs"
    why = _driver_error(torch)
    return f"torch sees no GPU, although the AMD driver is loaded ({why}): see rocm-smi, or use {_OTHER}"


def _driver_error(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as error:  # a driver may fail in many ways; its message becomes the reason
        return first_line(error).rstrip(".")
    return "no error was reported"


def unusable(torch: Any, device: Any, rank: int) -> str | None:
    """Make a GPU the current device, and write to the GPU's memory.

    Return None if the GPU works, or the reason why it does not work.
    """
    try:
        torch.cuda.set_device(device)
        torch.full((1,), 1.0, device=device)
        torch.cuda.synchronize()
    # in exclusive use, out of memory, or lost from the bus; torch raises several exception types
    except Exception as error:
        return f"rank {rank} cannot use {device} ({first_line(error)}): see nvidia-smi, or use {_OTHER}"
    return None


def loaded() -> ctypes.CDLL | None:
    """Return the NCCL or RCCL library that torch has loaded.

    Return None if this library is a part of torch's own binaries.
    """
    for name in (LIBRARY, AMD_LIBRARY):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    return None


def version(torch: Any, library: Any) -> tuple[int, ...]:
    """Return the version of the loaded NCCL.

    torch itself reports only the version with which it was built. The version that is loaded may be newer.
    """
    number = ctypes.c_int(0)
    try:
        if library is not None and library.ncclGetVersion(ctypes.byref(number)) == 0:
            code = number.value
            return code // 10_000, code // 100 % 100, code % 100
    except AttributeError:
        pass
    built_with = torch.cuda.nccl.version()
    return tuple(part for part in built_with if isinstance(part, int))


def allow_sharing(environ: MutableMapping[str, str], nccl: tuple[int, ...], place: RankInfo, num_gpus: int) -> str:
    """Set variables so that NCCL accepts several ranks on one GPU. Return a text for a note.

    Call this before NCCL is initialised.
    """
    environ["NCCL_NVLS_ENABLE"] = environ["NCCL_MNNVL_ENABLE"] = "0"
    if nccl >= _SHARES_SINCE:
        environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        if place.local_size > _RANKS_WITHOUT_LIMIT * num_gpus:
            environ.setdefault("NCCL_MAX_CTAS", _MOST_CHANNELS)
        return "NCCL_MULTI_RANK_GPU_ENABLE"
    environ["NCCL_HOSTID"] = f"{socket.gethostname()}-rank{place.rank}"
    return "NCCL_HOSTID (a different host for every rank, so over the network)"


def reserve_bytes(total_bytes: int) -> int:
    """Return the bytes of GPU memory to reserve for NCCL and the driver.

    As in nccl-tests, 1 GiB per 16 GiB is reserved, but at most 4 GiB. This function reserves 1 GiB more than
    nccl-tests.
    """
    return min(-(-total_bytes // (16 * _GIB)), 4) * _GIB + _GIB


def keep_link_active(torch: Any, device: Any) -> None:
    """Copy between this GPU and its host for 0.2 s.

    The duration of a first pair of copies determines how many copies follow. The function returns when all copies are
    enqueued. The allocator of torch keeps the memory until the copies end. Do nothing if there is not enough memory for
    the copies.
    """
    try:
        host = torch.empty(_ACTIVE_BYTES, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(_ACTIVE_BYTES, dtype=torch.uint8, device=device)
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
        for _ in range(min(_MOST_COPIES, int(_ACTIVE_S / once_s) + 1)):
            there.copy_(host, non_blocking=True)
            host.copy_(there, non_blocking=True)
