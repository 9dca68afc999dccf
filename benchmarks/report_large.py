"""Time and memory of a report of 10,000,000 raw samples.

    python -m benchmarks.report_large

Writes a run of two ranks' samples into a temporary folder (once as many rows of 10,000 samples, once as a few rows of a
million), then starts `linkbench report` on it and reads its time and peak memory.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.core.record import Header, Record, Samples
from bench.store import jsonl

ROOT = Path(__file__).resolve().parent.parent
NUM_RANKS = 2
HEADER = Header(
    job="large", case=("allreduce",), pattern="allreduce", transport="mpi", dtype="float32", reduce_op="sum", root=None,
    direction=None, topology="world", num_ranks=NUM_RANKS, num_nodes=1, ranks_per_node=NUM_RANKS, clock="host",
    modelled=False, started="2026-01-01T00:00:00+00:00",
)  # fmt: skip


def main() -> None:
    """One line for each form of the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000_000, metavar="N", help="raw samples in all")
    parser.add_argument("--format", default="table", help="of the report")
    args = parser.parse_args()
    for per_row in (10_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "large.jsonl"
            write(path, args.samples // NUM_RANKS // per_row, per_row)
            began = time.monotonic()
            command = [sys.executable, "-m", "bench", "report", str(path), "--format", args.format]
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            took_s = time.monotonic() - began
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            print(f"{args.samples} samples, {per_row} a row and rank, file of {path.stat().st_size / 1e6:.0f} MB: "
                  f"{took_s:.1f} s, {peak:.0f} MiB at most")  # fmt: skip


def write(path: Path, num_rows: int, per_row: int) -> None:
    """Write log-normal times with lag-1 correlation 0.5, for sizes and modes in turn."""
    draw = np.random.default_rng(1)
    writer = jsonl.Writer(path, HEADER)
    for row in range(max(num_rows, 1)):
        noise = draw.normal(size=(NUM_RANKS, per_row))
        noise[:, 1:] += 0.5 * noise[:, :-1]
        by_rank = 1e-5 * np.exp(0.1 * noise)
        samples = Samples(tuple(by_rank.max(axis=0)), tuple(map(tuple, by_rank)), calls_per_sample=1, loop="compiled")
        size = 8 << row % 20
        record = Record("isolated", (size,), size, NUM_RANKS, 1, samples=samples, verified=True, num_wrong=0,
                        bus_factor=1.0, stop_reason="max_n")  # fmt: skip
        writer.append(replace(record, mode=("isolated", "pipelined")[row // 20 % 2]))


if __name__ == "__main__":
    main()
