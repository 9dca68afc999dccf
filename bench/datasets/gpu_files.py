"""Read files into the memory of a GPU with KvikIO, and find out whether the bytes passed through host memory.

With GPUDirect Storage, a disk or NIC writes into the GPU's memory. Without GPUDirect Storage, KvikIO silently uses its
"compatibility mode": it reads into host memory, and then copies from host memory to the GPU. NVIDIA's library cuFile,
which KvikIO calls, has a similar mode. Only the counters of NVIDIA's kernel driver (`nvidia_fs`) therefore show whether
the bytes bypassed host memory.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.core.errors import first_line

MODULE = "kvikio"
REQUIRES = "kvikio-cu12"  # or kvikio-cu13, as the CUDA driver is
# Written by nvidia_fs if its parameter rw_stats_enabled is 1 (NVIDIA/gds-nvidia-fs, src/nvfs-stat.c). Whole MiB of all
# processes of the host.
STATS = Path("/proc/driver/nvidia-fs/stats")
COUNTED_BYTES = 1 << 20  # the step of the counter
_READS = re.compile(r"^Reads\s*:.*\breadMiB=(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """A range of GPU memory, described by its address and length."""

    pointer: int
    num_bytes: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Return the description of this memory that CUDA libraries read (CUDA array interface, version 3)."""
        return {"shape": (self.num_bytes,), "typestr": "|u1", "data": (self.pointer, False), "version": 3}

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.num_bytes

    def part(self, begin: int, num_bytes: int) -> GpuMemory:
        """Return a part of this memory, from byte `begin` on."""
        return GpuMemory(self.pointer + begin, num_bytes)


def is_installed() -> bool:
    """Return whether KvikIO is installed."""
    return find_spec(MODULE) is not None


def why_not() -> str:
    """Return why KvikIO cannot be loaded although it is installed, for example because libcufile is missing.

    The result is "" if KvikIO can be loaded.
    """
    try:
        importlib.import_module(MODULE)
    except Exception as error:  # of the loader of CUDA's libraries, too
        return first_line(error)
    return ""


def opened_file(path: Path | str) -> Any:
    """Return a context that opens a file with KvikIO and closes the file at the end."""
    import kvikio

    return kvikio.CuFile(path, "r")


def read_exactly(file: Any, target: Any, offset: int, path: Path | str, block_bytes: int = 0) -> None:
    """Read bytes of a file into `target` (a GpuMemory), from byte `offset` on, until `target` is full.

    `block_bytes`: the size of one read. If `block_bytes` is 0, a single read requests all bytes.

    Raises EOFError, which names the file, if the file ends earlier.
    """
    done = 0
    while done < len(target):
        num_bytes = min(block_bytes or len(target), len(target) - done)
        count = file.read(target.part(done, num_bytes), file_offset=offset + done)
        if not count:
            raise EOFError(f"{path} ends {len(target) - done} bytes too early")
        done += count


def driver_bytes(stats: Path | None = None) -> int | None:
    """Return how many bytes the driver has moved from storage to GPUs, in whole MiB.

    The result is None if the driver does not count bytes that move from storage to GPUs.
    """
    try:
        found = _READS.search((stats or STATS).read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return int(found[1]) * COUNTED_BYTES if found else None
