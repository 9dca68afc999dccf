"""Manage the folder of one run's data sets: lock it while in use, remove it at the end, find it after a kill -9.

A lock on a file system of several hosts may hold on its own host only. So there each host removes its own folders.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from pathlib import Path

from bench.datasets import page_cache

PREFIX = "linkbench-feed-"
_LOCK = "in-use"
_TRIES = 3
_SPARE = 1.05  # factor of the space for headers, indexes and the file system


class WorkFolder:
    """A new folder below `parent`. Raises OSError if it cannot be made.

    `removed`: folders of runs that ended without removing them; they are removed now, with `removed_bytes`. The kernel
    releases a lock whenever its process ends, so a folder without a lock has no owner.
    """

    def __init__(self, parent: Path) -> None:
        self.removed, self.removed_bytes = _remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = -1
        try:
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            os.write(self._lock, socket.gethostname().encode())
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def lacks_bytes(self, num_bytes: int) -> int:
        """Return how many bytes the disk lacks for `num_bytes` of records; 0 if there is enough space."""
        return max(0, int(num_bytes * _SPARE) - shutil.disk_usage(self.path).free)

    def new(self, name: str) -> Path:
        """Return an empty folder below this one. A folder of this name is removed first."""
        folder = self.path / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def close(self) -> None:
        """Remove the folder, even if another thread still writes into it."""
        # A network file system keeps an open file under another name, so the lock goes last, when it is closed.
        for path in self.path.iterdir() if self.path.exists() else ():
            if path.name != _LOCK:
                shutil.rmtree(path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        for _ in range(_TRIES):
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                return


def files_below(folder: Path) -> list[Path]:
    """Return all files of a folder and of the folders in it, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _remove_abandoned(parent: Path) -> tuple[list[Path], int]:
    removed, num_bytes = [], 0
    any_host = not page_cache.is_remote(page_cache.file_system(parent))
    for folder in sorted(parent.glob(f"{PREFIX}*")):
        if _is_abandoned(folder, any_host):
            num_bytes += sum(path.stat().st_size for path in files_below(folder))
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed, num_bytes


def _is_abandoned(folder: Path, any_host: bool) -> bool:
    try:
        if not any_host and (folder / _LOCK).read_text(errors="replace") != socket.gethostname():
            return False
        if folder.stat().st_uid != os.getuid():
            return False
        number = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # another run has just made or removed the folder
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(number)
    return True
