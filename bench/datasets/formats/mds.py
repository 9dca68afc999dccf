"""Shards of MosaicML's streaming library (MDS), read without it.

A shard holds the number of samples, the offset of each sample, the description of the columns, and the samples
(streaming/base/format/mds/writer.py). Here a sample has one column of bytes: its size, then the record.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.core.payload import Bytes
from bench.datasets.dataset_format import (
    PER_SHARD,
    DatasetFormat,
    RecordLayout,
    RecordReader,
    opened_file,
    read_exactly,
)

_WORD = struct.Struct("<I")
_COLUMNS = {"column_encodings": ["bytes"], "column_names": ["record"], "column_sizes": [None]}
_OTHERS: dict[str, Any] = {"compression": None, "format": "mds", "hashes": [], "size_limit": None}


class MdsShards(DatasetFormat):
    """Shards, and one index of them."""

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
        shards = json.loads((layout.folder / "index.json").read_text(encoding="utf-8"))["shards"]
        self._paths = [layout.folder / shard["raw_data"]["basename"] for shard in shards]
        self._files: dict[int, tuple[int, Sequence[int]]] = {}

    def read(self, index: int, target: Bytes) -> None:
        shard, at = divmod(index, PER_SHARD)
        if shard not in self._files:
            self._files[shard] = self._open(shard)
        number, offsets = self._files[shard]
        begin = offsets[at] + _WORD.size
        if offsets[at + 1] - begin != len(target):
            raise ValueError(f"{self._paths[shard]}: record {index} has another size")
        read_exactly(number, target, begin, self._paths[shard])

    def _open(self, shard: int) -> tuple[int, Sequence[int]]:
        path = self._paths[shard]
        number = self.opened.enter_context(opened_file(path))
        count = bytearray(_WORD.size)
        read_exactly(number, count, 0, path)
        offsets = bytearray(_WORD.size * (_WORD.unpack(count)[0] + 1))
        read_exactly(number, offsets, _WORD.size, path)
        return number, np.frombuffer(offsets, "<u4").tolist()


FORMAT = MdsShards()
