"""Load CuPy, choose this rank's GPU, and describe it."""

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
WITHOUT_DRIVER = (35, 34)  # no driver, or a driver that is too old (as with the toolkit's stub library)
_ELSE = "run this on a machine with a GPU"

Owner = tuple[str, str, str]  # identifies a GPU in all processes: its host, PCI address and UUID


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One GPU.

    `index`: the GPU's number, which may differ between processes.
    `bus`, `uuid`: the PCI address and the UUID of the GPU, which are the same in all processes of a host.
    """

    index: int
    name: str
    bus: str
    uuid: str
    num_sms: int
    l2_bytes: int
    copy_engines: int | None
    memory_bytes_per_s: float | None
    threads_per_sm: int | None = None


def load_cupy() -> Any:
    """Return the CuPy module. Raises NotInstalledError if CuPy is not installed or cannot be loaded."""
    try:
        _cache.for_cupy(os.environ)
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise NotInstalledError(f"CuPy cannot be loaded here ({error}): reinstall it") from None
        raise NotInstalledError(
            "CuPy is not installed here: pip install cupy-cuda13x (or cupy-cuda12x, for a driver older than CUDA 13)"
        ) from None
    except ImportError as error:
        lines = [
            line.strip() for line in str(error).splitlines() if line.strip(" =")
        ]  # CuPy prints a box of text; its last line is the cause
        raise NotInstalledError(
            f"CuPy cannot be loaded here ({lines[-1] if lines else 'no reason given'}): "
            "reinstall the wheel for this driver"
        ) from None
    except OSError as error:
        raise NotInstalledError(
            f"CuPy cannot be loaded here ({error}): set CUPY_CACHE_DIR to a writable folder"
        ) from None
    return cupy


def choose(cupy: Any, place: RankInfo, share_gpu: bool, env: Mapping[str, str] | None = None) -> int:
    """Return the number of this rank's GPU.

    The number is the local rank. If the launcher made only one GPU visible, the number is 0. If ranks share GPUs, the
    number is the local rank modulo the number of GPUs.

    Raises RefusedError on every rank of a host if there are not enough GPUs.
    """
    env = os.environ if env is None else env
    visible = env.get("CUDA_VISIBLE_DEVICES")
    num_gpus = count(cupy, visible)
    if num_gpus >= place.local_size:
        return place.local_rank
    if share_gpu:
        return place.local_rank % num_gpus
    if num_gpus == 1 and visible is not None:
        return 0  # each rank may see a different GPU; this is checked when the ranks have met
    shown = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    raise RefusedError(
        f"{place.local_size} ranks on this host need a GPU each, and CUDA shows {num_gpus}{shown}: "
        "start fewer ranks per node, or share GPUs for a functional test (--share-gpu 1)"
    )


def count(cupy: Any, visible: str | None) -> int:
    """Return the number of GPUs that CUDA shows. Raises RefusedError if CUDA shows no GPU.

    `visible`: the value of CUDA_VISIBLE_DEVICES.
    """
    try:
        num_gpus = int(cupy.cuda.runtime.getDeviceCount())
    except RuntimeError as error:
        status = getattr(error, "status", None)
        if status in WITHOUT_DRIVER:
            raise RefusedError(
                f"no NVIDIA driver for this CuPy was found ({error}): install or update it, install cupy-cuda12x for a "
                f"driver older than CUDA 13, or {_ELSE}"
            ) from None
        if status != _NO_DEVICE:
            raise RefusedError(f"CUDA does not start here ({error}): see nvidia-smi, or {_ELSE}") from None
        num_gpus = 0
    if num_gpus == 0 and visible is not None:
        raise RefusedError(
            f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU: unset it, or list existing GPUs", of_one_rank=True
        )
    if num_gpus == 0:
        raise RefusedError(f"the driver found no GPU here: {_ELSE}")
    return num_gpus


def describe(cupy: Any, index: int) -> CudaDevice:
    """Return the properties of a GPU."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(index)
    name = properties.get("name", b"unknown")
    uuid = properties.get("uuid", b"")
    engines = properties.get("asyncEngineCount")
    # Kilohertz and bits. DDR and HBM make two transfers per clock. A driver that does not report these values gives 0.
    memory_rate = 2e3 * properties.get("memoryClockRate", 0) * properties.get("memoryBusWidth", 0) / 8
    return CudaDevice(
        index=index,
        name=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
        bus=_bus(runtime, index),
        uuid=uuid.hex() if isinstance(uuid, bytes) else str(uuid),
        num_sms=int(properties["multiProcessorCount"]),
        l2_bytes=int(properties.get("l2CacheSize", 0)),
        copy_engines=None if engines is None else int(engines),
        memory_bytes_per_s=memory_rate or None,
        threads_per_sm=properties.get("maxThreadsPerMultiProcessor") or None,
    )


