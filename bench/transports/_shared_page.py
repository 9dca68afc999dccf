"""Allocate memory that all ranks of one host share.

The memory is a file that each rank maps. When all ranks have mapped the file, the file's name is removed from the file
system.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import tempfile
from pathlib import Path

from bench.core.channel import Channel
from bench.core.world import RankInfo

_FOLDER = Path("/dev/shm")  # in memory; the usual folder of temporary files may be on a disk


def of_this_host(channel: Channel, place: RankInfo, num_bytes: int) -> mmap.mmap | None:
    """Return memory of `num_bytes` zeros that the ranks of this host share.

    All ranks call this function. If any rank cannot map its host's memory, the result is None on all ranks of all
    hosts.
    """
    name = ""
    if place.local_rank == 0:
        with contextlib.suppress(OSError):
            name = new_file(num_bytes)
    host = socket.gethostname()
    names = {of: shared for of, shared in channel.share((host, name)) if shared}
    found = None
    with contextlib.suppress(OSError, KeyError):
        found = mapped(names[host], num_bytes)
    everywhere = all(channel.share(found is not None))
    if name:
        forget(name)
    return found if everywhere else None


def new_file(num_bytes: int) -> str:
    """Make a file of zeros. Return its name. Raises OSError."""
    folder = _FOLDER if os.access(_FOLDER, os.W_OK) else Path(tempfile.gettempdir())
    handle, name = tempfile.mkstemp(prefix="bench-shared-", dir=folder)
    os.truncate(handle, num_bytes)
    os.close(handle)
    return name


def mapped(name: str, num_bytes: int) -> mmap.mmap:
    """Map a file of `new_file`. Raises OSError."""
    with Path(name).open("r+b") as file:
        return mmap.mmap(file.fileno(), num_bytes)


def forget(name: str) -> None:
    """Remove the file's name. The processes that have mapped the file keep the memory."""
    with contextlib.suppress(OSError):
        Path(name).unlink()


def address(memory: mmap.mmap) -> int:
    """Return the address at which this process has mapped the memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
