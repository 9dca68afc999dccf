"""Read and write Parquet with uncompressed row groups of 64 records, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from bench.core.payload import Bytes
from bench.datasets.dataset_format import DatasetFormat, Place, RecordLayout, RecordReader


class Parquet(DatasetFormat):
    """One column of bytes. A row group is the smallest unit that can be read. Records are therefore read in order."""

    requires: ClassVar = {"pyarrow": "pyarrow"}
    indexed = False

    def write(self, layout: RecordLayout, records: Sequence[Bytes]) -> None:
        """Write one file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([("record", pa.binary(layout.record_bytes))])
        with pq.ParquetWriter(
            self.file_of(layout, 0), schema, compression="none", use_dictionary=False, write_statistics=False
        ) as writer:
            for shard in range(layout.num_shards):
                rows = [records[index].tobytes() for index in layout.in_shard(shard)]
                writer.write_table(pa.table([pa.array(rows, schema[0].type)], schema), len(rows))

    def open(self, layout: RecordLayout) -> RecordReader:
        """Read the footer."""
        return _ParquetReader(layout)

    def file_of(self, layout: RecordLayout, index: int) -> Path:
        """Return the only file."""
        return layout.folder / "records.parquet"


class _ParquetReader(RecordReader):
    def __init__(self, layout: RecordLayout) -> None:
        super().__init__(layout)
        import pyarrow.parquet as pq

        # pyarrow's own threads are off, because the number of workers is a factor.
        self._file = self.opened.enter_context(pq.ParquetFile(FORMAT.file_of(layout, 0)))

    def stream(self, shard: int, place: Place) -> Iterator[int]:
        column = self._file.read_row_group(shard, use_threads=False).column(0).combine_chunks()
        rows = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, self.layout.record_bytes)
        for index, row in zip(self.layout.in_shard(shard), rows[column.offset :], strict=True):
            place(index)[:] = row
            yield index


FORMAT = Parquet()
