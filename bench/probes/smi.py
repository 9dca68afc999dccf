"""Read the driver's report about each GPU from the output of `nvidia-smi -q`, as text or as XML (`-x`).

Text and XML use different names for fields. This module converts both forms into flat tables with keys such as
`section/subsection/name`, in lower case.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from typing import Any

from bench.core.inventory import Gpu, Inventory

TOLD_BY = "nvidia-smi -q"
_MEBI = 1 << 20
_UNTOLD = ("", "n/a", "[n/a]", "unknown", "requested functionality has been deprecated")
# The names of a field in XML (drivers 515 to 595), then in text. The first name with a value counts.
_NAMES = {
    "name": ("product_name", "product name"),
    "uuid": ("uuid", "gpu uuid"),
    "memory": ("fb_memory_usage/total", "fb memory usage/total"),
    "bus": ("pci/pci_bus_id", "pci/bus id"),
    "now": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen", "pci/gpu link info/pcie generation/current"),
    "most": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen", "pci/gpu link info/pcie generation/max"),
    "own": ("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen", "pci/gpu link info/pcie generation/device max"),
    "slot": ("pci/pci_gpu_link_info/pcie_gen/max_host_link_gen", "pci/gpu link info/pcie generation/host max"),
    "lanes": ("pci/pci_gpu_link_info/link_widths/current_link_width", "pci/gpu link info/link width/current"),
    "most_lanes": ("pci/pci_gpu_link_info/link_widths/max_link_width", "pci/gpu link info/link width/max"),
    "sm": ("clocks/sm_clock", "clocks/sm"),
    "most_sm": ("max_clocks/sm_clock", "max clocks/sm"),
    "memory_clock": ("clocks/mem_clock", "clocks/memory"),
    "most_memory_clock": ("max_clocks/mem_clock", "max clocks/memory"),
    "power": (
        "gpu_power_readings/average_power_draw",
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
        "gpu power readings/average power draw",
        "gpu power readings/power draw",
        "power readings/power draw",
    ),
    "power_limit": (
        "gpu_power_readings/current_power_limit",
        "power_readings/enforced_power_limit",
        "power_readings/power_limit",
        "gpu power readings/current power limit",
        "power readings/enforced power limit",
        "power readings/power limit",
    ),
    "temperature": ("temperature/gpu_temp", "temperature/gpu current temp"),
    "ecc": ("ecc_mode/current_ecc", "ecc mode/current"),
    "mig": ("mig_mode/current_mig", "mig mode/current"),
    "fabric": ("fabric/state", "fabric/state"),
    "fabric_status": ("fabric/status", "fabric/status"),
}
_REASONS = re.compile(r"clocks[_ ](?:event|throttle)[_ ]reasons/(?:.*/)?(?:clocks_(?:event|throttle)_reason_)?([^/]+)")


def recognises(text: str) -> bool:
    """Check whether a text is a report of `nvidia-smi -q`, as text or as XML."""
    return (
        "<nvidia_smi_log" in text or "==NVSMI LOG==" in text or re.search(r"^Attached GPUs +:", text, re.M) is not None
    )


def inventory(text: str) -> Inventory:
    """Return the GPUs in the order of the text, which is the driver's order.

    The output of `nvidia-smi -q` does not show the paths between GPUs.
    """
    tables = list(_of_xml(text) if "<nvidia_smi_log" in text else _of_text(text))
    lost = []
    reported = re.search(r"<attached_gpus>(\d+)<|^Attached GPUs +: *(\d+)", text, re.MULTILINE)
    attached = int(reported[1] or reported[2]) if reported else len(tables)
    if attached != len(tables):
        lost.append(f"{attached} GPUs are attached, but the text describes {len(tables)}")
    gpus = tuple(_gpu(index, table) for index, table in enumerate(tables))
    return Inventory(gpus, lost=tuple(lost), nvlinks_told=False)


def versions(text: str) -> dict[str, str]:
    """Return the versions `gpu_driver` and `gpu_cuda` from the head of the text."""
    reported = {}
    for key, tag, name in (
        ("gpu_driver", "driver_version", "Driver Version"),
        ("gpu_cuda", "cuda_version", "CUDA Version"),
    ):
        found = re.search(rf"<{tag}>\s*([^<]*?)\s*<|^{name} +: *(\S+)", text, re.MULTILINE)
        if found and _says(value := found[1] or found[2]):
            reported[key] = value
    return reported


def _gpu(index: int, table: Mapping[str, str]) -> Gpu:
    def reported(field: str) -> str | None:
        return next((table[name] for name in _NAMES[field] if _says(table.get(name))), None)

    own, most, slot = _whole(reported("own")), _whole(reported("most")), _whole(reported("slot"))
    if slot is None and own is not None and most is not None and most < own:
        slot = most  # the slot limits the GPU
    memory = _whole(reported("memory"))
    return Gpu(
        index=index,
        name=reported("name") or "unknown",
        memory_bytes=None if memory is None else memory * _MEBI,
        pci_bus=reported("bus"),
        pcie_generation=_whole(reported("now")),
        pcie_max_generation=most,
        pcie_lanes=_whole(reported("lanes")),
        pcie_max_lanes=_whole(reported("most_lanes")),
        uuid=reported("uuid"),
        slot_generation=slot,
        sm_hz=_hertz(reported("sm")),
        sm_max_hz=_hertz(reported("most_sm")),
        memory_hz=_hertz(reported("memory_clock")),
        memory_max_hz=_hertz(reported("most_memory_clock")),
        power_w=_number(reported("power")),
        power_limit_w=_number(reported("power_limit")),
        temperature_c=_number(reported("temperature")),
        throttle=tuple(_throttle(table)),
        ecc=_enabled(reported("ecc")),
        ecc_uncorrected=_uncorrected(table),
        mig=_enabled(reported("mig")),
        fabric=_fabric(reported("fabric"), reported("fabric_status")),
        own_generation=own,
    )


def _of_xml(text: str) -> Iterator[dict[str, str]]:
    """Yield one table for each complete `<gpu>`."""
    for block in re.finditer(r"<gpu id=.*?</gpu>", text, re.DOTALL):
        try:
            yield dict(_leaves(ElementTree.fromstring(block[0]), ()))
        except ElementTree.ParseError:
            continue


def _leaves(element: ElementTree.Element, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for child in element:
        here = (*above, child.tag.lower())
        if len(child):
            yield from _leaves(child, here)
        else:
            yield "/".join(here), (child.text or "").strip()


def _of_text(text: str) -> Iterator[dict[str, str]]:
    """Yield one table for each GPU. Each level of sections is indented by four more blanks."""
    table: dict[str, str] | None = None
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if re.match(r"GPU [0-9A-Fa-f]{8}:", line):
            if table is not None:
                yield table
            table, above = {}, []
            continue
        found = re.match(r"^( +)(\S.*?)\s*(?::(?: (.*))?)?$", line)
        if table is None or found is None:
            continue
        depth = len(found[1])
        above = [each for each in above if each[0] < depth]
        above.append((depth, found[2].lower()))
        if found[3] is not None:
            table["/".join(name for _, name in above)] = found[3].strip()
    if table is not None:
        yield table


def _throttle(table: Mapping[str, str]) -> Iterator[str]:
    """Yield the throttle reasons, except `idle`. The reasons have the names of the bits in NVML."""
    for name, value in table.items():
        found = _REASONS.fullmatch(name)
        if found and value == "Active" and found[1] not in ("gpu_idle", "idle"):
            yield found[1].replace("_", " ").replace("display clocks", "display clock")


def _uncorrected(table: Mapping[str, str]) -> int | None:
    """Return the number of uncorrectable errors of memory and caches over the GPU's lifetime."""
    reported = [
        _whole(value)
        for name, value in table.items()
        if re.match(r"ecc[_ ]errors/aggregate/(?:.*uncorrect|double[_ ]bit/total)", name)
    ]
    known = [count for count in reported if count is not None]
    return sum(known) if known else None


def _fabric(state: str | None, status: str | None) -> str | None:
    if state is None:
        return None
    if state.lower() == "completed" and status is not None and status.lower() != "success":
        return f"failed: {status}"
    return state.lower()


def _says(value: str | None) -> bool:
    return value is not None and value.lower() not in _UNTOLD


def _enabled(value: str | None) -> bool | None:
    return {"enabled": True, "disabled": False}.get((value or "").lower())


def _whole(value: str | None) -> int | None:
    """Return the integer at the start of a value such as `4`, `16x` or `40960 MiB`."""
    found = re.match(r"\d+", value or "")
    return int(found[0]) if found else None


def _number(value: str | None) -> float | None:
    found: Any = re.match(r"-?\d+(?:\.\d+)?", value or "")
    return float(found[0]) if found else None


def _hertz(value: str | None) -> float | None:
    reported = _number(value)
    return None if reported is None else reported * 1e6
