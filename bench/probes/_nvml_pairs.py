"""Read the paths between a node's GPUs from NVML, with the names that `nvidia-smi topo -m` and `topo -p2p r` use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from types import ModuleType
from typing import Any

from bench.core.inventory import Gpu, NoAccess, NvLink, Path
from bench.probes import pci
from bench.probes._nvml_gpu import ask

# Values of nvmlGpuTopologyLevel_t. 0 is a board with two GPUs and a switch.
_ANCESTOR = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_READ, _OVER_NVLINK = 0, 2  # nvmlGpuP2PCapsIndex_t
_NO_ACCESS = {  # values of nvmlGpuP2PStatus_t; 0 means access, 6 means unknown
    1: NoAccess.CHIPSET,
    2: NoAccess.GPU,
    3: NoAccess.TOPOLOGY,
    4: NoAccess.DISABLED,
    5: NoAccess.UNSUPPORTED,
}


def named(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs, with GPU names as the peers of their NVLinks.

    If an NVLink leads to another of these GPUs, `peer` becomes the name of that GPU, such as `gpu3`.
    """
    found = tuple(gpus)
    name_of = {pci.address(each.pci_bus): f"gpu{each.index}" for each in found}
    return tuple(replace(each, nvlinks=tuple(_with_name(link, name_of) for link in each.nvlinks)) for each in found)


def paths(nvml: ModuleType, gpus: Iterable[Gpu], handles: Mapping[int, Any]) -> tuple[Path, ...]:
    """Return the path between every two GPUs for which the driver reports a path."""
    found = (_path(nvml, a, b, handles[a.index], handles[b.index]) for a, b in combinations(gpus, 2))
    return tuple(path for path in found if path is not None)


def _path(nvml: ModuleType, a: Gpu, b: Gpu, of_a: Any, of_b: Any) -> Path | None:
    num_links = num_nvlinks(a, b)
    if num_links == 0 and ask(nvml, "nvmlDeviceGetP2PStatus", of_a, of_b, _OVER_NVLINK) == 0:
        num_links = min(_of_unknown_end(a), _of_unknown_end(b))
    status = ask(nvml, "nvmlDeviceGetP2PStatus", of_a, of_b, _READ)
    kind = (
        f"NV{num_links}" if num_links else _ANCESTOR.get(ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", of_a, of_b))
    )
    if kind is None:
        return None
    access = None if status not in {0, *_NO_ACCESS} else status == 0
    return Path.between(f"gpu{a.index}", f"gpu{b.index}", kind, access, _NO_ACCESS.get(status))


def num_nvlinks(a: Gpu, b: Gpu) -> int:
    """Return the number of active NVLinks between two GPUs.

    Without direct NVLinks, count each GPU's links to switches and return the smaller number.
    """
    direct = sum(1 for link in a.nvlinks if link.active and link.peer == f"gpu{b.index}")
    return direct or min(_to_switch(a), _to_switch(b))


def _to_switch(gpu: Gpu) -> int:
    return sum(1 for link in gpu.nvlinks if link.active and link.peer == "switch")


def _of_unknown_end(gpu: Gpu) -> int:
    """Count the active NVLinks of a GPU whose other end is unknown.

    The other end of an NVLink is unknown if it is not a GPU, a switch or a CPU of this node. A virtual machine may hide
    the other end.
    """
    ends = (link.peer for link in gpu.nvlinks if link.active)
    return sum(1 for end in ends if end is None or not end.startswith(("gpu", "switch", "cpu")))


def _with_name(link: NvLink, name_of: Mapping[str | None, str]) -> NvLink:
    return replace(link, peer=name_of.get(link.peer, link.peer)) if link.peer else link
