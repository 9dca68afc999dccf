"""Read all facts that NVML reports about one GPU.

Any query may fail, for example with an old library, in a sandbox or on some boards.

Queries have the names of functions in the Python library nvidia-ml-py. If nvidia-ml-py renamed a function, this module
tries both names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.core.inventory import Gpu, NvLink
from bench.probes import pci

# Values of nvml.h. pynvml names most of them, but its NVML_P2P_CAPS_INDEX_READ is a tuple because of a stray comma.
_SM_CLOCK, _MEMORY_CLOCK, _GPU_SENSOR, _UNCORRECTED, _AGGREGATE = 1, 2, 0, 1, 1
_NODE_WORDS, _NODE_SCOPE = 16, 0  # a mask of 1024 memory nodes
_LINK_SPEED = 164  # NVML_FI_DEV_NVLINK_GET_SPEED: MB/s of the link that `scopeId` names, before line coding
_MAX_LINKS = 18  # most links of a GPU up to NVLink 4; newer libraries define a constant
_ULL = 3  # value type: which member of the union to read
_AT_LINK_END = {0: None, 1: "cpu", 2: "switch"}  # a GPU is reported by its PCI address instead
# GB/s of data per link and direction: V100 25, A100 25, H100 25 (its 26.56 are before line coding), B200 50.
_CARRIES = {
    1: ("1.0", 20),
    2: ("2.0", 25),
    3: ("2.2", 25),
    4: ("3.0", 25),
    5: ("3.1", 25),
    6: ("4.0", 25),
    7: ("5.0", 50),
}
_THROTTLE = {  # bit 0 (an idle GPU) is left out, because it does not affect figures
    0x002: "applications clocks setting",
    0x004: "sw power cap",
    0x008: "hw slowdown",
    0x010: "sync boost",
    0x020: "sw thermal slowdown",
    0x040: "hw thermal slowdown",
    0x080: "hw power brake slowdown",
    0x100: "display clock setting",
    0x200: "board limit",
    0x400: "reliability",
}
_FABRIC = {1: "not started", 2: "in progress", 3: "completed"}  # 0 means that this GPU has no fabric


def ask(nvml: ModuleType, question: str, *about: Any) -> Any:
    """Return NVML's reply to a query.

    Return None if this driver, board or library version does not support the query.
    """
    try:
        return getattr(nvml, question)(*about)
    except (nvml.NVMLError, AttributeError, ctypes.ArgumentError, UnicodeDecodeError):
        return None


def text(value: str | bytes | None) -> str | None:
    """Return a reply as text, because old versions of the library return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def gpu(nvml: ModuleType, index: int, handle: Any, root: Path, *, under_load: bool) -> Gpu:
    """Return all that NVML reports about one GPU.

    For each NVLink, `peer` is the type of the device at the other end, such as "switch". If NVML does not report the
    type of the device, `peer` is the PCI address of the device.
    """
    bus = text(getattr(ask(nvml, "nvmlDeviceGetPciInfo", handle), "busId", None))
    address = pci.address(bus)
    most = ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    own = ask(nvml, "nvmlDeviceGetGpuMaxPcieLinkGeneration", handle)
    now = conditions(nvml, handle)
    slot_generation, slot_lanes = _believable(pci.slot(address, root), now["pcie_generation"], now["pcie_lanes"])
    if slot_generation is None and None not in (most, own) and most < own:
        slot_generation = most  # the slot limits the GPU
    ecc, mig = ask(nvml, "nvmlDeviceGetEccMode", handle), ask(nvml, "nvmlDeviceGetMigMode", handle)
    return Gpu(
        index=index,
        name=text(ask(nvml, "nvmlDeviceGetName", handle)) or "unknown",
        memory_bytes=_whole(getattr(ask(nvml, "nvmlDeviceGetMemoryInfo", handle), "total", None)),
        pci_bus=bus,
        pcie_max_generation=most,
        pcie_max_lanes=ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        uuid=text(ask(nvml, "nvmlDeviceGetUUID", handle)),
        numa_node=_numa_node(nvml, handle, address, root),
        slot_generation=slot_generation,
        slot_lanes=slot_lanes,
        packet_bytes=pci.packet_bytes(address, root),
        under_load=under_load,
        nvlinks=_links(nvml, handle),
        sm_max_hz=_hertz(ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK)),
        memory_max_hz=_hertz(ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, _MEMORY_CLOCK)),
        power_limit_w=_watts(
            _either(nvml, handle, "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit")
        ),
        ecc=None if ecc is None else bool(ecc[0]),
        ecc_uncorrected=ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _AGGREGATE),
        mig=None if mig is None else bool(mig[0]),
        fabric=_fabric(nvml, handle),
        own_generation=own,
        **now,
    )


def conditions(nvml: ModuleType, handle: Any) -> dict[str, Any]:
    """Return the values that change while a GPU works, with the keys and units of `core.inventory.Gpu`."""
    return {
        "pcie_generation": ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_lanes": ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        **moving_state(nvml, handle),
    }


