"""The end of a job whose desk can no longer end it: killed by SIGKILL, or by a machine without memory left."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from bench.core.errors import RefusedError

# torchrun gives its ranks, each a session of its own, 30 s to end before it kills them: it must not be killed first.
_WAIT_THEN_END = """
read -r _ && exit
kill -s TERM -- "-$0"
left=35
while [ $left -gt 0 ] && kill -s 0 -- "-$0"; do sleep 1; left=$((left - 1)); done
kill -s KILL -- "-$0"
"""


@contextlib.contextmanager
def guarded(group: int) -> Iterator[None]:
    """Inside, a process group is ended (TERM, later KILL) as soon as this process is no more, however it went.

    A shell waits at the end of a pipe that this process alone holds open: it needs no time while a job measures, and a
    desk that is only stopped (Ctrl-Z) is still there. Raises RefusedError where no process can be started.
    """
    reading, writing = os.pipe()
    try:
        watcher = _watcher(group, reading)
        try:
            yield
        finally:
            with contextlib.suppress(BrokenPipeError):  # somebody ended the watcher
                os.write(writing, b"\n")
            watcher.wait()
    finally:
        os.close(writing)


def _watcher(group: int, reading: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _WAIT_THEN_END, str(group)],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise RefusedError(f"what ends a job after its desk could not be started ({error.strerror}): /bin/sh") from None
    finally:
        os.close(reading)
