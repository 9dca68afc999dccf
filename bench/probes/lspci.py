"""Read the output of `lspci -vvv`, which shows the links of GPUs and of the bridges above the GPUs.

The text is complete only if root ran lspci. If another user ran lspci, the text has `<access denied>` in place of
capabilities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from bench.core.inventory import Gpu, Inventory, Path
from bench.probes import pci

_DEVICE = re.compile(
    r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^:\n]+): (.*?)(?: \(rev \w+\))?(?: \(prog-if .*\))?$", re.M
)
TOLD_BY = "lspci -vvv"
_GPU = ("3D controller", "VGA compatible controller", "Display controller")
_LINK = r"Speed ([\d.]+GT/s|unknown)(?: \((\w+)\))?, Width (x\d+)(?: \((\w+)\))?"


@dataclass(frozen=True, slots=True)
class PciFunction:
    """A device in the output of lspci. A field is None if the output does not show its value.

    `generation`, `lanes`: the current state of the link.
    `max_generation`, `max_lanes`: the most that this device supports. The device at the other end of the link may
        support less.
    `buses`: for a bridge, the first and the last bus behind the bridge.
    `redirects`: for a bridge, whether ACS redirects peer-to-peer transfers through the host.
    """

    address: str
    kind: str
    name: str
    numa_node: int | None
    buses: tuple[int, int] | None
    generation: int | None
    lanes: int | None
    max_generation: int | None
    max_lanes: int | None
    packet_bytes: int | None
    redirects: bool | None
    downgraded: bool

    @property
    def segment(self) -> str:
        """The PCI segment (domain)."""
        return self.address.split(":")[0]

    @property
    def bus(self) -> int:
        """The number of the device's bus."""
        return int(self.address.split(":")[1], 16)


def recognises(text: str) -> bool:
    """Check whether a text describes a device."""
    return (
        _DEVICE.search(text) is not None
        and re.search(r"^\s+(?:Control|Capabilities|Subsystem):", text, re.M) is not None
    )


def inventory(text: str) -> Inventory:
    """Return the NVIDIA GPUs in the order of their addresses, and the paths between the GPUs.

    If the text lacks a bridge above one of two GPUs, the path between these GPUs is unknown.
    """
    found = devices(text)
    cards = [device for device in found.values() if device.kind in _GPU and "NVIDIA" in device.name]
    gpus = tuple(_gpu(index, card, above(card, found)) for index, card in enumerate(cards))
    paths, lost = [], []
    for (i, a), (j, b) in combinations(enumerate(cards), 2):
        kind = _between(a, b, found)
        if kind is None:
            lost.append(f"gpu{i} to gpu{j}: the root ports above them are not in the text")
        else:
            paths.append(Path(f"gpu{i}", f"gpu{j}", kind))
    if cards and not any(card.max_generation for card in cards):
        lost.append("no capabilities: lspci was not run by root")
    return Inventory(gpus, (), tuple(paths), tuple(lost), nvlinks_told=False)


def devices(text: str) -> dict[str, PciFunction]:
    """Return the devices by address, in the order of the text."""
    begins = list(_DEVICE.finditer(text))
    ends = [begin.start() for begin in begins[1:]] + [len(text)]
    blocks = (_device(begin, text[begin.end() : end]) for begin, end in zip(begins, ends, strict=True))
    return {device.address: device for device in blocks}


def above(device: PciFunction, found: Mapping[str, PciFunction]) -> tuple[PciFunction, ...]:
    """Return the bridges above a device in the text, the outermost first."""
    chain: list[PciFunction] = []
    bus = device.bus
    while True:
        bridge = next(
            (each for each in found.values() if each.buses and each.buses[0] == bus and each.segment == device.segment),
            None,
        )
        if bridge is None or bridge in chain:
            return tuple(reversed(chain))
        chain.append(bridge)
        bus = bridge.bus


def _between(a: PciFunction, b: PciFunction, found: Mapping[str, PciFunction]) -> str | None:
    """Return the path between two devices, named as in `nvidia-smi topo -m`.

    Return None if the bridges above the two devices are not in the text.
    """
    of_a, of_b = above(a, found), above(b, found)
    common = sum(1 for x, y in zip(of_a, of_b, strict=False) if x is y)
    if common:
        return "PIX" if max(len(of_a), len(of_b)) - common <= 1 else "PXB"
    if None not in (a.numa_node, b.numa_node) and a.numa_node != b.numa_node:
        return "SYS"
    tops = [chain[0] if chain else device for device, chain in ((a, of_a), (b, of_b))]
    if all(top.bus == 0 for top in tops) and tops[0].segment == tops[1].segment:
        return "PHB"
    return None


def _gpu(index: int, card: PciFunction, bridges: tuple[PciFunction, ...]) -> Gpu:
    slot = bridges[-1] if bridges else None
    both = [each for each in (card.max_generation, slot.max_generation if slot else None) if each is not None]
    return Gpu(
        index=index,
        name=card.name,
        memory_bytes=None,
        pci_bus=card.address,
        pcie_generation=card.generation,
        pcie_max_generation=min(both, default=None),
        pcie_lanes=card.lanes,
        pcie_max_lanes=card.max_lanes,
        numa_node=card.numa_node,
        slot_generation=slot.max_generation if slot else None,
        slot_lanes=slot.max_lanes if slot else None,
        packet_bytes=card.packet_bytes,
        own_generation=card.max_generation,
    )


def _device(begin: re.Match[str], block: str) -> PciFunction:
    most = re.search(rf"LnkCap:.*?{_LINK}", block)
    now = re.search(rf"LnkSta:\s*{_LINK}", block)
    behind = re.search(r"Bus: primary=\w+, secondary=(\w+), subordinate=(\w+)", block)
    node = re.search(r"NUMA node: (\d+)", block)
    control = re.search(r"DevCtl:(?:.*\n){0,4}?\s+MaxPayload (\d+) bytes", block)
    redirection = re.search(r"ACSCtl:.*ReqRedir([+-]) CmpltRedir([+-]).*EgressCtrl([+-])", block)
    return PciFunction(
        address=pci.address(begin[1]) or begin[1],
        kind=begin[2],
        name=begin[3],
        numa_node=int(node[1]) if node else None,
        buses=(int(behind[1], 16), int(behind[2], 16)) if behind else None,
        generation=pci.generation(now[1]) if now else None,
        lanes=pci.lanes(now[3]) if now else None,
        max_generation=pci.generation(most[1]) if most else None,
        max_lanes=pci.lanes(most[3]) if most else None,
        packet_bytes=int(control[1]) if control else None,
        redirects="+" in redirection.groups() if redirection else None,
        downgraded=bool(now and "downgraded" in (now[2], now[4])),
    )
