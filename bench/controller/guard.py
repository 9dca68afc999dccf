"""Renew a job's lease while the controller lives, and end the job when the controller is gone.

    python -m bench.controller.guard GROUP LEASE SECONDS

`GROUP`: the process group of the job's launcher.
`LEASE`: the lease file (store/lease.py).
`SECONDS`: the time in seconds that the launcher has to end after TERM.

The guard's standard input is a pipe that only the controller holds open. The pipe therefore closes when the
controller's process ends, and the guard notices this. A controller that is only stopped (Ctrl-Z) keeps its lease. The
guard wakes up once per renewal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from bench.store import lease

_POLL_S = 1.0


def main(group: int, path: Path, ends_within_s: float) -> None:
    """Wait until the controller reports that the job has ended.

    If the controller ends without this report, end the job.
    """
    gone = threading.Event()

    def renew() -> None:
        counter = 0
        while not gone.is_set():
            counter += 1
            lease.write(path, str(counter))
            gone.wait(lease.RENEW_S)
        lease.write(path, lease.LOST)

    # A thread renews the lease, so that a hanging file system cannot keep the guard from ending the launcher.
    threading.Thread(target=renew, daemon=True).start()
    if not os.read(sys.stdin.fileno(), 1):
        gone.set()
        _end(group, ends_within_s)
    os._exit(0)


def _end(group: int, within_s: float) -> None:
    """Send TERM to the group, and KILL if it has not ended in time."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            time.sleep(_POLL_S)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
