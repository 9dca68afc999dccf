"""Read topology and graph files of NCCL (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`, `NCCL_GRAPH_FILE`): XML, as text.

A topology is a tree of processors, PCI switches and devices. Vendors ship such files for virtual machines, because /sys
of a virtual machine shows fewer details. In a topology file, `link_speed` and `link_width` are the highest values that
a link supports, not the current values. A graph file lists the paths that NCCL chose. A graph file describes a GPU only
by its number.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from bench.core.inventory import Adapter, Gpu, Inventory, NvLink, Path
from bench.probes import pci

_GPU_CLASSES, _INFINIBAND_CLASS, _NETWORK_CLASS, _BRIDGE_CLASS = ("0x0300", "0x0302"), "0x0207", "0x02", "0x0604"
TOLD_BY = "NCCL's file"
_SWITCH_CLASS = "0x0680"  # PCI class of an NVSwitch: "bridge, other"
_MOST_DIGITS = 18
_AMAZON = "0x1d0f"


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU or an adapter with its processor and the PCI devices above it."""

    name: str
    cpu: str
    above: tuple[str, ...]


def recognises(text: str) -> bool:
    """Check whether a text is a topology or graph file."""
    return re.search(r"<(?:system|graphs)\s+version=", text) is not None and "<nvidia_smi_log" not in text


def inventory(text: str) -> Inventory:
    """Return the GPUs, the adapters, and all paths between them.

    GPUs are in the order of their ranks, or in the file's order if the file has no ranks.
    """
    root = _parse(text)
    if root is None:
        return Inventory(lost=("the XML does not end properly",), nvlinks_told=False)
    return _of_graphs(root) if root.tag == "graphs" else _of_system(root)


def _parse(text: str) -> ElementTree.Element | None:
    begin = re.search(r"<(system|graphs)\s", text)
    if begin is None:
        return None
    end = text.rfind(f"</{begin[1]}>")
    try:
        return ElementTree.fromstring(text[begin.start() : end + len(begin[1]) + 3])
    except ElementTree.ParseError:
        return None


def _of_graphs(root: ElementTree.Element) -> Inventory:
    numbers = sorted({_whole(gpu.get("dev"), -1) for gpu in root.iter("gpu")} - {-1})
    reported = "a graph file has the paths that NCCL chose, not all paths between the GPUs"
    return Inventory(tuple(_unknown(number) for number in numbers), lost=(reported,), nvlinks_told=False)


def _of_system(root: ElementTree.Element) -> Inventory:
    gpus: list[tuple[int, Gpu, ElementTree.Element]] = []
    cards: list[Adapter] = []
    devices: list[_Device] = []
    lost: list[str] = []
    num_unknown = 0
    for cpu, above, element in _leaves(root):
        kind, address = element.get("class", ""), pci.address(element.get("busid"))
        own = element.find("gpu")
        if own is not None or kind.startswith(_GPU_CLASSES):
            gpu = _gpu(len(gpus), element, cpu)
            gpus.append((_whole(own.get("dev"), gpu.index) if own is not None else gpu.index, gpu, element))
            devices.append(_Device(f"gpu{gpus[-1][0]}", cpu, above))
        elif element.tag == "nic" or kind.startswith(_NETWORK_CLASS):
            for card in _adapters(element, address, cpu):
                cards.append(card)
                devices.append(_Device(card.name, cpu, above))
        else:
            num_unknown += 1
    if gpus and next(root.iter("nvlink"), None) is None:
        lost.append("the file has no NVLinks: NCCL adds the NVLinks that the driver finds")
    if num_unknown:
        lost.append(f"{num_unknown} PCI devices without a class: they may be GPUs or adapters")
    links = {
        number: tuple(_links(element, {pci.address(e.get("busid")): n for n, _, e in gpus}, number, lost))
        for number, _, element in gpus
    }
    found = tuple(
        Gpu(
            number,
            gpu.name,
            None,
            gpu.pci_bus,
            None,
            gpu.pcie_max_generation,
            None,
            gpu.pcie_max_lanes,
            numa_node=gpu.numa_node,
            nvlinks=links[number],
        )
        for number, gpu, _ in sorted(gpus, key=lambda each: each[0])
    )
    paths = tuple(Path(a.name, b.name, _between(a, b, links)) for a, b in combinations(devices, 2))
    return Inventory(found, tuple(cards), paths, tuple(dict.fromkeys(lost)), any(links.values()))


