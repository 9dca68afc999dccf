"""Made-up machines, as `probes.machine.facts` tells of them: healthy ones, which a test then breaks in one place."""

from __future__ import annotations

from itertools import combinations
from typing import Any

LINK_BYTES_PER_S = 25e9


def gpu(index: int = 0, **changes: Any) -> dict[str, Any]:
    """An H100 in a slot of its kind, idle."""
    return {
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 80 << 30,
        "pci_bus": f"00000000:{index:02X}:00.0",
        "pcie_generation": 1,
        "pcie_max_generation": 5,
        "pcie_lanes": 16,
        "pcie_max_lanes": 16,
        "slot_generation": 5,
        "slot_lanes": 16,
        "own_generation": 5,
        "uuid": f"GPU-{index}",
        "numa_node": index // 4,
        "under_load": False,
        "nvlinks": [nvlink(number) for number in range(18)],
        "sm_max_hz": 1.98e9,
        "power_limit_w": 700.0,
        "throttle": [],
        "ecc": True,
        "ecc_uncorrected": 0,
        "mig": False,
        "fabric": "completed",
    } | changes


def nvlink(index: int, active: bool = True, peer: str = "switch") -> dict[str, Any]:
    """One of NVLink 4."""
    return {"index": index, "active": active, "bytes_per_s": LINK_BYTES_PER_S, "peer": peer, "rate_from": "NVLink 4.0"}


def loaded(index: int = 0, lanes: int = 16, generation: int = 5, **changes: Any) -> dict[str, Any]:
    """The same while data goes over its PCIe link."""
    return gpu(index, pcie_generation=generation, pcie_lanes=lanes, under_load=True, **changes)


def path(a: str, b: str, kind: str = "NV18", access: bool | None = True, why_not: str | None = None) -> dict[str, Any]:
    """What is between two devices."""
    return {"a": a, "b": b, "kind": kind, "peer_access": access, "why_not": why_not}


def node(gpus: list[dict[str, Any]], paths: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """A machine with which nothing is wrong."""
    return {
        "host": "h0",
        "gpus": gpus,
        "paths": paths,
        "adapters": [],
        "gpu_driver": "580.1",
        "gpu_cuda": "13.0",
        "governor": "performance",
        "iommu": "off",
        "acs": False,
        "peermem": True,
        "dmabuf": True,
        "fabric_manager": True,
        "max_locked_bytes": "unlimited",
        "shm_bytes": 64 << 30,
        "virtual_machine": False,
        "numa_nodes": [{"index": 0}, {"index": 1}],
    } | changes


def hgx(**changes: Any) -> dict[str, Any]:
    """Eight H100 on NVSwitch, each with an adapter of 400 Gb/s on its PCIe switch."""
    gpus = [loaded(index) for index in range(8)]
    adapters = [
        {"name": f"mlx5_{k}", "kind": "infiniband", "bytes_per_s": 50e9, "state": "ACTIVE", "numa_node": k // 4}
        for k in range(8)
    ]
    between = [path(f"gpu{a}", f"gpu{b}") for a, b in combinations(range(8), 2)]
    near = [path(f"gpu{a}", f"mlx5_{b}", _way(a, b), None) for a in range(8) for b in range(8)]
    return node(gpus, between + near, adapters=adapters) | changes


def pcie_pair(
    kind: str = "PIX", access: bool | None = True, why_not: str | None = None, **of_gpus: Any
) -> dict[str, Any]:
    """Two L40S without NVLink."""
    plain = {
        "name": "NVIDIA L40S",
        "nvlinks": [],
        "fabric": None,
        "memory_bytes": 45 << 30,
        "pcie_max_generation": 4,
        "slot_generation": 4,
        "own_generation": 4,
    } | of_gpus
    return node([gpu(0, **plain), gpu(1, **plain)], [path("gpu0", "gpu1", kind, access, why_not)], fabric_manager=None)


def sandbox() -> dict[str, Any]:
    """One H200 behind a driver that tells little, without /sys."""
    told = {
        "index": 0,
        "name": "NVIDIA H200",
        "memory_bytes": 141 << 30,
        "pci_bus": None,
        "pcie_generation": None,
        "pcie_max_generation": 5,
        "pcie_lanes": None,
        "pcie_max_lanes": 16,
    }
    return {"host": "h0", "gpus": [told], "gpu_cuda": "13.0", "adapters": [], "paths": []}


def _way(gpu: int, adapter: int) -> str:
    return "PIX" if gpu == adapter else "NODE" if gpu // 4 == adapter // 4 else "SYS"
