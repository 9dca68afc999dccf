"""The two kernels of copies: one that copies, and one that holds a stream back until the host lets it go.

Neither includes a header; CuPy all the same compiles nothing where it finds no headers of CUDA.
"""

from __future__ import annotations

from typing import Any

import numpy as np

THREADS, LOADS_IN_FLIGHT, BLOCKS_PER_SM = 512, 4, 4  # 2048 threads: all that one SM can hold
TILE_BYTES = THREADS * LOADS_IN_FLIGHT * 16

# Whole words of 16 bytes, tile by tile: each thread has four loads in flight before its first store. What is left at
# the end is copied byte by byte, so that no size is cut off. Four blocks on an SM leave each thread 32 registers.
COPY = r"""
extern "C" __global__ void __launch_bounds__(512, 4)
bench_copy(unsigned long long source, unsigned long long target, unsigned long long num_bytes) {
    const uint4* from = (const uint4*)source;
    uint4* to = (uint4*)target;
    const unsigned long long words = num_bytes / 16, tile = 4ull * blockDim.x;
    for (unsigned long long begin = blockIdx.x * tile; begin < words; begin += gridDim.x * tile) {
        const unsigned long long at = begin + threadIdx.x;
        if (begin + tile <= words) {
            const uint4 a = from[at];
            const uint4 b = from[at + blockDim.x];
            const uint4 c = from[at + 2ull * blockDim.x];
            const uint4 d = from[at + 3ull * blockDim.x];
            to[at] = a;
            to[at + blockDim.x] = b;
            to[at + 2ull * blockDim.x] = c;
            to[at + 3ull * blockDim.x] = d;
        } else {
            for (unsigned long long one = at; one < words; one += blockDim.x) to[one] = from[one];
        }
    }
    if (blockIdx.x == 0 && threadIdx.x < num_bytes % 16) {
        const unsigned long long last = words * 16 + threadIdx.x;
        ((unsigned char*)target)[last] = ((const unsigned char*)source)[last];
    }
}
"""

# One thread looks at a number in host memory until it is the ticket, or its own time is over: then it says so.
GATE = r"""
extern "C" __global__ void
bench_gate(unsigned long long opened, unsigned long long expired, unsigned long long ticket,
           unsigned long long limit_ns) {
    volatile unsigned int* flag = (volatile unsigned int*)opened;
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin) :: "memory");
    while (*flag != (unsigned int)ticket) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) :: "memory");
        if (now - begin > limit_ns) {
            *(volatile unsigned int*)expired = (unsigned int)ticket;
            __threadfence_system();
            return;
        }
    }
}
"""


class OnStream:
    """What CuPy's kernels take for a stream: its pointer."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def copy_kernel(cupy: Any) -> Any:
    """The copying kernel; compiled when it is first launched on a GPU, or by `compile`."""
    return cupy.RawKernel(COPY, "bench_copy")


def gate_kernel(cupy: Any) -> Any:
    """The kernel that waits, likewise."""
    return cupy.RawKernel(GATE, "bench_gate")


def numbers(*values: int) -> tuple[np.uint64, ...]:
    """Arguments of a kernel: every one of ours is 64 bits wide."""
    return tuple(np.uint64(value) for value in values)


def copy_grid(num_bytes: int, num_sms: int) -> int:
    """Blocks of the copying kernel: as many on each SM as it can hold, fewer where there are fewer tiles."""
    return max(1, min(BLOCKS_PER_SM * num_sms, -(-num_bytes // TILE_BYTES)))
