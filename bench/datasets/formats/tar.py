"""Read and write tar archives of 64 records each.

Python's standard library reads each archive from beginning to end.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.core.payload import Bytes
from bench.datasets.dataset_format import PER_SHARD, DatasetFormat, Place, RecordLayout, RecordReader, read_ahead


class TarShards(DatasetFormat):
    """The name of each member is as webdataset requires: a key, a dot, and the name of the field."""

    indexed = False
    announces = True
    remote = True

    def write(self, layout: RecordLayout, records: Sequence[Bytes]) -> None:
        """Write one archive per shard."""
        for shard in range(layout.num_shards):
            indices = layout.in_shard(shard)
            with tarfile.open(self.file_of(layout, indices[0]), "w", format=tarfile.USTAR_FORMAT) as archive:
                for index in indices:
                    member = tarfile.TarInfo(f"{index:07d}.bin")
                    member.size = layout.record_bytes
                    archive.addfile(member, io.BytesIO(records[index].data))

    def open(self, layout: RecordLayout) -> RecordReader:
        """Return a reader for this layout without opening any file."""
        return _TarReader(layout)

    def file_of(self, layout: RecordLayout, index: int) -> Path:
        """Return the archive of a record."""
        return layout.folder / f"{index // PER_SHARD:05d}.tar"


class ArchiveReader(RecordReader):
    """A reader of archives. Subclasses define how to find records in an archive."""

    def announce(self, indices: Sequence[int]) -> None:
        """Ask the kernel to begin reading whole archives."""
        for path in dict.fromkeys(FORMAT.file_of(self.layout, index) for index in indices):
            read_ahead(path)


class _TarReader(ArchiveReader):
    def stream(self, shard: int, place: Place) -> Iterator[int]:
        path = FORMAT.file_of(self.layout, self.layout.in_shard(shard)[0])
        with (
            read_errors(path),
            self.layout.stream(path) as file_of_shard,
            tarfile.open(fileobj=file_of_shard, mode="r|") as archive,
        ):
            for member in archive:
                index = int(member.name.partition(".")[0])
                file = archive.extractfile(member)
                assert file is not None
                place(index)[:] = np.frombuffer(file.read(), np.uint8)
                yield index


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Raise EOFError with the file's name for an archive that ends early or is damaged."""
    try:
        yield
    except tarfile.TarError as error:
        raise EOFError(f"{path}: {error}") from error


FORMAT = TarShards()
