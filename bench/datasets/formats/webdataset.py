"""The same tar archives as `tar`, read by the library webdataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bench.datasets.dataset_format import Place, RecordLayout, RecordReader
from bench.datasets.formats.tar import TarShards, read_errors


class WebDataset(TarShards):
    """Archives in order."""

    requires: ClassVar = {"webdataset": "webdataset"}

    def open(self, layout: RecordLayout) -> RecordReader:
        """Nothing to open yet."""
        return _WebReader(layout)


class _WebReader(RecordReader):
    def stream(self, shard: int, place: Place) -> Iterator[int]:
        import webdataset

        path = FORMAT.file_of(self.layout, self.layout.in_shard(shard)[0])
        with read_errors(path):
            for sample in webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False):
                index = int(sample["__key__"])
                place(index)[:] = np.frombuffer(sample["bin"], np.uint8)
                yield index


FORMAT = WebDataset()
