"""Run NVIDIA Nsight Systems to record a command and to export the recording for the reader."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

PROGRAM = "nsys"
# With graphs as nodes, the trace shows the collectives inside CUDA graphs.
_PROFILE = ("profile", "--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node")
_EXPORT = ("export", "--type=sqlite", "--force-overwrite=true")
# NCCL states the bytes of its calls in NVTX payloads. Without this option, an export omits the
# payloads. The export of `nsys profile --export=sqlite` always omits the payloads. Old versions do not know the option.
_PAYLOADS = "--include-blobs=true"


def is_installed(env: Mapping[str, str]) -> bool:
    """Check whether nsys is on the PATH of an environment."""
    return shutil.which(PROGRAM, path=env.get("PATH")) is not None


def profile_words(output: Path) -> tuple[str, ...]:
    """Return the words to put before a command.

    With these words, nsys records the command to the file `output`.nsys-rep.
    """
    return (PROGRAM, *_PROFILE, "--force-overwrite=true", f"--output={output}")


def export(report: Path, env: Mapping[str, str]) -> Path | None:
    """Export a report to an SQLite file in the same folder. Return the file, or None if nsys fails."""
    target = report.with_suffix(".sqlite")
    program = shutil.which(PROGRAM, path=env.get("PATH")) or PROGRAM
    for options in ((_PAYLOADS,), ()):
        words = (program, *_EXPORT, *options, f"--output={target}", str(report))
        try:
            done = subprocess.run(words, env=dict(env), capture_output=True, check=False)
        except OSError:
            return None
        if done.returncode == 0 and target.exists():
            return target
    return None
