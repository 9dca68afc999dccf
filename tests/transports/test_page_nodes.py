"""Where host memory lies is what the kernel says, not what was wished."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import pytest

from bench.core.record import Flag
from bench.core.transport import Options
from bench.transports import _cuda_reach, _page_nodes, cuda_copy
from bench.transports._cuda_memory import BufferLayout
from bench.transports._cuda_reach import CopyRefusal, IpcMappings, Offer
from tests.transports.test_cuda_copy import ALONE, cupy, rows

__all__ = ["cupy"]  # a fixture


def test_the_kernel_places_pages_that_were_touched() -> None:
    memory = mmap.mmap(-1, 64 * mmap.PAGESIZE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert not _page_nodes.nodes_of(at, len(memory)), "no page exists before the first write"
    for page in range(3, 9):
        memory[page * mmap.PAGESIZE] = 1
    found = _page_nodes.nodes_of(at, len(memory))
    if not found:
        pytest.skip("this kernel does not say where pages lie")
    assert sum(found.values()) == 6 and min(found) >= 0
    assert _page_nodes.nodes_of(at, 0) == {}


@pytest.mark.usefixtures("cupy")
def test_memory_on_another_node_is_told_and_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    where = {0: 30, 1: 2}
    monkeypatch.setattr(_page_nodes, "nodes_of", lambda address, num_bytes: where)
    # The CPUs near the GPU are not allowed here: the wish fails, and the header must not repeat it.
    options = Options(near_cpus=lambda bus: (9000,), near_node=lambda bus: 1)
    transport = cuda_copy.CudaCopy(ALONE, options)
    told = transport.facts()["host_memory"]
    assert told.startswith("pinned, on NUMA node 0 (30 of 32 pages), 1 (2 of 32 pages)") and told.endswith("is on 1")
    transport.close()
    (row,) = rows(options, pattern="host_device", mode="isolated", direction="h2d")
    assert Flag.FAR_MEMORY in row.flags
    where = {1: 32}
    (row,) = rows(options, pattern="host_device", mode="isolated", direction="h2d")
    assert Flag.FAR_MEMORY not in row.flags and transport.facts()["host_memory"].endswith("node 1, that of the GPU")
    where = {}
    assert "unknown" in transport.facts()["host_memory"]


def test_a_handle_of_another_container_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime:
        def ipcOpenMemHandle(self, handle: bytes, flags: int) -> int:
            raise RuntimeError("cudaErrorInvalidResourceHandle")

    monkeypatch.setattr(_cuda_reach, "_process_numbers", lambda: "pid:[1]")
    empty = BufferLayout((), {})
    found: list[Any] = []
    for theirs in ("pid:[1]", "pid:[2]"):
        skip = IpcMappings(Runtime()).open(1, Offer(empty, 0, "here", b"x", pid_namespace=theirs), "here")
        assert skip is not None
        found.append(skip)
    assert [skip.code for skip in found] == [CopyRefusal.NOT_REACHABLE, CopyRefusal.PID_NAMESPACES]
    assert "--pid=host" in found[1].text
