"""Read and write one numpy file that is mapped into memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.core.payload import Bytes
from bench.datasets.dataset_format import DatasetFormat, RecordLayout, RecordReader


class NumpyMap(DatasetFormat):
    """A table with one row per record."""

    announces = True

    def write(self, layout: RecordLayout, records: Sequence[Bytes]) -> None:
        """Write numpy's header and the rows."""
        shape = (layout.num_records, layout.record_bytes)
        with self.file_of(layout, 0).open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            for record in records:
                file.write(record.data)

    def open(self, layout: RecordLayout) -> RecordReader:
        """Map the file."""
        return _MapReader(layout)

    def file_of(self, layout: RecordLayout, index: int) -> Path:
        """Return the only file."""
        return layout.folder / "records.npy"


class _MapReader(RecordReader):
    def __init__(self, layout: RecordLayout) -> None:
        super().__init__(layout)
        self._table = np.load(FORMAT.file_of(layout, 0), mmap_mode="r")
        self._map: mmap.mmap = self._table._mmap
        self._rows = np.asarray(self._table)  # indexing a numpy.memmap runs several us of Python
        self.opened.callback(self._map.close)

    def announce(self, indices: Sequence[int]) -> None:
        size = self.layout.record_bytes
        # The map may begin before the table, because whole pages are requested.
        first = self._table.offset % mmap.ALLOCATIONGRANULARITY
        for index in indices:
            begin = (first + index * size) // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, begin, first + (index + 1) * size - begin)

    def read(self, index: int, target: Bytes) -> None:
        target[:] = self._rows[index]


FORMAT = NumpyMap()
