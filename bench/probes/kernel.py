"""What kernel, driver and hypervisor let GPUs and adapters do: settings that slow copies down or send them elsewhere.

Every function takes the root of /sys and /proc, so that recorded trees can be read as well; unknown is None.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable
from pathlib import Path

from bench.probes.sysfs import ROOT, read

_DMABUF_SINCE = (5, 12)  # kernel; NVIDIA's GPUDirect RDMA documentation asks for the open modules as well
_FABRIC_MANAGER = "nv-fabricmanage"  # the kernel keeps 15 characters of a process's name
_FIRST_PROCESSES = ("systemd", "init", "launchd", "runit", "openrc-init")


def iommu(pci_addresses: Iterable[str | None] = (), root: Path = ROOT) -> str | None:
    """`on`, `passthrough` or `off` for these devices; this kernel's, not that of a host around a virtual machine."""
    types = {_group_type(address, root) for address in pci_addresses} - {None}
    if not types:
        types = {read(path) for path in (root / "sys/kernel/iommu_groups").glob("*/type")} - {None}
    if types:
        return "passthrough" if types == {"identity"} else "on"
    line = f" {read(root / 'proc/cmdline') or ''} "
    if re.search(r" (?:iommu|intel_iommu|amd_iommu)=off ", line):
        return "off"
    units = root / "sys/class/iommu"
    if not units.is_dir():
        return None
    if not any(units.glob("*")):
        return "off"
    return "passthrough" if re.search(r" (?:iommu=pt|iommu\.passthrough=1) ", line) else "on"


def peer_memory(root: Path = ROOT) -> bool | None:
    """Is a module there that lets adapters reach GPU memory (nvidia_peermem, in old driver packages nv_peer_mem)?"""
    modules = root / "sys/module"
    if not modules.is_dir():
        return None
    return any((modules / name).exists() for name in ("nvidia_peermem", "nv_peer_mem"))


def verbs(root: Path = ROOT) -> bool | None:
    """Are RDMA devices' files there? Containers show the adapters of their host in /sys, and often not these."""
    dev = root / "dev"
    return any((dev / "infiniband").glob("uverbs*")) if dev.is_dir() else None


def driver_flavour(root: Path = ROOT) -> str | None:
    """Which kernel modules drive the GPUs: `open` or `proprietary`."""
    told = read(root / "proc/driver/nvidia/version")
    if told is None or "NVRM version" not in told:
        return None
    return "open" if "Open Kernel Module" in told else "proprietary"


def dmabuf(root: Path = ROOT) -> bool | None:
    """Can GPU memory be handed to adapters without an extra module? As far as kernel and driver decide it."""
    found = re.match(r"(\d+)\.(\d+)", read(root / "proc/sys/kernel/osrelease") or "")
    flavour = driver_flavour(root)
    if (found and (int(found[1]), int(found[2])) < _DMABUF_SINCE) or flavour == "proprietary":
        return False
    return True if found and flavour == "open" else None


def max_locked_bytes() -> int | str | None:
    """Memory that this process may lock, as adapters need it: bytes, or `unlimited`."""
    try:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    except (OSError, ValueError):
        return None
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def shared_memory_bytes(root: Path = ROOT) -> tuple[int | None, int | None]:
    """Size of /dev/shm and what of it is free, which NCCL and MPI use between processes."""
    try:
        told = os.statvfs(root / "dev/shm")
    except OSError:
        return None, None
    return told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize


def virtual_machine(root: Path = ROOT) -> bool | None:
    """Does a hypervisor run this kernel? Told by x86 processors; elsewhere by the makers of virtual machines."""
    flags = re.search(r"^flags\s*:(.*)$", read(root / "proc/cpuinfo") or "", re.MULTILINE)
    if flags:
        return "hypervisor" in flags[1].split()
    return True if read(root / "sys/class/dmi/id/sys_vendor") in ("QEMU", "VMware, Inc.", "Xen") else None


def hypervisor(root: Path = ROOT) -> str | None:
    """Whose virtual machine this is, as its maker calls itself: `Amazon EC2`, `QEMU`, `Google`."""
    if not virtual_machine(root):
        return None
    return read(root / "sys/class/dmi/id/sys_vendor") or read(root / "sys/hypervisor/type")


def fabric_manager(root: Path = ROOT) -> bool | None:
    """Does NVIDIA's fabric manager run here? None where other processes are hidden, as in a container."""
    processes = [path for path in (root / "proc").glob("[0-9]*") if path.name.isdigit()]
    if any((read(path / "comm") or "") == _FABRIC_MANAGER for path in processes):
        return True
    return False if read(root / "proc/1/comm") in _FIRST_PROCESSES else None


def _group_type(address: str | None, root: Path) -> str | None:
    return read(root / "sys/bus/pci/devices" / (address or "-") / "iommu_group/type")
