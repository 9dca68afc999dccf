"""Read CPUs, caches, NUMA nodes and network ports from /sys and /proc.

Every function takes the root of these trees as a parameter, so it can also read recorded trees. Missing values are
None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node with its memory and its CPUs.

    `cpus`: the list of CPUs in the kernel's format, such as `0-15,32-47`.
    """

    node: int
    cpus: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Port:
    """One network port.

    `kind`: `ethernet`, `infiniband` (also for EFA and RoCE devices), or `virtual` (without hardware).
    `bytes_per_s`: the line rate of one direction. The rate is None if the port does not report it, as with many cloud
        and virtual ports.
    """

    name: str
    kind: str
    state: str | None
    bytes_per_s: float | None
    mtu_bytes: int | None
    driver: str | None
    numa_node: int | None


def last_level_cache_bytes(root: Path = ROOT) -> int | None:
    """Return the size of the last-level cache of CPU 0, in bytes. Caches of other CPUs are not counted."""
    levels = {}
    for index in (root / _CPUS / "cpu0/cache").glob("index*"):
        level, size = number(index / "level"), _size(read(index / "size"))
        if level is not None and size and read(index / "type") != "Instruction":
            levels[level] = size
    return levels[max(levels)] if levels else None


def cores(cpus: Iterable[int], root: Path = ROOT) -> list[tuple[int, ...]]:
    """Return the physical cores of these CPUs, sorted by socket. A core is a tuple of its hardware threads.

    If the cores are unknown, each CPU is treated as a core.
    """
    found: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(cpus):
        topology = root / _CPUS / f"cpu{cpu}" / "topology"
        socket, core = number(topology / "physical_package_id"), number(topology / "core_id")
        key = (-1, cpu) if socket is None or core is None else (socket, core)
        found.setdefault(key, []).append(cpu)
    return [tuple(found[key]) for key in sorted(found)]


def cpus_beside(pci_address: str, root: Path = ROOT) -> tuple[int, ...]:
    """Return the CPUs of a PCI device's NUMA node. The result is empty if the node is unknown."""
    device = root / "sys/bus/pci/devices" / pci_address.lower()
    node, listed = number(device / "numa_node"), read(device / "local_cpulist")
    if listed is None or node is None or node < 0:
        return ()
    spans = [span.partition("-") for span in listed.split(",") if span]
    try:
        return tuple(cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1))
    except ValueError:
        return ()


def num_cores(root: Path = ROOT) -> int | None:
    """Return the number of physical cores."""
    return _distinct(root, "physical_package_id", "core_id")


def num_sockets(root: Path = ROOT) -> int | None:
    """Return the number of processor packages."""
    return _distinct(root, "physical_package_id")


def governor(root: Path = ROOT) -> str | None:
    """Return the frequency governor of CPU 0, such as `performance` or `powersave`.

    Return None if the kernel does not control the frequency, as in clouds.
    """
    return read(root / _CPUS / "cpu0/cpufreq/scaling_governor")


def cpu_model(root: Path = ROOT) -> str | None:
    """Return the processor's name. On Arm, the result is a text with the numbers of the implementer and of the part."""
    fields = dict(re.findall(r"^([^\t:]+?)\s*:[ \t]*(.*)$", read(root / "proc/cpuinfo") or "", re.MULTILINE))
    if "model name" in fields:
        return str(fields["model name"])
    if "CPU part" in fields:
        return f"implementer {fields.get('CPU implementer')} part {fields['CPU part']}"
    return None


def memory_bytes(root: Path = ROOT, key: str = "MemTotal") -> int | None:
    """Return a value of /proc/meminfo in bytes, such as `MemTotal` or `MemAvailable`."""
    found = re.search(rf"^{key}:\s+(\d+) kB", read(root / "proc/meminfo") or "", re.MULTILINE)
    return None if found is None else int(found[1]) << 10


