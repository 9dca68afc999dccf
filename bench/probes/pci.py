"""Read the tree of PCI devices in /sys: the bridges above a device, and the path between two devices.

Every function takes the root of the tree as a parameter, so it can also read recorded trees. Addresses have the
kernel's form: `0000:9e:00.0`. A value that cannot be read is None. Sandboxes and users other than root often cannot
read all values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from bench.probes.sysfs import ROOT, node_of, read

_DEVICES = "sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GENERATION_OF = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}  # generation by GT/s per lane (PCI-SIG)
# Vendors of emulated bridges, whose values are not real: QEMU, VMware, VirtualBox, Hyper-V.
_MADE_UP = {"0x1b36", "0x15ad", "0x80ee", "0x1414"}

# Offsets and bits of a PCI Express device's configuration space (PCI Express Base Specification, chapter 7).
_STATUS, _FIRST_CAPABILITY, _HAS_CAPABILITIES = 0x06, 0x34, 0x10
_EXPRESS, _DEVICE_CONTROL = 0x10, 0x08
_EXTENDED, _ACS, _ACS_CONTROL = 0x100, 0x000D, 0x06
_REDIRECTS = 0b101100  # P2P request redirect, P2P completion redirect, P2P egress control


@dataclass(frozen=True, slots=True)
class PciPath:
    """The address of a device, the address of its host bridge, and the bridges between them.

    `bridges`: the addresses of the bridges. The bridge nearest to the host comes first.
    """

    address: str
    host_bridge: str
    bridges: tuple[str, ...]
    numa_node: int | None


def address(reported: str | None) -> str | None:
    """Return the kernel's form of a PCI address: NVML's `00000000:9E:00.0` becomes `0000:9e:00.0`."""
    found = re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", (reported or "").strip().lower())
    return None if found is None else f"{int(found[1] or '0', 16):04x}:{found[2]}"


def generation(speed: str | None) -> int | None:
    """Return the PCIe generation of a speed: 5 for `32.0 GT/s PCIe` or `32GT/s`.

    Return None for `Unknown` and other speeds.
    """
    found = re.match(r"([\d.]+)\s*GT/s", speed or "")
    return None if found is None else _GENERATION_OF.get(float(found[1]))


def lanes(width: str | None) -> int | None:
    """Return the lanes of a width such as `16`, `x16` or `16x`.

    Return None for 0 and 255, which mean that there is no link.
    """
    found = re.fullmatch(r"x?(\d+)x?", (width or "").strip())
    count = int(found[1]) if found else 0
    return count if 0 < count <= 32 else None


def place(at: str | None, root: Path = ROOT) -> PciPath | None:
    """Return the path of a device in the tree, or None if /sys does not show the device."""
    link = root / _DEVICES / (at or "-")
    if not link.exists():
        return None
    parts = link.resolve().parts
    host_bridge = next((part for part in parts if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part)), None)
    if at is None or host_bridge is None:
        return None
    above = [part for part in parts if _ADDRESS.fullmatch(part) and part != at]
    return PciPath(at, host_bridge, tuple(above), node_of(link))


def between(a: PciPath | None, b: PciPath | None, num_nodes: int | None) -> str | None:
    """Return the path between two devices, named as in `nvidia-smi topo -m`, or None if it is unknown.

    `PIX`: through one switch (at most one bridge on each side below the common bridge).
    `PXB`: through several switches.
    `PHB`: through the host bridge.
    `NODE`: through several host bridges of a NUMA node.
    `SYS`: through the link between processors.

    `num_nodes`: how many NUMA nodes the machine has.
    """
    if a is None or b is None:
        return None
    if a.host_bridge != b.host_bridge:
        if None not in (a.numa_node, b.numa_node):
            return "NODE" if a.numa_node == b.numa_node else "SYS"
        return "NODE" if num_nodes == 1 else None
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a.bridges, b.bridges, strict=False)))
    if common == 0:
        return "PHB"
    return "PIX" if max(len(a.bridges), len(b.bridges)) - common <= 1 else "PXB"


def slot(at: str | None, root: Path = ROOT) -> tuple[int | None, int | None]:
    """Return the PCIe generation and the number of lanes that the bridge above a device supports.

    Return (None, None) if a hypervisor emulates the bridge.
    """
    where = place(at, root)
    if where is None or not where.bridges:
        return None, None
    bridge = root / _DEVICES / where.bridges[-1]
    if read(bridge / "vendor") in _MADE_UP:
        return None, None
    return generation(read(bridge / "max_link_speed")), lanes(read(bridge / "max_link_width"))


def packet_bytes(at: str | None, root: Path = ROOT) -> int | None:
    """Return the largest payload of a PCIe packet that this device sends, in bytes (Max_Payload_Size).

    The payload is read from bits 5 to 7 of the Device Control register.
    """
    config = _config(at, root)
    position = _express(config)
    if position is None or position + _DEVICE_CONTROL + 2 > len(config):
        return None
    size = (_word(config, position + _DEVICE_CONTROL) >> 5) & 7
    return 128 << size if size <= 5 else None


def redirects(at: str | None, root: Path = ROOT) -> bool | None:
    """Check whether a bridge above this device redirects peer traffic through the host (ACS).

    Return None if the bits cannot be read. Linux checks the same bits (drivers/pci/p2pdma.c).
    """
    where = place(at, root)
    reported = [_redirected(_config(bridge, root)) for bridge in where.bridges] if where else []
    if True in reported:
        return True
    return None if not reported or None in reported else False  # no visible bridge (virtual machines): unknown


def _redirected(config: bytes) -> bool | None:
    """Check whether this bridge redirects peer traffic.

    Return None if the extended configuration cannot be read. Only root may read it.
    """
    if len(config) <= _EXTENDED + 4:
        return None
    at, seen = _EXTENDED, set[int]()
    while at >= _EXTENDED and at + 8 <= len(config) and at not in seen:
        seen.add(at)
        kind, following = _word(config, at), _word(config, at + 2) >> 4
        if kind == _ACS:
            return bool(_word(config, at + _ACS_CONTROL) & _REDIRECTS)
        at = following & ~3
    return False


def _express(config: bytes) -> int | None:
    """Return the offset of the PCI Express capability."""
    if len(config) <= 64 or not _word(config, _STATUS) & _HAS_CAPABILITIES:
        return None
    at, seen = config[_FIRST_CAPABILITY] & ~3, set[int]()
    while at >= 64 and at + 2 <= len(config) and at not in seen:
        seen.add(at)
        if config[at] == _EXPRESS:
            return at
        at = config[at + 1] & ~3
    return None


def _config(at: str | None, root: Path) -> bytes:
    try:
        return (root / _DEVICES / (at or "-") / "config").read_bytes()
    except OSError:
        return b""


def _word(config: bytes, at: int) -> int:
    return int.from_bytes(config[at : at + 2], "little")
