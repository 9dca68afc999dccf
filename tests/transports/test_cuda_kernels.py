"""The CUDA kernels, compiled by a C++ compiler and run on the CPU, one thread of the GPU after the other.

Neither kernel synchronises threads, so their order does not matter. Each mutant below must be found, too.
"""

from __future__ import annotations

import ctypes
import math
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from bench.transports import _cuda_kernels as kernels

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")

_DEVICE = r"""
#include <time.h>
#define __global__
#define __launch_bounds__(...)
#define __threadfence_system() __sync_synchronize()
#define wall_clock64() (now_ns() / 10)  // 100 MHz, as of AMD's data-centre GPUs
struct uint4 { unsigned x, y, z, w; };
static struct { unsigned x; } threadIdx, blockIdx, blockDim, gridDim;
static unsigned long long now_ns() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
"""
_GRID = r"""
typedef unsigned long long u64;
extern "C" void run(unsigned blocks, unsigned threads, u64 a, u64 b, u64 c) {
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)
            bench_copy(a, b, c);
}
"""
_CLOCK = re.compile(r'asm volatile\("mov\.u64 %0, %%globaltimer;" : "=l"\((\w+)\) :: "memory"\);')
COPY_MUTANTS = {
    "tail-dropped": ("num_bytes % 16", "num_bytes % 1"),
    "tail-in-every-block": ("blockIdx.x == 0 && threadIdx.x < num_bytes % 16", "threadIdx.x < num_bytes % 16 - 1"),
    "tail-misplaced": ("words * 16 + threadIdx.x;", "words * 16 + threadIdx.x + 1;"),
    "last-words-dropped": ("one < words;", "one + blockDim.x < words;"),
    "one-word-twice": ("to[at + 3ull * blockDim.x] = d;", "to[at + 3ull * blockDim.x] = c;"),
    "word-not-stored": ("to[at + blockDim.x] = b;", ""),
    "stride-doubled": ("begin += gridDim.x * tile", "begin += 2 * gridDim.x * tile"),
    "tile-too-long": ("begin + tile <= words", "begin + tile <= words + 1"),
    "wrong-tile": ("tile = 4ull * blockDim.x", "tile = 5ull * blockDim.x"),
}
CHASE_MUTANTS = {
    "one-word-less": ("hop < words", "hop + 1 < words"),
    "tail-dropped": ("last < num_bytes", "last < num_bytes / 16 * 16"),
    "tail-misplaced": ("((unsigned char*)target)[last]", "((unsigned char*)target)[last + 1]"),
    "stays-at-one-word": ("at += step", "at += 0 * step"),
    "starts-over": ("at -= words", "at = 0"),
    "does-not-wait": ("(word.x & zero)", "zero * 0"),
}
GATE_MUTANTS = {
    "never-waits": ("*flag != (unsigned int)ticket", "0"),
    "never-expires": ("now - begin > limit_ns", "0"),
    "limit-x-1000": ("> limit_ns", "> 1000 * limit_ns"),
    "expires-at-once": ("> limit_ns", "> limit_ns / 1000"),
    "opened-by-any-number": ("*flag != (unsigned int)ticket", "*flag == 0"),
    "passing-not-told": ("*(volatile unsigned int*)passed = (unsigned int)ticket;", ""),
    "expiry-not-told": ("*(volatile unsigned int*)expired = (unsigned int)ticket;", ""),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """A function that compiles a kernel's source."""

    def build(source: str) -> ctypes.CDLL:
        folder = tmp_path_factory.mktemp("kernel")
        text = _DEVICE + _CLOCK.sub(r"\1 = now_ns();", source) + (_GRID if "bench_copy" in source else "")
        (folder / "kernel.cpp").write_text(text, encoding="utf-8")
        words = ("g++", "-O1", "-fno-strict-aliasing", "-shared", "-fPIC", "-o", "kernel.so", "kernel.cpp")
        subprocess.run(words, cwd=folder, check=True, timeout=120)
        return ctypes.CDLL(str(folder / "kernel.so"))

    return build


def wrong_copies(library: ctypes.CDLL, num_cases: int) -> int:
    """The number of copies of random sizes and grids that differ from their source, or that write beside it."""
    draw, wrong = random.Random(5), 0
    for case in range(num_cases):
        threads = draw.choice((32, 64, 512))
        tile = 4 * threads * 16
        near = draw.choice((0, 16, tile, 2 * tile, 5 * tile)) + draw.choice((-16, -1, 0, 1, 5, 15, 16, 17))
        num_bytes = max(0, near) if case % 2 else draw.randrange(6 * tile)
        blocks = draw.choice((1, 2, 3, -(-num_bytes // tile) or 1))
        room = num_bytes + 3 * tile  # a wrong kernel may read and write beyond the end
        source = np.frombuffer(draw.randbytes(room), np.uint8)
        target = np.full(room + 16, 0xC3, np.uint8)
        begin = -target.ctypes.data % 16
        fro = np.zeros(room + 16, np.uint8)
        at = -fro.ctypes.data % 16
        fro[at : at + num_bytes] = source[:num_bytes]
        library.run(
            blocks,
            threads,
            *(ctypes.c_ulonglong(number) for number in (fro.ctypes.data + at, target.ctypes.data + begin, num_bytes)),
        )
        copied = target[begin : begin + num_bytes]
        outside = np.delete(target, slice(begin, begin + num_bytes))
        wrong += not np.array_equal(copied, source[:num_bytes]) or bool((outside != 0xC3).any())
    return wrong


def chase_faults(library: ctypes.CDLL, num_cases: int) -> list[str]:
    """What a kernel of dependent loads does wrong: each byte arrives, nothing else, and a load needs the one before."""
    draw, faults = random.Random(7), []
    for case in range(num_cases):
        num_bytes = draw.choice((0, 1, 15, 16, 17, 32, 48, 160, 4096)) if case % 2 else draw.randrange(20_000)
        words, room = num_bytes // 16, num_bytes + 64
        fro, target = np.zeros(room + 16, np.uint8), np.full(room + 16, 0xC3, np.uint8)
        at, begin = -fro.ctypes.data % 16, -target.ctypes.data % 16
        fro[at : at + num_bytes] = np.frombuffer(draw.randbytes(num_bytes), np.uint8)
        ends = (fro.ctypes.data + at, target.ctypes.data + begin, num_bytes, kernels.chase_step(words))

        def run(zero: int, ends: tuple[int, ...] = ends) -> None:
            library.bench_chase(*(ctypes.c_ulonglong(number) for number in (*ends, zero)))

        run(0)
        copied = target[begin : begin + num_bytes].copy()
        target[begin : begin + num_bytes] = 0xC3
        if not np.array_equal(copied, fro[at : at + num_bytes]) or (target != 0xC3).any():
            faults.append(f"{num_bytes} B are wrong")
        if words > 100:
            run(1)  # now every odd word makes the next step longer, so the path is another one
            if np.array_equal(target[begin : begin + num_bytes], copied):
                faults.append("no load waits for the one before")
    return faults


def gate_faults(library: ctypes.CDLL, ticks_per_s: int = 10**9, patience_s: float = 5.0) -> list[str]:
    """What a gate does wrong: it must wait for its own ticket only, and tell when it gave up, within `patience_s`."""
    opened, expired, passed = ctypes.c_uint32(0), ctypes.c_uint32(0), ctypes.c_uint32(0)
    *ends, told = [ctypes.c_ulonglong(ctypes.addressof(word)) for word in (opened, expired, passed)]
    faults = []

    def shut(ticket: int, limit_s: float) -> threading.Thread:
        numbers = (ctypes.c_ulonglong(ticket), ctypes.c_ulonglong(int(limit_s * ticks_per_s)))
        waiting = threading.Thread(target=library.bench_gate, args=(*ends, *numbers, told), daemon=True)
        waiting.start()
        return waiting

    first = shut(7, 20)
    opened.value = 6
    first.join(0.1)
    if not first.is_alive():
        faults.append("did not wait")
    opened.value = 7
    first.join(10)
    if first.is_alive() or expired.value:
        faults.append("did not open")
    if passed.value != 7:
        faults.append("did not tell that it opened")
    second = shut(8, 0.02)
    second.join(patience_s)
    if second.is_alive() or expired.value != 8 or passed.value == 8:
        faults.append("did not give up")
        opened.value = 8
        second.join(5)
    return faults


def test_copies_of_random_sizes_are_exact(compiled: Callable[[str], ctypes.CDLL]) -> None:
    assert wrong_copies(compiled(kernels.COPY), 200) == 0


def test_dependent_loads_copy_every_byte_once(compiled: Callable[[str], ctypes.CDLL]) -> None:
    assert chase_faults(compiled(kernels.CHASE), 200) == []
    for num_words in (1, 2, 3, 7, 64, 1000, 4096, 999_983):
        step = kernels.chase_step(num_words)
        assert math.gcd(step, num_words) == 1 and step <= num_words


@pytest.mark.parametrize("name", CHASE_MUTANTS)
def test_a_wrong_kernel_of_dependent_loads_is_found(name: str, compiled: Callable[[str], ctypes.CDLL]) -> None:
    right, changed = CHASE_MUTANTS[name]
    assert kernels.CHASE.count(right) == 1
    assert chase_faults(compiled(kernels.CHASE.replace(right, changed)), 200) != []


def test_a_gate_waits_for_its_ticket_or_its_limit(compiled: Callable[[str], ctypes.CDLL]) -> None:
    assert gate_faults(compiled(kernels.GATE)) == []


def test_the_gate_of_hip_counts_the_ticks_of_its_own_clock(compiled: Callable[[str], ctypes.CDLL]) -> None:
    assert "asm" not in kernels.GATE_HIP and kernels.GATE_HIP.count("wall_clock64()") == 2
    hip, cuda = SimpleNamespace(is_hip=True), SimpleNamespace(is_hip=False)
    assert (kernels.clock_ticks(cuda, 0.5), kernels.clock_ticks(hip, 0.5)) == (500_000_000, 50_000_000)
    assert gate_faults(compiled(kernels.GATE_HIP), ticks_per_s=kernels.clock_ticks(hip, 1)) == []


@pytest.mark.parametrize("name", COPY_MUTANTS)
def test_a_wrong_copy_kernel_is_found(name: str, compiled: Callable[[str], ctypes.CDLL]) -> None:
    right, changed = COPY_MUTANTS[name]
    assert right in kernels.COPY
    assert wrong_copies(compiled(kernels.COPY.replace(right, changed)), 200) > 0


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "limit-x-1000" else name for name in GATE_MUTANTS]
)
def test_a_wrong_gate_kernel_is_found(name: str, compiled: Callable[[str], ctypes.CDLL]) -> None:
    right, changed = GATE_MUTANTS[name]
    assert right in kernels.GATE
    assert gate_faults(compiled(kernels.GATE.replace(right, changed)), patience_s=0.3) != []


def test_the_grid_covers_every_byte_and_no_more_blocks_than_fit() -> None:
    assert [kernels.copy_grid(size, 2) for size in (0, 1, kernels.TILE_BYTES, kernels.TILE_BYTES + 1)] == [1, 1, 1, 2]
    assert kernels.copy_grid(1 << 40, 132) == 132 * kernels.BLOCKS_PER_SM
