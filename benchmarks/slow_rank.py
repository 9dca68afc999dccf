"""Does `compare` find a rank that is 10 % slower, and no difference otherwise? Real MPI launches in alternation.

    python -m benchmarks.slow_rank --launches 5

Before each allreduce the slow rank calls MPI_Barrier on MPI_COMM_SELF, which moves nothing, until its call takes 10 %
longer. slow_rank_child.py starts `bench.allreduce` with this one change. Three runs alternate from launch to launch:
BASE, an identical run, and the slower run. Each is then compared with BASE as by `linkbench compare`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.results import compare, launches, summary
from bench.results.document import Document
from bench.store import jsonl

MPIRUN = str(Path(sys.executable).parent / "mpirun")
ROOT = Path(__file__).resolve().parent.parent
SLOW_RANK = 1
NOTHING_S = "BENCH_SLOW_RANK_SECONDS"  # relative extra time of each call of the slow rank


def main() -> None:
    """Measure alternately, compare, and print a verdict for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=5, metavar="N", help="of each run (5)")
    parser.add_argument("--sizes", nargs="+", default=["64", "512", "2K", "8K"], help="64 B to 8 KiB")
    parser.add_argument("--percent", type=float, default=10.0, help="how much slower (10)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for size in args.sizes:
            typical_s = median_of(launched(Path(folder) / "first.jsonl", size, 1, 0.0))
            launches: dict[str, list[Any]] = {"BASE": [], "same": [], "slower": []}
            for launch in range(1, args.launches + 1):
                for name in launches if launch % 2 else reversed(launches):
                    extra_s = typical_s * args.percent / 100 if name == "slower" else 0.0
                    launches[name] += launched(Path(folder) / f"{size}-{name}-{launch}.jsonl", size, launch, extra_s)
            base, same, slower = (summary.document(runs) for runs in launches.values())
            print(f"{size:>4}  {typical_s * 1e6:7.3f} us   same: {words(base, same)}")
            print(f"{'':19}slower: {words(base, slower)}", flush=True)


def launched(path: Path, size: str, launch: int, extra_s: float) -> list[Any]:
    """One launch as (job, header, records)."""
    path.unlink(missing_ok=True)
    subprocess.run(
        [MPIRUN, "-n", "2", sys.executable, "-m", "benchmarks.slow_rank_child", "--sizes", size, "--mode", "isolated",
         "--iterations", "2000", "--records", str(path), "--launch", str(launch)],
        check=True, capture_output=True, cwd=ROOT, env={**os.environ, NOTHING_S: repr(extra_s)},
    )  # fmt: skip
    (attempt,) = jsonl.read(path).attempts
    return [(f"allreduce-{launch}", attempt.header, attempt.records)]


def median_of(runs: list[Any]) -> float:
    """Median seconds of the only row."""
    return float(summary.document(runs).summaries[0].median_s or 0.0)


def words(base: Document, new: Document) -> str:
    """The result as text, `1.102 [1.080..1.120] p 0.008 slower`, with the spread of BASE's launches."""
    (row,) = compare.compare(base, new).rows
    found, spread = row.estimate, launches.between(row.base_launches_s)
    if found is None or row.p_corrected is None:
        return row.verdict
    around = f"{found.ratio:.3f} [{found.ratio_low:.3f}..{found.ratio_high:.3f}]"
    return f"{around} p {row.p_corrected:.3f} {row.verdict} (BASE spread {100 * (spread or 0):.1f} %)"


if __name__ == "__main__":
    main()
