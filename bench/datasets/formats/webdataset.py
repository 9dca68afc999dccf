"""Read tar archives of the same form as the format `tar`, with the library webdataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bench.datasets.dataset_format import Place, RecordLayout, RecordReader
from bench.datasets.formats.tar import ArchiveReader, TarShards, read_errors


class WebDataset(TarShards):
    """Archives in order."""

    requires: ClassVar = {"webdataset": "webdataset"}

    def open(self, layout: RecordLayout) -> RecordReader:
        """Return a reader for this layout without opening any file."""
        return _WebReader(layout)


class _WebReader(ArchiveReader):
    """Reads an archive with webdataset's iterators over an open file.

    webdataset's own function for opening archives would leave the file open.
    """

    def stream(self, shard: int, place: Place) -> Iterator[int]:
        from webdataset.tariterators import group_by_keys, tar_file_expander

        path = FORMAT.file_of(self.layout, self.layout.in_shard(shard)[0])
        with read_errors(path), self.layout.stream(path) as file:
            for sample in group_by_keys(tar_file_expander([{"url": str(path), "stream": file}])):
                index = int(sample["__key__"])
                place(index)[:] = np.frombuffer(sample["bin"], np.uint8)
                yield index


FORMAT = WebDataset()
