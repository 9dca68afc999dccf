"""Read the NVIDIA GPUs of this machine from the driver's own library (NVML)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.core.inventory import Gpu
from bench.core.inventory import Path as Between
from bench.probes import amd, pci
from bench.probes._nvml_gpu import ask, gpu, text
from bench.probes._nvml_gpu import conditions as conditions_of
from bench.probes._nvml_pairs import named, paths
from bench.probes.sysfs import ROOT, read

_BROKEN = ("Driver Not Loaded", "version mismatch")  # messages of NVML; with these errors, CUDA programs fail, too
_THERE = "; device files of {} GPUs exist: a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility for NVML"
_ON_BUS = "; {} NVIDIA GPUs are on the PCI bus: their driver is not loaded here"


@dataclass(frozen=True, slots=True)
class NvmlInventory:
    """The GPUs that NVML reports, the paths between the GPUs, and the versions of the driver.

    `reason`: if no GPU was found, a text that says why.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    reason: str | None = None
    paths: tuple[Between, ...] = ()


def count_gpus(env: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """Return how many GPUs CUDA programs see. CUDA_VISIBLE_DEVICES may hide some of the driver's GPUs.

    If NVML is missing, as in some containers, or if a sandbox denies it, device files are counted instead. If there is
    no NVIDIA driver, the result is the number of GPUs that HIP programs see.
    """
    if not has_device(root):
        return len(amd.addresses(env, root))
    hidden = (os.environ if env is None else env).get("CUDA_VISIBLE_DEVICES")
    with opened() as nvml:
        reported = None if isinstance(nvml, str) else ask(nvml, "nvmlDeviceGetCount")
        broken = isinstance(nvml, str) and any(word in nvml for word in _BROKEN)
    count: int = reported if reported is not None else 0 if broken else len(_device_files(root))
    return count if hidden is None else min(count, len(_listed(hidden)))


def visible_addresses(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Return the PCI addresses of the GPUs that CUDA programs see, in CUDA's order.

    The result is empty if that order is unknown.

    NVML orders GPUs by PCI address. By default, CUDA puts the fastest GPU first. The order is therefore known in two
    cases: all GPUs are of one model, or CUDA_DEVICE_ORDER is PCI_BUS_ID. MIG instances are not supported. If there is
    no NVIDIA driver, the result has the GPUs that HIP programs see.
    """
    if not has_device(root):
        return amd.addresses(env, root)
    with opened() as nvml:
        if isinstance(nvml, str):
            return ()
        handles = [ask(nvml, "nvmlDeviceGetHandleByIndex", k) for k in range(ask(nvml, "nvmlDeviceGetCount") or 0)]
        names, uuids = ([text(ask(nvml, f"nvmlDeviceGet{what}", one)) for one in handles] for what in ("Name", "UUID"))
        buses = [text(getattr(ask(nvml, "nvmlDeviceGetPciInfo", one), "busId", None)) for one in handles]
    if len(set(names)) > 1 and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return ()
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        found: list[int | None] = list(range(len(handles)))
    else:
        found = [_index_of(entry, uuids) for entry in _listed(listed)]
    addresses = [None if index is None else pci.address(buses[index]) for index in found]
    return tuple(one for one in addresses if one is not None) if None not in addresses else ()


def _index_of(entry: str, uuids: Sequence[str | None]) -> int | None:
    """Return the NVML index of an entry of CUDA_VISIBLE_DEVICES.

    An entry is a number or the first characters of a UUID. The result is None if the entry does not identify exactly
    one GPU.
    """
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    fitting = [index for index, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None


@contextlib.contextmanager
def held_open() -> Iterator[None]:
    """Keep NVML open, because opening NVML takes seconds if no other program uses the driver."""
    with opened():
        yield


def has_device(root: Path = Path("/")) -> bool:
    """Check whether device files of the driver exist. The check is fast and imports nothing.

    On WSL, the device file is called `dxg`.
    """
    proc, dev = root / "proc/driver/nvidia/gpus", root / "dev"
    return any(proc.glob("*")) or any(dev.glob("nvidia[0-9]*")) or (dev / "dxg").exists()


def gpus(root: Path = ROOT, *, under_load: bool = False) -> NvmlInventory:
    """Return all GPUs of the driver, even those that CUDA_VISIBLE_DEVICES hides.

    If there are no GPUs, the result states why.

    `under_load`: whether the caller guarantees that data crosses the links to the host during the call. Idle links slow
        down.
    """
    with opened() as nvml:
        if isinstance(nvml, str):
            files, cards = len(_device_files(root)), _on_bus(root)
            return NvmlInventory(
                reason=nvml + (_THERE.format(files) if files else _ON_BUS.format(cards) if cards else "")
            )
        handles = handles_of(nvml)
        if not handles and ask(nvml, "nvmlDeviceGetCount") != 0:
            return NvmlInventory(reason="NVML is installed but reports no GPUs")
        found = named(gpu(nvml, index, handle, root, under_load=under_load) for index, handle in handles.items())
        return NvmlInventory(
            gpus=found,
            paths=paths(nvml, found, handles),
            driver=text(ask(nvml, "nvmlSystemGetDriverVersion")),
            cuda=_cuda(ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")),
        )


def conditions(root: Path = ROOT) -> list[dict[str, Any]]:
    """Return the changing state of each GPU. The result is empty without a driver.

    The function is fast enough to be called before and after every job.

    Keys and units are those of `core.inventory.Gpu`: `index`, `pcie_generation`, `pcie_lanes`, `sm_hz`, `memory_hz`,
    `power_w`, `temperature_c`, `throttle`.
    """
    if not has_device(root):
        return []
    with opened() as nvml:
        if isinstance(nvml, str):
            return []
        reported = {index: conditions_of(nvml, handle) for index, handle in handles_of(nvml).items()}
    return [{"index": index, **each, "throttle": list(each["throttle"])} for index, each in reported.items()]


def own_index(env: Mapping[str, str], local_rank: int) -> int | None:
    """Return the NVML index of the GPU that belongs to this local rank, or None if the index is unknown."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return local_rank
    listed = _listed(visible)
    if local_rank >= len(listed):
        return None
    if listed[local_rank].isdecimal():
        return int(listed[local_rank])
    with opened() as nvml:
        if isinstance(nvml, str):
            return None
        uuids = [text(ask(nvml, "nvmlDeviceGetUUID", handle)) for handle in handles_of(nvml).values()]
        return _index_of(listed[local_rank], uuids)


def energy_j(index: int) -> float | None:
    """Return the energy in joules that a GPU has used since its driver was loaded.

    Return None if NVML does not report this energy.
    """
    with opened() as nvml:
        if isinstance(nvml, str):
            return None
        handle = handles_of(nvml).get(index)
        millijoules = None if handle is None else ask(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle)
        return None if millijoules is None else millijoules / 1e3


def handles_of(nvml: ModuleType) -> dict[int, Any]:
    """Return the handles of the GPUs that respond, by index. A GPU that was lost from the bus does not respond."""
    asked = {
        index: ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(ask(nvml, "nvmlDeviceGetCount") or 0)
    }
    return {index: handle for index, handle in asked.items() if handle is not None}


def _cuda(version: int | None) -> str | None:
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


@contextlib.contextmanager
def opened() -> Iterator[ModuleType | str]:
    """Initialise NVML and yield its module. If NVML cannot be initialised, yield a text with the reason."""
    try:
        import pynvml
    except ImportError:
        yield "Python package nvidia-ml-py is not installed"
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield f"no NVIDIA driver was found ({error})"
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):  # the driver was unloaded in the meantime
            pynvml.nvmlShutdown()


def _device_files(root: Path) -> list[Path]:
    return [path for path in (root / "dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()]


def _on_bus(root: Path) -> int:
    """Return the number of NVIDIA displays and 3D controllers on the PCI bus, with or without a driver."""
    devices = (root / "sys/bus/pci/devices").glob("*")
    return sum(read(one / "vendor") == "0x10de" and (read(one / "class") or "").startswith("0x03") for one in devices)


def _listed(visible: str) -> list[str]:
    """Return the valid entries of CUDA_VISIBLE_DEVICES. CUDA stops at the first invalid entry."""
    entries = []
    for entry in (word.strip() for word in visible.split(",")):
        if not entry or entry.startswith("-") or entry == "NoDevFiles":
            break
        entries.append(entry)
    return entries
