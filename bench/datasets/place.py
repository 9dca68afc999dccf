"""Manage where a data set is stored: a folder of a file system, or a prefix of an S3 bucket.

`received_bytes` is the number of bytes that this process has received from the device or, for a bucket, from the
network.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from bench.core.payload import Bytes
from bench.datasets import page_cache
from bench.datasets.dataset_format import aligned, opened_file
from bench.datasets.object_store import SCHEME, ObjectStore
from bench.datasets.work_folder import PREFIX, WorkFolder, files_below

_PROBE_BYTES, _PROBES_AT_ONCE = 1 << 20, 8  # size of one read of the probe, and the number of reads in flight
_OWNED = re.compile(rf"{PREFIX}(?P<host>[^/]+?)-(?P<process>\d+)-(?P<started>\d+)/")


class Place(ABC):
    """The location of one run's data sets, newly created below `parent`.

    `kind`: the type of the location's file system, or "s3".
    `objects`: the bucket, or None if the location is in a file system.
    `removed`: how many killed runs had left data here, and the total size of these data in bytes. The constructor
        removes these data.
    """

    parent: str
    kind: str
    objects: ObjectStore | None = None
    removed: tuple[int, int] = (0, 0)

    def __init__(self) -> None:
        self._rooms: list[mmap.mmap] = []  # memory of the probe's reads, allocated and touched before they are timed

    @abstractmethod
    def new(self, name: str) -> Path:
        """Return an empty local folder for a data set. An existing folder with the same name is removed first."""

    @abstractmethod
    def publish(self, written: Path) -> Path:
        """Copy or flush the written files, so that other processes can read them.

        Return the folder in which readers find the files.
        """

    @abstractmethod
    def lacks_bytes(self, num_bytes: int) -> int:
        """Return how many bytes of space are missing for `num_bytes` of records, or 0 if there is enough."""

    @abstractmethod
    def make_cold(self) -> int:
        """Drop the published files from this host's page cache.

        Return the number of pages of these files that are still in the page cache.
        """

    @abstractmethod
    def received_bytes(self) -> int:
        """Return the bytes that this process or, if `counts_host` is true, this host has received so far."""

    @abstractmethod
    def write_probe(self, data: Bytes) -> None:
        """Write `data` in one piece. The file or object whose reads measure the rate of the storage itself."""

    @abstractmethod
    def close(self) -> None:
        """Remove everything."""

    @property
    def in_memory(self) -> bool:
        """Whether the file system keeps files only in memory, like tmpfs."""
        return self.kind in page_cache.IN_MEMORY

    @property
    def is_remote(self) -> bool:
        """Whether the data are on a server that may cache the data.

        A client can neither inspect nor empty the cache of such a server.
        """
        return self.objects is not None or page_cache.is_remote(self.kind)

    @property
    def is_counted(self) -> bool:
        """Whether a counter exists that increases with each read from this location."""
        return True

    @property
    def counts_host(self) -> bool:
        """Whether the counter includes the bytes that all other processes of this host receive."""
        return False

    def make_warm(self) -> None:
        """Read all published files completely, so that they are in this host's page cache.

        A bucket has no such cache.
        """
        raise NotImplementedError

    def num_missing(self) -> int:
        """Return the number of pages of the published files that are missing from this host's page cache.

        A bucket has no pages.
        """
        raise NotImplementedError

    def read_probe(self, num_bytes: int) -> None:
        """Read a probe file or object in order, with several large reads in flight."""
        read = self._probe_reader()
        if not self._rooms:
            self._rooms = [aligned(_PROBE_BYTES) for _ in range(_PROBES_AT_ONCE)]

        def read_every(first: int) -> None:
            for offset in range(first * _PROBE_BYTES, num_bytes, _PROBES_AT_ONCE * _PROBE_BYTES):
                read(self._rooms[first], offset, min(_PROBE_BYTES, num_bytes - offset))

        with ThreadPoolExecutor(_PROBES_AT_ONCE) as readers:
            for part in [readers.submit(read_every, first) for first in range(_PROBES_AT_ONCE)]:
                part.result()

    @abstractmethod
    def _probe_reader(self) -> Callable[[mmap.mmap, int, int], None]:
        """Return a function that reads a part of the probe file or object.

        The returned function has three arguments: the memory for the bytes, the offset and the size.
        """


class LocalPlace(Place):
    """A locked folder. Raises OSError if the folder cannot be made."""

    def __init__(self, parent: Path) -> None:
        super().__init__()
        self._folder = WorkFolder(parent)
        self.parent, self.removed = str(parent), (len(self._folder.removed), self._folder.removed_bytes)
        self.kind = page_cache.file_system(self._folder.path)
        self._files: Sequence[Path] = ()
        self._counter: Callable[[], int] | None = page_cache.device_bytes
        if page_cache.is_remote(self.kind):
            try:
                self._counter = page_cache.counter_of(self._folder.path)
            except OSError:
                self._folder.close()
                raise

    def new(self, name: str) -> Path:
        """Make the folder in the locked folder."""
        return self._folder.new(name)

    def publish(self, written: Path) -> Path:
        """Wait until the files are on the device."""
        self._files = files_below(written)
        page_cache.sync(self._files)
        return written

    def lacks_bytes(self, num_bytes: int) -> int:
        """Ask the file system."""
        return self._folder.lacks_bytes(num_bytes)

    def make_cold(self) -> int:
        """Drop the files with posix_fadvise, and count the remaining pages with mincore."""
        page_cache.evict(self._files)
        return page_cache.num_resident(self._files)

    def make_warm(self) -> None:
        """Read the files through the kernel's page cache."""
        page_cache.load(self._files)

    def num_missing(self) -> int:
        """Use mincore."""
        return page_cache.num_missing(self._files)

    @property
    def is_counted(self) -> bool:
        """Whether a counter was found."""
        return self._counter is not None

    @property
    def counts_host(self) -> bool:
        """Whether only the counters of network interfaces include reads from this location."""
        return self._counter not in (None, page_cache.device_bytes)

    def received_bytes(self) -> int:
        """Return the value of the counter, or 0 if no counter exists."""
        return self._counter() if self._counter else 0

    def write_probe(self, data: Bytes) -> None:
        """Write one file."""
        path = self._folder.path / "probe"
        path.write_bytes(data.data)
        page_cache.sync([path])
        page_cache.evict([path])
        if not self._rooms:
            self.read_probe(len(data))  # the first read touches the memory

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()

    def _probe_reader(self) -> Callable[[mmap.mmap, int, int], None]:
        path = self._folder.path / "probe"

        def read(room: mmap.mmap, offset: int, num_bytes: int) -> None:
            # Each read opens the file, so that threads share nothing. Opening costs little compared with a read of 1
            # MiB.
            with opened_file(path, direct_io=True) as number:
                os.preadv(number, [room], offset)

        return read


