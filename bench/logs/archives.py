"""Unpack compressed logs (gzip, bzip2, xz) while they are read.

An archive is unpacked in chunks, so the whole archive is never in memory. A few compressed bytes may expand to
terabytes. The number of unpacked bytes is therefore limited.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_KINDS = {b"\x1f\x8b\x08": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
# an archive may expand to at most this many times its size; logs shrink to a tenth, rarely to a hundredth
_MOST_TIMES = 1000
_ALWAYS_ALLOWED = 256 << 20
_PIECE_BYTES = 1 << 20


@dataclass
class ArchiveError(Exception):
    """The error for an archive that cannot be read to its end.

    `most`: the limit in bytes that the archive exceeds, or None if the archive is damaged.
    `is_cut`: whether only the end of the archive is missing.
    """

    kind: str
    error: str = ""
    most: int | None = None
    is_cut: bool = False


def kind_of(begin: bytes) -> str | None:
    """Return the type of an archive that begins with these bytes, or None for any other file."""
    return next((kind for magic, kind in _KINDS.items() if begin.startswith(magic)), None)


def largest_content(num_bytes: int) -> int:
    """Return the largest number of bytes that an archive of this size may contain after unpacking."""
    return max(_ALWAYS_ALLOWED, _MOST_TIMES * num_bytes)


class Unpacker:
    """Unpacks the bytes of one archive, which may consist of several compressed members. Raises ArchiveError."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._member: Any = _decompressor(kind)
        self._num_in = self._num_out = 0
        self._in_member = self._ended = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Unpack one chunk of the archive, and yield the unpacked bytes in pieces of at most 1 MiB."""
        self._num_in += len(chunk)
        while chunk:
            if not self._in_member and self._num_out and kind_of(chunk) != self._kind:
                self._ended = True  # gzip also ignores padding or other bytes after the last member
            if self._ended:
                return
            self._in_member = True
            try:
                yield from self._pieces(chunk)
            except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
                raise ArchiveError(self._kind, str(error)) from error
            if not self._member.eof:
                return
            chunk = self._member.unused_data
            self._member, self._in_member = _decompressor(self._kind), False

    def _pieces(self, chunk: bytes) -> Iterator[bytes]:
        piece = self._member.decompress(chunk, _PIECE_BYTES)
        while piece:
            self._num_out += len(piece)
            most = largest_content(self._num_in)
            if self._num_out > most:
                raise ArchiveError(self._kind, most=most)
            yield piece
            if self._member.eof:
                return
            rest = self._member.unconsumed_tail if self._kind == "gzip" else b""
            piece = self._member.decompress(rest, _PIECE_BYTES)

    def finish(self) -> None:
        """Check that the archive is complete after its last chunk.

        Raises ArchiveError if the end of the archive is missing.
        """
        if self._in_member:
            raise ArchiveError(self._kind, "it ends early", is_cut=True)


def _decompressor(kind: str) -> Any:
    if kind == "gzip":
        return zlib.decompressobj(zlib.MAX_WBITS | 16)
    return bz2.BZ2Decompressor() if kind == "bzip2" else lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=256 << 20)
