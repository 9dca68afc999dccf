"""Read and write TFRecord shards without TensorFlow.

A record has four parts: length, checksum of the length, data, checksum of the data. The checksums are CRC-32C, rotated
and offset (tensorflow/core/lib/hash/crc32c.h and lib/io/record_writer.h). As in TensorFlow, the reader checks the
checksum of the length. The checksum of the data is written but not checked. In Python, a check of the data would take
longer than the disk takes to read the data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from bench.core.payload import Bytes
from bench.datasets.dataset_format import PER_SHARD, DatasetFormat, Place, RecordLayout, RecordReader, read_ahead

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
_POLYNOMIAL = 0x82F63B78  # the polynomial of CRC-32C with its bits reversed (RFC 3720)


class TfRecords(DatasetFormat):
    """TFRecord files. The files have no index, so records are read in order."""

    indexed = False
    announces = True
    remote = True
    blocks = True

    def write(self, layout: RecordLayout, records: Sequence[Bytes]) -> None:
        """Write one file per shard."""
        header = _header(layout.record_bytes)
        for shard in range(layout.num_shards):
            indices = layout.in_shard(shard)
            checksums = masked_crc32c(np.stack([records[index] for index in indices]))
            with self.file_of(layout, indices[0]).open("wb") as file:
                for index, checksum in zip(indices, checksums, strict=True):
                    file.write(header)
                    file.write(records[index].data)
                    file.write(struct.pack("<I", checksum))

    def open(self, layout: RecordLayout) -> RecordReader:
        """Return a reader for this layout without opening any file."""
        return _TfReader(layout)

    def file_of(self, layout: RecordLayout, index: int) -> Path:
        """Return the shard of a record."""
        return layout.folder / f"{index // PER_SHARD:05d}.tfrecord"


class _TfReader(RecordReader):
    def announce(self, indices: Sequence[int]) -> None:
        for path in dict.fromkeys(FORMAT.file_of(self.layout, index) for index in indices):
            read_ahead(path)

    def stream(self, shard: int, place: Place) -> Iterator[int]:
        indices = self.layout.in_shard(shard)
        path = FORMAT.file_of(self.layout, indices[0])
        with self.layout.stream(path) as file:
            for index in indices:
                header = file.read(_HEADER.size)
                target = place(index)
                if header != _header(len(target)):
                    raise ValueError(f"{path}: the frame of record {index} is damaged")
                step = self.layout.block_bytes or len(target)
                for begin in range(0, len(target), step):
                    block = target[begin : begin + step]
                    if file.readinto(block.data) != len(block):  # type: ignore[attr-defined]
                        raise EOFError(f"{path} ends within record {index}")
                file.read(_FOOTER_BYTES)
                yield index


@cache
def _header(num_bytes: int) -> bytes:
    """Return the bytes that precede each record's data: the length and the checksum of the length.

    The program computes these bytes only once, because all records have the same size.
    """
    length = struct.pack("<Q", num_bytes)
    return length + struct.pack("<I", masked_crc32c(np.frombuffer(length, np.uint8)[None])[0])


def masked_crc32c(rows: Bytes) -> list[int]:
    """Return TensorFlow's masked CRC-32C of each row of a table.

    To be fast, numpy computes one column of all rows at a time.
    """
    table = _table()
    state = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        state = table[(state ^ column) & 0xFF] ^ (state >> 8)
    plain = (~state).tolist()
    return [((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF for crc in plain]


@cache
def _table() -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    entries = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        entries.append(value)
    return np.array(entries, np.uint32)


FORMAT = TfRecords()
