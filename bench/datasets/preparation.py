"""What a loader does to a record after it has read it: decode, augment or tokenise, in the loader or before writing.

A record of n bytes is what arrives and is verified. `stored` gives the bytes that lie on storage for it, `prepare` is
the loader's work, and `restore` turns the result back into the record, so that a wrong result is found.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from functools import cache
from string import ascii_lowercase

import numpy as np

from bench.core.payload import Bytes

_LENGTH_BYTES = 4  # before a compressed record: its length
_LEVEL = 6
_MARGIN = 14  # a crop of 224 from 256 pixels leaves a margin of 1/14 of the crop on each side
_MEAN, _SCALE = np.float32(127.5), np.float32(1 / 64)  # exact in float32, so that the record can be restored
_LETTERS_OF_WORD, _NUM_WORDS = 4, 1 << 16


class Preparation(ABC):
    """The work on one record. `stored_bytes` and `result_bytes` of a record: on storage, and as the step takes it."""

    copies_only = False  # is the result what was stored?
    stored_bytes: int
    result_bytes: int

    def __init__(self, record_bytes: int) -> None:
        self.record_bytes = record_bytes

    @abstractmethod
    def stored(self, record: Bytes) -> Bytes:
        """Return what is written for a record."""

    @abstractmethod
    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Do the work of the loader. Raises ValueError if the stored bytes are damaged."""

    @abstractmethod
    def restore(self, result: Bytes, record: Bytes) -> None:
        """Turn a result back into its record, and write it."""


class AsStored(Preparation):
    """No work."""

    copies_only = True

    def __init__(self, record_bytes: int) -> None:
        super().__init__(record_bytes)
        self.stored_bytes = self.result_bytes = record_bytes

    def stored(self, record: Bytes) -> Bytes:
        """Return the record."""
        return record

    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Copy."""
        result[:] = stored

    def restore(self, result: Bytes, record: Bytes) -> None:
        """Copy."""
        record[:] = result


class Decode(Preparation):
    """Inflate an image. Its pixels have 4 bits of information each, as PNG files of photographs have about.

    A byte of the record is two pixels, so the image has 2 n bytes.
    """

    def __init__(self, record_bytes: int) -> None:
        super().__init__(record_bytes)
        self.stored_bytes = _LENGTH_BYTES + record_bytes + record_bytes // 16 + 256
        self.result_bytes = 2 * record_bytes

    def stored(self, record: Bytes) -> Bytes:
        """Return the length of the compressed pixels, these, and padding up to the size that all records have."""
        pixels = np.empty(self.result_bytes, np.uint8)
        pixels[::2], pixels[1::2] = record & 0xF0, record << 4
        packer = zlib.compressobj(_LEVEL, strategy=zlib.Z_HUFFMAN_ONLY)
        packed = packer.compress(pixels.data) + packer.flush()
        padded = (len(packed).to_bytes(_LENGTH_BYTES, "little") + packed).ljust(self.stored_bytes, b"\0")
        if len(padded) > self.stored_bytes:
            raise ValueError(f"a record of {self.record_bytes} bytes does not fit into {self.stored_bytes}")
        return np.frombuffer(padded, np.uint8)

    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Inflate."""
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
    """Crop an image of bytes, mirror it and normalise it to float32: 4 n bytes from an image with a margin."""

    def __init__(self, record_bytes: int) -> None:
        super().__init__(record_bytes)
        width = next(side for side in range(math.isqrt(record_bytes), 0, -1) if record_bytes % side == 0)
        self._crop = (record_bytes // width, width)
        self._margin = max(1, width // _MARGIN)
        self._image = (self._crop[0] + 2 * self._margin, width + 2 * self._margin)
        self.stored_bytes = self._image[0] * self._image[1]
        self.result_bytes = 4 * record_bytes

    def stored(self, record: Bytes) -> Bytes:
        """Return the mirrored image with its margin."""
        image = np.zeros(self._image, np.uint8)
        self._inside(image)[:] = record.reshape(self._crop)[:, ::-1]
        return image.reshape(-1)

    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Crop, mirror, normalise."""
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
    """Split text at its spaces and look each word up in a vocabulary of 65,536: two bytes of the record are a word."""

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
        """Split and look up."""
        known = _vocabulary()
        try:
            result.view("<u2")[:] = [known[word] for word in stored.tobytes().split()]
        except KeyError as error:
            raise ValueError(f"{error.args[0]!r} is not in the vocabulary") from None

    def restore(self, result: Bytes, record: Bytes) -> None:
        """Copy the numbers of the words."""
        record[:] = result[: self.record_bytes]


class BeforeWriting(Preparation):
    """Another preparation, done before the records were written: the loader only reads the results."""

    copies_only = True

    def __init__(self, work: Preparation) -> None:
        super().__init__(work.record_bytes)
        self._work = work
        self.stored_bytes = self.result_bytes = work.result_bytes

    def stored(self, record: Bytes) -> Bytes:
        """Return the result."""
        result = np.empty(self.result_bytes, np.uint8)
        self._work.prepare(self._work.stored(record), result)
        return result

    def prepare(self, stored: Bytes, result: Bytes) -> None:
        """Copy."""
        result[:] = stored

    def restore(self, result: Bytes, record: Bytes) -> None:
        """Restore as the preparation itself does."""
        self._work.restore(result, record)


def preparation(name: str, offline: bool, record_bytes: int) -> Preparation:
    """Return the preparation of this name for records of one size."""
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
    """Return the number of each word of four letters, in the order of the numbers."""
    words = {}
    for number in range(_NUM_WORDS):
        letters, rest = "", number
        for _ in range(_LETTERS_OF_WORD):
            rest, letter = divmod(rest, len(ascii_lowercase))
            letters += ascii_lowercase[letter]
        words[letters.encode()] = number
    return words
