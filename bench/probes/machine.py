"""Collect the facts of one host for the header of a results file."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.probes import kernel, nvml, pci, sysfs, topology
from bench.probes.sysfs import ROOT, last_level_cache_bytes

__all__ = ["available_memory_bytes", "container", "cpu_quota", "facts", "last_level_cache_bytes", "usable_cpus"]

_CGROUP = "sys/fs/cgroup"


def facts(root: Path = ROOT, *, under_load: bool = False) -> dict[str, Any]:
    """Return the facts of this host as plain data for JSON. docs/facts.md lists the keys.

    Sizes are in bytes, rates in bytes per second. None means unknown.

    `num_cpus` counts the logical CPUs that this process may use. `cpu_quota` is a container's limit on CPU time, as a
    number of CPUs.

    `under_load`: whether the links of all GPUs carry data during the call. The caller must ensure this.
    """
    found = nvml.gpus(root, under_load=under_load)
    return {
        "host": socket.gethostname(),
        "product": sysfs.product(root),
        "cpu_model": sysfs.cpu_model(root),
        "num_cpus": usable_cpus(),
        "num_cores": sysfs.num_cores(root),
        "num_sockets": sysfs.num_sockets(root),
        "cpu_quota": cpu_quota(root),
        "governor": sysfs.governor(root),
        "last_level_cache_bytes": last_level_cache_bytes(root),
        "memory_bytes": sysfs.memory_bytes(root),
        "available_memory_bytes": available_memory_bytes(root),
        "numa_nodes": [asdict(node) for node in sysfs.numa_nodes(root)],
        "network_ports": [asdict(port) for port in sysfs.ports(root)],
        "gpu_driver": found.driver,
        "gpu_cuda": found.cuda,
        "no_gpus_because": found.reason,
        "container": container(root),
        **_devices(found, root),
        **_settings([pci.address(gpu.pci_bus) for gpu in found.gpus], root),
    }


def _devices(found: nvml.NvmlInventory, root: Path) -> dict[str, Any]:
    """Return `gpus`, `adapters` and `paths`: the parts of `core.inventory.Inventory`, as lists and dicts."""
    inventory = topology.of_machine(found, root)
    return {
        "gpus": [_plain(asdict(gpu)) for gpu in inventory.gpus],
        "adapters": [asdict(adapter) for adapter in inventory.adapters],
        "paths": [asdict(path) for path in inventory.paths],
    }


def _settings(gpus: list[str | None], root: Path) -> dict[str, Any]:
    """Return the settings that affect paths between GPUs and adapters.

    On a machine without GPUs, the settings that affect only GPUs are left out.
    """
    shm_bytes, shm_free_bytes = kernel.shared_memory_bytes(root)
    redirected = [pci.redirects(address, root) for address in gpus]
    return {
        "iommu": kernel.iommu(gpus, root),
        "acs": True if True in redirected else (None if not redirected or None in redirected else False),
        "peermem": kernel.peer_memory(root),
        "dmabuf": kernel.dmabuf(root),
        "verbs": kernel.verbs(root),
        "gpu_driver_flavour": kernel.driver_flavour(root),
        "fabric_manager": kernel.fabric_manager(root) if gpus else None,
        "max_locked_bytes": kernel.max_locked_bytes(),
        "shm_bytes": shm_bytes,
        "shm_free_bytes": shm_free_bytes,
        "virtual_machine": kernel.virtual_machine(root),
        "hypervisor": kernel.hypervisor(root),
    }


def _plain(gpu: dict[str, Any]) -> dict[str, Any]:
    """Return a GPU's facts with lists instead of tuples, because JSON has no tuples."""
    return gpu | {"nvlinks": list(gpu["nvlinks"]), "throttle": list(gpu["throttle"])}


def usable_cpus() -> int:
    """Return the number of logical CPUs in this process's affinity mask."""
    return len(os.sched_getaffinity(0))


def available_memory_bytes(root: Path = ROOT) -> int | None:
    """Return how many bytes of memory are available without swapping.

    The result is usually the kernel's estimate. If a container's memory limit leaves fewer bytes than this estimate,
    the result is the number of bytes that the limit leaves.
    """
    free = sysfs.memory_bytes(root, "MemAvailable")
    left = _left_of_limit(root)
    known = [num_bytes for num_bytes in (free, left) if num_bytes is not None]
    return min(known, default=None)


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the number of CPUs to which control groups limit this process, or None without a limit.

    Version 2 of control groups has the limit in cpu.max, version 1 in cpu.cfs_quota_us.
    """
    granted = []
    for group in control_groups(root, ""):
        granted.append(sysfs.read(group / "cpu.max") or "")
    for group in control_groups(root, "cpu"):
        granted.append(f"{sysfs.read(group / 'cpu.cfs_quota_us')} {sysfs.read(group / 'cpu.cfs_period_us')}")
    # no match means no limit: `max`, -1, or no file
    found = [re.fullmatch(r"(\d+) ([1-9]\d*)", text) for text in granted]
    return min((int(match[1]) / int(match[2]) for match in found if match), default=None)


def container(root: Path = ROOT) -> str | None:
    """Return the type of this container, or None if it is unknown."""
    for file, kind in ((".dockerenv", "docker"), ("run/.containerenv", "podman"), (".singularity.d", "apptainer")):
        if (root / file).exists():
            return kind
    found = re.search(r"kubepods|docker|containerd|libpod|lxc", sysfs.read(root / "proc/1/cgroup") or "")
    return found[0] if found else None


def _left_of_limit(root: Path) -> int | None:
    """Return how many more bytes of memory this process can use before it reaches a memory limit.

    If there are several limits, the result is for the one that is reached first. Inactive file pages do not count as
    used, because the kernel can drop them.
    """
    left = []
    for controller, limit, used, dropped in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for group in control_groups(root, controller):
            most, taken = sysfs.read(group / limit) or "", sysfs.read(group / used) or ""
            if most.isdigit() and taken.isdigit():
                pages = re.search(rf"^{dropped} (\d+)$", sysfs.read(group / "memory.stat") or "", re.MULTILINE)
                left.append(max(0, int(most) - int(taken) + (int(pages[1]) if pages else 0)))
    return min(left, default=None)


def control_groups(root: Path, controller: str) -> list[Path]:
    """Return this process's control group and its parents.

    If a container hides these groups, return only the top group.

    `controller`: the name of the controller in version 1 of control groups, or "" for version 2.
    """
    top = root / _CGROUP / controller
    lines = re.findall(r"^\d+:([^:]*):/(.*)$", sysfs.read(root / "proc/self/cgroup") or "", re.MULTILINE)
    own = top / next((path for names, path in lines if controller in names.split(",")), "")
    return [group for group in (own, *own.parents) if group.is_relative_to(top)]