def moving_state(nvml: ModuleType, handle: Any) -> dict[str, Any]:
    """Return the clocks, power, temperature and throttle reasons of `conditions`."""
    reasons = _either(
        nvml, handle, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    )
    return {
        "sm_hz": _hertz(ask(nvml, "nvmlDeviceGetClockInfo", handle, _SM_CLOCK)),
        "memory_hz": _hertz(ask(nvml, "nvmlDeviceGetClockInfo", handle, _MEMORY_CLOCK)),
        "power_w": _watts(ask(nvml, "nvmlDeviceGetPowerUsage", handle)),
        "temperature_c": _temperature(nvml, handle),
        "throttle": tuple(word for bit, word in _THROTTLE.items() if (reasons or 0) & bit),
    }


def _either(nvml: ModuleType, handle: Any, *questions: str) -> Any:
    """Return the reply to the first of these queries that NVML supports."""
    return next((answer for name in questions if (answer := ask(nvml, name, handle)) is not None), None)


def _temperature(nvml: ModuleType, handle: Any) -> float | None:
    reported = ask(nvml, "nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
    if reported is None:  # CUDA 14 removes this function
        reported = ask(nvml, "nvmlDeviceGetTemperatureV", handle, _GPU_SENSOR)
    return None if reported is None else float(reported)


def _numa_node(nvml: ModuleType, handle: Any, address: str | None, root: Path) -> int | None:
    """Return the NUMA node of the host memory that is nearest to a GPU.

    If the kernel does not report the NUMA node, the function asks NVML. NVML's reply is used only if it names exactly
    one node. The query nvmlDeviceGetNumaNodeId is unsuitable, because it returns the NUMA node of the GPU's own memory.
    """
    where = pci.place(address, root)
    if where is not None and where.numa_node is not None:
        return where.numa_node
    words = ask(nvml, "nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, _NODE_SCOPE) or ()
    near = [64 * index + bit for index, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    return near[0] if len(near) == 1 else None


def _believable(
    slot: tuple[int | None, int | None], generation: int | None, lanes: int | None
) -> tuple[int | None, int | None]:
    """Return the generation and the lanes that a slot supports, or (None, None) if the reported values are invented.

    If the current link exceeds one of the reported values, a hypervisor has invented both of them.
    """
    for claim, fact in zip(slot, (generation, lanes), strict=True):
        if claim is not None and fact is not None and claim < fact:
            return None, None
    return slot


def _links(nvml: ModuleType, handle: Any) -> tuple[NvLink, ...]:
    """Return all NVLinks of the board, including NVLinks to which nothing is connected."""
    asked = range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", _MAX_LINKS))
    states = {index: ask(nvml, "nvmlDeviceGetNvLinkState", handle, index) for index in asked}
    active = [index for index, state in states.items() if state]
    speeds = _speeds(nvml, handle, active)
    found = []
    for index, state in states.items():
        if state == 0:
            found.append(NvLink(index, active=False))
        elif state is not None:
            rate, source = _rate(speeds.get(index), ask(nvml, "nvmlDeviceGetNvLinkVersion", handle, index))
            found.append(NvLink(index, True, rate, _peer(nvml, handle, index), source))
    return tuple(found)


def _rate(reported: float | None, version: int | None) -> tuple[float | None, str | None]:
    """Return the data rate of an NVLink, in bytes per second in each direction, and the source of this rate.

    The driver reports the signalling rate, which includes line coding. The rate for data therefore comes from the
    NVLink version, if the version is known.
    """
    name, carried = _CARRIES.get(version or 0, (None, None))
    if carried is not None and (reported is None or reported >= carried * 1e9):
        return carried * 1e9, f"NVLink {name}"
    return reported, None if reported is None else "driver"


def _speeds(nvml: ModuleType, handle: Any, links: Sequence[int]) -> dict[int, float]:
    """Return the reported rate of each link by its number, in bytes per second in each direction.

    One query asks for all links. Links without a reported rate are left out.
    """
    reported = ask(nvml, "nvmlDeviceGetFieldValues", handle, [(_LINK_SPEED, link) for link in links]) if links else None
    found = {}
    for link, value in zip(links, reported or (), strict=False):
        if value.nvmlReturn == 0:
            speed = value.value.ullVal if value.valueType == _ULL else value.value.uiVal
            if speed > 0:
                found[link] = speed * 1e6
    return found


def _peer(nvml: ModuleType, handle: Any, link: int) -> str | None:
    kind = _AT_LINK_END.get(ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link))
    if kind is not None:
        return kind
    reported = ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    return pci.address(text(getattr(reported, "busId", None)))


def _fabric(nvml: ModuleType, handle: Any) -> str | None:
    """Return the state of this GPU's registration with the NVSwitch fabric, such as `in progress` or `completed`.

    Return None without a fabric, or if the state is unknown.
    """
    for question, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        make: Callable[[], ctypes.Structure] | None = getattr(nvml, structure, None)
        if make is None:
            continue
        info: Any = make()
        if ask(nvml, question, handle, ctypes.byref(info)) is None:
            continue
        if info.state == 3 and info.status != 0:
            return f"failed: {text(ask(nvml, 'nvmlErrorString', info.status)) or info.status}"
        return _FABRIC.get(info.state)
    return None


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _hertz(megahertz: int | None) -> float | None:
    return None if megahertz is None else megahertz * 1e6


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
