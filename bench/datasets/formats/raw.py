"""Read and write raw files: one file for each record, without a header."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.core.payload import Bytes
from bench.datasets import gpu_files
from bench.datasets.dataset_format import (
    PER_SHARD,
    DatasetFormat,
    Place,
    RecordLayout,
    RecordReader,
    aligned,
    is_aligned,
    read_ahead,
    read_direct,
    read_exactly,
)


class RawFiles(DatasetFormat):
    """Each shard has a folder, and each record has a file."""

    direct = True
    remote = True
    blocks = True
    announces = True
    to_gpu = True

    def write(self, layout: RecordLayout, records: Sequence[Bytes]) -> None:
        """Write one file per record."""
        for shard in range(layout.num_shards):
            (layout.folder / _folder(shard)).mkdir(exist_ok=True)
        for index, record in enumerate(records):
            self.file_of(layout, index).write_bytes(record.data)

    def open(self, layout: RecordLayout) -> RecordReader:
        """Return a reader for this layout without opening any file."""
        return _RawReader(layout)

    def file_of(self, layout: RecordLayout, index: int) -> Path:
        """Return the record's own file."""
        return layout.folder / _folder(index // PER_SHARD) / _name(index)


class _RawReader(RecordReader):
    def __init__(self, layout: RecordLayout) -> None:
        super().__init__(layout)
        self._room = aligned(layout.record_bytes) if layout.direct_io else None
        self._flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if layout.direct_io else 0)
        self._at_once: bool | None = None

    def announce(self, indices: Sequence[int]) -> None:
        for index in indices:
            read_ahead(FORMAT.file_of(self.layout, index))

    def read(self, index: int, target: Bytes) -> None:
        layout = self.layout
        if layout.objects is not None:
            layout.objects.read(FORMAT.file_of(layout, index), target, 0, layout.block_bytes)
            return
        name = f"{layout.folder}/{_folder(index // PER_SHARD)}/{_name(index)}"
        if layout.to_gpu:
            with gpu_files.opened_file(name) as file:
                gpu_files.read_exactly(file, target, 0, name, layout.block_bytes)
            return
        number = os.open(name, self._flags)
        try:
            if not self._fits(target) or os.readv(number, [target.data]) != len(target):
                self._fill(number, target, name)
        finally:
            os.close(number)

    def stream(self, shard: int, place: Place) -> Iterator[int]:
        if self.layout.objects is not None or self.layout.to_gpu:
            yield from super().stream(shard, place)
            return
        # The loop reads like the method `read`, but prepares everything before the first record, and calls few Python
        # functions. After a wait for the disk, each call of Python takes several times as long.
        opened, readv, close, flags = os.open, os.readv, os.close, self._flags
        indices, below = self.layout.in_shard(shard), f"{self.layout.folder}/{_folder(shard)}"
        names, at_once = [_name(index) for index in indices], self._fits(place(indices[0]))
        folder = os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for index, name in zip(indices, names, strict=True):
                target = place(index)
                number = opened(name, flags, dir_fd=folder)
                try:
                    if not at_once or readv(number, [target]) != len(target):  # type: ignore[list-item]
                        self._fill(number, target, f"{below}/{name}")
                finally:
                    close(number)
                yield index
        except OSError as error:
            error.filename = f"{below}/{name}"
            raise
        finally:
            os.close(folder)

    def _fits(self, target: Bytes) -> bool:
        """Return whether a single read can put a whole record into the target.

        The answer holds for all records, because all records have the same size and all targets are rows of one table.
        """
        if self._at_once is None:
            self._at_once = not self.layout.block_bytes and (self._room is None or is_aligned(target))
        return self._at_once

    def _fill(self, number: int, target: Bytes, name: str) -> None:
        """Read a file from its beginning. The read may take several calls, or go through an aligned buffer."""
        block_bytes = self.layout.block_bytes
        if self._room is None:
            read_exactly(number, target, 0, name, block_bytes)
        elif is_aligned(target):
            read_direct(number, target.data, len(target), name, block_bytes)
        else:
            target[:] = read_direct(number, self._room, len(target), name, block_bytes)


def _folder(shard: int) -> str:
    return f"{shard:05d}"


def _name(index: int) -> str:
    return f"{index:07d}.bin"


FORMAT = RawFiles()