class BucketPlace(Place):
    """A new prefix in a bucket, whose name contains this host's name and this process's id.

    A later run on this host reads the process id from the name, to find out whether the process is still alive.

    Raises OSError if the service refuses, and SilentServerError if the service does not answer within `timeout_s`.
    """

    kind = "s3"
    objects: ObjectStore

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__()
        bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
        self.parent, self.objects = url, ObjectStore(bucket, timeout_s)
        below = prefix.rstrip("/") + "/" if prefix else ""
        self.removed = self._remove_abandoned(below)
        host, process = socket.gethostname(), os.getpid()
        self._prefix = f"{below}{PREFIX}{host}-{process}-{_started(process)}/"
        self.objects.put(Path(self._prefix) / "in-use", b"")
        self._local = Path(tempfile.mkdtemp(prefix=PREFIX))

    def new(self, name: str) -> Path:
        """Make the folder in a temporary folder of this host."""
        folder = self._local / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def publish(self, written: Path) -> Path:
        """Upload the files and remove the local copies."""
        target = Path(self._prefix) / written.name
        for path in files_below(written):
            with path.open("rb") as file:
                self.objects.put(target / path.relative_to(written), file)
        shutil.rmtree(written)
        return target

    def lacks_bytes(self, num_bytes: int) -> int:
        """Check the free space of the temporary folder, because a bucket does not report its free space."""
        return max(0, num_bytes - shutil.disk_usage(self._local).free)

    def make_cold(self) -> int:
        """Do nothing and return 0, because an S3 client has no page cache."""
        return 0

    def received_bytes(self) -> int:
        """Return the bytes of all responses."""
        return self.objects.received_bytes

    def write_probe(self, data: Bytes) -> None:
        """Write one object."""
        self.objects.put(Path(self._prefix) / "probe", data.tobytes())

    def close(self) -> None:
        """Remove the objects and the temporary folder. If the service fails, the next run removes the objects."""
        shutil.rmtree(self._local, ignore_errors=True)
        with suppress(OSError):
            self.objects.remove(self._prefix)

    def _probe_reader(self) -> Callable[[mmap.mmap, int, int], None]:
        path = Path(self._prefix) / "probe"

        def read(room: mmap.mmap, offset: int, num_bytes: int) -> None:
            with memoryview(room) as view:
                self.objects.read(path, view[:num_bytes], offset)

        return read

    def _remove_abandoned(self, below: str) -> tuple[int, int]:
        """Remove the data of processes of this host that have ended. Processes of other hosts cannot be checked.

        Return the number of ended processes that had left data, and the size of these data in bytes.
        """
        num, num_bytes, judged = 0, 0, set[str]()
        for key, _ in list(self.objects.keys(below + PREFIX)):
            found = _OWNED.match(key[len(below) :])
            if found is None or found[0] in judged:
                continue
            judged.add(found[0])
            if found["host"] == socket.gethostname() and _started(int(found["process"])) != int(found["started"]):
                _, size = self.objects.remove(below + found[0])
                num, num_bytes = num + 1, num_bytes + size
        return num, num_bytes


def place_at(where: str, timeout_s: float) -> Place:
    """Make a place for data sets: below a folder, or for `s3://bucket[/prefix]` in a bucket.

    Raises OSError if the place cannot be made.
    """
    return BucketPlace(where, timeout_s) if where.startswith(SCHEME) else LocalPlace(Path(where or "."))


def _started(process: int) -> int:
    """Return when a process began, in clock ticks since boot. Return -1 if the process is not running."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    except OSError:
        return -1
