"""A controller's lease on its job: a small file in the heartbeat folder that shows the ranks that the controller lives.

The controller's guard (controller/guard.py) adds one to the counter every RENEW_S while the controller's process
exists, and writes LOST once the process is gone. The first rank of each host reads the file and ends if the counter
stops. A host judges by its own monotonic clock only: clocks of two hosts are never compared.

The file is written in place and has a constant length. A reader needs only to see whether it changed, so that a torn
read does no harm, and NFS shows a reader that opens the file what the last writer closed.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

NAME = "controller.lease"
LOST = "lost"
RENEW_S = 2.0
LAPSE_S = 8.0
_LENGTH = 24
_LATE = 3.0  # lapse after this many of the longest interval seen, on a file system that shows changes late
_SLOW_READ_S = 4.0  # a longer interval between two reads means that the file system or this process was held up


def write(path: Path, content: str) -> None:
    """Write the file's content. An error is ignored: ranks end if renewals fail for too long."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, content.ljust(_LENGTH).encode(), 0)
        finally:
            os.close(file)


def read(path: Path) -> str | None:
    """The file's content; None if it cannot be read."""
    try:
        return path.read_bytes().decode(errors="replace").strip() or None
    except OSError:
        return None


@dataclass(slots=True)
class LeaseReader:
    """Judges a lease by what a host reads and when it read it, in seconds of its monotonic clock.

    A lease holds until the reader has seen it change once: a host may see a copy of the file that nobody renews. Only
    time with regular reads counts. A file system that hangs or a stopped rank therefore ends nothing.
    """

    content: str | None = None
    changed_s: float = 0.0  # when the present content was first read
    read_s: float = 0.0  # the last read
    longest_s: float = 0.0  # longest interval between two changes
    renewed: bool = False

    def lost(self, content: str | None, now_s: float) -> float | None:
        """Seconds without a renewal if the lease is lost; None while it holds or cannot be judged."""
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
