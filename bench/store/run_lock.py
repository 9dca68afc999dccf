"""Lock a run's folder, so that only one controller at a time adds to a run.

The lock is an flock on a file in the folder. When the process that holds the lock ends, the lock is released. Some
shared file systems have no flock, or hide the flock of one host from other hosts. For this reason, the leases of the
run's jobs are also checked. If the lease of a job is being renewed, another controller uses the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.core.codes import Code
from bench.core.errors import RefusedError
from bench.store import lease

_NAME = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_WATCH_S, _POLL_S = 2.5 * lease.RENEW_S, 0.25


class RunLockError(Code):
    """Reasons why a controller cannot use the folder of a run."""

    IN_USE = (
        "run-in-use",
        "{folder} is in use by {holder}: wait until that controller has ended, or end it",
    )


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder. Raises RefusedError with the holder if another controller holds the lock."""
    path = folder / _NAME
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:  # the folder cannot be written, so it needs no lock; the first write reports the error
        yield
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise RefusedError.of(RunLockError.IN_USE, folder=str(folder), **_holder(file)) from None
        if _is_renewed(folder):
            raise RefusedError.of(RunLockError.IN_USE, folder=str(folder), **_holder(file))
        _sign(file)
        yield
    finally:
        os.close(file)


def check_free(folder: Path) -> None:
    """Raise RefusedError if a controller is measuring in a run's folder. The run's rows are then incomplete."""
    try:
        file = os.open(folder / _NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # no controller of this version has used the folder
        return
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise RefusedError.of(RunLockError.IN_USE, folder=str(folder), **_holder(file)) from None
    finally:
        os.close(file)


def _sign(file: int) -> None:
    """Write the identity of the lock's holder. Errors, such as a full disk, are ignored."""
    user = str(os.getuid())
    with contextlib.suppress(OSError, KeyError):
        user = getpass.getuser()
    mine = {"pid": os.getpid(), "host": socket.gethostname(), "user": user, "since_s": time.time()}
    with contextlib.suppress(OSError):
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(mine).encode(), 0)


def _holder(file: int) -> dict[str, Any]:
    """Return the process, host and user of the lock's holder, and a text `holder` with these facts."""
    try:
        signed = json.loads(os.pread(file, 4096, 0))
        facts = {name: signed[name] for name in ("pid", "host", "user")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {"holder": "another controller"}
    return {**facts, "holder": f"process {facts['pid']} of {facts['user']} on {facts['host']}"}


def _is_renewed(folder: Path) -> bool:
    """Check whether the lease of any job changes within _WATCH_S seconds.

    If no lease can be in use, the function returns at once.
    """
    before = {path: lease.read(path) for path in folder.glob(f".*.heartbeats/{lease.NAME}")}
    before = {path: content for path, content in before.items() if content not in (None, lease.LOST)}
    end = time.monotonic() + _WATCH_S
    while before and time.monotonic() < end:
        time.sleep(_POLL_S)
        if any(lease.read(path) not in (content, None, lease.LOST) for path, content in before.items()):
            return True
    return False
