"""Define the interface of the files in `formats/`, which write and read data sets of records of equal size.

Each file defines an object `FORMAT`. The user selects a format by the name of its file. Libraries other than numpy are
imported only when they are used.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from bench.core.payload import Bytes
from bench.datasets.object_store import ObjectStore

PER_SHARD = 64  # records of one shard or of one row group
ALIGNED_BYTES = 4096  # O_DIRECT reads whole blocks of the file system into memory that is aligned to blocks
Place = Callable[[int], Bytes]  # returns the memory for a record, by the record's number


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Describes a data set: the size, the number and the location of the records, and how to open the files.

    All records have the same size.

    `record_bytes`: the size of a stored record.
    `block_bytes`: the size of one read. If `block_bytes` is 0, one read gets a whole record.
    `objects`: the bucket, if the files are objects in a bucket. If the files are in a file system, `objects` is None.
    `to_gpu`: whether records are read into the memory of a GPU.
    """

    folder: Path
    num_records: int
    record_bytes: int
    direct_io: bool = False
    block_bytes: int = 0
    objects: ObjectStore | None = None
    to_gpu: bool = False

    @property
    def num_shards(self) -> int:
        """The number of shards. The last shard may have fewer records."""
        return -(-self.num_records // PER_SHARD)

    def in_shard(self, shard: int) -> range:
        """Return the numbers of a shard's records."""
        return range(shard * PER_SHARD, min((shard + 1) * PER_SHARD, self.num_records))

    def stream(self, path: Path) -> BinaryIO:
        """Open a file to be read from its beginning to its end."""
        return path.open("rb") if self.objects is None else self.objects.stream(path)


class RecordReader:
    """An open data set.

    The method `close` must release every memory mapping, because the kernel cannot drop mapped pages from the page
    cache.
    """

    def __init__(self, layout: RecordLayout) -> None:
        self.layout = layout
        self.opened = ExitStack()

    def close(self) -> None:
        """Close all files."""
        self.opened.close()

    def read(self, index: int, target: Bytes) -> None:
        """Read one record. Only formats that can read single records have this method."""
        raise NotImplementedError

    def announce(self, indices: Sequence[int]) -> None:
        """Ask the kernel to begin reading records.

        Only formats whose attribute `announces` is true have this method.
        """
        raise NotImplementedError

    def stream(self, shard: int, place: Place) -> Iterator[int]:
        """Read all records of a shard in stored order.

        Yield a record's number when the record is complete in the memory that `place` returned.
        """
        for index in self.layout.in_shard(shard):
            self.read(index, place(index))
            yield index


class DatasetFormat(ABC):
    """A data format.

    `requires`: the packages that the format needs in addition to numpy, by module name, with the names that pip uses.
    """

    requires: ClassVar[dict[str, str]] = {}
    indexed: ClassVar[bool] = True  # can single records be read in any order?
    direct: ClassVar[bool] = False  # can its files be read with O_DIRECT?
    blocks: ClassVar[bool] = False  # can a record be read in blocks of a given size?
    remote: ClassVar[bool] = False  # can its files be objects of a bucket?
    announces: ClassVar[bool] = False  # can the kernel be asked to read records ahead?
    to_gpu: ClassVar[bool] = False  # can KvikIO read its records into a GPU?

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the required packages that are not installed, as pip uses them."""
        return tuple(package for module, package in self.requires.items() if find_spec(module) is None)

    @abstractmethod
    def write(self, layout: RecordLayout, records: Sequence[Bytes]) -> None:
        """Write all records to new files in the folder."""

    @abstractmethod
    def open(self, layout: RecordLayout) -> RecordReader:
        """Open the files for one pass."""

    @abstractmethod
    def file_of(self, layout: RecordLayout, index: int) -> Path:
        """Return the file that holds a record."""


@contextmanager
def opened_file(path: Path, direct_io: bool = False) -> Iterator[int]:
    """Open a file for reading, with O_DIRECT if `direct_io`."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct_io else 0))
    try:
        yield number
    finally:
        os.close(number)


def read_exactly(number: int, target: Any, offset: int, path: Path | str, block_bytes: int = 0) -> None:
    """Read bytes of a file into `target`, from byte `offset` on, until `target` is full.

    `block_bytes`: the size of one read. If `block_bytes` is 0, a single read requests all remaining bytes.

    Raises EOFError with the file's name if the file ends earlier.
    """
    done = 0
    view = memoryview(target)
    while done < len(view):
        count = os.preadv(number, [view[done : done + block_bytes if block_bytes else None]], offset + done)
        if not count:
            raise EOFError(f"{path} ends {len(view) - done} bytes too early")
        done += count


def read_ahead(path: Path) -> None:
    """Ask the kernel to begin reading a file into the page cache, while this program continues."""
    with opened_file(path) as number:
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_WILLNEED)


def aligned(num_bytes: int) -> mmap.mmap:
    """Return memory for a read of `num_bytes` with O_DIRECT. The memory consists of whole pages."""
    whole = max(1, -(-num_bytes // ALIGNED_BYTES)) * ALIGNED_BYTES
    return mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def aligned_array(num_bytes: int) -> Bytes:
    """Return memory that begins at a page boundary.

    All pages have been written, so their first use causes no page fault. Large arrays of numpy begin 16 bytes after the
    start of a page. If memory does not begin at a cache line, the kernel copies data to this memory at half the rate
    (AMD EPYC, Linux 6.18).
    """
    room = np.empty(num_bytes + ALIGNED_BYTES, np.uint8)  # numpy asks for huge pages
    first = -room.ctypes.data % ALIGNED_BYTES
    array = room[first : first + num_bytes]
    array.fill(0)
    return array


def is_aligned(target: Bytes) -> bool:
    """Return whether O_DIRECT can read into this memory: address and length are multiples of the page size."""
    return target.ctypes.data % ALIGNED_BYTES == 0 and len(target) % ALIGNED_BYTES == 0


def read_direct(number: int, room: Any, num_bytes: int, path: Path | str, block_bytes: int = 0) -> Bytes:
    """Read the first `num_bytes` of a file into `room`, and return these bytes as an array.

    The file was opened with O_DIRECT. `block_bytes`: the size of one read, which is a whole number of pages. If
    `block_bytes` is 0, a single read requests all remaining bytes.
    """
    done = 0
    with memoryview(room) as view:
        while done < num_bytes:
            count = os.preadv(number, [view[done : done + block_bytes if block_bytes else None]], done)
            done += count
            if done < num_bytes and (not count or count % ALIGNED_BYTES):
                raise EOFError(f"{path} ends {num_bytes - done} bytes too early")
    return np.frombuffer(room, np.uint8, num_bytes)
