"""Read and write shards of MosaicML's streaming library (MDS) without the library.

A shard stores the number of samples, the offset of each sample, a description of the columns, and then the samples. The
layout follows streaming/base/format/mds/writer.py. This suite writes samples with a single column, which contains
bytes. The column stores the size of the record and then the record.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.core.payload import Bytes
from bench.datasets import gpu_files
from bench.datasets.dataset_format import (
    PER_SHARD,
    DatasetFormat,
    RecordLayout,
    RecordReader,
    opened_file,
    read_ahead,
    read_exactly,
)

_WORD = struct.Struct("<I")
_COLUMNS = {"column_encodings": ["bytes"], "column_names": ["record"], "column_sizes": [None]}
_Read = Callable[[Any, int, int], None]
_OTHERS: dict[str, Any] = {"compression": None, "format": "mds", "hashes": [], "size_limit": None}


class MdsShards(DatasetFormat):
    """Shards with one index."""

    blocks = True
    announces = True
    remote = True
    to_gpu = True

    def write(self, layout: RecordLayout, records: Sequence[Bytes]) -> None:
        """Write the shards, then index.json."""
        config = json.dumps(_COLUMNS | _OTHERS, sort_keys=True).encode()
        shards = []
        for shard in range(layout.num_shards):
            indices = layout.in_shard(shard)
            path = self.file_of(layout, indices[0])
            first = _WORD.size * (len(indices) + 2) + len(config)
            offsets = first + np.arange(len(indices) + 1, dtype=np.uint32) * (_WORD.size + layout.record_bytes)
            with path.open("wb") as file:
                file.write(_WORD.pack(len(indices)) + offsets.astype("<u4").tobytes() + config)
                for index in indices:
                    file.write(_WORD.pack(layout.record_bytes))
                    file.write(records[index].data)
            raw = {"basename": path.name, "bytes": int(offsets[-1]), "hashes": {}}
            shards.append(
                _COLUMNS | _OTHERS | {"raw_data": raw, "samples": len(indices), "version": 2, "zip_data": None}
            )
        (layout.folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}), encoding="utf-8")

    def open(self, layout: RecordLayout) -> RecordReader:
        """Read the index."""
        return _MdsReader(layout)

    def file_of(self, layout: RecordLayout, index: int) -> Path:
        """Return the shard of a record."""
        return layout.folder / f"shard.{index // PER_SHARD:05d}.mds"


class _MdsReader(RecordReader):
    def __init__(self, layout: RecordLayout) -> None:
        super().__init__(layout)
        with layout.stream(layout.folder / "index.json") as index:
            shards = json.load(index)["shards"]
        self._paths = [layout.folder / shard["raw_data"]["basename"] for shard in shards]
        self._files: dict[int, tuple[_Read, Sequence[int]]] = {}

    def announce(self, indices: Sequence[int]) -> None:
        for shard in dict.fromkeys(index // PER_SHARD for index in indices):
            read_ahead(self._paths[shard])

    def read(self, index: int, target: Bytes) -> None:
        shard, at = divmod(index, PER_SHARD)
        if shard not in self._files:
            self._files[shard] = self._open(shard)
        read, offsets = self._files[shard]
        begin = offsets[at] + _WORD.size
        if offsets[at + 1] - begin != len(target):
            raise ValueError(f"{self._paths[shard]}: record {index} has another size")
        read(target, begin, self.layout.block_bytes)

    def _open(self, shard: int) -> tuple[_Read, Sequence[int]]:
        path = self._paths[shard]
        read = self._reader(path)
        count = bytearray(_WORD.size)
        read(count, 0, 0)
        offsets = bytearray(_WORD.size * (_WORD.unpack(count)[0] + 1))
        read(offsets, _WORD.size, 0)
        return (self._gpu_reader(path) if self.layout.to_gpu else read), np.frombuffer(offsets, "<u4").tolist()

    def _reader(self, path: Path) -> _Read:
        """Return a function that reads bytes of a shard into a target.

        The returned function has three arguments: the target, the offset in the shard, and the size of one read.
        """
        objects = self.layout.objects
        if objects is not None:
            return lambda target, offset, block: objects.read(path, target, offset, block)
        number = self.opened.enter_context(opened_file(path))
        return lambda target, offset, block: read_exactly(number, target, offset, path, block)

    def _gpu_reader(self, path: Path) -> _Read:
        """Return a function that reads bytes of a shard into a target in GPU memory."""
        file = self.opened.enter_context(gpu_files.opened_file(path))
        return lambda target, offset, block: gpu_files.read_exactly(file, target, offset, path, block)


FORMAT = MdsShards()
