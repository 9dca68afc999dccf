"""KvikIO without a GPU, for the CuPy of tests/fakes/cupy_host: only what version 26.10 has, checked as it checks it.

FAKE_KVIKIO_STATS=FILE   GPUDirect Storage: the counters of the driver, which counts whole MiB, as nvidia_fs has them
FAKE_KVIKIO_SHARE=0.5    the driver moves this share of the bytes, the rest goes through host memory
FAKE_KVIKIO_DROPS=1      every read leaves its last byte out and says that it read all
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import Any

import cupy

__version__ = "26.10.00"
_lock = Lock()
_moved = 0


class CuFile:
    """A file, opened for reading."""

    def __init__(self, file: Path | str, flags: str = "r") -> None:
        if flags != "r":
            raise ValueError(f"this stand-in reads only, not {flags!r}")
        self._file = open(file, "rb", buffering=0)  # noqa: PTH123, SIM115

    def __enter__(self) -> CuFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None) -> int:
        """Read into memory of a GPU. Returns the bytes that were there."""
        told = buf.__cuda_array_interface__
        if told["version"] != 3 or told["typestr"] != "|u1" or told.get("strides") is not None:
            raise ValueError("the array must be contiguous bytes")
        pointer, writable = told["data"][0], not told["data"][1]
        if not writable:
            raise ValueError("the memory is read-only")
        num_bytes = told["shape"][0] if size is None else size
        if not isinstance(num_bytes, int) or num_bytes > told["shape"][0]:
            raise ValueError("size is larger than the memory")
        holder = cupy.cuda.runtime._holder(pointer, num_bytes)
        if holder is None or holder.device is None:
            raise ValueError("this is no memory of a GPU")
        data = os.pread(self._file.fileno(), num_bytes, file_offset)
        kept = max(0, len(data) - (os.environ.get("FAKE_KVIKIO_DROPS") == "1"))
        cupy.cuda.runtime.view(pointer, kept)[:] = memoryview(data)[:kept]
        _count(len(data))
        return len(data)


def _count(num_bytes: int) -> None:
    global _moved
    stats = os.environ.get("FAKE_KVIKIO_STATS")
    if stats:
        with _lock:
            _moved += int(num_bytes * float(os.environ.get("FAKE_KVIKIO_SHARE", "1")))
            Path(stats).write_text(
                "GDS Version: 1.15.0.42 \nNVFS statistics(ver: 4.0)\nNVFS Driver(version: 2.26.6)\n"
                "IO stats: Enabled, peer IO stats: Disabled\nActive Process: 1\n"
                f"Reads\t\t\t\t: n=64 ok=64 err=0 readMiB={_moved >> 20} io_state_err=0\n"
                "Reads\t\t\t\t: Bandwidth(MiB/s)=0 Avg-Latency(usec)=0\n"
                "Writes\t\t\t\t: n=0 ok=0 err=0 writeMiB=77 io_state_err=0\n"
            )
