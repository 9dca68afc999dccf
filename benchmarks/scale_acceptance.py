"""The cost of a modelled acceptance test of 512 hosts of 8 ranks: the run itself, and each command that reads it.

    python -m benchmarks.scale_acceptance [--hosts 512] [--folder DIR] [--megabytes 2000]

Runs `run acceptance --model` on p4d.24xlarge and spreads the modelled times by 2 %: equal rows share a line. Then it
starts diagnose, report, gate and the certificate on the run, and prints the summary of a run of `--megabytes` in files
of 4 MB (0: none). Each line has the CPU seconds of one process and its children, the same as a multiple of a loop of
5,000,000 additions (which takes longer on a shared core, as the command does), and the peak memory. `--folder` keeps
the run and uses it again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report_large import write

ROOT = Path(__file__).resolve().parent.parent
_ROWS_OF_A_FILE = 19
_FILE_MB = 4.1  # two ranks, 10,000 samples each


def main() -> None:
    """One line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=512, metavar="N")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep the run here, or use the run that is here")
    parser.add_argument("--megabytes", type=int, default=2000, metavar="N", help="of the large results file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not any(folder.glob("results/*/plan.json")):
            modelled(folder, args.hosts)
        run = str(next(folder.glob("results/*/plan.json")).parent)
        measured("diagnose", "diagnose", run)
        measured("report", "report", run)
        measured("report --all", "report", run, "--all")
        measured("gate", "gate", run, "--rules", "acceptance")
        measured("certificate", "report", run, "--certificate", "acceptance")
        if args.megabytes:
            large = Path(temporary) / "large"
            copied(large, max(1, round(args.megabytes / _FILE_MB)))
            megabytes = sum(path.stat().st_size for path in large.iterdir()) / 1e6
            measured(f"report --summary of {megabytes:.0f} MB", "report", str(large), "--summary")


def modelled(folder: Path, hosts: int) -> None:
    """Run the acceptance test by the model, and spread its times."""
    config = folder / "bench.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    cluster = f"{{instance: p4d.24xlarge, nodes: {hosts}, ranks_per_node: 8, launcher: slurm}}"
    config.write_text(f"clusters:\n  big: {cluster}\n")
    words = ["run", "acceptance", "--model", "--config", str(config), "--cluster", "big", "--no-plots"]
    measured("run acceptance --model", *words, "--results", str(folder / "results"))
    draw = random.Random(1)
    for path in sorted(folder.glob("results/*/*.jsonl")):
        lines = []
        for line in path.read_text().splitlines():
            parsed = json.loads(line)
            samples = parsed.get("samples", {})
            if "seconds" in samples:
                samples["seconds"] = [second * draw.lognormvariate(0, 0.02) for second in samples["seconds"]]
            lines.append(json.dumps(parsed) + "\n")
        path.write_text("".join(lines))


def copied(folder: Path, num_files: int) -> None:
    """Write a run of equal results files."""
    folder.mkdir()
    first = folder / "large-0.jsonl"
    write(first, _ROWS_OF_A_FILE, 10_000)
    for number in range(1, num_files):
        (folder / f"large-{number}.jsonl").write_bytes(first.read_bytes())


def loop_s() -> float:
    """Return the CPU seconds of a fixed loop: other programs on the same cores change them as they change a command."""
    began, total = time.process_time(), 0
    for number in range(5_000_000):
        total += number * number % 7
    return time.process_time() - began


def measured(what: str, *words: str) -> None:
    """Print CPU and memory of one command. Its output goes nowhere."""
    before_s = loop_s()
    command = [sys.executable, "-m", "bench", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s, unit_s = usage.ru_utime + usage.ru_stime, (before_s + loop_s()) / 2
    cpu = f"{cpu_s:.1f} s, {cpu_s / unit_s:.1f} loops"
    print(f"{what}: {cpu}, {usage.ru_maxrss / 1024:.0f} MiB, exit {process.returncode}", flush=True)


if __name__ == "__main__":
    main()
