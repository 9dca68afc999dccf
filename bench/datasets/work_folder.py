"""Manage the folder of one run's data sets.

A run locks its folder while it uses the folder, and removes the folder at the end. If a run was killed, a later run
finds and removes the folder.

On a file system that several hosts share, a lock may have an effect only on the host that set it. On a file system that
several hosts share, each host therefore removes only the folders that it made itself.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from bench.datasets import page_cache

PREFIX = "linkbench-feed-"
_LOCK = "in-use"
_TRIES = 3
_SPARE = 1.05  # factor of the space for headers, indexes and the file system


class WorkFolder:
    """A new folder below `parent`. Raises OSError if the folder cannot be made.

    `removed`: the folders of ended runs that still existed. These folders are removed now, and `removed_bytes` is their
        size. The kernel releases a lock when the process with the lock ends. A folder without a lock therefore has no
        owner.
    """

    def __init__(self, parent: Path) -> None:
        self.removed, self.removed_bytes = _remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = -1
        try:
            # The file gets its name when it is locked and complete, so no other run can take the folder before.
            new = self.path / f"{_LOCK}-new"
            self._lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._lock, socket.gethostname().encode())
            new.rename(self.path / _LOCK)
        except OSError:
            self.close()
            raise

    def lacks_bytes(self, num_bytes: int) -> int:
        """Return how many bytes the disk lacks for `num_bytes` of records, or 0 if there is enough space."""
        return max(0, int(num_bytes * _SPARE) - shutil.disk_usage(self.path).free)

    def new(self, name: str) -> Path:
        """Return a new empty subfolder with this name. An existing subfolder with this name is removed first."""
        folder = self.path / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def close(self) -> None:
        """Remove the folder, even if another thread still writes into it. Several threads may call this method."""
        lock, self._lock = self._lock, -1
        _remove(self.path, lock)


def files_below(folder: Path) -> list[Path]:
    """Return all files of a folder and of its subfolders, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _remove_abandoned(parent: Path) -> tuple[list[Path], int]:
    removed, num_bytes = [], 0
    any_host = not page_cache.is_remote(page_cache.file_system(parent))
    for folder in sorted(parent.glob(f"{PREFIX}*")):
        lock = _lock_of_abandoned(folder, any_host)
        if lock < 0:
            continue
        with suppress(OSError):  # a file vanished
            num_bytes += sum(path.stat().st_size for path in files_below(folder))
        _remove(folder, lock)
        removed.append(folder)
    return removed, num_bytes


def _remove(folder: Path, lock: int) -> None:
    """Remove a folder, and close the file descriptor `lock` that locks the folder.

    If `lock` is -1, the folder is not locked.
    """
    # If an open file is removed, a network file system keeps it under another name. The lock is removed last, after it
    # was closed.
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if path.name != _LOCK:
                shutil.rmtree(path, ignore_errors=True)
    if lock >= 0:
        with suppress(OSError):
            os.close(lock)
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def _lock_of_abandoned(folder: Path, any_host: bool) -> int:
    """Try to lock a folder of an earlier run, and return the file descriptor of the lock.

    Returns -1 if the folder is still in use or cannot be locked.
    """
    try:
        if not any_host and (folder / _LOCK).read_text(errors="replace") != socket.gethostname():
            return -1
        if folder.stat().st_uid != os.getuid():
            return -1
        number = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # another run has just made or removed the folder
        return -1
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(number).st_nlink:
            return number
    except OSError:
        pass
    os.close(number)  # another run uses the folder, or has just removed it
    return -1
