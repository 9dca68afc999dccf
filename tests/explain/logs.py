"""Made-up runs as a log reader returns them: curves of latency + size / rate, and matrices of copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.core import plugins
from bench.core.pattern import Pattern, Shape
from bench.explain.evidence import RunEvidence
from bench.explain.gather import gathered
from bench.explain.log_hints import Hint
from bench.hardware.machine import machine_of
from bench.logs.foreign import ForeignRow, ForeignRun, Matrix, MatrixCell

SIZES = tuple(1 << power for power in range(3, 35))


def pattern(name: str) -> Pattern:
    found: Pattern = plugins.load("pattern", name).PATTERN
    return found


def curve(
    name: str, num_ranks: int, busbw_gb: float, latency_s: float = 20e-6, sizes: Sequence[int] = SIZES
) -> list[ForeignRow]:
    """Out-of-place rows whose bandwidth approaches `busbw_gb`."""
    rows = []
    for size in sizes:
        factor = pattern(name).bus_factor(Shape(num_ranks, size)) or 1.0
        seconds = latency_s + size * factor / (busbw_gb * 1e9)
        row = ForeignRow(
            payload_bytes=size,
            num_elements=size // 4,
            dtype="float32",
            time_s=seconds,
            num_wrong=0,
            algbw_bytes_per_s=size / seconds,
            busbw_bytes_per_s=size * factor / seconds,
        )
        rows.append(row)
    return rows


def a_run(
    busbw_gb: float, num_ranks: int = 8, num_nodes: int = 1, name: str = "allreduce", **changes: object
) -> ForeignRun:
    rows = tuple(curve(name, num_ranks, busbw_gb))
    hosts = tuple(f"node{index}" for index in range(num_nodes))
    plain = ForeignRun("nccl_tests", pattern=name, num_ranks=num_ranks, num_nodes=num_nodes, hosts=hosts, rows=rows)
    return replace(plain, **changes)  # type: ignore[arg-type]


def evidence_of(
    run: ForeignRun, instance: str | None = None, gpu: str | None = None, hints: Mapping[str, str] | None = None
) -> RunEvidence:
    """The run on a machine. `hints`: kind -> value; they are on lines 7, 8, ..."""
    per_node = (run.num_ranks or 1) // (run.num_nodes or 1)
    machine = machine_of(instance, (gpu,) if gpu else (), run.hosts, per_node)
    found = [Hint(kind, value, number) for number, (kind, value) in enumerate((hints or {}).items(), start=7)]
    return gathered(run, machine, pattern(run.pattern or "allreduce"), found)


def matrix(
    direction: str, values: Mapping[tuple[str, str], float], engine: str | None = "ce", name: str = ""
) -> Matrix:
    """One test of copies, in GB/s."""
    cells = tuple(MatrixCell(src, dst, rate * 1e9) for (src, dst), rate in values.items())
    return Matrix(name or f"{direction}_memcpy_{engine}", "bytes_per_s", direction, engine, cells)


def from_host(*rates: float) -> dict[tuple[str, str], float]:
    return {("host", f"gpu{index}"): rate for index, rate in enumerate(rates)}


def to_host(*rates: float) -> dict[tuple[str, str], float]:
    return {(f"gpu{index}", "host"): rate for index, rate in enumerate(rates)}


def pairs(num: int, rate: float, **odd: float) -> dict[tuple[str, str], float]:
    """Every pair at one rate, except the given ones: a0_1=5.0."""
    found = {(f"gpu{a}", f"gpu{b}"): rate for a in range(num) for b in range(num) if a != b}
    for name, value in odd.items():
        a, b = name.lstrip("a").split("_")
        found[f"gpu{a}", f"gpu{b}"] = value
    return found
