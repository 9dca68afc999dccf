"""Find the NUMA nodes of this process's memory pages, as the kernel reports them (move_pages without target nodes)."""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections import Counter
from collections.abc import Mapping

_MOVE_PAGES = {"x86_64": 279, "aarch64": 239}  # numbers of the system call
_MOST_PAGES = 1024


def nodes_of(address: int, num_bytes: int) -> Mapping[int, int]:
    """Count the pages of this memory on each NUMA node. At most 1,024 evenly spaced pages are examined.

    The function does not count pages that have no node: pages that were never written, and pages of a device. The
    result is empty if the kernel does not report nodes.
    """
    number = _MOVE_PAGES.get(platform.machine())
    if number is None or num_bytes <= 0:
        return {}
    first = address - address % mmap.PAGESIZE
    num_pages = -(-(address + num_bytes - first) // mmap.PAGESIZE)
    num = min(num_pages, _MOST_PAGES)
    pages = (ctypes.c_void_p * num)(*(first + k * num_pages // num * mmap.PAGESIZE for k in range(num)))
    status = (ctypes.c_int * num)(*([-1] * num))
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    # 0 means this process. Without nodes, the call reports pages and does not move them.
    if call(ctypes.c_long(number), ctypes.c_int(0), ctypes.c_ulong(num), pages, None, status, ctypes.c_int(0)) != 0:
        return {}
    return dict(sorted(Counter(node for node in status if node >= 0).items()))


def words(found: Mapping[int, int], wanted: int | None) -> str:
    """Describe the NUMA nodes in a text for the results file's header.

    `wanted`: the node of the GPU, or None if unknown.
    """
    if not found:
        return "on an unknown NUMA node (the kernel does not say)"
    total = sum(found.values())
    shares = (f"{node}" if num == total else f"{node} ({num} of {total} pages)" for node, num in found.items())
    beside = "" if wanted is None else ", that of the GPU" if set(found) == {wanted} else f"; the GPU is on {wanted}"
    return f"on NUMA node {', '.join(shares)}{beside}"
