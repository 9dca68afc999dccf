"""Compare our MPI figures with a C program's, size by size: the median ratio of the means, with its interval.

    python -m benchmarks.mpi_parity --launches 20
    python -m benchmarks.mpi_parity --launches 20 --osu /opt/osu     # with the OSU programs, too
    python -m benchmarks.mpi_parity --launches 99 --within 0.03 --seconds 280 --keep means.json --osu /opt/osu

All programs use the same mpirun, MPI library, thread level (single), element type, page alignment, barrier policy and
statistic: the mean over ranks of each rank's mean (for ping-pong the first rank's mean). The programs alternate from
launch to launch, so each ratio compares neighbouring launches. Shown are the median of these ratios and its 95 %
interval by order statistics, so a launch that another program disturbed hardly moves them. Each launch of a program
measures all sizes of one pattern, and the patterns take turns, too. The mpicc of the same MPI compiles
mpi_reference.c, in this folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.results import stats

HERE = Path(__file__).resolve().parent
PATTERNS = ("allreduce", "broadcast", "alltoall", "pingpong")
# For alltoall OSU's size is one rank's block. OSU's default type is MPI_CHAR, whose sum is far slower than float's.
OSU = {"allreduce": ("osu_allreduce", "-T", "mpi_float"), "broadcast": ("osu_bcast",), "alltoall": ("osu_alltoall",),
       "pingpong": ("osu_latency",)}  # fmt: skip
NUM_RANKS = 2
Means = dict[int, float]  # payload bytes -> microseconds


def main() -> int:
    """Alternate the programs, then print a line per pattern and size. Returns 0 if all intervals meet the range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=20, metavar="N", help="of each program and pattern (20)")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S", help="begin no launches after S")
    parser.add_argument("--calls", type=int, default=1000, metavar="N", help="timed calls of each size (1000)")
    parser.add_argument("--least", type=int, default=8, metavar="BYTES", help="smallest size (8)")
    parser.add_argument("--most", type=int, default=1 << 20, metavar="BYTES", help="largest size (1 MiB)")
    parser.add_argument("--within", type=float, default=0.05, metavar="SHARE", help="the range is 1 +- this (0.05)")
    parser.add_argument("--patterns", nargs="+", default=PATTERNS, choices=PATTERNS)
    parser.add_argument("--osu", type=Path, metavar="DIR", help="where the OSU programs are")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the means of all launches, as JSON")
    parser.add_argument("--mpirun", type=Path, default=Path(sys.executable).parent / "mpirun")
    args = parser.parse_args()
    programs = ["ours", "C", *["OSU"] * bool(args.osu)]
    taken: dict[str, dict[str, list[Means]]] = {one: {name: [] for name in programs} for one in args.patterns}
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "mpi_reference"
        mpicc = args.mpirun.with_name("mpicc")
        subprocess.run([mpicc, "-O2", "-o", reference, HERE / "mpi_reference.c"], check=True)
        end = time.monotonic() + args.seconds
        for launch in range(args.launches):
            if time.monotonic() > end:
                break
            for pattern in args.patterns:
                for program in programs if launch % 2 == 0 else reversed(programs):
                    taken[pattern][program].append(run(program, pattern, args, reference))
            print(f"\rlaunch {launch + 1} of {args.launches}", end="\r", file=sys.stderr, flush=True)
    if args.keep:
        args.keep.write_text(json.dumps(taken), encoding="utf-8")
    print(
        "pattern          size    ours (us)     C (us)   ours/C    95 % interval"
        + "   OSU (us)  ours/OSU  95 % interval" * bool(args.osu)
    )
    outside = [line for pattern in args.patterns for line in compare(pattern, taken[pattern], args.within)]
    low, high = 1 - args.within, 1 + args.within
    print(
        f"{len(taken[args.patterns[0]]['ours'])} launches of each; {len(outside)} sizes whose interval does not meet "
        f"{low:.2f} to {high:.2f}" + "".join(f"\n  {one}" for one in outside)
    )
    return 1 if outside else 0


def compare(pattern: str, taken: dict[str, list[Means]], within: float) -> list[str]:
    """Print one pattern's table. Returns the sizes outside the range, as text."""
    outside = []
    for size in taken["ours"][0]:
        if size not in taken["C"][0]:
            continue
        ours = [means[size] for means in taken["ours"]]
        line = f"{pattern:10} {size:10} {statistics.median(ours):12.3f}"
        for other in taken:
            theirs = [means[size] for means in taken[other] if size in means]
            if other == "ours" or not theirs:
                continue
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            ratio, found = statistics.median(ratios), stats.interval(ratios)
            if found is None:
                line += f" {statistics.median(theirs):10.3f} {ratio:8.3f} {'too few launches':>16}"
                continue
            low, high = found
            around = f"{low:.3f}..{high:.3f}"
            line += f" {statistics.median(theirs):10.3f} {ratio:8.3f} {around:>16}"
            if high < 1 - within or low > 1 + within:
                outside.append(f"{pattern} {size} B: ours/{other} {ratio:.3f} ({low:.3f}..{high:.3f})")
        print(line, flush=True)
    return outside


def run(program: str, pattern: str, args: argparse.Namespace, reference: Path) -> Means:
    """One launch: microseconds by size."""
    mpirun = [str(args.mpirun), "--bind-to", "core", "-n", str(NUM_RANKS)]
    if program == "ours":
        sizes = f"{args.least}:{args.most}:2"
        command = [*mpirun, sys.executable, "-m", f"bench.{pattern}", "--sizes", sizes, "--like", "osu",
                   "--iterations", str(args.calls), "--format", "json"]  # fmt: skip
        rows = json.loads(text_of(command))["summaries"]
        return {row["payload_bytes"]: row["compat"]["osu_mean_s"] * 1e6 for row in rows}
    if program == "C":
        return pairs(text_of([*mpirun, str(reference), pattern, str(args.least), str(args.most), str(args.calls)]))
    name, *options = OSU[pattern]
    block = NUM_RANKS if pattern == "alltoall" else 1
    path = next(args.osu.rglob(name))
    command = [*mpirun, str(path), "-m", f"{max(args.least // block, 1)}:{args.most // block}", "-i", str(args.calls),
               "-x", str(args.calls // 10), *options]  # fmt: skip
    return {size * block: mean for size, mean in pairs(text_of(command)).items()}


def pairs(text: str) -> Means:
    """The lines that consist of a size and a time."""
    words = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {int(one[0]): float(one[1]) for one in words if len(one) >= 2 and one[0].isdecimal()}


def text_of(command: Sequence[str]) -> str:
    """A command's stdout."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
