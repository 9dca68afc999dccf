"""The NVIDIA GPUs of this machine, from the driver's own library (NVML)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.core.inventory import Gpu


@dataclass(frozen=True, slots=True)
class Found:
    """The GPUs and the driver's versions, or why there are none."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    reason: str | None = None


def count_gpus(env: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """GPUs that CUDA programs may use here: those of the driver, as far as CUDA_VISIBLE_DEVICES leaves them."""
    if not has_device(root):
        return 0
    hidden = (os.environ if env is None else env).get("CUDA_VISIBLE_DEVICES")
    with _library() as nvml:
        count: int = nvml.nvmlDeviceGetCount() if isinstance(nvml, ModuleType) else 0
    return count if hidden is None else min(count, len(_listed(hidden)))


def has_device(root: Path = Path("/")) -> bool:
    """Has the driver put its device files there? Costs nothing, imports nothing; WSL has a device of its own."""
    proc, dev = root / "proc/driver/nvidia/gpus", root / "dev"
    return any(proc.glob("*")) or any(dev.glob("nvidia[0-9]*")) or (dev / "dxg").exists()


def gpus() -> Found:
    """All GPUs that the driver shows, CUDA_VISIBLE_DEVICES or not; a reason in words when there is no driver."""
    with _library() as nvml:
        if isinstance(nvml, str):
            return Found(reason=nvml)
        found = tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        driver = _text(_ask(nvml, nvml.nvmlSystemGetDriverVersion))
        cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return Found(found, driver, None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}")


@contextlib.contextmanager
def _library() -> Iterator[ModuleType | str]:
    """NVML, open; or the reason why it can not be."""
    try:
        import pynvml
    except ImportError:
        yield "Python package nvidia-ml-py is not installed"
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield f"no NVIDIA driver answers ({error})"
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    return Gpu(
        index=index,
        name=_text(_ask(nvml, nvml.nvmlDeviceGetName, handle)) or "unknown",
        memory_bytes=None if memory is None else int(memory.total),
        pci_bus=None if pci is None else _text(pci.busId),
        pcie_generation=_ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_max_generation=_ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_lanes=_ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        pcie_max_lanes=_ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )


def _ask(nvml: ModuleType, question: Callable[..., Any], *about: Any) -> Any:
    """An answer, or None where this driver or board has none."""
    try:
        return question(*about)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value  # bytes from old versions


def _listed(visible: str) -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES that count: CUDA stops reading at the first one that it can not use."""
    entries = []
    for entry in (word.strip() for word in visible.split(",")):
        if not entry or entry.startswith("-") or entry == "NoDevFiles":
            break
        entries.append(entry)
    return entries
