"""Prepare a record as a data loader does: decode, augment or tokenise the record.

The loader can do this after reading, or the records are prepared before they are written. The record that arrives in
memory has n bytes, and this record is verified. `stored` returns the form in which a record is stored. `prepare` does
the work that a data loader would do. `restore` turns the result back into the record, so that a wrong result is
detected.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from functools import cache
from string import ascii_lowercase

import numpy as np

from bench.core.payload import Bytes

_LENGTH_BYTES = 4  # size of the length in front of a compressed record
_LEVEL = 6
_MARGIN = 14  # a crop of 224 from 256 pixels leaves a margin of 1/14 of the crop on each side
_MEAN, _SCALE = np.float32(127.5), np.float32(1 / 64)  # makes the record exactly restorable in float32
_LETTERS_OF_WORD, _NUM_WORDS = 4, 1 << 16


class Preparation(ABC):
    """Converts a record to its stored form, and prepares the stored form as a data loader does.

    `stored_bytes`: the size of a record on storage.
    `result_bytes`: the size of a prepared record.
    """

    copies_only = False  # whether the result equals the stored bytes
    stored_bytes: int
    result_bytes: int

    def __init__(self, record_bytes: int) -> None:
        self.record_bytes = record_bytes

    @abstractmethod
    def stored(self, record: Bytes) -> Bytes:
        """Return the form of a record that is written to storage."""

    @abstractmethod
    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Do the work of the loader. Raises ValueError if the stored bytes are damaged."""

    @abstractmethod
    def restore(self, result: Bytes, record: Bytes) -> None:
        """Compute the record from a prepared result, and write the record to `record`."""


class AsStored(Preparation):
    """A preparation that leaves the record unchanged."""

    copies_only = True

    def __init__(self, record_bytes: int) -> None:
        super().__init__(record_bytes)
        self.stored_bytes = self.result_bytes = record_bytes

    def stored(self, record: Bytes) -> Bytes:
        """Return the record."""
        return record

    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Copy the stored bytes."""
        result[:] = stored

    def restore(self, result: Bytes, record: Bytes) -> None:
        """Copy the result."""
        record[:] = result


class Decode(Preparation):
    """Inflate an image. Each pixel of the image contains 4 bits of information.

    PNG files of photographs contain about 4 bits of information per pixel as well. A byte of the record determines two
    pixels, so the image has 2 n bytes.
    """

    def __init__(self, record_bytes: int) -> None:
        super().__init__(record_bytes)
        self.stored_bytes = _LENGTH_BYTES + record_bytes + record_bytes // 16 + 256
        self.result_bytes = 2 * record_bytes

    def stored(self, record: Bytes) -> Bytes:
        """Return the length of the compressed pixels, the pixels, and padding up to the size of all stored records."""
        pixels = np.empty(self.result_bytes, np.uint8)
        pixels[::2], pixels[1::2] = record & 0xF0, record << 4
        packer = zlib.compressobj(_LEVEL, strategy=zlib.Z_HUFFMAN_ONLY)
        packed = packer.compress(pixels.data) + packer.flush()
        padded = (len(packed).to_bytes(_LENGTH_BYTES, "little") + packed).ljust(self.stored_bytes, b"\0")
        if len(padded) > self.stored_bytes:
            raise ValueError(f"a record of {self.record_bytes} bytes does not fit into {self.stored_bytes}")
        return np.frombuffer(padded, np.uint8)

    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Inflate the stored bytes to pixels."""
        length = int.from_bytes(stored[:_LENGTH_BYTES].tobytes(), "little")
        try:
            pixels = zlib.decompress(stored[_LENGTH_BYTES : _LENGTH_BYTES + length].data)
            result[:] = np.frombuffer(pixels, np.uint8)
        except zlib.error as error:
            raise ValueError(str(error)) from None

    def restore(self, result: Bytes, record: Bytes) -> None:
        """Join two pixels to a byte."""
        np.bitwise_or(result[::2], result[1::2] >> 4, out=record)


