"""Read protobuf messages without their schema. Only a few numbers and texts of known fields are needed.

The protobuf format has only varints, fixed-size numbers and lengths. A reader of this format is therefore smaller than
a library with generated code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bench.logs.traces._json_stream import DamagedError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MOST_VARINT_BYTES = 10
_LONGEST_MESSAGE = 1 << 26


def messages(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the messages of a file. In the file, the length of each message comes before the message.

    Raises DamagedError.
    """
    rest = b""
    for piece in pieces:
        rest += piece
        place = 0
        while (found := _length(rest, place)) is not None:
            length, begin = found
            if length > _LONGEST_MESSAGE:
                raise DamagedError(is_cut=False)
            if begin + length > len(rest):
                break
            yield rest[begin : begin + length]
            place = begin + length
        rest = rest[place:]
    if rest:
        raise DamagedError(is_cut=True)


def fields(message: bytes) -> dict[int, list[Any]]:
    """Return the values of a message by field number.

    Varints and fixed-size numbers have the type int. Other fields have the type bytes.

    Raises DamagedError.
    """
    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        value: int | bytes
        if kind == _VARINT:
            value, place = _varint(message, place)
        elif kind == _BYTES:
            length, place = _varint(message, place)
            value, place = message[place : place + length], place + length
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
            value, place = int.from_bytes(message[place : place + length], "little"), place + length
        else:
            raise DamagedError(is_cut=False)
        if place > len(message):
            raise DamagedError(is_cut=False)
        found.setdefault(key >> 3, []).append(value)
    return found


def signed(value: int) -> int:
    """Return the signed number of an int32 or int64 field."""
    return value - (1 << 64) if value >> 63 else value


def _length(data: bytes, place: int) -> tuple[int, int] | None:
    """Return a length and the position after the length. Return None if the data end within the length."""
    ends = next((at for at in range(place, min(place + _MOST_VARINT_BYTES, len(data))) if data[at] < 0x80), None)
    if ends is None and len(data) - place < _MOST_VARINT_BYTES:
        return None
    return _varint(data, place)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[place : place + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise DamagedError(is_cut=False)