def _bus(runtime: Any, index: int) -> str:
    """Return the PCI address in lower case, as the kernel writes it, or the GPU's number if CUDA reports no address."""
    try:
        return str(runtime.deviceGetPCIBusId(index)).lower()
    except RuntimeError:
        return f"gpu{index}"


def take(cupy: Any, index: int) -> CudaDevice:
    """Create a context on a GPU, and return the properties of the GPU.

    Raises RefusedError if the context cannot be created.
    """
    try:
        cupy.cuda.runtime.setDevice(index)
        cupy.cuda.runtime.memGetInfo()  # the first call creates the context
    except RuntimeError as error:
        raise RefusedError(
            f"GPU {index} cannot be used here ({error}): see its processes and compute mode in nvidia-smi",
            of_one_rank=True,
        ) from None
    return describe(cupy, index)


def shared_by(owners: Sequence[Owner]) -> tuple[int, int] | None:
    """Return the first two ranks that share a GPU. Return None if no ranks share a GPU.

    `owners`: the GPU of every rank.
    """
    first: dict[Owner, int] = {}
    for rank, owner in enumerate(owners):
        if owner in first:
            return first[owner], rank
        first[owner] = rank
    return None


def enable_peer(runtime: Any, mine: int, other: int) -> bool:
    """Let GPU `mine` access the memory of GPU `other`. Return whether the access is possible."""
    if not runtime.deviceCanAccessPeer(mine, other):
        return False
    try:
        runtime.deviceEnablePeerAccess(other)
    except RuntimeError as error:
        return getattr(error, "status", None) == PEER_ALREADY_ENABLED
    return True


@contextlib.contextmanager
def near(bus: str, near_cpus: Callable[[str], Sequence[int]] | None) -> Iterator[None]:
    """Return a context in which this thread runs on the CPUs nearest to a GPU, if the system permits this.

    The kernel places new memory near the thread that first writes to this memory. Memory that the thread allocates and
    writes in this context is therefore near the GPU.
    """
    before = os.sched_getaffinity(0)
    nearest = set(near_cpus(bus)) if near_cpus is not None else set()
    with contextlib.suppress(OSError):
        if nearest:
            os.sched_setaffinity(0, nearest & before or nearest)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def facts(cupy: Any, device: CudaDevice, host_memory: str, batches: str, control_plane: str) -> dict[str, str]:
    """Return the facts for the header.

    `host_memory`: the type and location of host memory.
    `batches`: how batches start.
    `control_plane`: the library of the control plane.
    """
    runtime, engines, peak = cupy.cuda.runtime, device.copy_engines, device.memory_bytes_per_s
    return {
        "cupy": str(cupy.__version__),
        **_versions(runtime),
        "gpu": device.name,
        "gpu_pci_bus": device.bus,
        "gpu_cache_bytes": str(device.l2_bytes),
        "gpu_memory_peak_bytes_per_s": "unknown" if peak is None else f"{peak:.4g}",
        "copy_engines": "unknown" if engines is None else str(engines),
        "peer_access": _peers(runtime),
        "host_memory": host_memory,
        "batches": batches,
        "control_plane": control_plane,
    }


def _peers(runtime: Any) -> str:
    """Return a text that says which visible GPUs have access to each other's memory."""
    num = int(runtime.getDeviceCount())
    if num < 2:
        return "one GPU"
    reach = {a: [b for b in range(num) if b != a and runtime.deviceCanAccessPeer(a, b)] for a in range(num)}
    found = sum(map(len, reach.values()))
    if found in (0, num * (num - 1)):
        return f"{'all' if found else 'none'} of {num} GPUs reach each other"
    return "; ".join(f"{a} reaches {', '.join(map(str, found)) or 'none'}" for a, found in reach.items())


def _versions(runtime: Any) -> dict[str, str]:
    numbers = runtime.runtimeGetVersion(), runtime.driverGetVersion()
    if getattr(runtime, "is_hip", False):
        return {"hip": str(numbers[0]), "hip_driver": str(numbers[1])}
    return {"cuda": _version(numbers[0]), "cuda_driver": _version(numbers[1])}


def _version(number: int) -> str:
    """Return a CUDA version as text: 13000 becomes 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"
