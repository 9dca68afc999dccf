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
    """A folder for each shard, a file for each record."""

    direct = True
    remote = True
    blocks = True
    announces = True
    to_gpu = True

    def write(self, layout: RecordLayout, records: Sequence[Bytes]) -> None:
        """Write one file per record."""
        for shard in range(layout.num_shards):
            (layout.folder / f"{shard:05d}").mkdir(exist_ok=True)
        for index, record in enumerate(records):
            self.file_of(layout, index).write_bytes(record.data)

    def open(self, layout: RecordLayout) -> RecordReader:
        """Return a reader that has opened nothing yet."""
        return _RawReader(layout)

    def file_of(self, layout: RecordLayout, index: int) -> Path:
        """Return the record's own file."""
        return layout.folder / _name(index)


class _RawReader(RecordReader):
    def __init__(self, layout: RecordLayout) -> None:
        super().__init__(layout)
        self._room = aligned(layout.record_bytes) if layout.direct_io else None
        self._flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if layout.direct_io else 0)
        self._below = f"{layout.folder}/"
        self._in_place: bool | None = None

    def announce(self, indices: Sequence[int]) -> None:
        for index in indices:
            read_ahead(FORMAT.file_of(self.layout, index))

    def read(self, index: int, target: Bytes) -> None:
        layout = self.layout
        if layout.objects is not None:
            layout.objects.read(FORMAT.file_of(layout, index), target, 0, layout.block_bytes)
            return
        name = self._below + _name(index)
        if layout.to_gpu:
            with gpu_files.opened_file(name) as file:
                gpu_files.read_exactly(file, target, 0, name, layout.block_bytes)
            return
        number = os.open(name, self._flags)  # few calls of Python: they would count as the storage's time
        try:
            if self._room is not None and not self._fits(target):
                target[:] = read_direct(number, self._room, len(target), name, layout.block_bytes)
            elif layout.block_bytes or os.preadv(number, [target.data], 0) != len(target):
                if self._room is not None:
                    read_direct(number, target.data, len(target), name, layout.block_bytes)
                else:
                    read_exactly(number, target, 0, name, layout.block_bytes)
        finally:
            os.close(number)

    def stream(self, shard: int, place: Place) -> Iterator[int]:
        layout = self.layout
        if layout.objects is not None or layout.to_gpu or layout.block_bytes or self._room is not None:
            yield from super().stream(shard, place)
            return
        # As `read`, in one loop: after a wait for the disk each call of Python takes several times as long.
        opened, preadv, close, flags = os.open, os.preadv, os.close, self._flags
        for index in layout.in_shard(shard):
            target = place(index)
            name = self._below + _name(index)
            number = opened(name, flags)
            try:
                if preadv(number, [target], 0) != len(target):  # type: ignore[list-item]  # an array is a buffer
                    read_exactly(number, target, 0, name)
            finally:
                close(number)
            yield index

    def _fits(self, target: Bytes) -> bool:
        """Return whether O_DIRECT can read into the place of a record."""
        if self._in_place is None:  # all records have one size and lie in one table
            self._in_place = is_aligned(target)
        return self._in_place


def _name(index: int) -> str:
    return f"{index // PER_SHARD:05d}/{index:07d}.bin"


FORMAT = RawFiles()
