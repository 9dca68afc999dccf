"""Read the files of a tar or zip archive one by one, each as a temporary file.

The module ignores links and devices, never uses a member's name as a path, and writes nothing else to disk. The number
of unpacked bytes is limited, as for a compressed log.
"""

from __future__ import annotations

import io
import lzma
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, Self

from bench.logs.archives import ArchiveError, largest_content
from bench.logs.traces import _open

_LONGEST_NAME = 60  # characters of a temporary file's name; each has at most four bytes
_CHUNK_BYTES = 1 << 20
_METADATA = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_LARGEST_METADATA_BYTES = 1 << 20  # tarfile reads metadata, such as a long name, into memory
_ERRORS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    RuntimeError,  # an encrypted member
    ValueError,
)


def archive_kind(path: Path) -> str | None:
    """Return "tar" or "zip". Return None for any other file, and for a file that is damaged or cannot be read.

    A tar archive may be compressed by gzip, bzip2 or xz.
    """
    try:
        if not path.is_file():
            return None
        head = _open.head(path)
        if head[257:262] == b"ustar":
            return "tar"
        return "zip" if zipfile.is_zipfile(path) else None
    except (ArchiveError, OSError):
        return None


def unpacked_files(path: Path, without: Collection[str] = ()) -> Iterator[tuple[str, Path]]:
    """Yield the name of each file of an archive, and a temporary file with its content.

    Each temporary file exists until the caller requests the next file. Hidden files are left out.

    `without`: name endings. Files whose names have one of these endings are left out.

    Raises OSError if the archive cannot be read. If the archive is damaged or too large, this function yields the files
    before the damage. Then it raises ArchiveError.
    """
    kind = archive_kind(path) or "tar"
    most = largest_content(path.stat().st_size)
    num_bytes = 0
    try:
        with tempfile.TemporaryDirectory(prefix="linkbench-") as folder:
            for name, content in _of_zip(path) if kind == "zip" else _of_tar(path):
                own = Path(name).name
                if own.startswith(".") or name.endswith(tuple(without)):
                    continue
                file = Path(folder) / f"member-{own[-_LONGEST_NAME:]}"
                with file.open("wb") as unpacked:
                    while chunk := content.read(_CHUNK_BYTES):
                        num_bytes += len(chunk)
                        if num_bytes > most:
                            raise ArchiveError(kind, most=most)
                        unpacked.write(chunk)
                yield name, file
                file.unlink()
    except _ERRORS as error:
        raise ArchiveError(kind, str(error)) from error


def _of_zip(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 if the archive states no type
            if not member.is_dir() and kind in (0, stat.S_IFREG):
                with archive.open(member) as content:
                    yield member.filename, content


def _of_tar(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the regular files of a tar archive. The function reads the archive only once, from beginning to end."""
    unpacked: Any = _Unpacked(_open.pieces(path))
    stream = io.BufferedReader(unpacked, _CHUNK_BYTES)
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content


class _Member(tarfile.TarInfo):
    """A member of a tar archive. A member with too much metadata raises ReadError."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _METADATA and member.size > _LARGEST_METADATA_BYTES:
            raise tarfile.ReadError("the metadata of a file is too large")
        return member


class _Unpacked(io.RawIOBase):
    """A stream of the unpacked bytes of an archive."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        """Return True, because the stream can be read."""
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Fill the buffer with the next bytes. Return the number of bytes, which is 0 at the end of the stream."""
        self._rest = self._rest or next(self._pieces, b"")
        num = min(len(buffer), len(self._rest))
        buffer[:num], self._rest = self._rest[:num], self._rest[num:]
        return num