class Augment(Preparation):
    """Crop an image with one byte per pixel, mirror the image, and normalise the pixels to float32.

    The stored image has a margin, which the crop removes. The result has 4 n bytes.
    """

    def __init__(self, record_bytes: int) -> None:
        super().__init__(record_bytes)
        width = next(side for side in range(math.isqrt(record_bytes), 0, -1) if record_bytes % side == 0)
        self._crop = (record_bytes // width, width)
        self._margin = max(1, width // _MARGIN)
        self._image = (self._crop[0] + 2 * self._margin, width + 2 * self._margin)
        self.stored_bytes = self._image[0] * self._image[1]
        self.result_bytes = 4 * record_bytes

    def stored(self, record: Bytes) -> Bytes:
        """Return the mirrored image, surrounded by its margin."""
        image = np.zeros(self._image, np.uint8)
        self._inside(image)[:] = record.reshape(self._crop)[:, ::-1]
        return image.reshape(-1)

    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Crop, mirror and normalise the image."""
        pixels = self._inside(stored.reshape(self._image))[:, ::-1]
        normal = result.view(np.float32).reshape(self._crop)
        np.subtract(pixels, _MEAN, out=normal)
        np.multiply(normal, _SCALE, out=normal)

    def restore(self, result: Bytes, record: Bytes) -> None:
        """Undo the normalisation."""
        record[:] = np.clip(result.view(np.float32) / _SCALE + _MEAN, 0, 255).astype(np.uint8)

    def _inside(self, image: Bytes) -> Bytes:
        edge = self._margin
        return image[edge : edge + self._crop[0], edge : edge + self._crop[1]]


class Tokenise(Preparation):
    """Split text at its spaces and look up each word in a vocabulary of 65,536.

    Each pair of bytes of the record selects one word.
    """

    def __init__(self, record_bytes: int) -> None:
        super().__init__(record_bytes)
        self._num_words = -(-record_bytes // 2)
        self.stored_bytes = self._num_words * (_LETTERS_OF_WORD + 1)
        self.result_bytes = 2 * self._num_words

    def stored(self, record: Bytes) -> Bytes:
        """Return the text."""
        numbers = np.zeros(self.result_bytes, np.uint8)
        numbers[: len(record)] = record
        words = list(_vocabulary())
        return np.frombuffer(b"".join(words[number] + b" " for number in numbers.view("<u2").tolist()), np.uint8)

    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Split the text and look up its words."""
        known = _vocabulary()
        try:
            result.view("<u2")[:] = [known[word] for word in stored.tobytes().split()]
        except KeyError as error:
            raise ValueError(f"{error.args[0]!r} is not in the vocabulary") from None

    def restore(self, result: Bytes, record: Bytes) -> None:
        """Copy the word numbers from `result` to `record`."""
        record[:] = result[: self.record_bytes]


class BeforeWriting(Preparation):
    """A preparation that happens before the records are written. The data loader then only reads prepared records."""

    copies_only = True

    def __init__(self, work: Preparation) -> None:
        super().__init__(work.record_bytes)
        self._work = work
        self.stored_bytes = self.result_bytes = work.result_bytes

    def stored(self, record: Bytes) -> Bytes:
        """Return the prepared record, which is written to storage instead of the original record."""
        result = np.empty(self.result_bytes, np.uint8)
        self._work.prepare(self._work.stored(record), result)
        return result

    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Copy the stored bytes."""
        result[:] = stored

    def restore(self, result: Bytes, record: Bytes) -> None:
        """Turn the result back into the record with the preparation that this object wraps."""
        self._work.restore(result, record)


def preparation(name: str, offline: bool, record_bytes: int) -> Preparation:
    """Return the preparation with this name, for records of one size."""
    kinds: dict[str, type[Preparation]] = {
        "none": AsStored,
        "decode": Decode,
        "augment": Augment,
        "tokenise": Tokenise,
    }
    work = kinds[name](record_bytes)
    return BeforeWriting(work) if offline and not work.copies_only else work


@cache
def _vocabulary() -> dict[bytes, int]:
    """Return a mapping from each word of four letters to its number.

    The order of the words is the order of their numbers.
    """
    words = {}
    for number in range(_NUM_WORDS):
        letters, rest = "", number
        for _ in range(_LETTERS_OF_WORD):
            rest, letter = divmod(rest, len(ascii_lowercase))
            letters += ascii_lowercase[letter]
        words[letters.encode()] = number
    return words
