"""Synthetic logs of OSU's latency programs with all columns: invented figures, and what is in each log.

`LOGS` maps the name of a file to its text and its expectations, in the form of expected/osu_logs.yaml.
"""

from __future__ import annotations

from typing import Any

LOGS: dict[str, tuple[str, dict[str, Any]]] = {}
HEADER = "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"


def add(name: str, title: str, pattern: str, memory: str, first: int, latency_us: float, rate: float) -> None:
    """A table of sizes that double up to 32 MiB; fewer iterations from 16 KiB on."""
    lines, rows = ["", f"# OSU {memory} {title} Latency Test v5.7", HEADER], []
    size = first
    while size <= 1 << 25:
        mean = latency_us + size / rate
        count = 1000 if size < 1 << 14 else 100
        printed = [f"{mean:.2f}", f"{mean * 0.97:.2f}", f"{mean * 1.04:.2f}"]
        lines.append(f"{size:<10d}{printed[0]:>18}{printed[1]:>18}{printed[2]:>18}{count:>12d}")
        rows.append([size, *map(float, printed), count])
        size *= 2
    wanted = {"pattern": pattern, "memory": memory, "rows": len(rows), "first": rows[0], "last": rows[-1]}
    LOGS[f"{name}.txt"] = ("\n".join(lines) + "\n", wanted | {"first_line": 4})


add("allreduce_of_gpus", "Allreduce", "allreduce", "MPI-CUDA", 4, 31.0, 750.0)
add("allreduce_of_hosts", "Allreduce", "allreduce", "MPI", 4, 9.3, 1450.0)
add("bcast_of_gpus", "Broadcast", "broadcast", "MPI-CUDA", 1, 5.6, 8800.0)
add("reduce_of_hosts", "Reduce", "reduce", "MPI", 4, 7.1, 2100.0)
