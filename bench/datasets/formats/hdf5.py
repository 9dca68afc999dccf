"""Read and write HDF5 files that store all records in one contiguous HDF5 data set, with the library h5py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from bench.core.payload import Bytes
from bench.datasets.dataset_format import DatasetFormat, RecordLayout, RecordReader


class Hdf5(DatasetFormat):
    """A table with one row per record.

    `chunked`: whether the table is stored in chunks of one record. With chunks, an index stores the location of each
        chunk.
    """

    requires: ClassVar = {"h5py": "h5py"}
    chunked = False

    def write(self, layout: RecordLayout, records: Sequence[Bytes]) -> None:
        """Write one file."""
        import h5py

        shape = (layout.num_records, layout.record_bytes)
        # In memory first: on a full disk the library leaves the file open, and may crash later (HDF5 2.0).
        with h5py.File("records", "w", driver="core", backing_store=False) as file:
            table = file.create_dataset("records", shape, "u1", chunks=(1, shape[1]) if self.chunked else None)
            for index, record in enumerate(records):
                table[index] = record
            file.flush()
            image = file.id.get_file_image()
        self.file_of(layout, 0).write_bytes(image)

    def open(self, layout: RecordLayout) -> RecordReader:
        """Open the file."""
        return _Hdf5Reader(layout, self.file_of(layout, 0))

    def file_of(self, layout: RecordLayout, index: int) -> Path:
        """Return the only file."""
        return layout.folder / "records.h5"


class _Hdf5Reader(RecordReader):
    def __init__(self, layout: RecordLayout, path: Path) -> None:
        super().__init__(layout)
        import h5py

        self._table = self.opened.enter_context(h5py.File(path, "r"))["records"]

    def read(self, index: int, target: Bytes) -> None:
        self._table.read_direct(target, np.s_[index])


FORMAT = Hdf5()
