"""A rank's program that limits the CPU time of some ranks: `starving.py SHARE RANKS PATTERN [OPTION ...]`.

`starving.py 0.03 1 allreduce ...`: rank 1 gets 3 % of a CPU, by a CPU quota (cgroup version 1 or 2) for each rank of
the comma-separated list while it takes samples. Ranks must be allowed to make control groups.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from bench.rank import main, sampling
from bench.rank.placement import place

_PERIOD_US = 100_000
_FOLDERS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))


def folder_of(process: int) -> Path:
    """The control group that this program makes for a rank's process."""
    parent = next(folder for folder in _FOLDERS if (folder / "cgroup.procs").exists())
    return parent / f"bench-test-{process}"


def limit(process: int, share: float) -> None:
    """Give a process at most this share of one CPU. Raises OSError if this user may not make control groups."""
    folder, quota_us = folder_of(process), int(share * _PERIOD_US)
    folder.mkdir()
    try:
        if (folder / "cpu.cfs_quota_us").exists():
            (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        (folder / "cgroup.procs").write_text(str(process))
    except OSError:
        folder.rmdir()
        raise


def unlimit(process: int) -> None:
    """Remove the limit of a process."""
    folder = folder_of(process)
    (folder.parent / "cgroup.procs").write_text(str(process))
    folder.rmdir()


def limit_samples(share: float) -> None:
    """Limit this process while it takes samples; elsewhere it would only be slow."""
    take = sampling.take

    def limited(*args: Any) -> sampling.Taken:
        limit(os.getpid(), share)
        try:
            return take(*args)
        finally:
            unlimit(os.getpid())

    sampling.take = limited  # type: ignore[assignment]


if __name__ == "__main__":
    share, ranks, pattern, *options = sys.argv[1:]
    if str(place(os.environ).rank) in ranks.split(","):
        limit_samples(float(share))
    main.run_pattern(pattern, options)
