"""Raw files: one file for each record, without a header."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.core.payload import Bytes
from bench.datasets.dataset_format import (
    PER_SHARD,
    DatasetFormat,
    RecordLayout,
    RecordReader,
    aligned,
    opened_file,
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

    def write(self, layout: RecordLayout, records: Sequence[Bytes]) -> None:
        """Write one file per record."""
        for shard in range(layout.num_shards):
            (layout.folder / f"{shard:05d}").mkdir(exist_ok=True)
        for index, record in enumerate(records):
            self.file_of(layout, index).write_bytes(record.data)

    def open(self, layout: RecordLayout) -> RecordReader:
        """Nothing to open yet."""
        return _RawReader(layout)

    def file_of(self, layout: RecordLayout, index: int) -> Path:
        """Return the record's own file."""
        return layout.folder / f"{index // PER_SHARD:05d}" / f"{index:07d}.bin"


class _RawReader(RecordReader):
    def __init__(self, layout: RecordLayout) -> None:
        super().__init__(layout)
        self._room = aligned(layout.record_bytes) if layout.direct_io else None

    def announce(self, indices: Sequence[int]) -> None:
        for index in indices:
            read_ahead(FORMAT.file_of(self.layout, index))

    def read(self, index: int, target: Bytes) -> None:
        path = FORMAT.file_of(self.layout, index)
        if self.layout.objects is not None:
            self.layout.objects.read(path, target, 0, self.layout.block_bytes)
            return
        with opened_file(path, self._room is not None) as number:
            if self._room is None:
                read_exactly(number, target, 0, path, self.layout.block_bytes)
            else:
                target[:] = read_direct(number, self._room, len(target), path, self.layout.block_bytes)


FORMAT = RawFiles()
