"""CuPy loaded, and this rank's GPU chosen among those that CUDA shows; every way to fail is one sentence."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.errors import NotInstalledError, RefusedError
from bench.core.world import RankInfo
from bench.transports import _cache

# Numbers of cudaError_t, which never change.
OUT_OF_MEMORY, PEER_ALREADY_ENABLED = 2, 704
_NO_DEVICE = 100
WITHOUT_DRIVER = (35, 34)  # none, or too old a one; the library that is there only to link with
_ELSE = "run this on a machine with an NVIDIA GPU"

Owner = tuple[str, str, str]  # what a GPU is called by all processes: its host, its PCI address, its UUID


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One GPU as CUDA numbers it in this process. `bus` and `uuid` name it in every process of the host."""

    index: int
    name: str
    bus: str
    uuid: str
    num_sms: int
    l2_bytes: int
    copy_engines: int | None
    memory_bytes_per_s: float | None


def load_cupy() -> Any:
    """The module; NotInstalledError when it is not there or does not load."""
    try:
        _cache.for_cupy(os.environ)
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise NotInstalledError(f"CuPy can not be loaded here ({error}): install it again") from None
        raise NotInstalledError(
            "CuPy is not installed here: pip install cupy-cuda13x (or cupy-cuda12x, for a driver older than CUDA 13)"
        ) from None
    except ImportError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" =")]  # framed, the cause at its end
        raise NotInstalledError(
            f"CuPy can not be loaded here ({lines[-1] if lines else 'no reason given'}): "
            "install the wheel for this driver again"
        ) from None
    except OSError as error:
        raise NotInstalledError(
            f"CuPy can not be loaded here ({error}): name a folder that it can write by CUPY_CACHE_DIR"
        ) from None
    return cupy


def choose(cupy: Any, place: RankInfo, share_gpu: bool, env: Mapping[str, str] | None = None) -> int:
    """The number of the GPU of this rank: of its local rank, or the only one that its launcher left it.

    Raises RefusedError, on every rank of a host alike, when there are not enough.
    """
    env = os.environ if env is None else env
    visible = env.get("CUDA_VISIBLE_DEVICES")
    num_gpus = count(cupy, visible)
    if num_gpus >= place.local_size:
        return place.local_rank
    if share_gpu:
        return place.local_rank % num_gpus
    if num_gpus == 1 and visible is not None:
        return 0  # one of its own each, perhaps: compared when the ranks can talk
    shown = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    raise RefusedError(
        f"{place.local_size} ranks on this host need a GPU each, and CUDA shows {num_gpus}{shown}: "
        "start fewer ranks per node, or try it out with --share-gpu 1"
    )


def count(cupy: Any, visible: str | None) -> int:
    """GPUs that CUDA shows; RefusedError when there is none. `visible`: CUDA_VISIBLE_DEVICES."""
    try:
        num_gpus = int(cupy.cuda.runtime.getDeviceCount())
    except RuntimeError as error:
        status = getattr(error, "status", None)
        if status in WITHOUT_DRIVER:
            raise RefusedError(
                f"no NVIDIA driver that suits this CuPy answers here ({error}): install or renew the driver, take "
                f"cupy-cuda12x for one older than CUDA 13, or {_ELSE}"
            ) from None
        if status != _NO_DEVICE:
            raise RefusedError(f"CUDA does not start here ({error}): see nvidia-smi, or {_ELSE}") from None
        num_gpus = 0
    if num_gpus == 0 and visible is not None:
        raise RefusedError(
            f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU: unset it, or name GPUs that are there", of_one_rank=True
        )
    if num_gpus == 0:
        raise RefusedError(f"there is a driver and no NVIDIA GPU here: {_ELSE}")
    return num_gpus


def describe(cupy: Any, index: int) -> CudaDevice:
    """What is known of a GPU."""
    runtime = cupy.cuda.runtime
    told = runtime.getDeviceProperties(index)
    name = told.get("name", b"unknown")
    uuid = told.get("uuid", b"")
    engines = told.get("asyncEngineCount")
    # Kilohertz and bits; two transfers a clock, as DDR and HBM are counted. Where the driver tells none it is 0.
    memory_rate = 2e3 * told.get("memoryClockRate", 0) * told.get("memoryBusWidth", 0) / 8
    return CudaDevice(
        index=index,
        name=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
        bus=_bus(runtime, index),
        uuid=uuid.hex() if isinstance(uuid, bytes) else str(uuid),
        num_sms=int(told["multiProcessorCount"]),
        l2_bytes=int(told.get("l2CacheSize", 0)),
        copy_engines=None if engines is None else int(engines),
        memory_bytes_per_s=memory_rate or None,
    )


def _bus(runtime: Any, index: int) -> str:
    """The PCI address as the kernel writes it; the GPU's number where CUDA tells none."""
    try:
        return str(runtime.deviceGetPCIBusId(index)).lower()
    except RuntimeError:
        return f"gpu{index}"


def take(cupy: Any, index: int) -> CudaDevice:
    """Make a GPU this process's own, and say what it is. Raises RefusedError where somebody else holds it."""
    try:
        cupy.cuda.runtime.setDevice(index)
        cupy.cuda.runtime.memGetInfo()  # the first call that needs a context on it
    except RuntimeError as error:
        raise RefusedError(
            f"GPU {index} can not be used here ({error}): nvidia-smi shows who holds it, and its compute mode",
            of_one_rank=True,
        ) from None
    return describe(cupy, index)


def shared_by(owners: Sequence[Owner]) -> tuple[int, int] | None:
    """The first two ranks that are on one GPU; `owners`: of every rank."""
    first: dict[Owner, int] = {}
    for rank, owner in enumerate(owners):
        if owner in first:
            return first[owner], rank
        first[owner] = rank
    return None


def enable_peer(runtime: Any, mine: int, other: int) -> bool:
    """May GPU `mine` reach the memory of GPU `other`? From now on it does, where it can."""
    if not runtime.deviceCanAccessPeer(mine, other):
        return False
    try:
        runtime.deviceEnablePeerAccess(other)
    except RuntimeError as error:
        return getattr(error, "status", None) == PEER_ALREADY_ENABLED
    return True


@contextlib.contextmanager
def near(bus: str, near_cpus: Callable[[str], Sequence[int]] | None) -> Iterator[None]:
    """Inside, this thread runs on CPUs beside that GPU, so that memory which is touched lies there, too."""
    before = os.sched_getaffinity(0)
    beside = set(near_cpus(bus)) if near_cpus is not None else set()
    with contextlib.suppress(OSError):
        if beside:
            os.sched_setaffinity(0, beside & before or beside)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)
