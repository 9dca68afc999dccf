"""What fills and compares buffers, in the memory of a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest

from bench.core.arrays import Arrays
from bench.core.dtypes import DTYPES
from bench.core.errors import NotInstalledError
from bench.core.payload import CopyData, ReduceData, Tiled, constant
from bench.transports._cuda_device import load_cupy
from bench.transports._device import CupyArrays, DeviceBuffers, GuardedBlock, TorchArrays

Missing = Callable[[str, str], NoReturn]
LARGE_BYTES = (1 << 30) + 4096 + 24  # no whole number of rows or chunks

# torch and CuPy may warn as they are imported or first compile: that is no failure of ours.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def by_torch(missing: Missing) -> tuple[Arrays, Callable[[], int]]:
    """Arrays of torch, and how many bytes it holds now."""
    try:
        import torch
    except ImportError:
        missing("gpu", "torch is not installed")
    if not torch.cuda.is_available():
        missing("gpu", "torch sees no GPU")
    torch.cuda.reset_peak_memory_stats()
    return TorchArrays(torch, torch.device("cuda", 0)), torch.cuda.max_memory_allocated


def by_cupy(missing: Missing) -> tuple[Arrays, Callable[[], int]]:
    """Arrays of CuPy, and how many bytes its pool took."""
    try:
        cupy = load_cupy()
    except NotInstalledError as error:
        missing("gpu", str(error))
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        missing("gpu", f"CuPy sees no GPU ({error})")
    if not found:
        missing("gpu", "CuPy sees no GPU")
    cupy.get_default_memory_pool().free_all_blocks()
    return CupyArrays(cupy), cupy.get_default_memory_pool().total_bytes


@pytest.fixture(params=[by_torch, by_cupy])
def device(request: pytest.FixtureRequest, missing: Missing) -> tuple[Arrays, Callable[[], int]]:
    """Each library that can do it."""
    found: tuple[Arrays, Callable[[], int]] = request.param(missing)
    return found


def buffers_of(arrays: Arrays, num_bytes: int) -> DeviceBuffers:
    """One set, nothing to send."""
    return DeviceBuffers(GuardedBlock(arrays, 0, 1), GuardedBlock(arrays, num_bytes, 1))


def test_a_gigabyte_is_filled_and_compared_without_another_one(device: Any) -> None:
    arrays, taken = device
    before = taken()
    buffers = buffers_of(arrays, LARGE_BYTES)
    content = CopyData(DTYPES["float32"], (0, 1), 7).sent(1, 24)
    buffers.fill("recv", 0, 0, LARGE_BYTES, content)
    assert buffers.count_wrong("recv", 0, 0, LARGE_BYTES, content, 4).num_wrong == 0
    assert buffers.guards_intact(0) and not buffers.on_host("recv")
    end = LARGE_BYTES - 4096
    assert (buffers.read("recv", 0, end) == content.after(end).head(4096)).all()
    for at in (0, 123_456_789, LARGE_BYTES - 1):
        byte = buffers.memory("recv", 0)[0].part(at, 1)
        byte.write(byte.read() ^ np.uint8(1))
    found = buffers.count_wrong("recv", 0, 0, LARGE_BYTES, content, 4)
    assert (found.num_wrong, found.first) == (3, 0)
    assert found.want == bytes(content.head(4)) != found.got
    assert taken() - before < LARGE_BYTES * 1.5
    assert buffers.count_wrong("recv", 0, 0, LARGE_BYTES, constant(0xA5), 1).num_wrong > 0.9 * LARGE_BYTES


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int8", "complex128"])
@pytest.mark.parametrize("shift", [0, 1, 16])
def test_the_host_and_the_gpu_mean_the_same_bytes(device: Any, dtype: str, shift: int) -> None:
    arrays, num_bytes = device[0], 5_000_000
    size = DTYPES[dtype].num_bytes
    for content in (
        CopyData(DTYPES[dtype], (4, 9), 3).sent(1, 16),
        ReduceData(DTYPES[dtype], "sum", (4, 9), 3).reduced(size),
    ):
        same_on_both(arrays, content, num_bytes - num_bytes % size, shift, size)


def same_on_both(arrays: Arrays, content: Tiled, num_bytes: int, shift: int, size: int) -> None:
    """Filled by the GPU and read by the host, and the other way round."""
    buffers = buffers_of(arrays, num_bytes + shift)
    buffers.fill("recv", 0, shift, num_bytes, content)
    whole = content.head(num_bytes)
    assert (buffers.read("recv", 0, shift, num_bytes) == whole).all()
    bad = whole.copy()
    bad[[size, num_bytes // size // 2 * size, num_bytes - 1]] ^= 4
    buffers.memory("recv", 0)[0].part(shift, num_bytes).write(bad)
    found = buffers.count_wrong("recv", 0, shift, num_bytes, content, size)
    assert (found.num_wrong, found.first) == (3, 1)


def test_a_byte_behind_a_buffer_is_seen(device: Any) -> None:
    buffers = buffers_of(device[0], 1000)
    buffers.guards(0)[-1].part(0, 1).write(np.zeros(1, np.uint8))
    assert not buffers.guards_intact(0)


def test_more_than_there_is_is_a_memory_error(device: Any) -> None:
    with pytest.raises(MemoryError):
        GuardedBlock(device[0], 1 << 45, 1)
