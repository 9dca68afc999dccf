"""Define the GPU kernels for CUDA and HIP: a copy kernel, a pointer-chase copy, and a gate that waits for the host.

The source code of the kernels includes no header. However, CuPy needs CUDA's headers to compile any kernel.
"""

from __future__ import annotations

import re
from math import gcd
from typing import Any

import numpy as np

THREADS, LOADS_IN_FLIGHT, BLOCKS_PER_SM = 512, 4, 4  # 2048 threads: the most that an SM of any GPU can hold
_TICKS_PER_S, _HIP_TICKS_PER_S = 10**9, 10**8  # of globaltimer; of wall_clock64 on AMD's data-centre GPUs
WORD_BYTES = 16  # of one load, and the alignment of both ends of a copy
TILE_BYTES = THREADS * LOADS_IN_FLIGHT * WORD_BYTES
_STRIDE = 0.6180339887  # share of all words between two loads of a chase, which are therefore far apart in memory

# The kernel copies words of 16 bytes, tile by tile. Each thread has four loads in flight before its first store. The
# bytes after the last whole word are copied one by one. With four blocks on an SM, each thread has 32 registers.
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

# One thread copies every word of 16 bytes, in steps that visit each word once. The address of a load depends on what
# the load before it returned (`zero` is 0, but the compiler does not know that), so the loads wait for each other.
CHASE = r"""
extern "C" __global__ void
bench_chase(unsigned long long source, unsigned long long target, unsigned long long num_bytes,
            unsigned long long step, unsigned long long zero) {
    const uint4* from = (const uint4*)source;
    uint4* to = (uint4*)target;
    const unsigned long long words = num_bytes / 16;
    unsigned long long at = 0;
    for (unsigned long long hop = 0; hop < words; hop++) {
        const uint4 word = from[at];
        to[at] = word;
        at += step + (word.x & zero);
        if (at >= words) at -= words;
    }
    for (unsigned long long last = words * 16; last < num_bytes; last++)
        ((unsigned char*)target)[last] = ((const unsigned char*)source)[last];
}
"""

# One thread polls a number in host memory until it equals the ticket, and reports that it has passed. After the time
# limit it reports that the limit expired.
GATE = r"""
extern "C" __global__ void
bench_gate(unsigned long long opened, unsigned long long expired, unsigned long long ticket,
           unsigned long long limit_ns, unsigned long long passed) {
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
    *(volatile unsigned int*)passed = (unsigned int)ticket;
    __threadfence_system();
}
"""
_GLOBALTIMER = re.compile(r'asm volatile\("mov\.u64 %0, %%globaltimer;" : "=l"\((\w+)\) :: "memory"\);')
GATE_HIP = _GLOBALTIMER.sub(r"\1 = wall_clock64();", GATE)


class OnStream:
    """Wraps the pointer of a CUDA stream in an object with the attribute `ptr`, which CuPy's kernels require."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def copy_kernel(cupy: Any) -> Any:
    """Return the copy kernel. CuPy compiles the kernel at its first launch on a GPU, or when `compile` is called."""
    return cupy.RawKernel(COPY, "bench_copy")


def chase_kernel(cupy: Any) -> Any:
    """Return the kernel that copies with a single thread, in which each load waits for the previous load.

    CuPy compiles the kernel at its first launch on a GPU, or when `compile` is called.
    """
    return cupy.RawKernel(CHASE, "bench_chase")


def chase_step(num_words: int) -> int:
    """Return how many words apart two successive loads are.

    At this distance, modulo `num_words`, the loads visit each of the `num_words` words exactly once.
    """
    step = max(1, int(_STRIDE * num_words)) if num_words else 0
    while gcd(step, num_words) > 1:
        step += 1
    return step


def gate_kernel(cupy: Any) -> Any:
    """Return the gate kernel.

    CuPy compiles the kernel at its first launch on a GPU, or when `compile` is called.
    """
    return cupy.RawKernel(GATE_HIP if _is_hip(cupy.cuda.runtime) else GATE, "bench_gate")


def clock_ticks(runtime: Any, seconds: float) -> int:
    """Convert a time to ticks of the clock that the gate's kernel reads."""
    return int(seconds * (_HIP_TICKS_PER_S if _is_hip(runtime) else _TICKS_PER_S))


def _is_hip(runtime: Any) -> bool:
    return bool(getattr(runtime, "is_hip", False))


def blocks_per_sm(cupy: Any, kernel: Any, threads_per_sm: int | None) -> int:
    """Return how many blocks of a kernel fit on one SM.

    If the driver does not report how many blocks fit, the function computes the number from the thread limit of an SM.
    """
    try:
        function = kernel.kernel.ptr
        found = int(cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function, THREADS, 0))
    except (AttributeError, RuntimeError):
        found = (threads_per_sm or THREADS * BLOCKS_PER_SM) // THREADS
    return max(1, found)


def numbers(*values: int) -> tuple[np.uint64, ...]:
    """Return numbers as arguments of a kernel. Each argument is 64 bits wide."""
    return tuple(np.uint64(value) for value in values)


def copy_grid(num_bytes: int, num_sms: int, blocks: int = BLOCKS_PER_SM) -> int:
    """Return the number of blocks of the copy kernel for `num_bytes` bytes on `num_sms` SMs.

    The grid has at most one block per tile, and at most as many blocks as all SMs can run at the same time.

    `blocks`: the number of blocks that one SM can run.
    """
    return max(1, min(blocks * num_sms, -(-num_bytes // TILE_BYTES)))
