"""The devices of a node and what is between them: asked of this machine, or read from what somebody recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.core.inventory import Adapter, Gpu, Inventory
from bench.core.inventory import Path as Between
from bench.probes import lspci, nccl_xml, nvml, pci, smi, topo_matrix
from bench.probes.adapters import adapters
from bench.probes.sysfs import ROOT, numa_nodes

# What reads a recorded text, and what only such a text holds.
_READERS = (smi, nccl_xml, lspci, topo_matrix)


def of_machine(found: nvml.NvmlInventory | None = None, root: Path = ROOT) -> Inventory:
    """This machine's GPUs, adapters and all paths that are known. `found`: what NVML was already asked."""
    told = nvml.gpus(root) if found is None else found
    cards = adapters(root)
    return Inventory(told.gpus, cards, (*told.paths, *_to_adapters(told.gpus, cards, root)))


def inventory_of(text: str) -> Inventory | None:
    """What a recorded text tells; its format is recognised by its contents. None for a text of no known format.

    Read are `nvidia-smi topo -m` and `topo -p2p`, `nvidia-smi -q` (text, and XML by `-x`), `lspci -vvv` and the
    topology and graph files of NCCL, lines around them left aside. What could not be read is named in `lost`.
    """
    reader = next((each for each in _READERS if each.recognises(text)), None)
    return None if reader is None else reader.inventory(text)


def facts_of(text: str, file: str) -> dict[str, Any] | None:
    """The same as the facts of a node in a header, with what wrote the text and the `file` where it stands."""
    reader = next((each for each in _READERS if each.recognises(text)), None)
    if reader is None:
        return None
    told = {"told_by": reader.TOLD_BY, "file": file, **(smi.versions(text) if reader is smi else {})}
    return asdict(reader.inventory(text)) | told


def _to_adapters(gpus: tuple[Gpu, ...], cards: tuple[Adapter, ...], root: Path) -> Iterator[Between]:
    num_nodes = len(numa_nodes(root)) or None
    at = {address: pci.place(address, root) for address in (card.pci_bus for card in cards)}
    for gpu in gpus:
        where = pci.place(pci.address(gpu.pci_bus), root)
        for card in cards:
            kind = pci.between(where, at[card.pci_bus], num_nodes)
            if kind is not None:
                yield Between(f"gpu{gpu.index}", card.name, kind)
