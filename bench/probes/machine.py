"""The facts of one host, as they stand in the header of a results file."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.probes import nvml, sysfs
from bench.probes.sysfs import ROOT, last_level_cache_bytes

__all__ = ["available_memory_bytes", "container", "cpu_quota", "facts", "last_level_cache_bytes", "usable_cpus"]

_CGROUP = "sys/fs/cgroup"


def facts(root: Path = ROOT) -> dict[str, Any]:
    """Plain data for JSON: names, counts, bytes, bytes per second; None is unknown.

    `num_cpus`: logical CPUs that this process may use. `cpu_quota`: how many CPUs' time a container grants it.
    """
    found = nvml.gpus()
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
        "gpus": [asdict(gpu) for gpu in found.gpus],
        "gpu_driver": found.driver,
        "gpu_cuda": found.cuda,
        "no_gpus_because": found.reason,
        "container": container(root),
    }


def usable_cpus() -> int:
    """Logical CPUs that this process may be scheduled on: its affinity mask."""
    return len(os.sched_getaffinity(0))


def available_memory_bytes(root: Path = ROOT) -> int | None:
    """Memory that can be taken without swapping: the kernel's estimate, or what a container's limit leaves if less."""
    free = sysfs.memory_bytes(root, "MemAvailable")
    left = _left_of_limit(root)
    known = [num_bytes for num_bytes in (free, left) if num_bytes is not None]
    return min(known, default=None)


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that control groups grant (version 2: cpu.max, version 1: cfs quota); None: no limit."""
    granted = []
    for group in _groups(root, ""):
        granted.append(sysfs.read(group / "cpu.max") or "")
    for group in _groups(root, "cpu"):
        granted.append(f"{sysfs.read(group / 'cpu.cfs_quota_us')} {sysfs.read(group / 'cpu.cfs_period_us')}")
    found = [re.fullmatch(r"(\d+) ([1-9]\d*)", text) for text in granted]  # no match: `max`, -1, not there
    return min((int(match[1]) / int(match[2]) for match in found if match), default=None)


def container(root: Path = ROOT) -> str | None:
    """The kind of container that this seems to be; None for none that is known."""
    for file, kind in ((".dockerenv", "docker"), ("run/.containerenv", "podman"), (".singularity.d", "apptainer")):
        if (root / file).exists():
            return kind
    found = re.search(r"kubepods|docker|containerd|libpod|lxc", sysfs.read(root / "proc/1/cgroup") or "")
    return found[0] if found else None


def _left_of_limit(root: Path) -> int | None:
    """What the tightest memory limit above this process leaves, file pages that can be dropped not counted as taken."""
    left = []
    for controller, limit, used, dropped in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for group in _groups(root, controller):
            most, taken = sysfs.read(group / limit) or "", sysfs.read(group / used) or ""
            if most.isdigit() and taken.isdigit():
                pages = re.search(rf"^{dropped} (\d+)$", sysfs.read(group / "memory.stat") or "", re.MULTILINE)
                left.append(max(0, int(most) - int(taken) + (int(pages[1]) if pages else 0)))
    return min(left, default=None)


def _groups(root: Path, controller: str) -> list[Path]:
    """This process's control group and those above it; only the top one where a container hides the others.

    `controller` is empty for version 2, whose line in /proc/self/cgroup begins with `0::`.
    """
    top = root / _CGROUP / controller
    lines = re.findall(r"^\d+:([^:]*):/(.*)$", sysfs.read(root / "proc/self/cgroup") or "", re.MULTILINE)
    own = top / next((path for names, path in lines if controller in names.split(",")), "")
    return [group for group in (own, *own.parents) if group.is_relative_to(top)]
