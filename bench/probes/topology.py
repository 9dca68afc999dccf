"""Find the devices of a node and the paths between the devices, on this machine or in a recorded text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.core.inventory import Adapter, Gpu, Inventory
from bench.core.inventory import Path as Between
from bench.probes import lspci, nccl_xml, nvlink_status, nvml, pci, smi, topo_matrix
from bench.probes.adapters import adapters
from bench.probes.sysfs import ROOT, numa_nodes

# The readers of recorded texts.
_READERS = (smi, nccl_xml, lspci, topo_matrix, nvlink_status)


def of_machine(found: nvml.NvmlInventory | None = None, root: Path = ROOT) -> Inventory:
    """Return this machine's GPUs, adapters and known paths. `found`: NVML's inventory, if the caller has read it."""
    reported = nvml.gpus(root) if found is None else found
    cards = adapters(root)
    return Inventory(reported.gpus, cards, (*reported.paths, *_to_adapters(reported.gpus, cards, root)))


def inventory_of(text: str) -> Inventory | None:
    """Return the devices in a recorded text. Return None if the text has an unknown format.

    The known formats are the output of these commands, and topology and graph files of NCCL:

    - `nvidia-smi topo -m` and `nvidia-smi topo -p2p`
    - `nvidia-smi nvlink -s`, alone or with a table of `topo`
    - `nvidia-smi -q`, as text or as XML (`-x`)
    - `lspci -vvv`

    Other lines are ignored. The result's field `lost` lists the parts of the text that could not be read.
    """
    reader = next((each for each in _READERS if each.recognises(text)), None)
    if reader is None:
        return None
    found: Inventory = reader.inventory(text)
    if reader is topo_matrix and nvlink_status.recognises(text):
        return _with_nvlinks(found, nvlink_status.inventory(text))
    return found


def facts_of(text: str, file: str) -> dict[str, Any] | None:
    """Read the devices in a text, and return them as facts about a node, in the form of a results file's header.

    The facts also name the program that wrote the text, and the text's `file`.
    """
    reader = next((each for each in _READERS if each.recognises(text)), None)
    if reader is None:
        return None
    reported = {"told_by": reader.TOLD_BY, "file": file, **(smi.versions(text) if reader is smi else {})}
    found = inventory_of(text)
    assert found is not None
    return asdict(found) | reported


def _with_nvlinks(table: Inventory, status: Inventory) -> Inventory:
    """Return the inventory of a `topo` table with the names and NVLinks of GPUs from `nvlink -s`.

    GPUs with the same number are the same GPU. GPUs that only `nvlink -s` lists are added.
    """
    reported = {gpu.index: gpu for gpu in status.gpus}
    numbers = {gpu.index for gpu in table.gpus}
    gpus = []
    for gpu in table.gpus:
        own = reported.get(gpu.index)
        gpus.append(gpu if own is None else replace(gpu, name=own.name, uuid=own.uuid, nvlinks=own.nvlinks))
    others = tuple(gpu for gpu in status.gpus if gpu.index not in numbers)
    return replace(table, gpus=(*gpus, *others), lost=(*table.lost, *status.lost))


def _to_adapters(gpus: tuple[Gpu, ...], cards: tuple[Adapter, ...], root: Path) -> Iterator[Between]:
    num_nodes = len(numa_nodes(root)) or None
    at = {address: pci.place(address, root) for address in (card.pci_bus for card in cards)}
    for gpu in gpus:
        where = pci.place(pci.address(gpu.pci_bus), root)
        for card in cards:
            kind = pci.between(where, at[card.pci_bus], num_nodes)
            if kind is not None:
                yield Between(f"gpu{gpu.index}", card.name, kind)
