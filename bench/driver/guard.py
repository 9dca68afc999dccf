"""The end of a job whose desk can no longer end it: killed by SIGKILL, or by a machine without memory left."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

_WAIT_THEN_END = 'read -r _ || { kill -s TERM -- "-$0"; sleep 5; kill -s KILL -- "-$0"; }'


@contextlib.contextmanager
def guarded(group: int) -> Iterator[None]:
    """Inside, a process group is ended (TERM, 5 s later KILL) as soon as this process is no more, however it went.

    A shell waits at the end of a pipe that this process alone holds open: it needs no time while a job measures, and a
    desk that is only stopped (Ctrl-Z) is still there.
    """
    reading, writing = os.pipe()
    try:
        watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WAIT_THEN_END, str(group)], stdin=reading, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(reading)
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):  # somebody ended the watcher
            os.write(writing, b"\n")
        os.close(writing)
        watcher.wait()
