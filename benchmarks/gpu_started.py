"""The programs that `gpu_copies` starts, each in a process group of its own.

A program that exceeds its timeout, or whose caller is interrupted or terminated, gets SIGTERM with its children, and
SIGKILL some seconds later.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.core.errors import EXIT_REFUSED, MeasurementError
from benchmarks.gpu_lines import NotHereError

ROOT = Path(__file__).resolve().parent.parent
_GRACE_S = 4.0


def run(words: Sequence[str], timeout_s: float, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. An exception also ends the program. Raises TimeoutExpired after `timeout_s`."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=env,
                          start_new_session=True) as process:  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except BaseException:
            _end(process)
            raise
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM first, because torchrun's ranks are in sessions of their own and only torchrun ends them."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(_GRACE_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def output(words: Sequence[str], timeout_s: float, **variables: str) -> str:
    """A program's output, whatever its exit code.

    Without output, raises NotHereError if the program was refused, else MeasurementError, with its last stderr line.
    """
    try:
        done = run(words, timeout_s, ROOT, **variables)
    except subprocess.TimeoutExpired:
        raise MeasurementError(f"{words[0]} did not finish within {timeout_s:.0f} s") from None
    if not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        if done.returncode == EXIT_REFUSED:
            raise NotHereError(last)
        raise MeasurementError(f"{Path(words[0]).name} ended with {done.returncode}: {last}")
    return done.stdout


def nvbandwidth(test: str, num_bytes: int, timeout_s: float) -> float | None:
    """nvbandwidth's rate for the same copy in bytes per second; None if it is not installed."""
    folder = os.environ.get("BENCH_NVBANDWIDTH_PATH")
    if not folder:
        return None
    words = (str(Path(folder) / "nvbandwidth"), "-t", test, "-b", str(num_bytes >> 20), "-i", "5")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]  # its sum is over all GPUs that it sees
    printed = output(words, timeout_s, CUDA_VISIBLE_DEVICES=first)
    found = re.search(rf"^SUM {test}\s+([0-9.]+)", printed, re.MULTILINE)
    if found is None:
        raise MeasurementError(f"nvbandwidth printed no figure for {test}: {printed.strip()[-200:]}")
    return float(found[1]) * 1e9


def peer_copy_s(via: str, num_bytes: int, timeout_s: float) -> float:
    """Seconds of a copy between two ranks on one GPU; the faster direction.

    `via`: as for `bench.peer_copy`. Raises NotHereError with the reason of skipped rows.
    """
    # By address, because a sandbox may not resolve its own name.
    words = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
             "--nproc-per-node", "2", "-m", "bench.peer_copy", "--sizes", str(num_bytes), "--mode", "pipelined",
             "--via", via, "--share-gpu", "1", "--format", "json")  # fmt: skip
    document = _json(output(words, timeout_s))
    if document["failures"]:
        raise MeasurementError(str(document["failures"][0].get("what")))
    if not document["summaries"]:
        raise NotHereError(str(document["skipped"][0].get("reason")) if document["skipped"] else "no row was measured")
    if any(row["verified"] is not True for row in document["summaries"]):
        raise MeasurementError("wrong data arrived")
    return float(min(row["median_s"] for row in document["summaries"]))


def nccl_call(timeout_s: float) -> dict[str, Any]:
    """The output of benchmarks/nccl_call.py."""
    return _json(output((sys.executable, "-m", "benchmarks.nccl_call"), timeout_s))


def _json(printed: str) -> dict[str, Any]:
    """The one document in it: libraries write to stdout, too."""
    try:
        document: dict[str, Any] = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    except ValueError:
        raise MeasurementError(f"no document was printed: {printed.strip().splitlines()[-1][:200]}") from None
    return document
