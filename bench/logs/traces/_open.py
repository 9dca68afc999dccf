"""Open a trace file, compressed or not, and yield its contents in pieces."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.core.codes import Coded
from bench.logs.archives import ArchiveError, Unpacker, kind_of

_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 4096


@dataclass
class NoTraceError(Exception):
    """The error for a file that only looks like a trace. remark: the reason, with the fact `source`."""

    remark: Coded


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the contents of a file, unpacked. Raises OSError, or ArchiveError if an archive is damaged."""
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
    """Return the first bytes of a file, unpacked. Raises ArchiveError or OSError."""
    found = b""
    try:
        for piece in pieces(path):
            found += piece
            if len(found) >= _HEAD_BYTES:
                break
    except ArchiveError:
        if not found:
            raise
    return found[:_HEAD_BYTES]


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield the path of the file, or of a temporary unpacked copy if it is compressed.

    Raises ArchiveError or OSError.
    """
    with path.open("rb") as file:
        kind = kind_of(file.read(16))
    if kind is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="linkbench-") as folder:
        copy = Path(folder) / "trace"
        with copy.open("wb") as file:
            for piece in pieces(path):
                file.write(piece)
        yield copy
