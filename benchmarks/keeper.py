"""Do the processes that keep a job's lease and its connections disturb the samples? One launch, with and without them.

    python -m benchmarks.keeper --samples 40000

torchrun starts two ranks of an allreduce through `bench.controller.hosts`, as a run on named hosts does. While samples
are taken, the lease thread of the first rank, the keeper and the guard run (A) or are stopped (B), in blocks of 1.5
seconds in the order A B B A. Each four blocks give a ratio A / B of the medians, and one of the 99th percentiles. The
script prints the mean ratios with their 95 % intervals, and the CPU time that keeper and guard use.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.controller import execute
from bench.core.seal import SECRET_VARIABLE
from bench.store import jsonl, lease
from benchmarks.keeper_child import PHASES

ROOT = Path(__file__).resolve().parent.parent
_AGENT = ("sh", "-c", 'exec sh -c "$1"', "{host}")  # this machine


def main() -> None:
    """Measure once, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--size", default="1K")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, phases = Path(folder).resolve() / "rows.jsonl", Path(folder) / "phases.json"
        began = time.monotonic()
        launch(rows, phases, args)
        (attempt,) = jsonl.read(rows).attempts
        (samples,) = (record.samples for record in attempt.records)
        assert samples is not None
        told = json.loads(phases.read_text())
    blocks = [samples.seconds[first:end] for first, end in zip(told["starts"], told["starts"][1:], strict=False)]
    quads = [blocks[k : k + 4] for k in range(0, len(blocks) - 3, 4)]
    seconds = time.monotonic() - began
    print(f"{len(samples.seconds)} samples of {args.size}, median {1e6 * statistics.median(samples.seconds):.1f} us, "
          f"in {seconds:.0f} s, {len(quads)} times four blocks")  # fmt: skip
    for name, share in (("median", 0.5), ("99th percentile", 0.99)):
        low, middle, high = interval([ratio(quad, share) for quad in quads])
        print(f"{name:>16}: with / without = {middle:.4f} [{low:.4f}..{high:.4f}]")
    print(f"keeper and guard used {100 * told['cpu_s'] / told['with_s']:.3f} % of a CPU while they ran")


def launch(rows: Path, phases: Path, args: argparse.Namespace) -> None:
    """One launch of two ranks under torchrun, a keeper and a guard."""
    beats = rows.parent / "beats"
    beats.mkdir()
    command = [sys.executable, "-m", "bench.controller.hosts", "here", "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command += ["--nproc-per-node=2", "-m", "benchmarks.keeper_child", "--transport", "gloo", "--mode", "isolated"]
    command += ["--sizes", args.size, "--iterations", str(args.samples), "--records", str(rows)]
    command += ["--heartbeats", str(beats)]
    env = {
        **os.environ,
        "BENCH_AGENT": shlex.join(_AGENT),
        "BENCH_JOB": f"benchmark/{os.getpid()}",
        SECRET_VARIABLE: secrets.token_hex(16),
        lease.VARIABLE: str(beats / lease.NAME),
        PHASES: str(phases),
        "OMP_NUM_THREADS": "1",
    }
    with (
        subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, stdout=subprocess.DEVNULL) as process,
        execute.ended_with_controller(process.pid, beats / lease.NAME),
    ):
        code = process.wait()
    if code:
        sys.exit(f"the launch ended with {code}")


def ratio(quad: Sequence[Sequence[float]], share: float) -> float:
    """Logarithm of a quantile of the blocks A over that of the blocks B, of four blocks A B B A."""
    first, second, third, fourth = (statistics.quantiles(block, n=1000)[int(1000 * share) - 1] for block in quad)
    return (math.log(first) + math.log(fourth) - math.log(second) - math.log(third)) / 2


def interval(logs: Sequence[float]) -> tuple[float, float, float]:
    """95 % t interval and middle of the mean of logarithms, as ratios."""
    from scipy.stats import t

    middle = statistics.fmean(logs)
    half = float(t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle - half), math.exp(middle), math.exp(middle + half)


if __name__ == "__main__":
    main()
