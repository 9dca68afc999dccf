"""Read the AMD GPUs of this machine from /sys/class/kfd and from the files of the driver amdgpu."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from bench.core.device_use import DeviceReading
from bench.probes.sysfs import ROOT, number, read

_NODES = "sys/class/kfd/kfd/topology/nodes"
_DEVICES = "sys/bus/pci/devices"
# HIP applies these lists one after the other. Each list numbers the GPUs that the previous list left (ROCm, "GPU
# isolation techniques").
_LISTS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_ERRORS = re.compile(r"^(ue|ce): (\d+)$", re.MULTILINE)
_ERROR_NAMES = {"ue": "ecc_uncorrected", "ce": "ecc_corrected"}


def has_device(root: Path = ROOT) -> bool:
    """Check whether the driver's device file exists."""
    return (root / "dev/kfd").exists()


def addresses(env: Mapping[str, str] | None = None, root: Path = ROOT) -> tuple[str, ...]:
    """Return the PCI addresses of the GPUs that HIP programs see, in HIP's order.

    The result is empty without the driver. The result is also empty if a list of visible GPUs, such as
    HIP_VISIBLE_DEVICES, has UUIDs.
    """
    if not has_device(root):
        return ()
    nodes = sorted((root / _NODES).glob("*"), key=lambda node: (len(node.name), node.name))
    found = [address for node in nodes if (address := _address(node)) is not None]
    env = os.environ if env is None else env
    for name in _LISTS:
        if name in env:
            chosen = [int(word) for word in re.findall(r"\d+", env[name])] if _is_numbers(env[name]) else []
            found = [found[index] for index in chosen if index < len(found)]
            if name == "HIP_VISIBLE_DEVICES":
                break  # CUDA_VISIBLE_DEVICES is another name for the same list
    return tuple(found)


def _is_numbers(text: str) -> bool:
    return re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", text) is not None


def _address(node: Path) -> str | None:
    """Return the PCI address of a node of the topology, or None if the node is a CPU."""
    values = dict(line.split() for line in (read(node / "properties") or "").splitlines() if len(line.split()) == 2)
    if int(values.get("simd_count", "0")) == 0:
        return None
    place = int(values.get("location_id", "0"))
    return f"{int(values.get('domain', '0')):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


class AmdReader:
    """Reads one GPU repeatedly. The driver's files have no throttle reasons."""

    def __init__(self, address: str, root: Path = ROOT) -> None:
        """Find the files of the GPU."""
        self.device = f"gpu {address}"
        self._folder = root / _DEVICES / address.lower()
        self._sensors = next(iter(sorted((self._folder / "hwmon").glob("hwmon*"))), self._folder / "hwmon")

    def read(self) -> DeviceReading:
        """Return clocks, power, the temperature of the hottest sensor, utilisation, and the memory in use."""
        watts = [number(self._sensors / name) for name in ("power1_average", "power1_input")]
        power = next((each for each in watts if each is not None), None)
        heat = [each for k in (1, 2, 3) if (each := number(self._sensors / f"temp{k}_input")) is not None]
        clocks = [number(self._sensors / f"freq{k}_input") for k in (1, 2)]
        busy = number(self._folder / "gpu_busy_percent")
        return DeviceReading(
            hz=None if clocks[0] is None else float(clocks[0]),
            memory_hz=None if clocks[1] is None else float(clocks[1]),
            power_w=None if power is None else power / 1e6,
            temperature_c=max(heat) / 1000 if heat else None,
            busy=None if busy is None else busy / 100,
            memory_bytes=number(self._folder / "mem_info_vram_used"),
        )

    def counters(self) -> Mapping[str, int]:
        """Return the PCIe replays, corrected errors and uncorrected errors of the GPU.

        Errors are summed over all parts of the GPU.
        """
        found: dict[str, int] = {}
        replays = number(self._folder / "pcie_replay_count")
        if replays is not None:
            found["pcie_replays"] = replays
        for file in sorted((self._folder / "ras").glob("*_err_count")):
            for kind, count in _ERRORS.findall(read(file) or ""):
                found[_ERROR_NAMES[kind]] = found.get(_ERROR_NAMES[kind], 0) + int(count)
        return found

    def close(self) -> None:
        """Do nothing, because nothing is open."""


def open_reader(address: str, root: Path = ROOT) -> AmdReader | None:
    """Return a reader of the GPU at a PCI address, or None if this GPU is not an AMD GPU."""
    return AmdReader(address, root) if read(root / _DEVICES / address.lower() / "vendor") == "0x1002" else None