def numa_nodes(root: Path = ROOT) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes, by number."""
    nodes = []
    for path in (root / "sys/devices/system/node").glob("node[0-9]*"):
        total = re.search(r"MemTotal:\s+(\d+) kB", read(path / "meminfo") or "")
        cpus = read(path / "cpulist") or ""
        nodes.append(NumaNode(int(path.name[4:]), cpus, None if total is None else int(total[1]) << 10))
    return tuple(sorted(nodes, key=lambda node: node.node))


def ports(root: Path = ROOT) -> tuple[Port, ...]:
    """Return all network interfaces except loopback, and all ports of InfiniBand-like devices, sorted by name."""
    network = [_interface(path) for path in (root / "sys/class/net").glob("*") if path.name != "lo"]
    fabric = [_fabric_port(path) for path in (root / "sys/class/infiniband").glob("*/ports/*")]
    return tuple(sorted((*network, *fabric), key=lambda port: port.name))


def product(root: Path = ROOT) -> str | None:
    """Return the product name of the machine. On AWS, this is the instance type, such as `p4d.24xlarge`."""
    return read(root / "sys/class/dmi/id/product_name")


def clock(root: Path = ROOT) -> str | None:
    """Return an identifier of the clock CLOCK_MONOTONIC that this process reads.

    If two processes get the same identifier, they read the same clock. A boot starts a new clock, and each time
    namespace has its own clock. The result is None if the kernel does not report the id of the boot.
    """
    boot = read(root / "proc/sys/kernel/random/boot_id")
    try:
        namespace = str((root / "proc/self/ns/time").readlink())
    except OSError:  # Linux before 5.6 has no time namespaces
        namespace = "time:[one]"
    return None if boot is None else f"{boot} {namespace}"


def read(path: Path) -> str | None:
    """Return the text of a file without surrounding blanks, or None if the file is missing or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def node_beside(pci_address: str, root: Path = ROOT) -> int | None:
    """Return the NUMA node of a PCI device, or None if unknown."""
    return node_of(root / "sys/bus/pci/devices" / pci_address.lower())


def node_of(device: Path) -> int | None:
    """Return the NUMA node of a device, or None if the firmware does not state it."""
    node = number(device / "numa_node")  # -1 means unknown to the firmware
    return node if node is not None and node >= 0 else None


def number(path: Path) -> int | None:
    """Return the integer in a file, or None if the file contains anything else."""
    text = read(path)
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _interface(path: Path) -> Port:
    megabits = number(path / "speed")  # -1 or an error if the port is down or has no speed
    device = path / "device"
    return Port(
        name=path.name,
        kind="ethernet" if device.exists() else "virtual",
        state=read(path / "operstate"),
        bytes_per_s=megabits * 1e6 / 8 if megabits is not None and megabits > 0 else None,
        mtu_bytes=number(path / "mtu"),
        driver=(device / "driver").resolve().name if (device / "driver").exists() else None,
        numa_node=node_of(device),
    )


def _fabric_port(path: Path) -> Port:
    device = path.parents[1]
    rate = re.match(r"([\d.]+) Gb/sec", read(path / "rate") or "")
    driver = device / "device/driver"
    return Port(
        name=f"{device.name}:{path.name}",
        kind="infiniband",
        state=(read(path / "state") or "").rpartition(": ")[2].lower() or None,
        bytes_per_s=None if rate is None else float(rate[1]) * 1e9 / 8,
        mtu_bytes=None,
        driver=driver.resolve().name if driver.exists() else None,
        numa_node=node_of(device / "device"),
    )


def _distinct(root: Path, *names: str) -> int | None:
    topologies = (root / _CPUS).glob("cpu[0-9]*/topology")
    found = {tuple(read(path / name) for name in names) for path in topologies}
    return len(found) or None


def _size(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d+)([KMG]?)", text or "")
    return int(match[1]) * _UNITS[match[2]] if match else None
