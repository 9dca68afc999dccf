"""The part of cupy.cuda that the suite names."""

from __future__ import annotations

from typing import Any

from . import driver, runtime

__all__ = ["MemoryPointer", "UnownedMemory", "driver", "runtime"]


class UnownedMemory:
    """Memory that somebody else frees."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.device_id = ptr, size, device_id


class MemoryPointer:
    """A place in it."""

    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.ptr = mem.ptr + offset
