"""Renew a job's lease while the controller lives, and end the job when the controller is gone.

    python -m bench.controller.guard GROUP LEASE

GROUP is the process group of the job's launcher, and LEASE is the lease file (store/lease.py). Standard input is a pipe
that only the controller holds open, so the guard notices when the controller's process ends. A controller that is only
stopped (Ctrl-Z) keeps its lease. The guard wakes up once per renewal.
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

# torchrun waits 30 s for its ranks before it kills them. They are in other sessions and would survive if torchrun were
# killed earlier.
_KILL_AFTER_S = 35.0
_POLL_S = 1.0


def main(group: int, path: Path) -> None:
    """Wait until the controller reports the job's end. If the controller is gone instead, end the job."""
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
        _end(group)
    os._exit(0)


def _end(group: int) -> None:
    """Send TERM to the group, and KILL if it has not ended in time."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + _KILL_AFTER_S
        while time.monotonic() < deadline:
            time.sleep(_POLL_S)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
