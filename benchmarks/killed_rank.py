"""Kill one rank during an allreduce, and see that the job ends by itself, soon and with an error.

    python -m benchmarks.killed_rank --transport gloo --ranks 2     # on CPUs
    python -m benchmarks.killed_rank --transport nccl --ranks 8     # on the GPUs of one node

Prints how long the other ranks took to end. Exit code 0: the job ended with an error within `--within` seconds, and no
process is left; 1: it did not, and was killed; 3: the job was refused; 4: it ended before the kill.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from bench.core.errors import EXIT_DONE, EXIT_MEASUREMENT, EXIT_REFUSED, EXIT_VERDICT
from bench.probes import processes

ROOT = Path(__file__).resolve().parent.parent
START_S = 120.0  # the first start on a machine reads gigabytes of libraries


def main() -> int:
    """Start, kill, wait, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", default="gloo", help="library of the allreduce (%(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the job (%(default)s)")
    parser.add_argument("--within", type=float, default=90.0, metavar="S", help="seconds that the job may take to end")
    args = parser.parse_args()
    job_id = f"killed-rank-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
                 "--nproc-per-node", str(args.ranks), "-m", "bench.allreduce", "--transport", args.transport,
                 "--sizes", "1K,1M", "-n", "1000000", "--timeout", "20s", "--deadline", "30s",
                 "--records", str(rows)]  # fmt: skip
        job = subprocess.Popen(words, cwd=ROOT, env={**os.environ, processes.JOB_VARIABLE: job_id},
                               stdout=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        try:
            return watched(job, job_id, rows, args.within)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            processes.end_job(job_id)


def watched(job: subprocess.Popen[bytes], job_id: str, rows: Path, within_s: float) -> int:
    """Kill the last rank when the rows have begun, and wait for the end. Returns the exit code."""
    end = time.monotonic() + START_S
    while not rows.exists() and job.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(2.0)  # into the samples
    if job.poll() is not None:
        print(f"the job ended before a rank was killed, with exit code {job.returncode}")
        return EXIT_REFUSED if job.returncode == EXIT_REFUSED else EXIT_MEASUREMENT
    ranks = [each for each in processes.of_job(job_id) if each.pid != job.pid]
    ranks = [each for each in ranks if each.ppid() == job.pid] or ranks
    ranks[-1].kill()
    began = time.monotonic()
    try:
        code = job.wait(within_s)
    except subprocess.TimeoutExpired:
        print(f"the job still runs {within_s:.0f} s after rank {len(ranks) - 1} was killed")
        return EXIT_VERDICT
    took_s = time.monotonic() - began
    left = processes.of_job(job_id)
    print(f"ended {took_s:.1f} s after a rank was killed, with exit code {code}; {len(left)} processes left")
    return EXIT_DONE if code != 0 and not left else EXIT_VERDICT


if __name__ == "__main__":
    sys.exit(main())
