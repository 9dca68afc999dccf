"""Logs of nccl-tests on machines that are slower than normal, written by this project in the layout of real ones.

A curve is latency + size x factor / rate. The names of GPUs are the drivers' own, so that `explain` knows the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SIZES = tuple(1 << power for power in range(3, 35))
SHARES = (0.01, 0.03, 0.05, 0.10, 0.20, 0.30, 0.40, 0.50, 0.60, 0.70, 0.80)  # of what is normal
_PROGRAMS = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "alltoall"}
_FACTORS = {"allreduce": 2.0, "allgather": 1.0, "alltoall": 1.0}  # busbw / algbw of n ranks is f (n-1)/n
_HEAD = "     time   algbw   busbw #wrong"
_UNITS = "     (us)  (GB/s)  (GB/s)       "


@dataclass(frozen=True)
class Machine:
    """An instance type, its GPU as drivers print it, and the busbw that is normal: pattern -> GB/s by nodes."""

    instance: str
    gpu: str
    normal: dict[str, dict[int, float]]


P4D = Machine(
    "p4d.24xlarge",
    "NVIDIA A100-SXM4-40GB",
    {"allreduce": {1: 235.0, 2: 78.0}, "allgather": {1: 230.0, 2: 45.0}, "alltoall": {1: 226.0, 2: 9.0}},
)
P5 = Machine(
    "p5.48xlarge",
    "NVIDIA H100 80GB HBM3",
    {"allreduce": {1: 480.0, 2: 480.0}, "allgather": {1: 360.0, 2: 360.0}, "alltoall": {1: 340.0, 2: 85.0}},
)
MACHINES = (P4D, P5)


def curve(busbw: float, latency_s: float = 20e-6, sizes: Sequence[int] = SIZES) -> list[float]:
    """GB/s of busbw at each size, which approach `busbw`."""
    return [size / (latency_s + size / (busbw * 1e9)) / 1e9 for size in sizes]


def log(
    pattern: str, rates: Sequence[float], gpu: str, num_nodes: int = 1, per_node: int = 8, sizes: Sequence[int] = SIZES
) -> str:
    """The text of nccl-tests for rates in GB/s of busbw, the same in both placements."""
    num_ranks = num_nodes * per_node
    lines = [
        f"# Collective test starting: {_PROGRAMS[pattern]}_perf",
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: 2(factor) warmup iters: 5 iters: 20",
        "#",
        "# Using devices",
    ]
    for rank in range(num_ranks):
        host, device = f"box{rank // per_node}", rank % per_node
        where = f"on {host:>10} device {device} [{0x10 + device:#04x}]"
        lines.append(f"#  Rank {rank:2} Group  0 Pid {100 + rank:6} {where} {gpu}")
    lines += [
        "#",
        f"#{'out-of-place':>75}{'in-place':>34}",
        f"#       size         count      type   redop    root{_HEAD}{_HEAD}",
        f"#        (B)    (elements)                          {_UNITS}{_UNITS}",
    ]
    factor = _FACTORS[pattern] * (num_ranks - 1) / num_ranks
    redop = "sum" if pattern == "allreduce" else "none"
    for size, rate in zip(sizes, rates, strict=True):
        algbw = rate / factor
        half = f"{size / algbw / 1e3:8.1f} {algbw:7.2f} {rate:7.2f} {0:6}"
        lines.append(f"{size:12} {size // 4:13}     float  {redop:>6}      -1 {half} {half}")
    lines += ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {sum(rates) / len(rates):.4f}", "#"]
    return "\n".join(lines) + "\n"


def slow_log(machine: Machine, pattern: str, share: float, num_nodes: int = 1) -> str:
    """A log at a share of what is normal."""
    return log(pattern, curve(machine.normal[pattern][num_nodes] * share), machine.gpu, num_nodes)
