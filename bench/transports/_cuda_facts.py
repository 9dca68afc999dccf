"""What a header says of the copies of one rank: versions, its GPU, who reaches whom, where host memory lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.core.transport import Options
from bench.transports._cuda_device import CudaDevice


def facts(cupy: Any, device: CudaDevice, options: Options, batches: str, control_plane: str) -> dict[str, str]:
    """All of it in words. `batches`: what holds them back; `control_plane`: how ranks agree."""
    runtime, engines, peak = cupy.cuda.runtime, device.copy_engines, device.memory_bytes_per_s
    return {
        "cupy": str(cupy.__version__),
        "cuda": _version(runtime.runtimeGetVersion()),
        "cuda_driver": _version(runtime.driverGetVersion()),
        "gpu": device.name,
        "gpu_pci_bus": device.bus,
        "gpu_cache_bytes": str(device.l2_bytes),
        "gpu_memory_peak_bytes_per_s": "unknown" if peak is None else f"{peak:.4g}",
        "copy_engines": "unknown" if engines is None else str(engines),
        "peer_access": _peers(runtime),
        "host_memory": f"{options.memory}, {_beside(device, options)}",
        "batches": batches,
        "control_plane": control_plane,
    }


def _peers(runtime: Any) -> str:
    """Which GPUs that this process sees reach each other, in words."""
    num = int(runtime.getDeviceCount())
    if num < 2:
        return "one GPU"
    reach = {a: [b for b in range(num) if b != a and runtime.deviceCanAccessPeer(a, b)] for a in range(num)}
    found = sum(map(len, reach.values()))
    if found in (0, num * (num - 1)):
        return f"{'all' if found else 'none'} of {num} GPUs reach each other"
    return "; ".join(f"{a} reaches {', '.join(map(str, found)) or 'none'}" for a, found in reach.items())


def _beside(device: CudaDevice, options: Options) -> str:
    near = options.near_cpus
    cpus = near(device.bus) if near is not None else ()
    return f"touched on CPUs {_spans(cpus)}, beside the GPU" if cpus else "where this process runs"


def _version(number: int) -> str:
    """13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _spans(cpus: Sequence[int]) -> str:
    """0, 1, 2, 8 as 0-2,8."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
