"""Seconds and peak memory of `linkbench import` for large synthetic logs.

    python -m benchmarks.import_large --megabytes 100

Two forms: `stored` is the plain command, which stores a run and prints a table; `json` prints a document and stores
none. Two kinds of log: `interleaved` has runs of all_reduce_perf with 64 ranks, rows between the library's messages of
every rank, and mpirun's tags on all lines; `rows` has no messages, so most lines are rows. A process of its own reads
each log; the kernel reports its peak resident memory.
"""

# ruff: noqa: E501 - lines as the tool prints them

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

NUM_RANKS = 64
MESSAGES_PER_ROW = 64  # most NCCL_DEBUG=INFO messages appear once per rank


def log(megabytes: float, messages: int) -> Iterator[str]:
    """Lines of consecutive runs, up to the given size."""
    written, run = 0, 0
    while written < megabytes * 1e6:
        for line in _run(run, messages):
            written += len(line)
            yield line
        run += 1


def _run(run: int, messages: int) -> Iterator[str]:
    tag = "[1,0]<stdout>:"
    yield f"{tag}# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
    yield f"{tag}#\n{tag}# Using devices\n"
    for rank in range(NUM_RANKS):
        host = f"node-{rank // 8:03d}"
        yield f"{tag}#  Rank {rank:2d} Group  0 Pid {4000 + rank:6d} on {host} device  {rank % 8} [0x{rank % 8 + 16:02x}] NVIDIA H100 80GB HBM3\n"
    yield f"{tag}#\n"
    yield f"{tag}#                                                              out-of-place                       in-place          \n"
    yield f"{tag}#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    yield f"{tag}#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n"
    rates = []
    for power in range(3, 35):
        size = 2**power
        seconds = 30e-6 + size / 2e11 * (1 + run % 7 / 100)
        algbw = size / seconds / 1e9
        busbw = algbw * 2 * (NUM_RANKS - 1) / NUM_RANKS
        rates.append(busbw)
        half = f"{seconds * 1e6:8.2f} {algbw:7.2f} {busbw:7.2f}      0"
        yield f"{tag}{size:12d} {size // 4:13d}     float     sum      -1 {half} {half}\n"
        for rank in range(messages):
            host = f"node-{rank // 8:03d}"
            yield f"[1,{rank}]<stdout>:{host}:{4000 + rank}:{4100 + rank} [{rank % 8}] NCCL INFO Channel {power:02d}/0 : {rank}[{rank % 8}] -> {(rank + 1) % NUM_RANKS}[{(rank + 1) % 8}] via P2P/CUMEM\n"
    yield f"{tag}# Out of bounds values : 0 OK\n{tag}# Avg bus bandwidth    : {sum(rates) / len(rates):g} \n{tag}#\n"


def measured(path: Path, form: str) -> tuple[float, float, float]:
    """Seconds, seconds of CPU, and MB (10^6) of peak memory of one import."""
    command = [sys.executable, "-m", "bench", "import", str(path), "--output", os.devnull]
    command += ["--results", str(path.parent / "results")] if form == "stored" else ["--format", "json"]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"bench import ended with {process.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    """Write both logs, import each in both forms, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=100.0, help="size of each log (100)")
    parser.add_argument("--repeats", type=int, default=3, help="imports of each; the fastest is shown (3)")
    args = parser.parse_args()
    print(f"{'log':>12} {'MB':>7} {'form':>6} {'s':>7} {'CPU s':>7} {'peak MB':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for kind, messages in (("interleaved", MESSAGES_PER_ROW), ("rows", 0)):
            path = Path(folder, f"{kind}.txt")
            with path.open("w", encoding="utf-8") as file:
                file.writelines(log(args.megabytes, messages))
            size = path.stat().st_size / 1e6
            for form in ("stored", "json"):
                tries = [measured(path, form) for _ in range(args.repeats)]
                seconds, cpu, peak = min(tries)
                print(f"{kind:>12} {size:7.1f} {form:>6} {seconds:7.2f} {cpu:7.2f} {peak:8.0f}", flush=True)


if __name__ == "__main__":
    main()
