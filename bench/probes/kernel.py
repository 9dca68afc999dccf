"""Read settings of kernel, driver and hypervisor that slow down or redirect transfers of GPUs and adapters.

Every function takes the root of /sys and /proc as a parameter, so it can also read recorded trees. Unknown values are
None.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable
from pathlib import Path

from bench.probes.sysfs import ROOT, read

# oldest kernel; according to NVIDIA's GPUDirect RDMA documentation, the open modules are also needed
_DMABUF_SINCE = (5, 12)
_FABRIC_MANAGER = "nv-fabricmanage"  # the kernel keeps 15 characters of a process's name
_FIRST_PROCESSES = ("systemd", "init", "launchd", "runit", "openrc-init")


def iommu(pci_addresses: Iterable[str | None] = (), root: Path = ROOT) -> str | None:
    """Return the state of the IOMMU for these devices, which is `on`, `passthrough` or `off`.

    In a virtual machine, the result is the state of the guest's kernel, not of the host's kernel.
    """
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
    """Check whether the kernel module nvidia_peermem (formerly nv_peer_mem) is loaded.

    The module gives network adapters access to GPU memory.
    """
    modules = root / "sys/module"
    if not modules.is_dir():
        return None
    return any((modules / name).exists() for name in ("nvidia_peermem", "nv_peer_mem"))


def verbs(root: Path = ROOT) -> bool | None:
    """Check whether the device files of RDMA devices exist.

    Containers often show the host's adapters in /sys but do not contain the device files.
    """
    dev = root / "dev"
    return any((dev / "infiniband").glob("uverbs*")) if dev.is_dir() else None


def driver_flavour(root: Path = ROOT) -> str | None:
    """Return the type of the GPU kernel modules: `open` or `proprietary`."""
    reported = read(root / "proc/driver/nvidia/version")
    if reported is None or "NVRM version" not in reported:
        return None
    return "open" if "Open Kernel Module" in reported else "proprietary"


def dmabuf(root: Path = ROOT) -> bool | None:
    """Check whether network adapters can access GPU memory by dma-buf, that is, without an extra kernel module."""
    found = re.match(r"(\d+)\.(\d+)", read(root / "proc/sys/kernel/osrelease") or "")
    flavour = driver_flavour(root)
    if (found and (int(found[1]), int(found[2])) < _DMABUF_SINCE) or flavour == "proprietary":
        return False
    return True if found and flavour == "open" else None


def max_locked_bytes() -> int | str | None:
    """Return how many bytes of memory this process may lock for RDMA, or `unlimited`."""
    try:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    except (OSError, ValueError):
        return None
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def shared_memory_bytes(root: Path = ROOT) -> tuple[int | None, int | None]:
    """Return the total and the free bytes of /dev/shm, which NCCL and MPI use between processes."""
    try:
        reported = os.statvfs(root / "dev/shm")
    except OSError:
        return None, None
    return reported.f_blocks * reported.f_frsize, reported.f_bavail * reported.f_frsize


def virtual_machine(root: Path = ROOT) -> bool | None:
    """Check whether this kernel runs in a virtual machine.

    On x86, the processor's flags show a hypervisor. On other processors, the name of the machine's vendor shows a
    hypervisor.
    """
    flags = re.search(r"^flags\s*:(.*)$", read(root / "proc/cpuinfo") or "", re.MULTILINE)
    if flags:
        return "hypervisor" in flags[1].split()
    return True if read(root / "sys/class/dmi/id/sys_vendor") in ("QEMU", "VMware, Inc.", "Xen") else None


def hypervisor(root: Path = ROOT) -> str | None:
    """Return the vendor of this virtual machine, such as `Amazon EC2`, `QEMU` or `Google`."""
    if not virtual_machine(root):
        return None
    return read(root / "sys/class/dmi/id/sys_vendor") or read(root / "sys/hypervisor/type")


def fabric_manager(root: Path = ROOT) -> bool | None:
    """Check whether NVIDIA's fabric manager runs here. Return None if other processes are hidden, as in a container."""
    processes = [path for path in (root / "proc").glob("[0-9]*") if path.name.isdigit()]
    if any((read(path / "comm") or "") == _FABRIC_MANAGER for path in processes):
        return True
    return False if read(root / "proc/1/comm") in _FIRST_PROCESSES else None


def _group_type(address: str | None, root: Path) -> str | None:
    return read(root / "sys/bus/pci/devices" / (address or "-") / "iommu_group/type")