def _leaves(root: ElementTree.Element) -> Iterator[tuple[str, tuple[str, ...], ElementTree.Element]]:
    """Yield each device that is not a bridge, in the order of the file.

    An item has three parts: the NUMA node, the addresses of the switches above the device, and the device.
    """
    for cpu in root.iter("cpu"):
        waiting: list[tuple[tuple[str, ...], ElementTree.Element]] = [((), child) for child in reversed(cpu)]
        while waiting:
            above, element = waiting.pop()
            below = [child for child in element if child.tag in ("pci", "nic")]
            if element.tag == "pci" and (element.get("class", "").startswith(_BRIDGE_CLASS) or _holds_pci(element)):
                inside = (*above, element.get("busid", ""))
                waiting.extend((inside, child) for child in reversed(below))
            elif element.tag in ("pci", "nic"):
                yield cpu.get("numaid", ""), above, element


def _holds_pci(element: ElementTree.Element) -> bool:
    return element.find("pci") is not None


def _gpu(index: int, element: ElementTree.Element, cpu: str) -> Gpu:
    return Gpu(
        index=index,
        name="unknown",
        memory_bytes=None,
        pci_bus=element.get("busid"),
        pcie_generation=None,
        pcie_max_generation=pci.generation(element.get("link_speed")),
        pcie_lanes=None,
        pcie_max_lanes=pci.lanes(element.get("link_width")),
        numa_node=_node(cpu),
    )


def _unknown(index: int) -> Gpu:
    return Gpu(index, "unknown", None, None, None, None, None, None)


def _whole(text: str | None, otherwise: int) -> int:
    found = _node(text or "")
    return otherwise if found is None else found


def _node(cpu: str) -> int | None:
    """Return a whole number of at most 18 digits, because other programs can store such numbers.

    Return None for any other text.
    """
    return int(cpu) if len(cpu) <= _MOST_DIGITS and cpu.isascii() and cpu.isdigit() else None


def _adapters(element: ElementTree.Element, address: str | None, cpu: str) -> Iterator[Adapter]:
    """Yield the network adapters of a device, with names and rates.

    If the file does not name the adapters of the device, yield a single adapter whose name is the device's address.
    """
    kind = "infiniband" if element.get("class", "").startswith(_INFINIBAND_CLASS) else "ethernet"
    if element.get("vendor") == _AMAZON and element.get("device", "").startswith("0xefa"):
        kind = "efa"
    named = list(element.iter("net"))
    for net in named:
        speed = _whole(net.get("speed"), 0)  # Mb/s
        yield Adapter(net.get("name", "unknown"), kind, speed * 1e6 / 8 or None, None, address, _node(cpu))
    if not named:
        yield Adapter(address or "unknown", kind, None, None, address, _node(cpu))


def _links(
    element: ElementTree.Element, number_at: dict[str | None, int], own: int, lost: list[str]
) -> Iterator[NvLink]:
    """Yield a GPU's NVLinks. An entry with `count` and `target` in the file means `count` links to one target.

    A hand-written file may have links from a GPU to itself. Links from a GPU to itself are not yielded, but reported in
    `lost`.
    """
    index = 0
    for reported in element.iter("nvlink"):
        other = number_at.get(pci.address(reported.get("target")))
        if other == own:
            lost.append("NVLinks from a GPU to itself are ignored")
            continue
        peer = f"gpu{other}" if other is not None else pci.address(reported.get("target"))
        for _ in range(_whole(reported.get("count"), 0)):
            yield NvLink(index, None, None, "switch" if reported.get("tclass", "").startswith(_SWITCH_CLASS) else peer)
            index += 1


def _between(a: _Device, b: _Device, links: dict[int, tuple[NvLink, ...]]) -> str:
    """Return the path between two devices, named as in `nvidia-smi topo -m`.

    If the two devices belong to different processors, the path is SYS.
    """
    if a.name.startswith("gpu") and b.name.startswith("gpu"):
        of_a, of_b = links[int(a.name[3:])], links[int(b.name[3:])]
        direct = sum(1 for link in of_a if link.peer == b.name)
        count = direct or min(sum(1 for link in each if link.peer == "switch") for each in (of_a, of_b))
        if count:
            return f"NV{count}"
    if a.cpu != b.cpu:
        return "SYS"
    common = sum(1 for x, y in zip(a.above, b.above, strict=False) if x == y)
    if common == 0:
        return "PHB"
    return "PIX" if max(len(a.above), len(b.above)) - common == 0 else "PXB"
