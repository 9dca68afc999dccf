"""Open the file of a trace, compressed or not, and give its contents in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.logs.archives import Unpacker, kind_of

_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 4096


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the contents of a file, unpacked. Raises ArchiveError if an archive is damaged, OSError."""
    with path.open("rb") as file:
        first = file.read(_PIECE_BYTES)
        kind = kind_of(first)
        unpacker = Unpacker(kind) if kind else None
        while first:
            if unpacker is None:
                yield first
            else:
                yield from unpacker.feed(first)
            first = file.read(_PIECE_BYTES)
        if unpacker is not None:
            unpacker.finish()


def head(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked. Raises ArchiveError, OSError."""
    found = b""
    for piece in pieces(path):
        found += piece
        if len(found) >= _HEAD_BYTES:
            break
    return found[:_HEAD_BYTES]
