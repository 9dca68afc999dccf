"""Manage a controller's lease on its job. The lease shows the ranks that the controller is alive.

The lease is a small file in the heartbeat folder, which contains a counter. While the controller's process exists, the
controller's guard (controller/guard.py) adds one to the counter every RENEW_S. When the process is gone, the guard
writes LOST. The first rank of each host reads the file. If the counter stops, this rank ends. The rank measures time
only with the monotonic clock of its host, so clocks of different hosts are never compared.

The file has a constant length and is overwritten in place. A reader only checks whether the content has changed. A
half-written counter therefore does no harm. On NFS, a reader that opens the file sees what the file contained when the
writer last closed it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

NAME = "controller.lease"
VARIABLE = "BENCH_LEASE"  # in the environment of a job: the path of the file
LOST = "lost"
RENEW_S = 2.0
LAPSE_S = 8.0
_LENGTH = 24
_LATE = 3.0  # for file systems that show changes late: the lease lapses after _LATE times the longest interval so far
_SLOW_READ_S = 4.0  # a longer interval between two reads means that the file system or this process was blocked


def write(path: Path, content: str) -> None:
    """Write the file's content. Errors are ignored. If renewals fail for too long, the ranks end."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, content.ljust(_LENGTH).encode(), 0)
        finally:
            os.close(file)


def read(path: Path) -> str | None:
    """Return the file's content, or None if it cannot be read."""
    try:
        return path.read_bytes().decode(errors="replace").strip() or None
    except OSError:
        return None


@dataclass(slots=True)
class LeaseReader:
    """Decides whether a lease is lost.

    The decision depends on the contents of the file that one host reads, and on the times of these reads.

    Times are seconds of the host's monotonic clock. On some hosts, the file may be a mere copy, which is never renewed.
    A lease is therefore considered lost only after the reader has seen the counter change at least once. Time without
    regular reads is ignored, so a hanging file system or a stopped rank does not end a job.
    """

    content: str | None = None
    changed_s: float = 0.0  # time at which the current content was first read
    read_s: float = 0.0  # time of the last read
    longest_s: float = 0.0  # longest interval between two changes
    renewed: bool = False

    def lost(self, content: str | None, now_s: float) -> float | None:
        """Return the seconds since the last renewal if the lease is lost.

        Return None if the lease is valid, or if the reader cannot know whether it is lost.
        """
        regular = now_s - self.read_s <= _SLOW_READ_S
        self.read_s = now_s
        if content == LOST:
            return now_s - self.changed_s if self.content else 0.0
        if content is None or not regular:
            self.content, self.changed_s = content, now_s
            return None
        if content != self.content:
            if self.content is not None:
                self.renewed = True
                self.longest_s = max(self.longest_s, now_s - self.changed_s)
            self.content, self.changed_s = content, now_s
            return None
        unchanged_s = now_s - self.changed_s
        return unchanged_s if self.renewed and unchanged_s > max(LAPSE_S, _LATE * self.longest_s) else None
