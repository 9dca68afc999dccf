"""Find the network adapters of this machine and their PCI addresses, from /sys."""

from __future__ import annotations

import re
from pathlib import Path

from bench.core.inventory import Adapter
from bench.probes import pci
from bench.probes.sysfs import ROOT, node_of, number, read


def adapters(root: Path = ROOT) -> tuple[Adapter, ...]:
    """Return the ports of RDMA devices (InfiniBand, RoCE, EFA) and of other Ethernet devices, by name.

    The first port of a device has the device's name, such as `mlx5_0`. The name of a second port ends in `:2`
    (`mlx5_0:2`).
    """
    fabric = [_fabric(path) for path in (root / "sys/class/infiniband").glob("*/ports/*")]
    known = {adapter.pci_bus for adapter in fabric} - {None}
    plain = [_ethernet(path) for path in (root / "sys/class/net").glob("*") if (path / "device").exists()]
    return tuple(sorted((*fabric, *(each for each in plain if each.pci_bus not in known)), key=lambda each: each.name))


def _fabric(port: Path) -> Adapter:
    device = port.parents[1]
    rate = re.match(r"([\d.]+) Gb/sec", read(port / "rate") or "")
    return Adapter(
        name=device.name if port.name == "1" else f"{device.name}:{port.name}",
        kind=_kind(device, port),
        bytes_per_s=float(rate[1]) * 1e9 / 8 if rate and float(rate[1]) > 0 else None,
        state=(read(port / "state") or "").rpartition(": ")[2].lower() or None,
        pci_bus=_pci_bus(device),
        numa_node=_numa_node(device),
    )


def _kind(device: Path, port: Path) -> str:
    driver = device / "device/driver"
    if driver.exists() and driver.resolve().name == "efa":
        return "efa"
    return "roce" if read(port / "link_layer") == "Ethernet" else "infiniband"


def _ethernet(path: Path) -> Adapter:
    megabits = number(path / "speed")  # -1 or an error if the port is down or has no speed
    return Adapter(
        name=path.name,
        kind="ethernet",
        bytes_per_s=megabits * 1e6 / 8 if megabits is not None and megabits > 0 else None,
        state=read(path / "operstate"),
        pci_bus=_pci_bus(path),
        numa_node=_numa_node(path),
    )


def _pci_bus(path: Path) -> str | None:
    """Return the PCI address of a device.

    For a virtio device, the result is the address of the nearest PCI device above it.
    """
    device = path / "device"
    found = [each for part in device.resolve().parts if (each := pci.address(part))] if device.exists() else []
    return found[-1] if found else None


def _numa_node(path: Path) -> int | None:
    """Return the NUMA node of the device or of its parent."""
    device = (path / "device").resolve()
    return next((node for each in (device, device.parent) if (node := node_of(each)) is not None), None)
