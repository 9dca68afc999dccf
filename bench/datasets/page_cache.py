"""Use the kernel's counters to find out whether a read got its bytes from the page cache or from the device."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import numpy as np

from bench.datasets.dataset_format import opened_file

# File systems in memory, whose files cannot leave it.
IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
# File systems with a cache on the server, which no client can see or empty.
_REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "9p", "virtiofs", "afs", "wekafs"}
)
_PAGE_BYTES = mmap.PAGESIZE
_RECEIVED = Path("/proc/net/dev")
_INTERFACES, _INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")
_PROBE_BYTES = 1 << 20
_COUNTED_SHARE = 0.99  # of the probe
_IPOIB = "32"  # ARPHRD_INFINIBAND (Linux, include/uapi/linux/if_arp.h)


def evict(files: Iterable[Path]) -> None:
    """Ask the kernel to drop the pages of files.

    The kernel can drop a page only if the data of the page are already on the device (`fsync`).
    """
    for path in files:
        with opened_file(path) as number:
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)


def load(files: Iterable[Path]) -> None:
    """Read files once, so that their pages are in the page cache."""
    room = bytearray(1 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(room):
                pass


def sync(files: Iterable[Path]) -> None:
    """Wait until the data of files are on the device."""
    for path in files:
        with opened_file(path) as number:
            os.fsync(number)


def num_missing(files: Iterable[Path]) -> int:
    """Return the number of pages of files that are not in the page cache."""
    return sum(-(-path.stat().st_size // _PAGE_BYTES) - _resident(path) for path in files)


def num_resident(files: Iterable[Path]) -> int:
    """Return the number of pages of files that are in the page cache (mincore)."""
    return sum(_resident(path) for path in files)


def _resident(path: Path) -> int:
    with path.open("rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if not num_bytes:
            return 0
        # For Python, a private mapping is writable, which ctypes requires for its address. Nothing is written.
        with mmap.mmap(
            file.fileno(), num_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        ) as pages:
            states = (ctypes.c_ubyte * -(-num_bytes // _PAGE_BYTES))()
            first = ctypes.c_char.from_buffer(pages)
            try:
                failed = _libc().mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(num_bytes), states)
            finally:
                del first
            if failed:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))
            return int((np.frombuffer(bytes(states), np.uint8) & 1).sum())


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def device_bytes() -> int:
    """Return how many bytes this process has made the kernel read from devices (proc(5): read_bytes)."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(": ")
        if name == "read_bytes":
            return int(value)
    raise OSError("/proc/self/io has no read_bytes: this kernel does not count the reads of a process")


def network_bytes() -> int:
    """Return how many bytes this host has received from other hosts. Bytes over InfiniBand ports are included.

    Each byte counts once. Only hardware interfaces are counted. Bonds, bridges and VLANs are not counted, because their
    traffic also passes through hardware interfaces. In a container without hardware interfaces, all interfaces except
    the loopback are counted.
    """
    ports = _port_bytes()
    received = {name: num for name, num in _interface_bytes().items() if name != "lo"}
    if ports:  # the ports have counted the bytes of IP over InfiniBand
        received = {name: num for name, num in received.items() if _fact_of(name, "type") != _IPOIB}
    of_hardware = [num for name, num in received.items() if (_INTERFACES / name / "device").exists()]
    return sum(of_hardware or received.values()) + sum(ports)


def loopback_bytes() -> int:
    """Return how many bytes this host has sent to itself.

    If the file system's server runs on this host, the result includes the data that clients on this host read from the
    server.
    """
    return _interface_bytes().get("lo", 0)


def _interface_bytes() -> dict[str, int]:
    """Return the received bytes of each network interface."""
    lines = (line.partition(":") for line in _RECEIVED.read_text(encoding="ascii").splitlines()[2:])
    return {name.strip(): int(counts.split()[0]) for name, _, counts in lines}


def _fact_of(interface: str, name: str) -> str:
    with suppress(OSError):
        return (_INTERFACES / interface / name).read_text(encoding="ascii").strip()
    return ""


def _port_bytes() -> list[int]:
    """Return the received bytes of each InfiniBand port that has a readable counter."""
    found = []
    for path in _INFINIBAND.glob("*/ports/*/counters/port_rcv_data"):
        with suppress(OSError, ValueError):  # "N/A (no PMA)", or EINVAL
            # The ports count words of four bytes (Linux, Documentation/ABI/stable/sysfs-class-infiniband).
            found.append(4 * int(path.read_text(encoding="ascii")))
    return found


def counter_of(folder: Path) -> Callable[[], int] | None:
    """Find a kernel counter that increases when this process reads from a remote file system.

    The function writes a file into `folder`, reads the file once for each counter, and returns the first counter that
    increases. The counters are tried in this order: `device_bytes`, `network_bytes`, `loopback_bytes`. `device_bytes`
    increases if the kernel counts reads from this file system for the process, as for NFS. Returns None if no counter
    increases, or if the file stays in the page cache. Raises OSError if the file cannot be written.
    """
    number, name = tempfile.mkstemp(prefix="counted-", dir=folder)  # processes of other hosts may have the same id
    path = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(os.urandom(_PROBE_BYTES))
        sync([path])
        for counter in (device_bytes, network_bytes, loopback_bytes):
            evict([path])
            if num_resident([path]):
                return None
            before = counter()
            load([path])
            if counter() - before >= _COUNTED_SHARE * _PROBE_BYTES:
                return counter
        return None
    finally:
        path.unlink(missing_ok=True)


def cpu_s() -> float:
    """Return the CPU time of all threads of this process."""
    used = getrusage(RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def file_system(folder: Path, mounts: str | None = None) -> str:
    """Return the type of the file system of a folder, such as ext4, tmpfs, nfs4 or fuse.sshfs.

    The result is "" if the kernel's list does not contain the file system.

    `mounts`: the text of /proc/self/mountinfo.
    """
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8") if mounts is None else mounts
    place = folder.resolve()
    found, depth = "", -1
    for line in text.splitlines():
        mount, _, rest = line.partition(" - ")
        point = Path(mount.split()[4].encode().decode("unicode_escape"))
        # If several mounts are on one point, the last mount is visible.
        if place.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = rest.split()[0], len(point.parts)
    return found


def is_remote(kind: str) -> bool:
    """Return whether a server or a FUSE daemon may cache the data of this type of file system.

    A FUSE daemon runs on the host that reads the files.
    """
    return kind in _REMOTE or kind.partition(".")[0] == "fuse"
