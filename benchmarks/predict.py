"""The cost of predictions: 16,384 GPUs with every algorithm and a full sweep of sizes, the validation, and selections.

    python -m benchmarks.predict [instance]

Each line runs in a process of its own: CPU seconds, seconds and peak memory of that process, imports included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

ASKED = {
    "allreduce, 16,384 GPUs": ("--gpus", "16384", "--algorithm", "all", "--sizes", "8:16G:2"),
    "all collectives, 16,384 GPUs": (
        "--gpus",
        "16384",
        "--algorithm",
        "all",
        "--sizes",
        "8:16G:2",
        "--patterns",
        "all",
    ),
    "all collectives, one node": ("--nodes", "1", "--algorithm", "all", "--sizes", "8:16G:2", "--patterns", "all"),
}


def main() -> None:
    """Print a Markdown table."""
    instance = sys.argv[1] if len(sys.argv) > 1 else "p5.48xlarge"
    print("| | CPU s | s | peak MiB |\n|---|---:|---:|---:|")
    for name, words in ASKED.items():
        _line(f"{name}, {instance}", ("predict", "--instance", instance, *words, "--output", os.devnull))
    _line("validate", ("validate", "--output", os.devnull))
    workloads = ("--workload", "vit-l-306m,llama-3-8b,mixtral-8x7b", "--nodes", "1,2,4,8")
    for mesh in ("given", "auto"):
        _line(f"select, all types, --mesh {mesh}", ("select", *workloads, "--mesh", mesh, "--output", os.devnull))


def _line(name: str, words: tuple[str, ...]) -> None:
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "bench", *words])
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - begun
    if status:
        raise SystemExit(f"bench {' '.join(words)} failed")
    print(f"| {name} | {used.ru_utime + used.ru_stime:.1f} | {took:.1f} | {used.ru_maxrss / 1024:.0f} |")


if __name__ == "__main__":
    main()
