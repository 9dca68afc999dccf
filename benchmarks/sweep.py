"""The duration of a default sweep, and the number of timed calls for equal precision at every size.

    python -m benchmarks.sweep

Starts `mpirun -n 2 python -m bench.allreduce`, 8 B to 1 MiB, and records when its rows appear. Then compares OSU's
fixed numbers of calls (1000 up to 8 KiB, 100 above) with the adaptive sweep's at the same sizes. Fixed counts give a
different precision at each size; the worst of these is the target for every size.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.results import stats
from bench.store import jsonl

SIZES = "8:1M:2"
MPIRUN = str(Path(sys.executable).parent / "mpirun")
ROOT = Path(__file__).resolve().parent.parent
FIXED_SMALL, FIXED_LARGE, LARGE_BYTES = (
    1000,
    100,
    8192,
)  # OSU 7.4: iterations of small and of large messages


def main() -> None:
    """Print when rows appear, then the calls of each size."""
    began = time.monotonic()
    rows = []
    with subprocess.Popen(words(), stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("#"):
                rows.append(time.monotonic() - began)
    whole_s = time.monotonic() - began
    print(f"{len(rows)} rows, 8 B to 1 MiB, both modes: first after {rows[0]:.2f} s, end after {whole_s:.2f} s")
    adaptive, fixed_small, fixed_large = measured(), measured(FIXED_SMALL), measured(FIXED_LARGE)
    fixed = {size: (fixed_large if size > LARGE_BYTES else fixed_small)[size] for size in adaptive}
    worst = max(half_width(samples) for samples in fixed.values())
    print(
        f"calls until half the 95 % interval is {100 * worst:.1f} % of the median (the worst that fixed counts leave):"
    )
    print(f"{'size':>9} {'ours':>6} {'half':>7} {'fixed':>6} {'half':>7}   ours for {100 * worst:.1f} %")
    needed = {}
    for size, samples in adaptive.items():
        needed[size] = calls_for(samples, worst)
        taken = f"{len(samples):6} {percent(samples):>7} {len(fixed[size]):6} {percent(fixed[size]):>7}"
        print(f"{size:9} {taken}   {needed[size]}")
    print(f"in all: ours {sum(needed.values())}, fixed {sum(map(len, fixed.values()))}; "
          f"sizes at which ours takes more: {sum(needed[size] > len(fixed[size]) for size in needed)}")  # fmt: skip


def words(*more: str) -> list[str]:
    """The sweep's command."""
    return [MPIRUN, "-n", "2", sys.executable, "-u", "-m", "bench.allreduce", "--sizes", SIZES, *more]


def measured(calls: int | None = None) -> dict[int, list[float]]:
    """Samples of isolated mode by size, with an adaptive or a fixed number of calls."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        fixed = ("--iterations", str(calls)) if calls else ()
        command = words("--mode", "isolated", "--records", str(records), *fixed)
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        found = [record for attempt in jsonl.read(records).attempts for record in attempt.records]
        return {record.payload_bytes: list(record.samples.seconds) for record in found if record.samples}


def half_width(samples: list[float]) -> float:
    """Relative half-width of the median's interval; infinite without an interval."""
    around = stats.interval(samples)
    return float("inf") if around is None else (around[1] - around[0]) / 2 / stats.median(samples)


def calls_for(samples: list[float], target: float) -> int:
    """Number of calls (30, 40, ...) after which the adaptive rule would have stopped for this target."""
    for num in range(30, len(samples), 10):
        if stats.effective_size(samples[:num]) >= stats.LEAST_EFFECTIVE_TO_STOP and half_width(samples[:num]) <= target:
            return num
    return len(samples)


def percent(samples: list[float]) -> str:
    """A half width as text."""
    return f"{100 * half_width(samples):.1f} %"


if __name__ == "__main__":
    main()
