"""Copies with their arguments bound: by the copy engine, or by a kernel of the GPU that orders them."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.transports import _cuda_kernels
from bench.transports._cuda_memory import HOST
from bench.transports._cuda_program import Issue
from bench.transports._cuda_reach import End

_ANY_KIND, _TO_DEVICE, _TO_HOST = 4, 1, 2  # cudaMemcpyKind
_ALIGNMENT_BYTES = 16  # of both ends of a kernel's copy


def by_engine(runtime: Any, source: End, target: End, num_bytes: int, stream: int) -> Issue:
    """memcpyAsync, or memcpyPeerAsync between two GPUs of this process."""
    (source_on, source_at), (target_on, target_at) = source, target
    if HOST not in (source_on, target_on) and source_on != target_on:
        return partial(runtime.memcpyPeerAsync, target_at, target_on, source_at, source_on, num_bytes, stream)
    kind = _TO_DEVICE if source_on == HOST else _TO_HOST if target_on == HOST else _ANY_KIND
    return partial(runtime.memcpyAsync, target_at, source_at, num_bytes, kind, stream)


def by_kernel(kernel: Any, num_sms: int, source: End, target: End, num_bytes: int, stream: int) -> Issue:
    """The copying kernel on as many blocks as the GPU holds; both ends lie in memory that it reaches."""
    (_, source_at), (_, target_at) = source, target
    if source_at % _ALIGNMENT_BYTES or target_at % _ALIGNMENT_BYTES:
        raise ValueError("every part of a buffer begins at a multiple of 16 bytes")
    grid = (_cuda_kernels.copy_grid(num_bytes, num_sms),)
    arguments = _cuda_kernels.numbers(source_at, target_at, num_bytes)
    return partial(kernel, grid, (_cuda_kernels.THREADS,), arguments, stream=_cuda_kernels.OnStream(stream))
